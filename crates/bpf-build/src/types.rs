// SPDX-License-Identifier: Apache-2.0
//! Translates structures of the programs to Rust.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, bail, ensure};

use crate::btf::{ARRAY, Btf, INT, STRUCT};

/// `BTF_INT_SIGNED`, in what an `int` has besides its size.
const SIGNED: usize = 1 << 24;

/// Adds a structure and those it is made of. One with padding is refused: its
/// bytes go into maps, so each has to have a name.
pub(crate) fn collect(btf: &Btf, name: &str, found: &mut BTreeMap<String, String>) -> Result<()> {
    let structure = btf.structure(name)?;
    let mut fields = String::new();
    let mut inner = Vec::new();
    let mut end = 0;
    for member in &structure.members {
        // The kernel compares keys byte by byte, and padding has no defined value.
        ensure!(member.bits == 8 * end, "padding before {}", member.name);
        end += btf.bytes(member.of)?;
        let rust = rust_type(btf, member.of, &mut inner)?;
        writeln!(fields, "pub(crate) {}: {rust},", member.name)?;
    }
    let bytes = structure.size_or_type;
    ensure!(end == bytes, "padding at the end");
    let text = format!(
        "#[derive(Clone, Copy, Debug, Default)]\n#[repr(C)]\npub(crate) struct {name} {{\n{fields}}}\n\
         const _: () = assert!(size_of::<{name}>() == {bytes});\n"
    );
    found.insert(name.to_owned(), text);
    inner.iter().try_for_each(|name| collect(btf, name, found))
}

/// The Rust for a type; structures it names are added to `inner`.
fn rust_type(btf: &Btf, id: usize, inner: &mut Vec<String>) -> Result<String> {
    let plain = btf.plain(id)?;
    match plain.kind {
        INT => {
            let letter = if plain.extra[0] & SIGNED == 0 {
                'u'
            } else {
                'i'
            };
            Ok(format!("{letter}{}", 8 * plain.size_or_type))
        }
        ARRAY => {
            let element = rust_type(btf, plain.extra[0], inner)?;
            Ok(format!("[{element}; {}]", plain.extra[2]))
        }
        STRUCT => {
            inner.push(plain.name.clone());
            Ok(plain.name.clone())
        }
        kind => bail!("a field of kind {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled;

    fn translated(source: &str, name: &str) -> Result<BTreeMap<String, String>> {
        let object = aya_obj::Object::parse(&compiled(name, source)).unwrap();
        let btf = Btf::read(&object.btf.unwrap().to_bytes()).unwrap();
        let mut found = BTreeMap::new();
        collect(&btf, name, &mut found).map(|()| found)
    }

    #[test]
    fn nested_structures() {
        let source = "typedef unsigned short port; struct place { unsigned word[4]; };\n\
                      struct ends { struct place at[2]; port port; signed char sign; char pad; };\n\
                      struct ends ends;";
        let found = translated(source, "ends").unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ends", "place"]);
        assert!(found["place"].contains("pub(crate) word: [u32; 4],"));
        let ends = &found["ends"];
        for field in ["at: [place; 2],", "port: u16,", "sign: i8,", "== 36"] {
            assert!(ends.contains(field), "{ends}");
        }
    }

    #[test]
    fn padding_is_refused() {
        for fields in ["char first; int second;", "int first; char second;"] {
            let source = format!("struct padded {{ {fields} }}; struct padded padded;");
            let error = translated(&source, "padded").unwrap_err().to_string();
            assert!(error.contains("padding"), "{error}");
        }
    }
}
