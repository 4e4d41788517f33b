// SPDX-License-Identifier: Apache-2.0
//! Makes of an object what the kernel is given: each program with all the
//! functions it calls behind it, and a list of what only a start can fill in.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail, ensure};

use crate::btf::{self, Btf, PTR};
use crate::elf::{Elf, Symbol};

const INSTRUCTION_BYTES: usize = 8;
/// `BPF_JMP | BPF_CALL` and `BPF_LD | BPF_IMM | BPF_DW`, the latter of two
/// instructions' length.
const CALL: u8 = 0x85;
const LOAD_WIDE: u8 = 0x18;
/// Sources of a call or a wide load: `BPF_PSEUDO_CALL`, `BPF_PSEUDO_FUNC`.
const OF_FUNCTION: u8 = 1;
const ADDRESS_OF_FUNCTION: u8 = 4;

/// Program types and attach types of the kernel, by section.
const SECTIONS: [(&str, u32, u32); 9] = [
    ("cgroup/connect4", 18, 10),
    ("cgroup/connect6", 18, 11),
    ("cgroup/getpeername4", 18, 29),
    ("cgroup/getpeername6", 18, 30),
    ("tcx/ingress", 3, 46),
    ("tcx/egress", 3, 47),
    ("tc", 3, 0),
    ("sockops", 13, 3),
    ("sk_lookup", 30, 36),
];
/// `BPF_MAP_TYPE_ARRAY`, `BPF_MAP_TYPE_SK_STORAGE`
const MAP_ARRAY: usize = 2;
const MAP_OF_SOCKETS: usize = 24;
/// What the names of such constants begin with.
const SETTING: &str = "setting_";
/// The map that holds the variables.
const VARIABLES: &str = "variables";

/// An object.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) license: String,
    /// What the kernel needs to know of types.
    pub(crate) btf: Vec<u8>,
    pub(crate) maps: Vec<Map>,
    /// Names of the constants that a start sets.
    pub(crate) settings: Vec<String>,
    pub(crate) programs: Vec<Program>,
}

/// How to make a map.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) name: String,
    pub(crate) kind: usize,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) entries: usize,
    pub(crate) flags: usize,
    /// Numbers of the types of key and value, for a kind of map that the kernel
    /// makes only with them; else zeros.
    pub(crate) types: [usize; 2],
}

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) attach: u32,
    pub(crate) instructions: Vec<u64>,
    /// Instructions to fill in.
    pub(crate) uses: Vec<(usize, Use)>,
    /// Where functions begin, and the numbers of their types.
    pub(crate) functions: Vec<(usize, usize)>,
}

/// What a wide load loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The map of this number.
    Map(usize),
    /// The address this far into the value of the map of this number.
    Variable(usize, usize),
    /// The constant of this number.
    Setting(usize),
}

/// Where a function is: section, and bytes into it.
type Place = (usize, usize);

/// An object while it is linked.
struct Linker<'a> {
    elf: &'a Elf,
    /// Every function, and its length in bytes.
    lengths: HashMap<Place, usize>,
    /// The type of every function.
    types: HashMap<Place, usize>,
    maps: Vec<Map>,
    settings: Vec<String>,
}

