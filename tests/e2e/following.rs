// SPDX-License-Identifier: Apache-2.0
//! Real nodes that follow a real controller.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod clocks;
mod hostile;
mod impostor;
mod lessons;
mod links;
mod loss;
mod nodes;
mod operator;
mod scene;
mod swallowing;
mod visitors;
mod ways;

use posthaste_lab::network::Family;

use crate::support::{PORT, Pair, listen};
use scene::Scene;

/// Connections of both families that are open.
fn opened(scene: &Scene) -> [Pair; 2] {
    let server = listen(scene.network.server(), PORT + 1);
    Family::ALL.map(|family| scene.open(family, &server).0)
}
