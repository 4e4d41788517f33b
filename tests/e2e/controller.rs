// SPDX-License-Identifier: Apache-2.0
//! A controller, and nodes that a test plays: what they say to each other, what an operator sees of it,
//! and what unauthorized senders do not get.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod api;
mod hostile;
mod lifecycle;
mod plans;
pub(crate) mod testbed;
