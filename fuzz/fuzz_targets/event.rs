// SPDX-License-Identifier: Apache-2.0
//! A record of the event ring, and the frame in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_relay::frame::{Frame, invariants};

fuzz_target!(|raw: &[u8]| {
    let Some(event) = posthaste_bpf::parse_event(raw) else {
        return;
    };
    let frame = Frame::captured(event.ifindex, event.l2_bytes, &event.frame);
    invariants::check(&frame);
});
