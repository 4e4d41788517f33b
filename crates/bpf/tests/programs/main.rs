// SPDX-License-Identifier: Apache-2.0
//! The redirect programs by themselves: packet in; verdict, mark, maps and events out.
//!
//! Each test has a network namespace and an instance of the programs to itself. Most run the
//! program by hand on a frame (`BPF_PROG_TEST_RUN`); what that cannot express crosses real
//! devices (`wire`). Needs root.

#![allow(
    clippy::unwrap_used,
    reason = "all of this is a test, its helpers included"
)]

mod admission;
mod answers;
mod congestion;
mod cost;
mod fragments;
mod half_open_flows;
mod host;
mod packets;
mod policy;
mod rewriting;
mod segment;
mod shapes;
mod syn_options;
mod syns;
mod wire;
