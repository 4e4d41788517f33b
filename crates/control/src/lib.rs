// SPDX-License-Identifier: Apache-2.0
//! Nodes and their controller: what they say to each other, and what both make of it.
//!
//! A node tells what it measures ([`message::ToController`]); the controller tells it its part of a
//! plan ([`message::ToNode`]). `docs/design/0014-controller.md` says why it is done so, and
//! `docs/controller.md` what an operator does with it.

#![forbid(unsafe_code)]

mod checksum;
pub mod frame;
pub mod identity;
pub mod message;
pub mod rows;
pub mod tls;
