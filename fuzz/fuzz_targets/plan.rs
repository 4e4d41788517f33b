// SPDX-License-Identifier: Apache-2.0
//! The text of a file of links, in all its formats.
#![no_main]

#[allow(dead_code, reason = "the verb uses the rest")]
#[path = "../../src/plan"]
mod product {
    pub(crate) mod read;
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    product::read::invariants::check(text);
});
