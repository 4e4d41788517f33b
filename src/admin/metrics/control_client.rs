// SPDX-License-Identifier: Apache-2.0
//! The controller that is followed, and its plan. Without a controller there is no sample.

use posthaste_daemon::metrics::{Page, Row, truth};

use crate::api::control_client::{Destinations, Follow, Plan};

#[rustfmt::skip]
const STREAM: &[Row<Follow>] = &[
    ("controller_connected", "", "Whether the controller has let the node in.", |follow| truth(follow.connected)),
    ("controller_joins_total", "", "Streams on which the controller let the node in.", |follow| Some(follow.joins as f64)),
    ("controller_members", "", "Other nodes that the controller reports.", |follow| Some(follow.members as f64)),
    ("controller_keys_refused_total", "", "Rejected keys of nodes that differ from the key reported first.", |follow| Some(follow.keys as f64)),
    ("plan_changes_total", "", "Plans that were followed.", |follow| Some(follow.plans as f64)),
    ("controller_clock_offset_seconds", "", "How far the clock of this host is ahead of the controller's, by which the node goes.",
        |follow| Some(follow.clock?.offset_us as f64 / 1e6)),
    ("controller_clock_error_seconds", "", "By how much the offset may be wrong.", |follow| Some(follow.clock?.error_us as f64 / 1e6)),
    ("plan_refused_total", "reason=\"older\"", "Plans that were refused, by reason.", |follow| Some(follow.older as f64)),
    ("plan_refused_total", "reason=\"nack\"", "", |follow| Some(follow.nacks as f64)),
    ("plan_in_force", "", "Whether flows go by a plan.", |follow| truth(follow.plan.as_ref().is_some_and(|plan| plan.in_force))),
];

#[rustfmt::skip]
const PLAN: &[Row<Plan>] = &[
    ("plan_epoch", "", "The epoch of the plan.", |plan| Some(plan.epoch as f64)),
    ("plan_version", "", "The version of the plan.", |plan| Some(plan.version as f64)),
    ("plan_age_seconds", "", "Time since the controller last renewed the plan.", |plan| Some(plan.age_ms? as f64 / 1e3)),
    ("plan_ttl_seconds", "", "At this age flows go without the plan.", |plan| Some(plan.ttl_ms as f64 / 1e3)),
    ("plan_chains", "", "Chains of the plan that the node is part of.", |plan| Some(plan.chains as f64)),
    ("plan_egresses", "", "Nodes that ways of the plan lead to.", |plan| Some(plan.egresses as f64)),
];

#[rustfmt::skip]
const DESTINATIONS: &[Row<Destinations>] = &[
    ("destinations_known", "", "Destination prefixes that relays observed.", |all| Some(all.known as f64)),
    ("destinations_sized", "", "Prefixes whose transfers have a size that was learned.", |all| Some(all.sized as f64)),
    ("destinations_measured", "", "Prefixes whose round-trip time was reported to the controller.", |all| Some(all.measured as f64)),
    ("destination_samples_dropped_total", "reason=\"room\"", "Relays of which nothing was learned, by reason.", |all| Some(all.refused as f64)),
    ("destination_samples_dropped_total", "reason=\"pace\"", "", |all| Some(all.dropped as f64)),
];

pub(super) fn follow(page: &mut Page, follow: &Follow) {
    page.rows(STREAM, follow);
    if let Some(plan) = &follow.plan {
        page.rows(PLAN, plan);
    }
    page.rows(DESTINATIONS, &follow.destinations);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::control_client::Clock;

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
            page.finish()
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
