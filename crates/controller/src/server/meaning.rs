// SPDX-License-Identifier: Apache-2.0
//! A configuration in the words of those that plan.

use std::collections::BTreeMap;

use posthaste_control::identity::PublicKey;
use posthaste_control::message::{NodeNumber, Prefix};
use posthaste_control::registry::Listed;
use posthaste_control::rib::Settings;

use posthaste_config::controller::Controller;

/// How a configuration wants plans to be made.
pub(super) fn settings(config: &Controller) -> Settings {
    let plan = &config.plan;
    let mut settings = Settings {
        classes: plan.classes.clone(),
        hops_max: plan.hops_max,
        ..Settings::default()
    };
    settings.rules.margin_percent = plan.margin_percent;
    settings.rules.switch_gain_percent = plan.switch_gain_percent;
    settings.rules.better_us = u32::try_from(plan.better_by.as_micros()).unwrap_or(u32::MAX);
    settings.rules.switch_loss_percent = plan.switch_loss_percent;
    settings
}

/// The keys of the nodes that may come.
pub(super) fn keys(config: &Controller) -> BTreeMap<NodeNumber, PublicKey> {
    let nodes = config.nodes.iter();
    nodes.map(|node| (node.id, node.key)).collect()
}

/// The nodes that may come.
pub(super) fn listed(config: &Controller) -> BTreeMap<NodeNumber, Listed> {
    let nodes = config.nodes.iter().map(|node| {
        let name = node.name.clone();
        (node.id, Listed { name, cost_us: 0 })
    });
    nodes.collect()
}

/// Whose destinations are whose.
pub(super) fn prefixes(config: &Controller) -> BTreeMap<Prefix, NodeNumber> {
    let prefixes = config.prefixes.iter().map(|(prefix, node)| {
        let prefix = Prefix {
            address: prefix.octets(),
            bits: prefix.mapped_bits(),
        };
        (prefix, *node)
    });
    prefixes.collect()
}
