// SPDX-License-Identifier: Apache-2.0
//! The rules of the policy, as a worker applies them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::chain::Chains;
use crate::flow::Flow;
use crate::policy::{Action, Policy, Rule, SideOptions};
use crate::relay::Bounds;
use crate::side::{Side, Sides};
use crate::tally::Tallies;

use super::preface::Preface;

/// A rule with values derived from it.
#[derive(Debug)]
pub(super) struct LocalRule {
    pub(super) rule: Rule,
    pub(super) name: Arc<str>,
    /// The slot of its counters, see [`Tallies`](crate::tally::Tallies).
    pub(super) tally: usize,
    pub(super) bounds: Bounds,
    /// Whether the listener already has the rule's downstream options.
    pub(super) inherited: bool,
}

/// The current policy and the former one, to which pending events may refer.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) policy: Arc<Policy>,
    chains: Arc<Chains>,
    current: (u8, Vec<Rc<LocalRule>>),
    former: Option<(u8, Vec<Rc<LocalRule>>)>,
    inherited: SideOptions,
}

impl Rules {
    pub(super) fn new(policy: &Arc<Policy>, generation: u8, tallies: &Tallies) -> Self {
        let inherited = common(policy);
        Self {
            current: (generation, localize(policy, &inherited, tallies)),
            former: None,
            chains: Arc::clone(&policy.chains),
            policy: Arc::clone(policy),
            inherited,
        }
    }

    pub(super) fn replace(&mut self, policy: Arc<Policy>, generation: u8, tallies: &Tallies) {
        let next = (generation, localize(&policy, &self.inherited, tallies));
        self.former = Some(std::mem::replace(&mut self.current, next));
        self.chains = Arc::clone(&policy.chains);
        self.policy = policy;
    }

    pub(super) fn set_chains(&mut self, chains: Arc<Chains>) {
        self.chains = chains;
    }

    /// The downstream options of the listeners, which accepted sockets inherit.
    pub(super) fn inherited(&self) -> &SideOptions {
        &self.inherited
    }

    /// The rule of an event's generation, or else the current rule for its flow.
    pub(super) fn for_event(
        &self,
        generation: u8,
        rule: usize,
        flow: &Flow,
    ) -> Option<Rc<LocalRule>> {
        let named = [Some(&self.current), self.former.as_ref()];
        let named = named
            .into_iter()
            .flatten()
            .find(|(number, _)| *number == generation);
        match named {
            Some((_, rules)) => rules.get(rule).cloned(),
            // Older than both policies: its number names another rule by now.
            None => self.for_flow(flow),
        }
    }

    pub(super) fn for_flow(&self, flow: &Flow) -> Option<Rc<LocalRule>> {
        self.current.1.get(self.policy.classify(flow)?).cloned()
    }

    /// The rule of a flow that is addressed to this node, unless it rejects the flow.
    pub(super) fn for_request(&self, flow: &Flow) -> Option<Rc<LocalRule>> {
        let rule = self.for_flow(flow);
        rule.filter(|rule| rule.rule.action != Action::Reject)
    }

    /// Whether a rule opens flows in late mode.
    pub(super) fn any_late(&self) -> bool {
        let mut rules = self.policy.rules.iter();
        rules.any(|rule| !rule.accept.connects_at_syn())
    }

    /// Other nodes, as currently known.
    pub(super) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// The settings of both sockets of a flow: of its rule, or of the peer to which a side is a hop.
    pub(super) fn side_options<'a>(
        &'a self,
        rule: &'a Rule,
        preface: Option<&Preface>,
    ) -> Sides<&'a SideOptions> {
        let mut sides = rule.sides();
        if let Some(preface) = preface {
            for side in Side::BOTH {
                let peer = preface.peer(side).and_then(|id| self.chains.find_peer(id));
                sides[side] = peer.map_or(sides[side], |peer| &peer.socket);
            }
        }
        sides
    }

    pub(super) fn relays_max(&self) -> usize {
        self.policy.relays_max as usize
    }
}

/// The options for the listeners: the downstream options if all rules agree, else none, so that no
/// rule gets options that it does not name.
fn common(policy: &Policy) -> SideOptions {
    let mut rules = policy.rules.iter().map(|rule| &rule.downstream);
    match rules.next() {
        Some(first) if rules.all(|other| other == first) => first.clone(),
        _ => SideOptions {
            keepalive_idle: Duration::ZERO,
            ..SideOptions::default()
        },
    }
}

fn localize(policy: &Policy, inherited: &SideOptions, tallies: &Tallies) -> Vec<Rc<LocalRule>> {
    let each = policy.rules.iter().map(|rule| {
        Rc::new(LocalRule {
            name: rule.name.as_str().into(),
            tally: tallies.place_of(&rule.name),
            bounds: Bounds {
                idle_ms: millis(rule.timeouts.idle),
                client_fin_ms: millis(rule.timeouts.client_fin),
                server_fin_ms: millis(rule.timeouts.server_fin),
            },
            inherited: rule.downstream == *inherited,
            rule: rule.clone(),
        })
    });
    each.collect()
}

/// Milliseconds, saturating at 49 days.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
