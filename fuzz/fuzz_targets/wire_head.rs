// SPDX-License-Identifier: Apache-2.0
//! The first bytes that a converter receives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_wire::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check_head(bytes));
