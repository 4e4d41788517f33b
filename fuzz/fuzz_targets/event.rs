// SPDX-License-Identifier: Apache-2.0
//! A record of the event ring, and the frame in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_relay::frame::invariants;

fuzz_target!(|raw: &[u8]| {
    if let Some(event) = posthaste_bpf::parse_event(raw) {
        invariants::check(&event.frame);
    }
});
