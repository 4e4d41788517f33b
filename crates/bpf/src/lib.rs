// SPDX-License-Identifier: Apache-2.0
//! The eBPF programs of posthaste and their loader. The only crate that
//! knows of bpf(2).
//!
//! [`Redirect`] is the program set of one node: loaded once, attached to
//! interfaces, fed with listeners and rules. Each worker holds a [`WorkerHandle`]: its
//! events, the half-open entries of its flows, and the way to put frames back on a device.
//! [`Capture`] is the program set of `posthaste run`, and knows nothing of nodes.
//! Everything is held by file descriptors and pinned nowhere, so it is gone
//! when the process is.

mod attach;
mod capture;
mod cgroup;
mod deferred;
mod error;
mod object;
mod syn_option;
mod worker_maps;
/// The objects, translated by the build.
#[allow(
    dead_code,
    reason = "every map has its number, though not every map is asked for"
)]
mod objects {
    use crate::object::{MapSpec, Object, ProgramSpec, Use};

    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}
mod observe;
mod redirect;
mod ring;
mod rules;
mod stats;
mod sys;

pub use capture::{Capture, Endpoint, Ports};
pub use cgroup::own as own_cgroup;
pub use error::Error;
pub use observe::{Known, Observing, Path, Profile, Translated, Trust};
pub use redirect::{Device, FIRST_GENERATION, LinkLayer, Maps, Redirect, Settings};
pub use rules::{Accept, Action, PrefixSpec, RuleSpec};
#[cfg(fuzzing)]
pub use worker_maps::parse_event;
pub use worker_maps::{
    Direction, Event, EventKind, FlowKey, HalfOpenKey, PeerSettings, WorkerHandle, WorkerMaps,
};
