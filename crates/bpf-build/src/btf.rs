// SPDX-License-Identifier: Apache-2.0
//! BTF, the type information of eBPF objects: reads all of it, and writes the
//! little that the kernel needs
//! (<https://docs.kernel.org/bpf/btf.html>).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: usize = 0xeb9f;
/// Bytes of the header as written here.
const HEADER_BYTES: u32 = 24;

pub(crate) const INT: usize = 1;
pub(crate) const PTR: usize = 2;
pub(crate) const ARRAY: usize = 3;
pub(crate) const STRUCT: usize = 4;
pub(crate) const UNION: usize = 5;
const ENUM: usize = 6;
const FWD: usize = 7;
const TYPEDEF: usize = 8;
const VOLATILE: usize = 9;
const CONST: usize = 10;
const RESTRICT: usize = 11;
const FUNC: usize = 12;
const FUNC_PROTO: usize = 13;
const VAR: usize = 14;
const DATASEC: usize = 15;
const FLOAT: usize = 16;
const DECL_TAG: usize = 17;
const TYPE_TAG: usize = 18;
const ENUM64: usize = 19;

/// The types of an object. The number of a type is its place; 0 is `void`.
#[derive(Debug)]
pub(crate) struct Btf {
    pub(crate) types: Vec<Type>,
}

/// A type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Type {
    pub(crate) name: String,
    pub(crate) kind: usize,
    /// Of a function: 0 static, 1 global.
    linkage: usize,
    /// Bytes, or the number of the type it refers to.
    pub(crate) size_or_type: usize,
    /// Fields of a structure, parameters of a function.
    pub(crate) members: Vec<Member>,
    /// What `int` and arrays have besides: encoding; element, index, count.
    pub(crate) extra: Vec<usize>,
}

/// A field or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) of: usize,
    /// Bits from the start of the structure.
    pub(crate) bits: usize,
}

impl Btf {
    pub(crate) fn read(data: &[u8]) -> Result<Self> {
        ensure!(number(data, 0, 2)? == MAGIC, "not BTF");
        let header = number(data, 4, 4)?;
        let part = |at| {
            let start = header + number(data, at, 4)?;
            let end = start + number(data, at + 4, 4)?;
            data.get(start..end).context("BTF ends early")
        };
        let (records, strings) = (part(8)?, part(16)?);
        let mut types = vec![Type::default()];
        let mut at = 0;
        while at < records.len() {
            types.push(Type::read(records, strings, &mut at)?);
        }
        Ok(Self { types })
    }

    pub(crate) fn get(&self, id: usize) -> Result<&Type> {
        self.types.get(id).context("a type that there is not")
    }

    /// The type behind names and qualifiers.
    pub(crate) fn plain(&self, mut id: usize) -> Result<&Type> {
        loop {
            let found = self.get(id)?;
            match found.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = found.size_or_type,
                _ => return Ok(found),
            }
        }
    }

    /// How many bytes a value of the type takes.
    pub(crate) fn bytes(&self, id: usize) -> Result<usize> {
        let found = self.plain(id)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => Ok(found.size_or_type),
            // The target has 64 bits, whatever the host that builds.
            PTR => Ok(8),
            ARRAY => Ok(self.bytes(found.extra[0])? * found.extra[2]),
            kind => bail!("type `{}` of kind {kind} has no size", found.name),
        }
    }

    /// The structure of this name.
    pub(crate) fn structure(&self, name: &str) -> Result<&Type> {
        let mut all = self.types.iter();
        let found = all.find(|each| each.kind == STRUCT && each.name == name);
        found.with_context(|| format!("no struct {name}"))
    }

    /// BTF with these functions and what their parameters are, and the number
    /// that each type has in it. Of structures the kernel wants name and size
    /// only.
    pub(crate) fn reduced(&self, functions: &[usize]) -> Result<(Vec<u8>, BTreeMap<usize, usize>)> {
        let mut wanted = Vec::new();
        for id in functions {
            self.collect(*id, &mut wanted)?;
        }
        wanted.sort_unstable();
        let numbers: BTreeMap<usize, usize> = wanted.iter().copied().zip(1..).collect();
        let mut records = Vec::new();
        let mut strings = vec![0];
        for id in &wanted {
            self.get(*id)?.write(&numbers, &mut records, &mut strings);
        }
        let (type_bytes, string_bytes) = (u32_of(records.len()), u32_of(strings.len()));
        let mut data = Vec::new();
        data.extend(u32_of(MAGIC | 1 << 16).to_le_bytes());
        let header = [HEADER_BYTES, 0, type_bytes, type_bytes, string_bytes];
        data.extend(header.into_iter().flat_map(u32::to_le_bytes));
        data.extend(records);
        data.extend(strings);
        Ok((data, numbers))
    }

    /// Adds a type and all it refers to.
    fn collect(&self, id: usize, wanted: &mut Vec<usize>) -> Result<()> {
        if id == 0 || wanted.contains(&id) {
            return Ok(());
        }
        wanted.push(id);
        let found = self.get(id)?;
        match found.kind {
            // Without the fields: a structure of the kernel leads to most of its types.
            INT | STRUCT | UNION => Ok(()),
            PTR | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC => {
                self.collect(found.size_or_type, wanted)
            }
            FUNC_PROTO => {
                for parameter in &found.members {
                    self.collect(parameter.of, wanted)?;
                }
                self.collect(found.size_or_type, wanted)
            }
            kind => bail!("a parameter `{}` of kind {kind}", found.name),
        }
    }
}

