// SPDX-License-Identifier: Apache-2.0
//! Routers as operators set them up, with a node and without: NAT, firewalls, several uplinks, odd
//! return paths. Whatever the router, a node may make connections faster and nothing else:
//!
//! - what is answered, refused, unreachable or silent without the node is so with it;
//! - every byte arrives, and so does the end, also of a connection that is older than the node;
//! - nothing waits for a repeated SYN that did not without the node;
//! - servers see the same address of their client, and no wire carries a packet between addresses
//!   that did not meet on it without the node.
//!
//! A row is a [`Row`](row::Row): a network of namespaces with the router's configuration, and steps:
//! a change, and [`Probe`](probe::Probe)s. All steps of a row are taken in networks of the same set-up
//! side by side: without a node, and with nodes that carry connections in every [`Way`](way::Way), one by the
//! ports of one, another by those of another.
//!
//! One row alone, with what was observed: `cargo test --test e2e routers::NAME -- --nocapture`.

mod containers;
mod emulated;
mod filters;
mod home;
mod limits;
mod links;
mod nat;
mod probe;
mod row;
mod server;
mod testbed;
mod uplinks;
mod way;
