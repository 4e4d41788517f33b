// SPDX-License-Identifier: Apache-2.0
//! Which nodes should carry a connection? From measured links to the best chain for every pair of
//! nodes and every size of transfer.
//!
//! Pure: no I/O, no clock, no chance, and no threads but those that are asked for. The same matrix
//! gives the same plan, bit for bit, so that two controllers that know the same publish the same.
//!
//! | module | what |
//! |---|---|
//! | [`matrix`] | the links that were measured, and what each node costs |
//! | [`model`] | how long a transfer takes over a chain |
//! | [`fronts`] | every chain that is not beaten both in length and in its longest hop |
//! | [`planner`] | the chain for a pair and a transfer |
//! | [`table`] | what one node keeps of it, for look-ups without allocation |
//!
//! Nodes are numbers from 0. Where two chains tie in everything, the numbering decides: whoever
//! wants the same plan twice numbers the nodes alike. Times are microseconds.

#![forbid(unsafe_code)]

#[cfg(test)]
mod brute;
pub mod fronts;
pub mod matrix;
pub mod model;
mod parallel;
pub mod planner;
#[cfg(test)]
mod rng;
mod sweep;
pub mod table;

pub use fronts::{Fronts, Point};
pub use matrix::{Link, Matrix};
pub use model::Model;
pub use planner::Planner;
pub use table::Table;
