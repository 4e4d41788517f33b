// SPDX-License-Identifier: Apache-2.0
//! A controller with nodes that the test plays: the messages between them, the operator's view,
//! and what unauthorized senders are denied.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod api;
mod hostile;
mod lifecycle;
mod plans;
pub(crate) mod testbed;
