// SPDX-License-Identifier: Apache-2.0
//! Nodes and their controller: the messages between them, and what both make of these.
//!
//! A node reports what it measures ([`message::ToController`]); the controller sends it its part of a
//! plan ([`message::ToNode`]). `docs/design/0014-controller.md` gives the reasons, and
//! `docs/controller.md` describes what an operator does with it.
//!
//! | module | whose | what |
//! |---|---|---|
//! | [`message`], [`frame`] | both | the messages, and their bytes |
//! | [`route_table`] | node | the rows that it holds |
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
