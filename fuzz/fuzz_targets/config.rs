// SPDX-License-Identifier: Apache-2.0
//! The text of a configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    posthaste_config::invariants::check(text);
});
