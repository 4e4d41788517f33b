// SPDX-License-Identifier: Apache-2.0
//! Has the linker put the code of a running node together, in what is shipped.

use std::env;

fn main() {
    let script = "src/order.ld";
    println!("cargo:rerun-if-changed={script}");
    if env::var("PROFILE").as_deref() == Ok("release") {
        let here = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
        println!("cargo:rustc-link-arg-bin=posthaste=-Wl,-T,{here}/{script}");
    }
}
