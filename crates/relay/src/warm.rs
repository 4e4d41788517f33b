// SPDX-License-Identifier: Apache-2.0
//! Warm hops: open connections to other nodes that wait for flows.
//!
//! What is decided about them, without I/O and clock: how many are to wait,
//! which are to be pinged and closed, which peers are not there ([`pool`]),
//! and what flows over them have found the way to bear ([`path`]).

mod backoff;
mod demand;
pub(crate) mod path;
mod pool;
