// SPDX-License-Identifier: Apache-2.0
//! The congestion control of a connection: one state machine, without I/O, clock or floating point, so that a program
//! in C computes the same bits. What an acknowledgement shows goes in ([`Ack`]), window and pacing rate come out.
//!
//! Units: bytes, microseconds of round trips, milliseconds of the clock (both clocks may wrap), rates in bytes per
//! millisecond, gains in 1/256. The state has no more than the 104 bytes that Linux gives a control.
//!
//! docs/design/0028-congestion-control.md has the reasons.

mod constants;
mod control;
mod cubic;
mod losses;
mod rival;
#[cfg(test)]
mod simulation;

pub use control::{Ack, Control, Known};
