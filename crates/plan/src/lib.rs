// SPDX-License-Identifier: Apache-2.0
//! Computes which nodes should carry a connection: from measured links to the best chain for every
//! pair of nodes and every size of transfer.
//!
//! Pure: no I/O, no clock, no randomness, and threads only on request. The same matrix gives the
//! same plan, bit for bit, so that two controllers with the same data publish the same plan.
//!
//! | module | what |
//! |---|---|
//! | [`matrix`] | the links that were measured, and what each node costs |
//! | [`model`] | how long a transfer takes over a chain |
//! | [`fronts`] | every chain that is not beaten both in length and in its longest hop |
//! | [`planner`] | the chain for a pair and a transfer |
//! | [`table`] | what one node keeps of it, for look-ups without allocation |
//!
//! Nodes are numbers from 0. Where two chains tie in everything, the numbering decides: to get the
//! same plan twice, number the nodes alike. Times are in microseconds.

#![forbid(unsafe_code)]

#[cfg(test)]
mod brute;
pub mod fronts;
pub mod matrix;
pub mod model;
mod parallel;
pub mod planner;
mod sweep;
pub mod table;

pub use fronts::{Fronts, Point};
pub use matrix::{Link, Matrix};
pub use model::Model;
pub use planner::Planner;
pub use table::Table;
