// SPDX-License-Identifier: Apache-2.0
//! Reads the parts of a relocatable ELF file (64 bit, little endian) that eBPF
//! objects use.

use anyhow::{Context, Result, ensure};

/// Bytes of a section header, a symbol and a relocation without addend.
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 16;
/// `SHT_SYMTAB`, `SHT_NOBITS`, `SHT_REL`.
const SYMBOLS: u32 = 2;
const NO_BITS: u32 = 8;
const RELOCATIONS: u32 = 9;
/// `SHF_EXECINSTR`
const EXECUTABLE: u64 = 4;
/// `STT_FUNC`
const FUNCTION: u8 = 2;

/// A file.
#[derive(Debug)]
pub(crate) struct Elf {
    pub(crate) sections: Vec<Section>,
    pub(crate) symbols: Vec<Symbol>,
}

/// A section. Its index is its place in [`Elf::sections`].
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) executable: bool,
    /// Zeroes for one that takes no room in the file.
    pub(crate) data: Vec<u8>,
    pub(crate) relocations: Vec<Relocation>,
}

/// A name for a place in a section.
#[derive(Debug)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// Index of its section; 0 for what another file is to have.
    pub(crate) section: usize,
    /// Bytes into the section.
    pub(crate) value: usize,
    pub(crate) bytes: usize,
    pub(crate) function: bool,
}

/// A place in a section that depends on a symbol.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// Bytes into the section.
    pub(crate) at: usize,
    /// Index of the symbol.
    pub(crate) symbol: usize,
}

/// A section header.
struct Header {
    name: usize,
    kind: u32,
    flags: u64,
    offset: usize,
    bytes: usize,
    link: usize,
    info: usize,
}

impl Elf {
    pub(crate) fn read(file: &[u8]) -> Result<Self> {
        ensure!(
            file.starts_with(b"\x7fELF\x02\x01"),
            "not a 64 bit, little endian ELF file"
        );
        let first = number(file, 40, 8)?;
        let count = number(file, 60, 2)?;
        let names = number(file, 62, 2)?;
        let headers = (0..count).map(|index| Header::read(file, first + index * SECTION_BYTES));
        let headers: Vec<Header> = headers.collect::<Result<_>>()?;
        let names = headers.get(names).context("no names of sections")?;
        let names = names.data(file)?;
        let mut sections = Vec::new();
        for header in &headers {
            sections.push(Section {
                name: text(&names, header.name)?,
                executable: header.flags & EXECUTABLE != 0,
                data: header.data(file)?,
                relocations: Vec::new(),
            });
        }
        let mut symbols = Vec::new();
        for (header, index) in headers.iter().zip(0..) {
            if header.kind == SYMBOLS {
                let names = &sections.get(header.link).context("symbols without names")?;
                symbols = read_symbols(&sections[index].data, &names.data)?;
            }
        }
        for (header, index) in headers.iter().zip(0..) {
            if header.kind == RELOCATIONS {
                let read = read_relocations(&sections[index].data)?;
                let target = sections.get_mut(header.info);
                target.context("relocations of no section")?.relocations = read;
            }
        }
        Ok(Self { sections, symbols })
    }

    /// The section of this name.
    pub(crate) fn section(&self, name: &str) -> Result<&Section> {
        let found = self.sections.iter().find(|section| section.name == name);
        found.with_context(|| format!("no section {name}"))
    }
}

impl Header {
    fn read(file: &[u8], at: usize) -> Result<Self> {
        Ok(Self {
            name: number(file, at, 4)?,
            kind: u32::try_from(number(file, at + 4, 4)?)?,
            flags: number(file, at + 8, 8)? as u64,
            offset: number(file, at + 24, 8)?,
            bytes: number(file, at + 32, 8)?,
            link: number(file, at + 40, 4)?,
            info: number(file, at + 44, 4)?,
        })
    }

    fn data(&self, file: &[u8]) -> Result<Vec<u8>> {
        if self.kind == NO_BITS {
            return Ok(vec![0; self.bytes]);
        }
        let end = self.offset.checked_add(self.bytes);
        let data = end.and_then(|end| file.get(self.offset..end));
        Ok(data.context("a section beyond the end")?.to_vec())
    }
}

fn read_symbols(table: &[u8], names: &[u8]) -> Result<Vec<Symbol>> {
    let each = (0..table.len() / SYMBOL_BYTES).map(|index| {
        let at = index * SYMBOL_BYTES;
        Ok(Symbol {
            name: text(names, number(table, at, 4)?)?,
            function: table[at + 4] & 0xf == FUNCTION,
            section: number(table, at + 6, 2)?,
            value: number(table, at + 8, 8)?,
            bytes: number(table, at + 16, 8)?,
        })
    });
    each.collect()
}

fn read_relocations(table: &[u8]) -> Result<Vec<Relocation>> {
    let each = (0..table.len() / RELOCATION_BYTES).map(|index| {
        let at = index * RELOCATION_BYTES;
        Ok(Relocation {
            at: number(table, at, 8)?,
            symbol: number(table, at + 12, 4)?,
        })
    });
    each.collect()
}

/// The little-endian number in `bytes` bytes from `at` on.
pub(crate) fn number(data: &[u8], at: usize, bytes: usize) -> Result<usize> {
    let field = at.checked_add(bytes).and_then(|end| data.get(at..end));
    let field = field.context("it ends early")?;
    let each = field.iter().rev();
    Ok(each.fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The text from `at` to the next zero.
pub(crate) fn text(data: &[u8], at: usize) -> Result<String> {
    let rest = data.get(at..).context("a name beyond the end")?;
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8(text.to_vec())?)
}
