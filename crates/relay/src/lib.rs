// SPDX-License-Identifier: Apache-2.0
//! The data plane: workers that join downstream and upstream TCP connections into relays.
//!
//! One [worker](worker::spawn) is one thread with its own epoll, listeners and relays. It shares
//! with other threads only its [`Counters`](counters::Counters) and the read-only
//! [`Policy`](policy::Policy). The relay itself ([`relay`]) and the opening of a flow ([`opening`])
//! are state machines that do no I/O and read no clock.
//!
//! This crate does not depend on how flows are redirected to the listeners: the worker uses the
//! trait [`Intercept`](intercept::Intercept).

pub mod accept_mode;
pub mod access;
mod black_holes;
pub mod chain;
pub mod clock;
mod compact_instant;
pub mod control;
pub mod counters;
pub mod flow;
pub mod frame;
pub mod handshake_probe;
pub mod intercept;
mod join_hold;
mod named;
mod opening;
pub mod outcome;
mod pipes;
pub mod policy;
pub mod relay;
pub mod rng;
pub mod side;
mod slab;
mod syn_options;
pub mod sys;
pub mod tally;
mod warm;
pub mod worker;

pub use pipes::PIPE_DESCRIPTORS_MAX;
