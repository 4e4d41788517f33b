// SPDX-License-Identifier: Apache-2.0
//! What a reflector or a sender of STAMP receives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_wire::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check_stamp(bytes));
