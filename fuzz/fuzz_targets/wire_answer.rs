// SPDX-License-Identifier: Apache-2.0
//! What a converter returns, as the client receives it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_wire::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check_answer(bytes));
