// SPDX-License-Identifier: Apache-2.0
//! Repair symbols and pieces of a stream as a peer may send them: nothing panics, and what is kept is
//! bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| posthaste_tunnel::drive_assembly(bytes));
