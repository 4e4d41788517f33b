// SPDX-License-Identifier: Apache-2.0
//! The effect of a controller's plan on a flow, and the reasons.

use posthaste_control::message::Egress;
use posthaste_relay::chain::{NextHop, Route};
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::Rule;

use crate::api::chains as api;
use crate::api::control_client::Plan;
use crate::control_client::{Experience, PrefixOwner};
use crate::destinations::{prefix_of, prefix_word};
use posthaste_config::Config;

/// The knowledge of a destination on a node with a controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followed {
    /// The current plan.
    pub(crate) plan: Option<Plan>,
    /// The owner of the destination.
    pub(crate) whose: Option<PrefixOwner>,
    /// Measurements of the node's own relays.
    pub(crate) experience: Experience,
}

/// A flow with its configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) config: &'a Config,
    pub(super) flow: Flow,
    pub(super) rule: Option<&'a Rule>,
    /// The route and its position, from 1.
    pub(super) route: Option<(usize, &'a Route)>,
    /// The size of the request, in bytes.
    pub(super) wanted: Option<u32>,
}

impl Case<'_> {
    /// Whether the candidates are those of a plan, if there is one.
    fn is_planned(&self) -> bool {
        self.route
            .is_none_or(|(_, route)| route.transfer_bytes.is_some())
    }

    /// The candidates for the flow, the best first.
    pub(super) fn next_hops(&self) -> Vec<NextHop> {
        let chains = &self.config.policy.chains;
        match (&chains.planned, self.wanted) {
            // A given size takes precedence over the configured one, which `Chains::next_hops`
            // would use.
            (Some(planned), Some(_)) if self.is_planned() => {
                let next_hops = planned.next_hops(&self.flow, self.wanted);
                next_hops.iter().copied().chain([NextHop::Direct]).collect()
            }
            _ => chains.next_hops(&self.flow, self.rule.and_then(|rule| rule.transfer_bytes)),
        }
    }

    /// The assumed size of the flow. `None` where no candidate depends on it.
    pub(super) fn size(&self, followed: Option<&Followed>) -> Option<api::Size> {
        let follow = self.config.follow.as_ref();
        if !self.is_planned() || (follow.is_none() && self.wanted.is_none()) {
            return None;
        }
        let (bytes, source) = self
            .text()
            .or_else(|| {
                let (bytes, _) = followed?.experience.size?;
                Some((bytes, "learned".to_owned()))
            })
            .or_else(|| Some((follow?.transfer_bytes, "default".to_owned())))?;
        let learned = followed.and_then(|followed| followed.experience.size);
        let learned = learned.filter(|_| source == "learned");
        let planned = self.config.policy.chains.planned.as_ref();
        let class = planned.map(|planned| planned.class(bytes.into()));
        Some(api::Size {
            bytes: bytes.into(),
            source,
            transfers: learned.map(|(_, transfers)| transfers),
            prefix: learned.map(|_| prefix_word(&prefix_of(self.flow.server().ip()))),
            class,
            class_bytes: planned
                .zip(class)
                .and_then(|(planned, class)| planned.sizes.get(class).copied()),
        })
    }

    /// A configured or requested size, and its source.
    fn text(&self) -> Option<(u32, String)> {
        let by_route = || {
            let (number, route) = self.route?;
            Some((route.transfer_bytes?, format!("route {number}")))
        };
        let by_rule = || {
            let rule = self.rule?;
            Some((rule.transfer_bytes?, format!("rule \"{}\"", rule.name)))
        };
        let wanted = self.wanted.map(|bytes| (bytes, "given".to_owned()));
        wanted.or_else(by_route).or_else(by_rule)
    }

    /// The plan's result for the flow of this size class. `None` without a controller.
    pub(super) fn plan(
        &self,
        followed: Option<&Followed>,
        class: Option<usize>,
    ) -> Option<api::AppliedPlan> {
        let followed = followed?;
        let whose = followed.whose;
        let plan = followed.plan.as_ref();
        Some(api::AppliedPlan {
            epoch: plan.map(|plan| plan.epoch),
            version: plan.map(|plan| plan.version),
            age_ms: plan.and_then(|plan| plan.age_ms),
            in_force: plan.is_some_and(|plan| plan.in_force),
            prefix: whose.map(|whose| prefix_word(&whose.egress.prefix)),
            egress: whose.map(|whose| self.name(&whose.egress)),
            rtt_us: whose.and_then(|whose| whose.egress.rtt_us),
            own_rtt_us: followed.experience.rtt_us,
            why: self.why(followed, class),
        })
    }

    fn why(&self, followed: &Followed, class: Option<usize>) -> String {
        if let Some((number, _)) = self.route.filter(|_| !self.is_planned()) {
            return format!("route {number} goes first");
        }
        match &followed.plan {
            None => return "there is none yet: flows go directly".into(),
            Some(plan) if !plan.in_force => {
                return "it is too old: flows go directly".into();
            }
            Some(_) => {}
        }
        let Some(whose) = &followed.whose else {
            return "no node is its egress: flows go directly".into();
        };
        let name = self.name(&whose.egress);
        let prefix = prefix_word(&whose.egress.prefix);
        let mut why = format!("{prefix} is {name}'s, ");
        why += &match whose.egress.rtt_us {
            None => "by a table of the controller".to_owned(),
            Some(rtt_us) => format!("which measured the least, {}", millis(rtt_us)),
        };
        why + &self.consequence(whose, followed.experience.rtt_us, class)
    }

    /// The consequence of the destination's owner.
    fn consequence(
        &self,
        whose: &PrefixOwner,
        own_us: Option<u32>,
        class: Option<usize>,
    ) -> String {
        let chains = &self.config.policy.chains;
        if chains
            .me
            .is_some_and(|me| u64::from(me) == whose.egress.node)
        {
            return ": flows go directly".into();
        }
        let class = u32::try_from(class.unwrap_or(0)).unwrap_or(u32::MAX);
        let goes_by_it = whose.classes.checked_shr(class).unwrap_or(0) & 1 == 1;
        let own = own_us.map(millis);
        match (whose.egress.rtt_us, own) {
            (None, _) => String::new(),
            (Some(_), None) => {
                ", and this node has not: flows go directly, which measures it".into()
            }
            (Some(_), Some(own)) if goes_by_it => format!(", this node {own}"),
            (Some(_), Some(own)) => {
                format!(
                    ", this node {own}: flows of this size go directly, as they gain too little"
                )
            }
        }
    }

    fn name(&self, egress: &Egress) -> String {
        let chains = &self.config.policy.chains;
        if chains.me.is_some_and(|me| u64::from(me) == egress.node) {
            return "this node".into();
        }
        let mut peers = chains.peers.iter();
        let peer = peers.find(|peer| u64::from(peer.id) == egress.node);
        peer.map_or_else(
            || format!("node {}", egress.node),
            |peer| peer.name.to_string(),
        )
    }
}

fn millis(us: u32) -> String {
    format!("{}.{:03} ms", us / 1000, us % 1000)
}
