// SPDX-License-Identifier: Apache-2.0
//! Loads the output of `posthaste-bpf-build`: creates maps, fills in map descriptors and settings,
//! and loads the programs into the kernel.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::Error;
use crate::sys::{self, Code, MapLayout};

/// Bytes of a verifier log: more than any program needs.
const LOG_BYTES: usize = 4 << 20;
/// Number of its last lines in an error: the instruction, the register state, and the complaint.
const LOG_LINES: usize = 6;

/// Sources of a wide load: `BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`.
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;

/// An object as written by the build.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) license: &'static CStr,
    pub(crate) btf: &'static [u8],
    pub(crate) maps: &'static [MapSpec],
    pub(crate) programs: &'static [ProgramSpec],
}

/// A map to create.
#[derive(Debug)]
pub(crate) struct MapSpec {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    /// Types of key and value in [`Object::btf`], for map types that require them; else zeros.
    pub(crate) types: [u32; 2],
}

/// A program to load.
#[derive(Debug)]
pub(crate) struct ProgramSpec {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    pub(crate) attach: u32,
    pub(crate) instructions: &'static [u64],
    /// Wide loads to fill in.
    pub(crate) uses: &'static [(usize, Use)],
    /// Offsets of the functions, and their types in the object's BTF.
    pub(crate) functions: &'static [[u32; 2]],
}

/// The operand of a wide load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// The map with this index.
    Map(usize),
    /// An offset into the first value of the map with this index.
    Variable(usize, u32),
    /// The setting with this index.
    Setting(usize),
}

/// A map in the kernel.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    name: &'static str,
    key_bytes: usize,
    value_bytes: usize,
}

/// A program in the kernel.
#[derive(Debug)]
pub(crate) struct Program {
    fd: OwnedFd,
    pub(crate) name: &'static str,
}

impl Object {
    /// Creates a map of this object, with `entries` entries instead of the declared number if
    /// given.
    pub(crate) fn make(&self, map: usize, entries: Option<u32>) -> Result<Arc<Map>, Error> {
        Map::make(&self.maps[map], entries, None)
    }

    /// A map of this object that exists already.
    pub(crate) fn adopt(&self, map: usize, fd: OwnedFd) -> Arc<Map> {
        let spec = &self.maps[map];
        Map::wrap(spec.name, spec.layout(), Ok(fd)).expect("it exists")
    }

    /// Creates a map of a type that requires BTF.
    pub(crate) fn make_typed(&self, map: usize, types: &OwnedFd) -> Result<Arc<Map>, Error> {
        let spec = &self.maps[map];
        let made = sys::create_map_of(spec.name, spec.layout(), types.as_fd(), spec.types);
        Map::wrap(spec.name, spec.layout(), made)
    }

    /// Creates a map whose values are maps like `inner`.
    pub(crate) fn make_outer(
        &self,
        map: usize,
        entries: u32,
        inner: &Map,
    ) -> Result<Arc<Map>, Error> {
        Map::make(&self.maps[map], Some(entries), Some(inner))
    }

    /// Loads the type information that [`load`](Self::load) refers to.
    pub(crate) fn load_types(&self) -> Result<OwnedFd, Error> {
        sys::load_btf(self.btf).map_err(Error::load("type information"))
    }

    /// Loads a program of this object, with all its maps and settings by index.
    pub(crate) fn load(
        &self,
        program: usize,
        types: &OwnedFd,
        maps: &[Arc<Map>],
        settings: &[u32],
    ) -> Result<Program, Error> {
        let spec = &self.programs[program];
        self.load_as(program, (spec.attach, 0), types, maps, settings)
    }

    /// Likewise, for a function of a structure of the kernel: the number of the function's field,
    /// and the structure's type.
    pub(crate) fn load_as(
        &self,
        program: usize,
        (attach, kernel_type): (u32, u32),
        types: &OwnedFd,
        maps: &[Arc<Map>],
        settings: &[u32],
    ) -> Result<Program, Error> {
        let spec = &self.programs[program];
        let instructions = filled_in(spec, |used| match used {
            Use::Map(map) => (MAP, maps[map].fd.as_raw_fd().cast_unsigned(), 0),
            Use::Variable(map, at) => (MAP_VALUE, maps[map].fd.as_raw_fd().cast_unsigned(), at),
            Use::Setting(setting) => (0, settings[setting], 0),
        });
        let code = Code {
            name: spec.name,
            kind: spec.kind,
            attach,
            license: self.license,
            instructions: &instructions,
            btf: types.as_fd(),
            functions: spec.functions,
            kernel_type,
        };
        // Writing a log slows the verifier: only a second attempt requests it.
        let fd = sys::load(&code, None).map_err(|source| Error::Load {
            what: spec.name,
            source,
            verifier: complaint(&code),
        })?;
        Ok(Program {
            fd,
            name: spec.name,
        })
    }
}

/// The instructions of a program with the wide loads filled in.
fn filled_in(spec: &ProgramSpec, resolve: impl Fn(Use) -> (u8, u32, u32)) -> Vec<u64> {
    let mut instructions = spec.instructions.to_vec();
    for (at, used) in spec.uses {
        let (source, low, high) = resolve(*used);
        let [code, registers, ..] = instructions[*at].to_le_bytes();
        let registers = registers & 0xf | source << 4;
        instructions[*at] = u64::from(code) | u64::from(registers) << 8 | u64::from(low) << 32;
        instructions[at + 1] = u64::from(high) << 32;
    }
    instructions
}

