// SPDX-License-Identifier: Apache-2.0
//! The running kernel's type information (BTF): where the fields of its structures are
//! (<https://docs.kernel.org/bpf/btf.html>).
//!
//! It has some 5 MB and is read in one pass without an index, since a node looks up a handful of
//! structures once.

use std::fs;
use std::io;

use crate::error::Error;

const MAGIC: u32 = 0xeb9f;
/// Where the kernel shows it, if it was built with it (`CONFIG_DEBUG_INFO_BTF`).
const FILE: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types with a meaning here.
const PTR: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNC_PROTO: u32 = 13;
/// Bytes of a type, and of a field or parameter.
const TYPE_BYTES: usize = 12;
const FIELD_BYTES: usize = 12;
/// Structures without a name in each other: more than the kernel has in those of sockets.
const DEPTH_MAX: u32 = 4;

/// Type information.
#[derive(Debug)]
pub(crate) struct KernelTypes {
    data: Vec<u8>,
    /// Where types and strings begin and end.
    types: [usize; 2],
    strings: [usize; 2],
}

/// A structure.
#[derive(Debug)]
pub(crate) struct Structure<'a> {
    of: &'a KernelTypes,
    name: &'a str,
    /// The number of the type.
    pub(crate) id: u32,
    pub(crate) bytes: u32,
    /// Where its fields are described, and its kind with their number.
    fields: usize,
    info: u32,
}

/// A field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Its place in the list of fields.
    pub(crate) index: u32,
    /// Bytes from the start of the structure.
    pub(crate) offset: u32,
    of: u32,
}

impl KernelTypes {
    /// Those of the running kernel.
    pub(crate) fn of_kernel() -> Result<Self, Error> {
        let data = fs::read(FILE).map_err(|source| Error::KernelTypes {
            what: FILE.to_owned(),
            source,
        })?;
        Self::parse(data).ok_or_else(|| absent(FILE))
    }

    fn parse(data: Vec<u8>) -> Option<Self> {
        let whole = |at| Some(usize::try_from(number(&data, at)?).expect("32 bits fit"));
        if number(&data, 0)? & 0xffff != MAGIC {
            return None;
        }
        let header = whole(4)?;
        let part = |at| {
            let start = header.checked_add(whole(at)?)?;
            let end = start.checked_add(whole(at + 4)?)?;
            (end <= data.len()).then_some([start, end])
        };
        let (types, strings) = (part(8)?, part(16)?);
        Some(Self {
            data,
            types,
            strings,
        })
    }

    /// The structure of this name.
    pub(crate) fn structure<'a>(&'a self, name: &'a str) -> Result<Structure<'a>, Error> {
        let found = self.walk(|id, at, info| {
            (kind(info) == STRUCT && self.is_named(at, name)).then_some((id, at, info))
        });
        let (id, at, info) = found.ok_or_else(|| absent(name))?;
        let bytes = self.number(at + 8).ok_or_else(|| absent(name))?;
        Ok(Structure {
            of: self,
            name,
            id,
            bytes,
            fields: at + TYPE_BYTES,
            info,
        })
    }

    /// Calls `one` with number, place and kind of each type until it returns something.
    fn walk<T>(&self, mut one: impl FnMut(u32, usize, u32) -> Option<T>) -> Option<T> {
        let (mut at, mut id) = (self.types[0], 1);
        while at < self.types[1] {
            let info = self.number(at + 4)?;
            if let Some(found) = one(id, at, info) {
                return Some(found);
            }
            at += TYPE_BYTES + rest_bytes(info)?;
            id += 1;
        }
        None
    }

    /// The number of parameters of a function to which a field points.
    pub(crate) fn parameters(&self, of: Field) -> Option<usize> {
        let pointed = self.walk(|id, at, info| {
            (id == of.of && kind(info) == PTR).then(|| self.number(at + 8))
        })??;
        self.walk(|id, _, info| (id == pointed && kind(info) == FUNC_PROTO).then(|| count(info)))
    }

