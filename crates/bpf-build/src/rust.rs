// SPDX-License-Identifier: Apache-2.0
//! Writes a linked object as Rust.

use std::fmt::Write;

use crate::link::{Linked, Map, Program, Use};

/// Adds the module of an object: what it is made of, and the numbers of its
/// maps, programs and settings by their names.
pub(crate) fn write(to: &mut String, name: &str, object: &Linked) {
    let mut text = |line: String| {
        to.push_str(&line);
        to.push('\n');
    };
    text(format!("pub(crate) mod {name} {{"));
    // The crate that includes this defines them: one loader for all objects.
    text("use super::{MapSpec, Object, ProgramSpec, Use};".to_owned());
    let maps: String = object.maps.iter().map(map).collect();
    let programs: String = object.programs.iter().map(program).collect();
    text(format!(
        "pub(crate) static OBJECT: Object = Object {{ license: c{:?}, btf: &{:?}, maps: &[{maps}], programs: &[{programs}] }};",
        object.license, object.btf
    ));
    let maps = object.maps.iter().map(|map| map.name.as_str());
    text(numbers("map", maps));
    let programs = object.programs.iter().map(|program| program.name.as_str());
    text(numbers("program", programs));
    text(settings(&object.settings));
    text("}".to_owned());
}

fn map(map: &Map) -> String {
    format!(
        "MapSpec {{ name: {:?}, kind: {}, key_bytes: {}, value_bytes: {}, entries: {}, flags: {}, types: {:?} }},\n",
        map.name, map.kind, map.key_bytes, map.value_bytes, map.entries, map.flags, map.types
    )
}

fn program(program: &Program) -> String {
    let mut uses = String::new();
    for (at, used) in &program.uses {
        let used = match used {
            Use::Map(map) => format!("Use::Map({map})"),
            Use::Variable(map, offset) => format!("Use::Variable({map}, {offset})"),
            Use::Setting(setting) => format!("Use::Setting({setting})"),
        };
        write!(uses, "({at}, {used}), ").expect("a string takes any text");
    }
    let functions: String = program
        .functions
        .iter()
        .map(|(at, id)| format!("[{at}, {id}], "))
        .collect();
    let code: String = program
        .instructions
        .iter()
        // Hexadecimal: opcode and registers can be read in the last bytes.
        .map(|instruction| format!("{instruction:#x}, "))
        .collect();
    format!(
        "ProgramSpec {{ name: {:?}, kind: {}, attach: {}, instructions: &[{code}], uses: &[{uses}], functions: &[{functions}] }},\n",
        program.name, program.kind, program.attach
    )
}

/// A module of constants: the place of each name in its list.
fn numbers<'a>(module: &str, names: impl Iterator<Item = &'a str>) -> String {
    let each = names.enumerate().map(|(number, name)| {
        format!(
            "pub(crate) const {}: usize = {number};\n",
            name.to_uppercase()
        )
    });
    format!("pub(crate) mod {module} {{\n{}}}", each.collect::<String>())
}

/// A structure of the settings, and their order.
fn settings(names: &[String]) -> String {
    let fields: String = names
        .iter()
        .map(|name| format!("pub(crate) {name}: u32,\n"))
        .collect();
    let values: String = names.iter().map(|name| format!("self.{name}, ")).collect();
    format!(
        "pub(crate) struct Settings {{\n{fields}}}\nimpl Settings {{\n\
         pub(crate) fn in_order(&self) -> [u32; {}] {{ [{values}] }}\n}}",
        names.len()
    )
}
