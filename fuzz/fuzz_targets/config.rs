// SPDX-License-Identifier: Apache-2.0
//! The text of a configuration file.
#![no_main]

#[allow(dead_code, unused_imports, reason = "the node uses the rest")]
#[path = "../../src"]
mod product {
    pub(crate) mod config;
}

// How many workers there are by default depends on it.
#[allow(dead_code, reason = "the node uses the rest")]
#[path = "../../src/affinity.rs"]
mod affinity;

// Whose the admin socket is.
#[allow(dead_code, reason = "the node uses the rest")]
#[path = "../../src/groups.rs"]
mod groups;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    product::config::invariants::check(text);
});
