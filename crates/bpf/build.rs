// SPDX-License-Identifier: Apache-2.0
//! Compiles each `*.bpf.c` into a skeleton in `OUT_DIR`.

use std::path::PathBuf;
use std::{env, ffi::OsStr};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    for name in ["redirect", "later"] {
        compile(name);
    }
    for header in ["types.h", "maps.h", "packet.h"] {
        println!("cargo:rerun-if-changed=src/{header}");
    }
    link_zstd();
}

fn compile(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Debian keeps <asm/types.h> in a folder of the architecture's name.
    let include = format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH);
    let source = format!("src/{name}.bpf.c");
    SkeletonBuilder::new()
        .source(&source)
        .clang_args([
            OsStr::new(&include),
            OsStr::new("-Wall"),
            OsStr::new("-Wextra"),
            OsStr::new("-Werror"),
            OsStr::new("-mcpu=v3"),
        ])
        .build_and_generate(out.join(format!("{name}.skel.rs")))
        .expect("clang and the kernel headers are installed; `make setup` does it");
    println!("cargo:rerun-if-changed={source}");
}

/// Since version 0.189 libelf can compress with zstd, and then a static link
/// needs that library too. libbpf-sys does not know.
fn link_zstd() {
    let libraries = PathBuf::from(format!("/usr/lib/{}-linux-gnu", env::consts::ARCH));
    if libraries.join("libzstd.a").exists() {
        println!("cargo:rustc-link-search=native={}", libraries.display());
        println!("cargo:rustc-link-lib=static:-bundle=zstd");
    }
}
