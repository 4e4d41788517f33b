// SPDX-License-Identifier: Apache-2.0
//! Turns eBPF objects, as clang writes them, into Rust that a program compiles
//! in. What a loader does for every start is done here, once: reading the
//! object, putting functions behind the programs that call them, finding out
//! what each instruction refers to. For the build script of the crate that has
//! the objects.
//!
//! The Rust that comes out names types (`Object`, `MapSpec`, `ProgramSpec`,
//! `Use`) that the crate it is included in has to have.

mod btf;
mod link;
mod rust;
mod types;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// The Rust that stands for some objects.
#[derive(Debug, Default)]
pub struct Rust {
    objects: String,
    types: BTreeMap<String, String>,
}

impl Rust {
    /// Adds an object, and those of its structures that `structures` names.
    ///
    /// # Errors
    /// What in the object is not supported.
    pub fn add(&mut self, name: &str, object: &[u8], structures: &[&str]) -> Result<()> {
        let (linked, btf) = link::link(name, object)?;
        rust::write(&mut self.objects, name, &linked);
        for structure in structures {
            types::collect(&btf, structure, &mut self.types)
                .with_context(|| format!("translate struct {structure}"))?;
        }
        Ok(())
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        let types: String = self.types.into_values().collect();
        format!("{}pub(crate) mod types {{\n{types}}}\n", self.objects)
    }
}

/// What clang makes of a text, for tests.
#[cfg(test)]
fn compiled(name: &str, source: &str) -> Vec<u8> {
    use std::process::Command;
    let file = |ending: &str| {
        let name = format!("posthaste-{}-{name}.{ending}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let (text, object) = (file("c"), file("o"));
    std::fs::write(&text, source).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-c", "-o"]);
    assert!(clang.args([&object, &text]).status().unwrap().success());
    let compiled = std::fs::read(&object).unwrap();
    for file in [text, object] {
        std::fs::remove_file(file).unwrap();
    }
    compiled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_object() {
        let whole = compiled(
            "torn",
            "char LICENSE[] __attribute__((section(\"license\"), used)) = \"GPL\"; int number;",
        );
        let mut rust = Rust::default();
        for length in 0..whole.len() {
            assert!(rust.add("torn", &whole[..length], &[]).is_err(), "{length}");
        }
    }
}
