// SPDX-License-Identifier: Apache-2.0
//! Hands a relayed TCP flow over to packet translation, and leaves: the plain reference of the
//! packet rules, packet in, packet out.
//!
//! Pure: no I/O, no clock, no allocation outside tests. Sequence numbers are in host byte order.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the fields of a segment that the rules read and write |
//! | [`machine`] | the states of a pair, and what user space does in each |
//! | [`rules`] | what the packet path does with each segment |
//!
//! A flow has two ends, 0 (the client) and 1 (the server). *Direction* `e` carries the bytes that end
//! `e` sends. Every sequence number of a direction is stored in the numbering of its sender.

#![forbid(unsafe_code)]

pub mod header;
pub mod machine;
pub mod rules;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tcp;

pub use header::{Block, Header};
pub use machine::{Pair, Phase, Step};
pub use rules::Verdict;
