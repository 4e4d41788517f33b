// SPDX-License-Identifier: Apache-2.0
//! What holds of rows whatever a node has: bounds, order, and that numbers make sense.

use posthaste_wire::header::RESOLVE;

use super::CHOICES_MAX;
use crate::message::{ChainNumber, NodeNumber, NumberedChain, RouteUpdate, Routes};

/// The largest number that a label has room for, but one, which is no chain's.
pub(crate) const CHAIN_MAX: ChainNumber = RESOLVE - 1;

/// The most nodes of a chain: a label tells the position in eight bits.
pub(crate) const NODES_MAX: usize = 255;

/// Checks rows that were sent to `me`; otherwise says what is wrong.
pub(super) fn alone(me: NodeNumber, update: &RouteUpdate) -> Result<(), String> {
    let classes = update.sizes.len().saturating_mul(update.access_us.len());
    let sizes_ascend = update.sizes.is_sorted_by(|a, b| a < b);
    if !sizes_ascend || !update.access_us.is_sorted_by(|a, b| a < b) {
        return Err("classes do not ascend".to_owned());
    }
    if !(1..=posthaste_plan::table::CLASSES_MAX).contains(&classes) {
        return Err(format!("{classes} classes"));
    }
    // In order, so that nothing is there twice, and so that it can be looked up.
    let ordered = update.chains.is_sorted_by(|a, b| a.number < b.number)
        && update.chains_removed.is_sorted_by(|a, b| a < b)
        && update.routes.is_sorted_by(|a, b| a.egress < b.egress)
        && update.routes_removed.is_sorted_by(|a, b| a < b);
    if !ordered {
        return Err("rows are not in order".to_owned());
    }
    if update.base.is_none()
        && !(update.chains_removed.is_empty() && update.routes_removed.is_empty())
    {
        return Err("something is gone from nothing".to_owned());
    }
    update.chains.iter().try_for_each(|chain| {
        let is_removed = update.chains_removed.binary_search(&chain.number).is_ok();
        check_chain(me, chain, is_removed)
    })?;
    update.routes.iter().try_for_each(|routes| {
        let is_removed = update.routes_removed.binary_search(&routes.egress).is_ok();
        check_routes(me, routes, classes, is_removed)
    })
}

fn check_chain(me: NodeNumber, chain: &NumberedChain, is_removed: bool) -> Result<(), String> {
    let NumberedChain { number, nodes } = chain;
    let wrong = |what: &str| Err(format!("chain {number} {what}"));
    if !(1..=CHAIN_MAX).contains(number) {
        return wrong("has no number for labels");
    }
    if is_removed {
        return wrong("is there and gone");
    }
    if !(3..=NODES_MAX).contains(&nodes.len()) {
        return wrong("has too few or too many nodes");
    }
    if !nodes.contains(&me) {
        return wrong("does not pass here");
    }
    let twice = |(place, node): (usize, &NodeNumber)| nodes[..place].contains(node);
    if nodes.contains(&0) || nodes.iter().enumerate().any(twice) {
        return wrong("passes a node twice, or one without a number");
    }
    Ok(())
}

fn check_routes(
    me: NodeNumber,
    routes: &Routes,
    classes: usize,
    is_removed: bool,
) -> Result<(), String> {
    let egress = routes.egress;
    let wrong = |what: &str| Err(format!("ways to {egress} {what}"));
    if egress == me || egress == 0 {
        return wrong("lead nowhere");
    }
    if is_removed {
        return wrong("are there and gone");
    }
    if routes.classes.len() != classes {
        return wrong("are for other classes");
    }
    if routes
        .choices
        .iter()
        .any(|choice| choice.len() > CHOICES_MAX)
    {
        return wrong("are too many");
    }
    let choices = routes.choices.len();
    if choices > classes
        || routes
            .classes
            .iter()
            .any(|&class| usize::from(class) >= choices)
    {
        return wrong("have choices for no class, or none for one");
    }
    Ok(())
}
