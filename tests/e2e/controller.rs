// SPDX-License-Identifier: Apache-2.0
//! A controller, and nodes that a test plays: what they say to each other, what an operator sees of it,
//! and what strangers do not get.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod api;
mod hostile;
mod life;
mod plans;
pub(crate) mod site;
