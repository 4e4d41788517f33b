// SPDX-License-Identifier: Apache-2.0
//! What is kept for a pair of nodes: its chains, and which of them it is to use. A million of them, so
//! lists are flat. Pure.

use super::choose::{Choice, Chosen};
use crate::checksum;
use crate::message::{ChainNumber, DIRECT, NodeNumber, Routes};
use crate::route_table::CHOICES_MAX;

/// No chain.
const NONE: ChainNumber = ChainNumber::MAX;

/// An ordered pair of nodes.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// Places of its chains.
    pub(super) chains: Vec<u32>,
    pub(super) routes: Option<PairRoutes>,
    /// The version with which the ways became what they are; 0 if there never were any.
    pub(super) changed: u64,
}

/// The ways of a pair.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PairRoutes {
    /// By class, which choice.
    pub(super) classes: Box<[u8]>,
    /// Numbers of chains, [`NONE`] after the last.
    choices: Box<[[ChainNumber; CHOICES_MAX]]>,
}

impl PairRoutes {
    /// Chains by choice, the best first.
    pub(super) fn choices(&self) -> impl Iterator<Item = &[ChainNumber]> {
        self.choices.iter().map(|choice| numbers(choice))
    }

    pub(super) fn uses_direct(&self) -> bool {
        self.choices.as_flattened().contains(&DIRECT)
    }

    /// As nodes are sent them.
    pub(super) fn toward(&self, egress: NodeNumber) -> Routes {
        Routes {
            egress,
            classes: self.classes.to_vec(),
            choices: self.choices().map(<[ChainNumber]>::to_vec).collect(),
        }
    }

    /// Their sum.
    pub(super) fn sum(&self, egress: NodeNumber) -> u64 {
        checksum::routes_by(egress, &self.classes, self.choices())
    }

    /// What was chosen, with the numbers of the candidates, unless it is nothing in all classes.
    pub(super) fn of(chosen: &Chosen, known: &[Option<ChainNumber>]) -> Option<Self> {
        let choices: Box<[_]> = chosen.choices.iter().map(|one| row(one, known)).collect();
        let is_any = choices.iter().any(|choice| choice[0] != NONE);
        is_any.then(|| Self {
            classes: chosen.classes.as_slice().into(),
            choices,
        })
    }

    /// Whether [`PairRoutes::of`] comes to the same.
    pub(super) fn is_of(&self, chosen: &Chosen, known: &[Option<ChainNumber>]) -> bool {
        let mut pairs = self.choices.iter().zip(&chosen.choices);
        *self.classes == *chosen.classes
            && self.choices.len() == chosen.choices.len()
            && pairs.all(|(kept, choice)| *kept == row(choice, known))
    }
}

/// The numbers of a choice; candidates without are left out.
fn row(choice: &Choice, known: &[Option<ChainNumber>]) -> [ChainNumber; CHOICES_MAX] {
    let mut row = [NONE; CHOICES_MAX];
    let places = choice.places().iter();
    let given = places.filter_map(|&place| known[place]);
    row.iter_mut()
        .zip(given)
        .for_each(|(to, number)| *to = number);
    row
}

fn numbers(row: &[ChainNumber]) -> &[ChainNumber] {
    let count = row.iter().position(|number| *number == NONE);
    &row[..count.unwrap_or(row.len())]
}
