// SPDX-License-Identifier: Apache-2.0
//! A captured frame, and everything that a worker makes of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_relay::frame::invariants;

fuzz_target!(|bytes: &[u8]| invariants::check(&invariants::picked(bytes)));
