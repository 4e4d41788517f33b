// SPDX-License-Identifier: Apache-2.0
//! Links an object with `aya-obj`: appends to each program the functions it calls, and lists the
//! instructions that only a start can complete.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use aya_obj::programs::CgroupSockAddrAttachType;
use aya_obj::{Object, ProgramSection};
use object::{Object as _, ObjectSymbol as _};

use crate::btf::Btf;

/// `BPF_LD | BPF_IMM | BPF_DW`: a wide load, of two instructions' length.
const LOAD_WIDE: u8 = 0x18;
/// Sources of a wide load: `BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`.
const OF_MAP: u8 = 1;
const OF_MAP_VALUE: u8 = 2;

/// `BPF_MAP_TYPE_SK_STORAGE`
const MAP_OF_SOCKETS: u32 = 24;
/// Prefix of the names of settings, which an object declares as maps without a type.
const SETTING: &str = "setting_";
/// The section of the variables without an initial value, and the name of the map for it.
const ZEROES: &str = ".bss";
const VARIABLES: &str = "variables";

/// An object.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) license: String,
    /// The type information that the kernel needs.
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
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
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

/// Links an object.
pub(crate) fn link(name: &str, file: &[u8]) -> Result<(Linked, Btf)> {
    // Before the relocations, which pass over what nothing defines.
    defined(file).with_context(|| format!("link {name}"))?;
    let mut object = Object::parse(file).with_context(|| format!("read {name}"))?;
    let btf = object.btf.as_ref().context("no type information")?;
    let btf = Btf::read(&btf.to_bytes()).context("read its types")?;
    let (mut maps, settings) = maps(&object)?;
    relocate(&mut object, &maps, &settings).with_context(|| format!("link {name}"))?;
    let mut programs = Vec::new();
    for (name, program) in &object.programs {
        let function = &object.functions[&program.function_key()];
        let (kind, attach) = types(&program.section).with_context(|| name.clone())?;
        let instructions: Vec<u64> = function.instructions.iter().map(number).collect();
        let functions = function.func_info.func_info.iter();
        programs.push(Program {
            name: name.clone(),
            kind: kind as u32,
            attach: attach.map_or(0, |attach| attach as u32),
            uses: uses(&instructions, maps.len())?,
            instructions,
            functions: functions
                .map(|info| (info.insn_off as usize, info.type_id as usize))
                .collect(),
        });
    }
    // The tables of `aya-obj` have a random order; a build must give the same bytes each time.
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    let reduced = reduce(&btf, &mut maps, &mut programs)?;
    let linked = Linked {
        license: object.license.into_string()?,
        btf: reduced,
        maps,
        settings,
        programs,
    };
    Ok((linked, btf))
}

/// Fails for a symbol that the object uses and does not define: `aya-obj` would leave zeros.
fn defined(file: &[u8]) -> Result<()> {
    let file = object::File::parse(file)?;
    let mut symbols = file.symbols();
    match symbols.find(|symbol| symbol.is_undefined() && symbol.name() != Ok("")) {
        Some(symbol) => bail!("nothing defines `{}`", symbol.name()?),
        None => Ok(()),
    }
}

