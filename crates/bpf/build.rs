// SPDX-License-Identifier: Apache-2.0
//! Compiles each `*.bpf.c`, and translates the objects into `objects.rs` in
//! `OUT_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use posthaste_bpf_build::Rust;

/// The objects, and their structures that user space works with.
const OBJECTS: [(&str, &[&str]); 8] = [
    ("congestion", &[]),
    ("capture", &["capture", "destination", "exempt_key"]),
    ("syn_option", &["syn_option"]),
    (
        "redirect",
        &[
            "device",
            "rule_key",
            "candidates",
            "peer_settings",
            "observing",
        ],
    ),
    ("observe", &[]),
    (
        "packet_path",
        &[
            "packet_key",
            "packet_flow",
            "packet_profile",
            "packet_passage",
            "packet_passage_key",
            "packet_patience",
        ],
    ),
    ("bypass", &["bypass_pair", "packet_key"]),
    (
        "deferred",
        &[
            "destination",
            "half_open",
            "profile_key",
            "profile",
            "multipath_listener",
            "placement",
            "multipath_token",
            "event_head",
        ],
    ),
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    translate_constants(&out);
    let mut rust = Rust::default();
    for (name, structures) in OBJECTS {
        let object = out.join(format!("{name}.bpf.o"));
        compile(&format!("src/{name}.bpf.c"), &object, &out);
        let object = fs::read(object).expect("clang has written it");
        if let Err(error) = rust.add(name, &object, structures) {
            panic!("{name}.bpf.c: {error:#}");
        }
    }
    compile_for_tests(&out);
    fs::write(out.join("objects.rs"), rust.finish()).expect("OUT_DIR is there to write to");
    let types = fs::read_to_string("src/types.h").expect("it is there");
    fs::write(out.join("stats.rs"), stats(&types)).expect("OUT_DIR is there to write to");
    for entry in fs::read_dir("src").expect("the sources are here") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "h") {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}

/// The rows of `STATS` in `types.h` as an array of names and documentation.
fn stats(types: &str) -> String {
    // Each has two strings, between its first quotation mark and its last.
    let rows = types.split("\tSTAT(").skip(1).map(|row| {
        let strings = row.split('"').skip(1).step_by(2).take(2);
        strings
            .map(|string| format!("{string:?}, "))
            .collect::<String>()
    });
    format!(
        "[{}]",
        rows.map(|row| format!("({row}),\n")).collect::<String>()
    )
}

/// The numbers of the congestion control, which has one table of them, as a header.
fn translate_constants(out: &Path) {
    const TABLE: &str = "../congestion/src/constants.rs";
    let table = fs::read_to_string(TABLE).expect("the table is in the workspace");
    let lines = table
        .lines()
        .filter_map(|line| line.strip_prefix("pub(crate) const "));
    let header: String = lines.map(constant).collect();
    let path = out.join("control_constants.h");
    fs::write(path, format!("#pragma once\n{header}")).expect("OUT_DIR is there to write to");
    println!("cargo:rerun-if-changed={TABLE}");
}

/// `NAME: u64 = 7 * 1_000;` in C.
fn constant(line: &str) -> String {
    let parts = line.strip_suffix(';').and_then(|line| {
        let (name, rest) = line.split_once(": u")?;
        let (bits, value) = rest.split_once(" = ")?;
        Some((name, bits, value))
    });
    let (name, bits, value) = parts.unwrap_or_else(|| panic!("a constant on one line: {line}"));
    // Underscores only separate digits.
    let words: String = value
        .split_inclusive(' ')
        .map(|word| match word.chars().next() {
            Some('0'..='9') => word.replace('_', ""),
            _ => word.to_owned(),
        })
        .collect();
    format!("#define {name} ((__u{bits})({words}))\n")
}

/// Compiles what the tests of the congestion control run, and links it into the tests.
fn compile_for_tests(out: &Path) {
    for name in ["host", "control"] {
        let object = out.join(format!("{name}.o"));
        run_clang(
            &["-fPIC"],
            &format!("tests/congestion/{name}.c"),
            &object,
            out,
        );
        println!("cargo:rustc-link-arg-tests={}", object.display());
    }
}

fn compile(source: &str, object: &Path, out: &Path) {
    run_clang(&["-target", "bpf", "-mcpu=v3"], source, object, out);
}

fn run_clang(target: &[&str], source: &str, object: &Path, out: &Path) {
    let status = Command::new("clang")
        .args(target)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        // Debian keeps <asm/types.h> in a folder of the architecture's name.
        .arg(format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH))
        .arg("-I")
        .arg(out)
        .args(["-c", source, "-o"])
        .arg(object)
        .status()
        .expect("clang is installed; `make setup` does it");
    assert!(status.success(), "clang cannot compile {source}");
    println!("cargo:rerun-if-changed={source}");
}
