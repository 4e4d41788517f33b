// SPDX-License-Identifier: Apache-2.0
//! What holds of rows whatever a node holds: bounds, order, and that every chain leads to its egress.

use posthaste_wire::header::NodeId;
use posthaste_wire::segments::SEGMENTS_MAX;

use super::CHOICES_MAX;
use crate::message::{NodeNumber, RouteUpdate, Routes};

/// Checks rows that were sent to `me`. An error describes what is wrong.
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
    let ordered = update.routes.is_sorted_by(|a, b| a.egress < b.egress)
        && update.routes_removed.is_sorted_by(|a, b| a < b);
    if !ordered {
        return Err("rows are not in order".to_owned());
    }
    if update.base.is_none() && !update.routes_removed.is_empty() {
        return Err("routes are removed from nothing".to_owned());
    }
    update.routes.iter().try_for_each(|routes| {
        let is_removed = update.routes_removed.binary_search(&routes.egress).is_ok();
        check_routes(me, routes, classes, is_removed)
    })
}

fn check_routes(
    me: NodeNumber,
    routes: &Routes,
    classes: usize,
    is_removed: bool,
) -> Result<(), String> {
    let egress = routes.egress;
    let wrong = |what: &str| Err(format!("the routes to node {egress} {what}"));
    if egress == me || NodeId::new(egress).is_none() {
        return wrong("lead nowhere");
    }
    if is_removed {
        return wrong("are changed and removed");
    }
    if routes.classes.len() != classes {
        return wrong("are for other classes");
    }
    if !routes
        .chains
        .iter()
        .all(|nodes| is_chain(me, nodes, egress))
    {
        return wrong("have a chain that is too long, or passes a node twice");
    }
    let (chains, choices) = (routes.chains.len(), routes.choices.len());
    // Bounds the memory by the classes: a chain that no choice names would never be used.
    if chains > choices * CHOICES_MAX {
        return wrong("have more chains than choices name");
    }
    let leads = |place: &u8| usize::from(*place) < chains;
    for choice in &routes.choices {
        if choice.len() > CHOICES_MAX || !choice.iter().all(leads) {
            return wrong("have a choice with too many chains, or with an unknown one");
        }
    }
    let has_choice = |class: &u8| usize::from(*class) < choices;
    if choices > classes || !routes.classes.iter().all(has_choice) {
        return wrong("have choices for no class, or none for one");
    }
    Ok(())
}

/// Whether nodes between two others are a chain that a header has room for.
fn is_chain(me: NodeNumber, nodes: &[NodeNumber], egress: NodeNumber) -> bool {
    let is_new = |(place, node): (usize, &NodeNumber)| {
        let is_end = *node == me || *node == egress;
        NodeId::new(*node).is_some() && !is_end && !nodes[..place].contains(node)
    };
    // A node twice would be a loop; the header has room for that many segments.
    nodes.len() <= SEGMENTS_MAX && nodes.iter().enumerate().all(is_new)
}
