// SPDX-License-Identifier: Apache-2.0
//! The controller that is followed, and its plan. Without a controller there is no sample.

use super::Page;
use crate::admin::api::control_client::{Destinations, Follow, Plan};

pub(super) fn follow(page: &mut Page, follow: &Follow) {
    let help = "Whether the controller has let the node in.";
    page.single(
        "controller_connected",
        "gauge",
        help,
        u8::from(follow.connected),
    );
    let help = "Streams on which the controller let the node in.";
    page.single("controller_joins_total", "counter", help, follow.joins);
    let help = "Other nodes that the controller tells of.";
    page.single("controller_members", "gauge", help, follow.members);
    let help = "Keys of nodes that were refused since another was told first.";
    page.single(
        "controller_keys_refused_total",
        "counter",
        help,
        follow.keys,
    );
    let help = "Plans that were followed.";
    page.single("plan_changes_total", "counter", help, follow.plans);
    if let Some(clock) = &follow.clock {
        let help =
            "How far the clock of this host is ahead of the controller's, by which the node goes.";
        let offset = clock.offset_us as f64 / 1e6;
        page.single("controller_clock_offset_seconds", "gauge", help, offset);
        let help = "By how much the offset may be wrong.";
        let error = clock.error_us as f64 / 1e6;
        page.single("controller_clock_error_seconds", "gauge", help, error);
    }
    page.family(
        "plan_refused_total",
        "counter",
        "Plans that were refused, by reason.",
    );
    page.sample("plan_refused_total", "reason=\"older\"", follow.older);
    page.sample("plan_refused_total", "reason=\"nack\"", follow.nacks);
    let in_force = follow.plan.as_ref().is_some_and(|plan| plan.in_force);
    let help = "Whether flows go by a plan.";
    page.single("plan_in_force", "gauge", help, u8::from(in_force));
    if let Some(plan) = &follow.plan {
        held(page, plan);
    }
    destinations(page, &follow.destinations);
}

fn destinations(page: &mut Page, known: &Destinations) {
    let help = "Prefixes of destinations of which relays have taught something.";
    page.single("destinations_known", "gauge", help, known.known);
    let help = "Prefixes whose transfers have a size that was learned.";
    page.single("destinations_sized", "gauge", help, known.sized);
    let help = "Prefixes whose round trip the controller was told.";
    page.single("destinations_measured", "gauge", help, known.measured);
    page.family(
        "destination_samples_dropped_total",
        "counter",
        "Relays of which nothing was learned, by reason.",
    );
    for (reason, count) in [("room", known.refused), ("pace", known.dropped)] {
        let labels = format!("reason=\"{reason}\"");
        page.sample("destination_samples_dropped_total", &labels, count);
    }
}

fn held(page: &mut Page, plan: &Plan) {
    page.single("plan_epoch", "gauge", "The epoch of the plan.", plan.epoch);
    page.single(
        "plan_version",
        "gauge",
        "The version of the plan.",
        plan.version,
    );
    if let Some(age_ms) = plan.age_ms {
        let help = "Since the controller last said that the plan stands.";
        page.single("plan_age_seconds", "gauge", help, age_ms as f64 / 1e3);
    }
    let help = "At this age flows go without the plan.";
    page.single("plan_ttl_seconds", "gauge", help, plan.ttl_ms as f64 / 1e3);
    let help = "Chains of the plan that the node is part of.";
    page.single("plan_chains", "gauge", help, plan.chains);
    let help = "Nodes that ways of the plan lead to.";
    page.single("plan_egresses", "gauge", help, plan.egresses);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::admin::api::control_client::Clock;

    pub(in super::super) fn followed() -> Follow {
        Follow {
            connected: true,
            plan: Some(Plan {
                epoch: 2,
                version: 7,
                age_ms: Some(1_500),
                ..Plan::default()
            }),
            older: 1,
            nacks: 3,
            clock: Some(Clock {
                offset_us: -3_600_250_000,
                error_us: 1_500,
            }),
            ..Follow::default()
        }
    }

    #[test]
    fn plan_age_in_seconds() {
        let render = |followed: &Follow| {
            let mut page = Page::of("posthaste");
            follow(&mut page, followed);
            page.0
        };
        let page = render(&followed());
        assert!(page.contains("posthaste_plan_age_seconds 1.5\n"), "{page}");
        assert!(page.contains("posthaste_plan_refused_total{reason=\"nack\"} 3\n"));
        assert!(page.contains("posthaste_plan_in_force 0\n"));
        assert!(page.contains("posthaste_controller_clock_offset_seconds -3600.25\n"));
        assert!(page.contains("posthaste_controller_clock_error_seconds 0.0015\n"));
        let page = render(&Follow::default());
        assert!(
            !page.contains("clock")
                && !page.contains("plan_age")
                && page.contains("posthaste_plan_in_force 0\n")
        );
    }
}