    /// A field among those described at a place.
    fn find_field(&self, fields: usize, info: u32, name: &str, depth: u32) -> Option<Field> {
        (0..count(info)).find_map(|index| {
            let at = fields + index * FIELD_BYTES;
            let (of, bits) = (self.number(at + 4)?, self.number(at + 8)?);
            // With bitfields, the upper 8 bits are the width of one.
            let bits = if info >> 31 == 0 {
                bits
            } else {
                bits & 0xff_ffff
            };
            let field = Field {
                index: u32::try_from(index).ok()?,
                offset: bits / 8,
                of,
            };
            if self.is_named(at, name) {
                return Some(field);
            }
            if !self.is_named(at, "") || depth == 0 {
                return None;
            }
            let inner = |id, at, info| {
                let is_whole = id == of && [STRUCT, UNION].contains(&kind(info));
                is_whole.then_some((at + TYPE_BYTES, info))
            };
            let (fields, info) = self.walk(inner)?;
            let inner = self.find_field(fields, info, name, depth - 1)?;
            Some(Field {
                offset: field.offset + inner.offset,
                ..inner
            })
        })
    }

    fn is_named(&self, at: usize, name: &str) -> bool {
        let Some(offset) = self.number(at) else {
            return false;
        };
        let start = self.strings[0] + usize::try_from(offset).expect("32 bits fit");
        let text = self.data.get(start..self.strings[1]).unwrap_or_default();
        text.strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn number(&self, at: usize) -> Option<u32> {
        number(&self.data, at)
    }
}

impl Structure<'_> {
    /// A field of the structure, also one in a structure or union without a name.
    pub(crate) fn field(&self, name: &str) -> Result<Field, Error> {
        let found = self.of.find_field(self.fields, self.info, name, DEPTH_MAX);
        found.ok_or_else(|| absent(&format!("{}.{name}", self.name)))
    }
}

/// Type information that lacks something.
fn absent(what: &str) -> Error {
    Error::KernelTypes {
        what: what.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    }
}

fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

fn count(info: u32) -> usize {
    usize::try_from(info & 0xffff).expect("16 bits fit")
}

/// Bytes of a type behind those that all have.
fn rest_bytes(info: u32) -> Option<usize> {
    let count = count(info);
    Some(match kind(info) {
        // int; variable; declaration tag
        1 | 14 | 17 => 4,
        // array
        3 => 12,
        // structure, union; section; enum64
        4 | 5 | 15 | 19 => FIELD_BYTES * count,
        // enum; parameters
        6 | FUNC_PROTO => 8 * count,
        // pointer, forward, typedef, qualifiers, function, float, type tag
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn number(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_this_kernel() {
        let types = KernelTypes::of_kernel().unwrap();
        let common = types.structure("sock_common").unwrap();
        // It begins with both addresses, in a union (include/net/sock.h).
        assert_eq!(common.field("skc_daddr").unwrap().offset, 0);
        assert_eq!(common.field("skc_rcv_saddr").unwrap().offset, 4);
        assert!(common.bytes > 64);
        let operations = types.structure("tcp_congestion_ops").unwrap();
        let ssthresh = operations.field("ssthresh").unwrap();
        assert_eq!(types.parameters(ssthresh), Some(1));
        let error = operations.field("absent").unwrap_err().to_string();
        assert!(error.contains("tcp_congestion_ops.absent"), "{error}");
        assert!(types.structure("tcp_congestion_op").is_err());
    }

    #[test]
    fn truncated_types() {
        let whole = crate::objects::redirect::OBJECT.btf;
        let types = KernelTypes::parse(whole.to_vec()).unwrap();
        assert!(types.structure("__sk_buff").is_ok());
        for length in 0..whole.len() {
            assert!(
                KernelTypes::parse(whole[..length].to_vec()).is_none(),
                "{length}"
            );
        }
    }
}
