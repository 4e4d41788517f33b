// SPDX-License-Identifier: Apache-2.0
//! What either end of a warm hop receives, in the handshake and after it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_wire::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check_hop(bytes));
