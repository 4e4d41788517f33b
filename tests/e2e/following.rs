// SPDX-License-Identifier: Apache-2.0
//! Real nodes that follow a real controller.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod clocks;
mod fixture;
mod hostile;
mod impostor;
mod links;
mod loss;
mod nodes;
mod observations;
mod operator;
mod routes;
mod swallowing;
mod visitors;

use posthaste_lab::network::Family;

use crate::support::{PORT, Pair, listen};
use fixture::Fixture;

/// Connections of both families that are open.
fn opened(fixture: &Fixture) -> [Pair; 2] {
    let server = listen(fixture.network.server(), PORT + 1);
    Family::ALL.map(|family| fixture.open(family, &server).0)
}
