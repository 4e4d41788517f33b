// SPDX-License-Identifier: Apache-2.0
//! The controller's numbers in the Prometheus text format.

use super::api::view;
use super::counters::Counters;
use super::server::Server;
use crate::metrics::{Page, escaped, process_memory};

/// Everything, ready to be scraped.
pub(super) fn render(server: &Server) -> String {
    let mut page = Page::of("posthaste_controller");
    let status = view::status(server);
    page.family("build_info", "gauge", "The version that runs.");
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    page.sample("build_info", version, 1);
    let uptime = "Since the controller started.";
    page.single("uptime_seconds", "gauge", uptime, status.uptime_seconds);
    process_memory(&mut page);
    page.single(
        "nodes",
        "gauge",
        "Nodes of the configuration.",
        status.nodes,
    );
    let time = server.time();
    let offset = time.clock.as_secs_f64() - time.sent.as_secs_f64();
    let help =
        "How far the controller's own clock is ahead of the time that nodes are told: it was set.";
    page.single("time_offset_seconds", "gauge", help, offset);
    nodes(&mut page, server);
    plan(&mut page, &status.plan);
    counters(&mut page, server);
    streams(&mut page, &server.counters);
    page.0
}

fn nodes(page: &mut Page, server: &Server) {
    let mut inner = server.lock();
    page.family("node_connected", "gauge", "Whether a node has a stream.");
    for node in &inner.config.nodes {
        let connected = u8::from(inner.sessions.contains_key(&node.id));
        let label = format!("node=\"{}\"", escaped(&node.name));
        page.sample("node_connected", &label, connected);
    }
    let help =
        "How far the clock of a node's host is ahead of the time that nodes are told, as it says.";
    page.family("node_clock_offset_seconds", "gauge", help);
    for node in &inner.config.nodes {
        if let Some(ahead_us) = inner.state.clock_ahead_us(node.id) {
            let label = format!("node=\"{}\"", escaped(&node.name));
            let offset = ahead_us as f64 / 1e6;
            page.sample("node_clock_offset_seconds", &label, offset);
        }
    }
    let rejected_reports = inner.state.registry.rejected_reports();
    let refused = inner.state.egresses.refused();
    let egresses = inner.state.list().len();
    drop(inner);
    let help = "Reports of nodes that were not believed, by reason.";
    page.family("reports_refused_total", "counter", help);
    let reasons = [
        ("unauthorized", rejected_reports.unauthorized),
        ("impossible", rejected_reports.impossible),
        ("destination", refused),
    ];
    for (reason, count) in reasons {
        page.sample(
            "reports_refused_total",
            &format!("reason=\"{reason}\""),
            count,
        );
    }
    let help = "Links whose ends say too different things, now.";
    page.single("links_disputed", "gauge", help, rejected_reports.disputed);
    let help = "Prefixes that nodes are told an egress for.";
    page.single("egress_prefixes", "gauge", help, egresses);
}

fn plan(page: &mut Page, plan: &super::api::documents::Plan) {
    let gauge = |page: &mut Page, name: &str, help: &str, value: u64| {
        page.single(name, "gauge", help, value);
    };
    gauge(
        page,
        "plan_epoch",
        "Epoch of the newest plan.",
        plan.plan_version.epoch,
    );
    gauge(
        page,
        "plan_version",
        "Version of the newest plan.",
        plan.plan_version.version,
    );
    if let (Some(age), Some(took)) = (plan.age_seconds, plan.took_seconds) {
        let help = "Since the newest plan was made.";
        page.single("plan_age_seconds", "gauge", help, age);
        let help = "How long the last plan took to make.";
        page.single("plan_duration_seconds", "gauge", help, took);
    }
    let numbers = [
        ("plan_nodes", "Nodes that were planned with.", plan.nodes),
        (
            "plan_links",
            "Links that were planned with, in one direction.",
            plan.links,
        ),
        (
            "plan_chains",
            "Chains that some route uses, with nodes between their ends.",
            plan.chains,
        ),
        (
            "plan_followers",
            "Nodes with a stream that follow the newest plan.",
            plan.followed_by,
        ),
    ];
    for (name, help, value) in numbers {
        gauge(page, name, help, value as u64);
    }
}

fn counters(page: &mut Page, server: &Server) {
    let counters = &server.counters;
    let singles = [
        (
            "registrations_total",
            "Nodes that came.",
            &counters.registrations,
        ),
        (
            "messages_total",
            "Messages of nodes, after their first.",
            &counters.messages,
        ),
        (
            "nacks_total",
            "Rows that a node found not to fit.",
            &counters.nacks,
        ),
        ("plans_total", "Plans made.", &counters.plans),
        (
            "plans_changed_total",
            "Plans that differed from the one before.",
            &counters.plans_changed,
        ),
        (
            "plan_repairs_total",
            "Times that a plan was repaired without planning anew.",
            &counters.repairs,
        ),
        (
            "store_failures_total",
            "Writes to the store that failed.",
            &counters.store_failures,
        ),
        (
            "api_denied_total",
            "Requests without the token they need.",
            &counters.requests_denied,
        ),
    ];
    for (name, help, counter) in singles {
        page.single(name, "counter", help, counter.read());
    }
    let help = "Rows sent to nodes: all of them, or changes.";
    page.family("rows_sent_total", "counter", help);
    page.sample(
        "rows_sent_total",
        "kind=\"whole\"",
        counters.updates_full.read(),
    );
    page.sample(
        "rows_sent_total",
        "kind=\"changes\"",
        counters.updates_incremental.read(),
    );
    let help = "Attempts to read the configuration again.";
    page.family("config_reloads_total", "counter", help);
    let (good, bad) = (&counters.reloads_succeeded, &counters.reloads_failed);
    page.sample("config_reloads_total", "result=\"success\"", good.read());
    page.sample("config_reloads_total", "result=\"failure\"", bad.read());
    let help = "Log lines that were dropped.";
    page.single(
        "log_events_dropped_total",
        "counter",
        help,
        server.log.events_dropped(),
    );
}

fn streams(page: &mut Page, counters: &Counters) {
    let help = "Streams of nodes that ended, or did not begin as they should, by reason.";
    page.family("streams_ended_total", "counter", help);
    for (reason, count) in counters.ended() {
        page.sample(
            "streams_ended_total",
            &format!("reason=\"{reason}\""),
            count,
        );
    }
    let help = "Connections that did not become streams, by reason.";
    page.family("unauthorized_total", "counter", help);
    for (reason, count) in counters.turned_away() {
        page.sample("unauthorized_total", &format!("reason=\"{reason}\""), count);
    }
}
