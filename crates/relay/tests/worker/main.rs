// SPDX-License-Identifier: Apache-2.0
//! Workers in this process, with sockets and without programs: requests of clients and peers, hops
//! between nodes, and their ends. Each test has a network namespace of its own (`host.rs`), for which
//! it needs root, and as many nodes as it wants, each a policy and its workers (`node.rs`), with
//! clients that address it or that it is on the path of (`redirection.rs`).
//!
//! What depends on packets that are held, lost or late is tested by `tests/e2e`.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod chains;
mod clocks;
mod convert;
mod denied;
mod fixed;
mod host;
mod keys;
mod lookup;
mod node;
mod peers;
mod proxy;
mod redirection;
mod streams;
mod tunnels;
mod warm;
