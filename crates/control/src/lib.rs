// SPDX-License-Identifier: Apache-2.0
//! Nodes and their controller: what they say to each other, and what both make of it.
//!
//! A node tells what it measures ([`message::ToController`]); the controller tells it its part of a
//! plan ([`message::ToNode`]). `docs/design/0014-controller.md` says why it is done so, and
//! `docs/controller.md` what an operator does with it.
//!
//! | module | whose | what |
//! |---|---|---|
//! | [`message`], [`frame`] | both | what is said, and its bytes |
//! | [`update`] | node | the rows that it holds |
//! | [`follower`] | node | what it does with its stream, and how long it follows a plan |
//! | [`registry`] | controller | nodes and links as they were reported |
//! | [`rib`] | controller | the plan: chains, their numbers, ways, and what each node is sent of it |

#![forbid(unsafe_code)]

mod checksum;
pub mod egresses;
pub mod follower;
pub mod frame;
mod id_map;
pub mod identity;
pub mod message;
pub mod planning;
pub mod registry;
pub mod rib;
pub mod route_table;
#[cfg(test)]
mod simulation;
pub mod store;
pub mod stream;
pub mod time;
pub mod tls;