/// The maps in the order of their names, the one of the variables last, and the names of the
/// settings.
fn maps(object: &Object) -> Result<(Vec<Map>, Vec<String>)> {
    let (mut maps, mut settings) = (Vec::new(), Vec::new());
    for (name, map) in &object.maps {
        if let Some(setting) = name.strip_prefix(SETTING) {
            settings.push(setting.to_owned());
            continue;
        }
        let types = match map {
            aya_obj::Map::Btf(map) if map.def.btf_key_type_id != 0 => {
                [map.def.btf_key_type_id, map.def.btf_value_type_id]
            }
            _ => [0; 2],
        };
        // The loader makes a map of zeros for variables, and nothing would copy the values there.
        if name.starts_with('.') && name != ZEROES {
            bail!("variables in {name}: constants and initial values are not supported");
        }
        maps.push(Map {
            name: if name == ZEROES { VARIABLES } else { name }.to_owned(),
            kind: map.map_type(),
            key_bytes: map.key_size(),
            value_bytes: map.value_size(),
            entries: map.max_entries(),
            flags: map.map_flags(),
            // The kernel wants types for this kind of map, and refuses them for some others.
            types: types.map(|id| {
                if map.map_type() == MAP_OF_SOCKETS {
                    id as usize
                } else {
                    0
                }
            }),
        });
    }
    // `aya-obj` lists them in a random order, and the numbers of maps must not depend on it.
    maps.sort_by_key(|map| (map.name == VARIABLES, map.name.clone()));
    settings.sort();
    Ok((maps, settings))
}

/// Appends the called functions to each program, and writes numbers into the wide loads, where
/// `aya-obj` expects descriptors: first those of the maps, then those of the settings.
fn relocate(object: &mut Object, maps: &[Map], settings: &[String]) -> Result<()> {
    let code: HashSet<usize> = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let declared = object.maps.clone();
    let names = maps.iter().map(|map| match map.name.as_str() {
        VARIABLES => ZEROES.to_owned(),
        name => name.to_owned(),
    });
    let names = names.chain(settings.iter().map(|name| format!("{SETTING}{name}")));
    let names: Vec<String> = names.collect();
    let numbered = (0..).zip(&names);
    let numbered = numbered.map(|(number, name)| (name.as_str(), number, &declared[name]));
    // Before the calls: functions are copied behind each caller with their loads complete.
    object.relocate_maps(numbered, &code)?;
    object.relocate_calls(&code)?;
    Ok(())
}

/// The type of a program in the kernel, and its attach type if the kernel checks it at the load.
fn types(section: &ProgramSection) -> Result<(bpf_prog_type, Option<bpf_attach_type>)> {
    use bpf_prog_type::{
        BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_SK_LOOKUP,
        BPF_PROG_TYPE_SOCK_OPS, BPF_PROG_TYPE_STRUCT_OPS,
    };
    Ok(match section {
        // `aya-obj` knows no section for functions of the kernel's structures. They get their
        // arguments as programs at the entry of functions do, of which this project has none.
        ProgramSection::FEntry { sleepable: false } => (BPF_PROG_TYPE_STRUCT_OPS, None),
        // Kernels before 6.6 have no attach types for tc.
        ProgramSection::SchedClassifier => (BPF_PROG_TYPE_SCHED_CLS, None),
        ProgramSection::SockOps => (
            BPF_PROG_TYPE_SOCK_OPS,
            Some(bpf_attach_type::BPF_CGROUP_SOCK_OPS),
        ),
        ProgramSection::SkLookup => (
            BPF_PROG_TYPE_SK_LOOKUP,
            Some(bpf_attach_type::BPF_SK_LOOKUP),
        ),
        ProgramSection::CgroupSockAddr { attach_type } => {
            let attach_type: CgroupSockAddrAttachType = *attach_type;
            (BPF_PROG_TYPE_CGROUP_SOCK_ADDR, Some(attach_type.into()))
        }
        other => bail!("a program in {other:?}"),
    })
}

/// An instruction as the kernel reads it: opcode, registers, offset, immediate.
fn number(instruction: &bpf_insn) -> u64 {
    // struct bpf_insn has the destination in the low half of the byte (linux/bpf.h).
    let registers = instruction.dst_reg() | instruction.src_reg() << 4;
    u64::from(instruction.code)
        | u64::from(registers) << 8
        | u64::from(instruction.off.cast_unsigned()) << 16
        | u64::from(instruction.imm.cast_unsigned()) << 32
}