pub(crate) fn link(elf: &Elf, btf: &Btf) -> Result<Linked> {
    let types = types_of_functions(elf)?;
    let mut maps = maps(elf, btf)?;
    let of_maps = maps.iter().flat_map(|map| map.types);
    let ids: Vec<usize> = types.values().copied().chain(of_maps).collect();
    let (reduced, numbers) = btf.reduced(&ids)?;
    for id in maps.iter_mut().flat_map(|map| &mut map.types) {
        *id = numbers.get(id).copied().unwrap_or(0);
    }
    let types = types.into_iter().map(|(place, id)| (place, numbers[&id]));
    let functions = elf.symbols.iter().filter(|symbol| symbol.function);
    let mut linker = Linker {
        elf,
        lengths: functions.map(|f| ((f.section, f.value), f.bytes)).collect(),
        types: types.collect(),
        maps,
        settings: settings(elf),
    };
    let mut programs = Vec::new();
    for symbol in elf.symbols.iter().filter(|symbol| symbol.function) {
        if elf.sections[symbol.section].name != ".text" {
            programs.push(linker.program(symbol)?);
        }
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    let license = elf.section("license")?.data.split(|byte| *byte == 0).next();
    Ok(Linked {
        license: String::from_utf8(license.unwrap_or_default().to_vec())?,
        btf: reduced,
        maps: linker.maps,
        settings: linker.settings,
        programs,
    })
}

fn types_of_functions(elf: &Elf) -> Result<BTreeMap<Place, usize>> {
    let found = btf::functions(&elf.section(".BTF.ext")?.data, &elf.section(".BTF")?.data)?;
    let each = found.into_iter().map(|(section, at, id)| {
        let index = elf.sections.iter().position(|each| each.name == section);
        Ok(((index.context("types of no section")?, at), id))
    });
    each.collect()
}

/// The maps, in the order of their names, and one for variables if there are
/// any.
fn maps(elf: &Elf, btf: &Btf) -> Result<Vec<Map>> {
    let section = elf.sections.iter().position(|each| each.name == ".maps");
    let symbols = elf.symbols.iter();
    let symbols = symbols.filter(|symbol| Some(symbol.section) == section && symbol.bytes > 0);
    let mut maps = Vec::new();
    for symbol in symbols {
        maps.push(map(&symbol.name, btf)?);
    }
    maps.sort_by(|a, b| a.name.cmp(&b.name));
    if let Ok(zeroes) = elf.section(".bss") {
        maps.push(Map {
            name: VARIABLES.to_owned(),
            kind: MAP_ARRAY,
            key_bytes: 4,
            value_bytes: zeroes.data.len(),
            entries: 1,
            flags: 0,
            types: [0; 2],
        });
    }
    Ok(maps)
}

/// A map is declared as a structure of pointers: to an array as long as a
/// number says, or to a type.
fn map(name: &str, btf: &Btf) -> Result<Map> {
    let mut map = Map {
        name: name.to_owned(),
        kind: 0,
        key_bytes: 0,
        value_bytes: 0,
        entries: 0,
        flags: 0,
        types: [0; 2],
    };
    for member in &btf.variable(name)?.members {
        let pointer = btf.plain(member.of)?;
        ensure!(
            pointer.kind == PTR,
            "map {name}: {} is no pointer",
            member.name
        );
        let of = pointer.size_or_type;
        let number = || btf.plain(of).map(|array| array.extra.get(2).copied());
        let number = || number()?.context("a number is an array");
        match member.name.as_str() {
            "type" => map.kind = number()?,
            "max_entries" => map.entries = number()?,
            "map_flags" => map.flags = number()?,
            "key" => (map.key_bytes, map.types[0]) = (btf.bytes(of)?, of),
            "value" => (map.value_bytes, map.types[1]) = (btf.bytes(of)?, of),
            other => bail!("map {name}: {other} is unheard of"),
        }
    }
    if map.kind != MAP_OF_SOCKETS {
        map.types = [0; 2];
    }
    Ok(map)
}

/// The constants that the object uses and does not have.
fn settings(elf: &Elf) -> Vec<String> {
    let absent = elf.symbols.iter().filter(|symbol| symbol.section == 0);
    let names = absent.filter_map(|symbol| symbol.name.strip_prefix(SETTING));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

impl Linker<'_> {
    fn program(&mut self, symbol: &Symbol) -> Result<Program> {
        let section = &self.elf.sections[symbol.section].name;
        let known = SECTIONS.iter().find(|(name, ..)| name == section);
        let (_, kind, attach) = known.with_context(|| format!("a program in {section}"))?;
        let mut program = Program {
            name: symbol.name.clone(),
            kind: *kind,
            attach: *attach,
            instructions: Vec::new(),
            uses: Vec::new(),
            functions: Vec::new(),
        };
        // Functions found while others are laid down are laid down after them.
        let mut starts: Vec<(Place, usize)> = vec![((symbol.section, symbol.value), 0)];
        let mut calls = Vec::new();
        let mut next = 0;
        while let Some((place, start)) = starts.get_mut(next) {
            *start = program.instructions.len();
            let place = *place;
            for (at, callee) in self.lay_down(place, &mut program)? {
                if !starts.iter().any(|(known, _)| *known == callee) {
                    starts.push((callee, 0));
                }
                calls.push((at, callee));
            }
            next += 1;
        }
        let starts: HashMap<Place, usize> = starts.into_iter().collect();
        for (at, callee) in calls {
            let distance = starts[&callee].cast_signed() - at.cast_signed() - 1;
            let distance = i32::try_from(distance)?.cast_unsigned();
            let instruction = &mut program.instructions[at];
            *instruction = *instruction & 0xffff_ffff | u64::from(distance) << 32;
        }
        Ok(program)
    }

    /// Adds a function to a program. Returns which of its instructions refer
    /// to which functions.
    fn lay_down(&self, place: Place, program: &mut Program) -> Result<Vec<(usize, Place)>> {
        let (section, from) = place;
        let section = &self.elf.sections[section];
        let bytes = self.lengths.get(&place).context("a call into nowhere")?;
        let code = section.data.get(from..from + bytes);
        let code = code.context("a function beyond its section")?;
        let start = program.instructions.len();
        if let Some(id) = self.types.get(&place) {
            program.functions.push((start, *id));
        }
        let each = code.as_chunks::<INSTRUCTION_BYTES>().0;
        program
            .instructions
            .extend(each.iter().map(|raw| u64::from_le_bytes(*raw)));
        let mut callees = Vec::new();
        let mut wide = false;
        for index in 0..each.len() {
            // The second half of a wide load is no instruction.
            if std::mem::take(&mut wide) {
                continue;
            }
            let at = start + index;
            let from = from + index * INSTRUCTION_BYTES;
            wide = (program.instructions[at] & 0xff) == u64::from(LOAD_WIDE);
            if let Some(callee) = self.refer(place.0, from, at, program)? {
                callees.push((at, callee));
            }
        }
        Ok(callees)
    }

    /// Sees what the instruction at `at`, which was at byte `from` of its
    /// section, refers to: a function is returned, anything else noted.
    fn refer(
        &self,
        section: usize,
        from: usize,
        at: usize,
        program: &mut Program,
    ) -> Result<Option<Place>> {
        let instruction = program.instructions[at];
        let [code, registers, ..] = instruction.to_le_bytes();
        let immediate = i32::try_from(instruction.cast_signed() >> 32)?;
        let relocations = &self.elf.sections[section].relocations;
        let relocation = relocations.iter().find(|relocation| relocation.at == from);
        let symbol = relocation.map(|relocation| &self.elf.symbols[relocation.symbol]);
        match (code, symbol) {
            (CALL, None) if registers >> 4 == OF_FUNCTION => {
                Ok(Some((section, past(from + INSTRUCTION_BYTES, immediate)?)))
            }
            (CALL, Some(symbol)) => {
                let base = symbol.value + INSTRUCTION_BYTES;
                Ok(Some((symbol.section, past(base, immediate)?)))
            }
            (LOAD_WIDE, Some(symbol)) if self.elf.sections[symbol.section].executable => {
                set_source(&mut program.instructions[at], ADDRESS_OF_FUNCTION);
                let place = symbol.value + usize::try_from(immediate)?;
                Ok(Some((symbol.section, place)))
            }
            (LOAD_WIDE, Some(symbol)) => {
                let used = self.used(symbol, usize::try_from(immediate)?)?;
                program.uses.push((at, used));
                Ok(None)
            }
            (_, Some(symbol)) => bail!("`{}` used by instruction {code:#x}", symbol.name),
            (_, None) => Ok(None),
        }
    }

    fn used(&self, symbol: &Symbol, addend: usize) -> Result<Use> {
        let map = |name: &str| {
            let found = self.maps.iter().position(|map| map.name == name);
            found.with_context(|| format!("no map {name}"))
        };
        if symbol.section == 0 {
            let name = symbol.name.strip_prefix(SETTING);
            let found = self
                .settings
                .iter()
                .position(|known| Some(known.as_str()) == name);
            let found = found.with_context(|| format!("nothing defines `{}`", symbol.name))?;
            return Ok(Use::Setting(found));
        }
        match self.elf.sections[symbol.section].name.as_str() {
            ".maps" => Ok(Use::Map(map(&symbol.name)?)),
            ".bss" => Ok(Use::Variable(map(VARIABLES)?, symbol.value + addend)),
            other => bail!(
                "`{}` is in {other}: constants and initial values are not supported",
                symbol.name
            ),
        }
    }
}

/// The byte so many instructions past another.
fn past(base: usize, instructions: i32) -> Result<usize> {
    let bytes = isize::try_from(instructions)? * INSTRUCTION_BYTES.cast_signed();
    base.checked_add_signed(bytes)
        .context("a call to before the section")
}

fn set_source(instruction: &mut u64, source: u8) {
    *instruction = *instruction & !0xf000 | u64::from(source) << 12;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled;

    /// A program that calls `twice` two times and hands `each` to a helper, a
    /// map, a variable and a setting.
    const SOURCE: &str = r#"
        struct __sk_buff { unsigned len, pkt_type, mark; };
        struct {
            int (*type)[1];
            int (*max_entries)[7];
            unsigned *key;
            unsigned long long *value;
        } pairs __attribute__((section(".maps"), used));
        volatile unsigned before, variable;
        extern const char setting_limit[];
        static void *(*const look_up)(void *, const void *) = (void *)1;
        static long (*const loop)(unsigned, void *, void *, unsigned long long) = (void *)181;
        static long each(unsigned index, void *context) { return index > 3; }
        __attribute__((noinline)) int inner(unsigned number) { return number * variable; }
        __attribute__((noinline)) int twice(unsigned number) { return inner(number) + before; }
        __attribute__((section("tc"), used)) int first(struct __sk_buff *skb) { return 1; }
        __attribute__((section("tc"), used)) int second(struct __sk_buff *skb)
        {
            unsigned key = twice(skb->len) + (unsigned)(unsigned long)setting_limit;

            loop(4, each, 0, 0);
            return twice(skb->mark) + !!look_up(&pairs, &key);
        }
        char LICENSE[] __attribute__((section("license"), used)) = "GPL";
    "#;

    fn linked(name: &str) -> Linked {
        let elf = Elf::read(&compiled(name, SOURCE)).unwrap();
        let btf = Btf::read(&elf.section(".BTF").unwrap().data).unwrap();
        link(&elf, &btf).unwrap()
    }

    #[test]
    fn placement_of_maps_and_settings() {
        let linked = linked("places");
        let maps: Vec<_> = linked.maps.iter().map(|map| map.name.as_str()).collect();
        assert_eq!(maps, ["pairs", "variables"]);
        let pairs = &linked.maps[0];
        assert_eq!((pairs.kind, pairs.entries, pairs.flags), (1, 7, 0));
        assert_eq!((pairs.key_bytes, pairs.value_bytes), (4, 8));
        assert_eq!(linked.maps[1].value_bytes, 8);
        assert_eq!(linked.settings, ["limit"]);
        assert_eq!(linked.license, "GPL");
        let used: Vec<_> = linked.programs[1]
            .uses
            .iter()
            .map(|(_, used)| *used)
            .collect();
        assert!(
            used.contains(&Use::Map(0)) && used.contains(&Use::Setting(0)),
            "{used:?}"
        );
        assert!(used.contains(&Use::Variable(1, 0)) && used.contains(&Use::Variable(1, 4)));
    }

    #[test]
    fn callees_follow_once() {
        let linked = linked("calls");
        let [first, second] = linked.programs.as_slice() else {
            panic!("two programs");
        };
        assert_eq!(
            (first.name.as_str(), first.instructions.len()),
            ("first", 2)
        );
        let starts: Vec<usize> = second.functions.iter().map(|(at, _)| *at).collect();
        assert_eq!(starts.len(), 4, "itself, twice, each, inner");
        let mut called = Vec::new();
        for (at, instruction) in (0_i64..).zip(&second.instructions) {
            let [code, registers, ..] = instruction.to_le_bytes();
            if (code, registers >> 4) == (CALL, OF_FUNCTION)
                || (code, registers >> 4) == (LOAD_WIDE, ADDRESS_OF_FUNCTION)
            {
                called.push(usize::try_from(at + 1 + (instruction.cast_signed() >> 32)).unwrap());
            }
        }
        assert_eq!(called.len(), 4);
        assert!(
            called.iter().all(|target| starts.contains(target)),
            "{called:?} {starts:?}"
        );
        assert!(starts[1..].iter().all(|start| called.contains(start)));
    }

    #[test]
    fn unresolved_symbols_refused() {
        let refused = |source: &str| {
            let source =
                format!("{source}\nchar LICENSE[] __attribute__((section(\"license\"))) = \"\";");
            let elf = Elf::read(&compiled("refused", &source)).unwrap();
            let btf = Btf::read(&elf.section(".BTF").unwrap().data).unwrap();
            format!("{:#}", link(&elf, &btf).unwrap_err())
        };
        let program = "__attribute__((section(\"tc\"))) int program(void *skb)";
        let error = refused(&format!(
            "volatile int start = 5; {program} {{ return start; }}"
        ));
        assert!(error.contains("`start` is in .data"), "{error}");
        let error = refused(&format!("extern int other; {program} {{ return other; }}"));
        assert!(error.contains("nothing defines `other`"), "{error}");
        let error = refused(&format!("{} {{ return 0; }}", program.replace("tc", "xdp")));
        assert!(error.contains("a program in xdp"), "{error}");
    }
}