impl Type {
    fn read(records: &[u8], strings: &[u8], at: &mut usize) -> Result<Self> {
        let mut next = || {
            *at += 4;
            number(records, *at - 4, 4)
        };
        let name = text(strings, next()?)?;
        let info = next()?;
        let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
        let mut found = Self {
            name,
            kind,
            size_or_type: next()?,
            ..Self::default()
        };
        match kind {
            INT | VAR | DECL_TAG => found.extra.push(next()?),
            ARRAY => found.extra = vec![next()?, next()?, next()?],
            STRUCT | UNION => {
                for _ in 0..count {
                    found.members.push(Member {
                        name: text(strings, next()?)?,
                        of: next()?,
                        bits: next()?,
                    });
                }
            }
            FUNC_PROTO => {
                for _ in 0..count {
                    found.members.push(Member {
                        name: text(strings, next()?)?,
                        of: next()?,
                        bits: 0,
                    });
                }
            }
            FUNC => found.linkage = count,
            // Skipped: neither parameters nor structures of the programs name their values.
            ENUM => *at += 8 * count,
            DATASEC | ENUM64 => *at += 12 * count,
            PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FLOAT | TYPE_TAG => (),
            _ => bail!("a type of kind {kind}"),
        }
        Ok(found)
    }

    fn write(
        &self,
        numbers: &BTreeMap<usize, usize>,
        records: &mut Vec<u8>,
        strings: &mut Vec<u8>,
    ) {
        let number = |id: usize| u32_of(numbers.get(&id).copied().unwrap_or(0));
        let (count, third) = match self.kind {
            FUNC => (self.linkage, number(self.size_or_type)),
            FUNC_PROTO => (self.members.len(), number(self.size_or_type)),
            INT | STRUCT | UNION => (0, u32_of(self.size_or_type)),
            _ => (0, number(self.size_or_type)),
        };
        let info = u32_of(self.kind << 24 | count);
        let name = offset_of(&self.name, strings);
        records.extend([name, info, third].into_iter().flat_map(u32::to_le_bytes));
        for extra in &self.extra {
            records.extend(u32_of(*extra).to_le_bytes());
        }
        if self.kind == FUNC_PROTO {
            for parameter in &self.members {
                let name = offset_of(&parameter.name, strings);
                records.extend(
                    [name, number(parameter.of)]
                        .into_iter()
                        .flat_map(u32::to_le_bytes),
                );
            }
        }
    }
}

/// Where a name is among the strings, to which it is added if it is new.
fn offset_of(name: &str, strings: &mut Vec<u8>) -> u32 {
    if name.is_empty() {
        return 0;
    }
    let entry = [b"\0", name.as_bytes(), b"\0"].concat();
    // Between zeros, or the end of another name would be taken for it.
    let found = strings.windows(entry.len()).position(|part| part == entry);
    let at = found.map_or(strings.len(), |at| at + 1);
    if found.is_none() {
        strings.extend(&entry[1..]);
    }
    u32_of(at)
}

fn u32_of(number: usize) -> u32 {
    u32::try_from(number).expect("type information is small")
}

/// The little-endian number in `bytes` bytes from `at` on.
fn number(data: &[u8], at: usize, bytes: usize) -> Result<usize> {
    let field = at.checked_add(bytes).and_then(|end| data.get(at..end));
    let field = field.context("it ends early")?;
    let each = field.iter().rev();
    Ok(each.fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The text from `at` to the next zero.
fn text(data: &[u8], at: usize) -> Result<String> {
    let rest = data.get(at..).context("a name beyond the end")?;
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8(text.to_vec())?)
}
