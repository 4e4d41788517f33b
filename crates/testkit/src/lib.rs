// SPDX-License-Identifier: Apache-2.0
//! What the simulations of the tests have in common: random numbers that follow from a seed,
//! schedules that can be replayed, events by time, a bottleneck for senders. For tests only.
//!
//! Every schedule of a simulation follows from one number. A failure prints it;
//! `POSTHASTE_SEED=<number> cargo test` then starts with that schedule, and
//! `POSTHASTE_SCHEDULES=<number>` sets how many run.

pub mod bottleneck;
mod rng;
mod schedules;
mod timeline;

pub use rng::Rng;
pub use schedules::{schedules, seeds, simulate};
pub use timeline::Timeline;
