// SPDX-License-Identifier: Apache-2.0
//! The TCP options of a SYN.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_wire::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check_syn_option(bytes));