/// The wide loads of numbers from [`relocate`], of which the first `maps` are those of maps.
fn uses(instructions: &[u64], maps: usize) -> Result<Vec<(usize, Use)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < instructions.len() {
        let [code, registers, ..] = instructions[at].to_le_bytes();
        if code != LOAD_WIDE {
            at += 1;
            continue;
        }
        let number = usize::try_from(instructions[at] >> 32)?;
        match registers >> 4 {
            OF_MAP if number < maps => found.push((at, Use::Map(number))),
            OF_MAP => found.push((at, Use::Setting(number - maps))),
            OF_MAP_VALUE => {
                // The immediate of the second half is the offset into the value.
                let offset = usize::try_from(instructions[at + 1] >> 32)?;
                found.push((at, Use::Variable(number, offset)));
            }
            // A number of 64 bits.
            _ => (),
        }
        // The second half of a wide load is no instruction.
        at += 2;
    }
    Ok(found)
}

/// The type information that the kernel needs, with the numbers of its types in place of those in
/// the object: a twentieth of it all, which the kernel would check at every start.
fn reduce(btf: &Btf, maps: &mut [Map], programs: &mut [Program]) -> Result<Vec<u8>> {
    let of_functions = programs
        .iter_mut()
        .flat_map(|program| &mut program.functions);
    let of_functions = of_functions.map(|(_, id)| id);
    let of_maps = maps.iter_mut().flat_map(|map| &mut map.types);
    let mut ids: Vec<&mut usize> = of_functions.chain(of_maps).collect();
    let wanted: Vec<usize> = ids.iter().map(|id| **id).collect();
    let (reduced, numbers) = btf.reduced(&wanted)?;
    for id in &mut ids {
        **id = numbers.get(*id).copied().unwrap_or(0);
    }
    Ok(reduced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled;

    /// `BPF_JMP | BPF_CALL`; sources of a call and a wide load: `BPF_PSEUDO_CALL`,
    /// `BPF_PSEUDO_FUNC`.
    const CALL: u8 = 0x85;
    const OF_FUNCTION: u8 = 1;
    const ADDRESS_OF_FUNCTION: u8 = 4;

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
        struct { int (*type)[0]; } setting_limit __attribute__((section(".maps"), used));
        static void *(*const look_up)(void *, const void *) = (void *)1;
        static long (*const loop)(unsigned, void *, void *, unsigned long long) = (void *)181;
        static long each(unsigned index, void *context) { return index > 3; }
        __attribute__((noinline)) int inner(unsigned number) { return number * variable; }
        __attribute__((noinline)) int twice(unsigned number) { return inner(number) + before; }
        __attribute__((section("classifier"), used)) int first(struct __sk_buff *skb) { return 1; }
        __attribute__((section("classifier"), used)) int second(struct __sk_buff *skb)
        {
            unsigned key = twice(skb->len) + (unsigned)(unsigned long)&setting_limit;

            loop(4, each, 0, 0);
            return twice(skb->mark) + !!look_up(&pairs, &key);
        }
        char LICENSE[] __attribute__((section("license"), used)) = "GPL";
    "#;

    fn linked(name: &str) -> Linked {
        link(name, &compiled(name, SOURCE)).unwrap().0
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
            let source = format!(
                "{source}\nchar LICENSE[] __attribute__((section(\"license\"), used)) = \"GPL\";"
            );
            format!(
                "{:#}",
                link("refused", &compiled("refused", &source)).unwrap_err()
            )
        };
        let program = "__attribute__((section(\"classifier\"))) int program(void *skb)";
        let error = refused(&format!(
            "volatile int start = 5; {program} {{ return start; }}"
        ));
        assert!(error.contains("variables in .data"), "{error}");
        let error = refused(&format!("extern int other; {program} {{ return other; }}"));
        assert!(error.contains("nothing defines `other`"), "{error}");
        let error = refused(&format!(
            "{} {{ return 0; }}",
            program.replace("classifier", "xdp")
        ));
        assert!(error.contains("a program in Xdp"), "{error}");
    }
}
