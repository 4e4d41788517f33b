// SPDX-License-Identifier: Apache-2.0
//! The controller's numbers in the Prometheus text format.

use posthaste_control::registry::RejectedReports;
use posthaste_control::time::StoredClock;

use super::api::view;
use super::server::{Inner, Server};
use crate::documents::{Plan, Status};
use posthaste_daemon::metrics::{MEMORY, Page, Row, VERSION, resident_bytes};

#[rustfmt::skip]
const PROCESS: &[Row<Status>] = &[
    ("build_info", VERSION, "The version that runs.", |_| Some(1.0)),
    ("uptime_seconds", "", "Since the controller started.", |status| Some(status.uptime_seconds)),
    ("process_resident_memory_bytes", "", MEMORY, |_| resident_bytes()),
    ("nodes", "", "Nodes of the configuration.", |status| Some(status.nodes as f64)),
];

#[rustfmt::skip]
const CLOCK: &[Row<StoredClock>] = &[
    ("time_offset_seconds", "", "Offset of the controller's clock from the time that it sends to nodes, after a step of that clock.",
        |time| Some(time.clock.as_secs_f64() - time.sent.as_secs_f64())),
];

/// What was rejected of the registry's reports, what of those of destinations, and the prefixes
/// that have an egress.
type Reports = (RejectedReports, u64, usize);

#[rustfmt::skip]
const REPORTS: &[Row<Reports>] = &[
    ("reports_refused_total", "reason=\"unauthorized\"", "Reports of nodes that were not believed, by reason.",
        |(links, ..)| Some(links.unauthorized as f64)),
    ("reports_refused_total", "reason=\"impossible\"", "", |(links, ..)| Some(links.impossible as f64)),
    ("reports_refused_total", "reason=\"destination\"", "", |(_, destinations, _)| Some(*destinations as f64)),
    ("links_disputed", "", "Links whose ends report too different round trips, now.", |(links, ..)| Some(links.disputed as f64)),
    ("egress_prefixes", "", "Prefixes with an egress, as sent to nodes.", |(.., egresses)| Some(*egresses as f64)),
];

#[rustfmt::skip]
const PLAN: &[Row<Plan>] = &[
    ("plan_epoch", "", "Epoch of the newest plan.", |plan| Some(plan.plan_version.epoch as f64)),
    ("plan_version", "", "Version of the newest plan.", |plan| Some(plan.plan_version.version as f64)),
    ("plan_age_seconds", "", "Since the newest plan was made.", |plan| plan.age_seconds),
    ("plan_duration_seconds", "", "How long the last plan took to make.", |plan| plan.took_seconds),
    ("plan_nodes", "", "Nodes that were planned with.", |plan| Some(plan.nodes as f64)),
    ("plan_links", "", "Links that were planned with, in one direction.", |plan| Some(plan.links as f64)),
    ("plan_chains", "", "Chains that some route uses, with nodes between their ends.", |plan| Some(plan.chains as f64)),
    ("plan_followers", "", "Nodes with a stream that follow the newest plan.", |plan| Some(plan.followed_by as f64)),
];

#[rustfmt::skip]
const COUNTERS: &[Row<Server>] = &[
    ("registrations_total", "", "Nodes that came.", |server| server.counters.registrations.sample()),
    ("messages_total", "", "Messages of nodes, after their first.", |server| server.counters.messages.sample()),
    ("nacks_total", "", "Rows that a node found not to fit.", |server| server.counters.nacks.sample()),
    ("plans_total", "", "Plans made.", |server| server.counters.plans.sample()),
    ("plans_changed_total", "", "Plans that differed from the one before.", |server| server.counters.plans_changed.sample()),
    ("plan_repairs_total", "", "Times that a plan was repaired without planning anew.", |server| server.counters.repairs.sample()),
    ("store_failures_total", "", "Writes to the store that failed.", |server| server.counters.store_failures.sample()),
    ("api_denied_total", "", "Requests without the token they need.", |server| server.counters.requests_denied.sample()),
    ("rows_sent_total", "kind=\"whole\"", "Rows sent to nodes: all of them, or changes.", |server| server.counters.updates_full.sample()),
    ("rows_sent_total", "kind=\"changes\"", "", |server| server.counters.updates_incremental.sample()),
    ("config_reloads_total", "result=\"success\"", "Attempts to read the configuration again.", |server| server.counters.reloads_succeeded.sample()),
    ("config_reloads_total", "result=\"failure\"", "", |server| server.counters.reloads_failed.sample()),
    ("log_events_dropped_total", "", "Log lines that were dropped.", |server| Some(server.log.events_dropped() as f64)),
];

/// Everything, ready to be scraped.
pub(super) fn render(server: &Server) -> String {
    let mut page = Page::of("posthaste_controller");
    let status = view::status(server);
    page.rows(PROCESS, &status);
    page.rows(CLOCK, &server.time());
    // After `view::status`, which takes the lock itself.
    nodes(&mut page, &mut server.lock());
    page.rows(PLAN, &status.plan);
    page.rows(COUNTERS, server);
    let help = "Streams of nodes that ended, or did not begin as they should, by reason.";
    let ended = server.counters.ended();
    page.by("streams_ended_total", help, "reason", ended);
    let help = "Connections that did not become streams, by reason.";
    let turned_away = server.counters.turned_away();
    page.by("unauthorized_total", help, "reason", turned_away);
    page.finish()
}

fn nodes(page: &mut Page, inner: &mut Inner) {
    let each = || inner.config.nodes.iter();
    let connected = each().map(|node| {
        let has_stream = inner.sessions.contains_key(&node.id);
        (&node.name, u8::from(has_stream))
    });
    page.by(
        "node_connected",
        "Whether a node has a stream.",
        "node",
        connected,
    );
    let help = "Offset of a node's clock from the controller's time, as the node reports it.";
    let offsets = each().filter_map(|node| {
        let ahead_us = inner.state.clock_ahead_us(node.id)?;
        Some((&node.name, ahead_us as f64 / 1e6))
    });
    page.by("node_clock_offset_seconds", help, "node", offsets);
    let reports = (
        inner.state.registry.rejected_reports(),
        inner.state.egresses.refused(),
        inner.state.list().len(),
    );
    page.rows(REPORTS, &reports);
}