/// The end of the verifier's log of a second attempt.
fn complaint(code: &Code<'_>) -> String {
    let mut log = vec![0; LOG_BYTES];
    // It fails as before, or with ENOSPC if the log does not fit.
    let _ = sys::load(code, Some(&mut log));
    last_lines(&log)
}

/// The last lines of a NUL-terminated text.
fn last_lines(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LOG_LINES);
    let each = lines[skipped..].iter().map(|line| format!("\n  {line}"));
    each.collect()
}

impl MapSpec {
    fn layout(&self) -> MapLayout {
        MapLayout {
            kind: self.kind,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            entries: self.entries,
            flags: self.flags,
        }
    }
}

impl Map {
    fn make(
        spec: &MapSpec,
        entries: Option<u32>,
        inner: Option<&Self>,
    ) -> Result<Arc<Self>, Error> {
        let layout = spec.layout();
        let layout = MapLayout {
            entries: entries.unwrap_or(layout.entries),
            ..layout
        };
        Self::create(spec.name, layout, inner)
    }

    /// Creates a map that no object declares.
    pub(crate) fn create(
        name: &'static str,
        layout: MapLayout,
        inner: Option<&Self>,
    ) -> Result<Arc<Self>, Error> {
        let made = sys::create_map(name, layout, inner.map(AsFd::as_fd));
        Self::wrap(name, layout, made)
    }

    fn wrap(
        name: &'static str,
        layout: MapLayout,
        made: io::Result<OwnedFd>,
    ) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            fd: made.map_err(Error::map("create", name))?,
            name,
            key_bytes: usize::try_from(layout.key_bytes).expect("keys are short"),
            value_bytes: usize::try_from(layout.value_bytes).expect("values are short"),
        }))
    }

    /// Its name, which objects that share it have in common.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the value of a key.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        assert_eq!(key.len(), self.key_bytes, "{}", self.name);
        sys::update(self.fd.as_fd(), key, value).map_err(Error::map("write", self.name))
    }

    /// Reads the value of a key; false when there is none.
    pub(crate) fn look_up(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Error> {
        assert_eq!(key.len(), self.key_bytes, "{}", self.name);
        sys::look_up(self.fd.as_fd(), key, value).map_err(Error::map("read", self.name))
    }

    /// Reads the value of a key and removes it; false when there is none.
    pub(crate) fn take(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Error> {
        let found = self.look_up(key, value)?;
        if found {
            self.delete(key)?;
        }
        Ok(found)
    }

    /// Removes a key; it need not be there.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<(), Error> {
        assert_eq!(key.len(), self.key_bytes, "{}", self.name);
        let deleted = sys::delete(self.fd.as_fd(), key);
        deleted.map(drop).map_err(Error::map("clear", self.name))
    }

    /// Stores descriptors from key 0 on.
    pub(crate) fn fill<'a>(
        &self,
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<(), Error> {
        for (key, descriptor) in (0_u32..).zip(descriptors) {
            let fd = descriptor.as_raw_fd().to_ne_bytes();
            self.update(&key.to_ne_bytes(), &fd)?;
        }
        Ok(())
    }

    /// Whether it has no key.
    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        let mut is_empty = true;
        self.walk(|_| {
            is_empty = false;
            Ok(false)
        })?;
        Ok(is_empty)
    }

    /// The number of keys.
    pub(crate) fn count(&self) -> Result<usize, Error> {
        let mut count = 0;
        self.walk(|_| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    /// Calls `one` for each key and value until it returns false.
    pub(crate) fn each(&self, mut one: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Error> {
        let mut value = vec![0; self.value_bytes];
        self.walk(|key| {
            // The entry may have been deleted meanwhile.
            Ok(!self.look_up(key, &mut value)? || one(key, &value))
        })
    }

    fn walk(&self, mut one: impl FnMut(&[u8]) -> Result<bool, Error>) -> Result<(), Error> {
        let (mut key, mut next) = (None, vec![0; self.key_bytes]);
        while sys::next_key(self.fd.as_fd(), key.as_deref(), &mut next)
            .map_err(Error::map("walk", self.name))?
        {
            if !one(&next)? {
                break;
            }
            key = Some(next.clone());
        }
        Ok(())
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Program> for OwnedFd {
    fn from(program: Program) -> Self {
        program.fd
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_loads_patched() {
        static SPEC: ProgramSpec = ProgramSpec {
            name: "spec",
            kind: 0,
            attach: 0,
            instructions: &[0xb7, 0x0000_0008_0000_0218, 0, 0x95],
            uses: &[(1, Use::Variable(0, 4))],
            functions: &[],
        };
        let filled = filled_in(&SPEC, |_| (MAP_VALUE, 7, 4));
        assert_eq!(
            filled,
            [0xb7, 0x0000_0007_0000_2218, 0x0000_0004_0000_0000, 0x95]
        );
    }

    #[test]
    fn refused_program_shows_log() {
        // Exits without setting its return value.
        static PROGRAMS: [ProgramSpec; 1] = [ProgramSpec {
            name: "refused",
            kind: 3,
            attach: 0,
            instructions: &[0x95],
            uses: &[],
            functions: &[],
        }];
        let types = crate::objects::redirect::OBJECT.load_types().unwrap();
        let object = Object {
            license: c"GPL",
            btf: &[],
            maps: &[],
            programs: &PROGRAMS,
        };
        let error = object.load(0, &types, &[], &[]).unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
        assert!(error.contains("R0 !read_ok"), "{error}");
    }

    #[test]
    fn long_log_tail() {
        let lines: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let shown = last_lines(&[lines.as_bytes(), &[0; 9]].concat());
        assert_eq!(shown.lines().count(), LOG_LINES + 1);
        assert!(shown.ends_with("\n  line 99"));
    }
}
