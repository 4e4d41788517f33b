// SPDX-License-Identifier: Apache-2.0
//! The node's numbers in the Prometheus text format (version 0.0.4).
//!
//! Names are `posthaste_*` in base units; labels have few values, none of them
//! chosen by clients.

use posthaste_daemon::metrics::{MEMORY, Page, Row, VERSION, label, resident_bytes, truth};
use posthaste_relay::accept_mode::AcceptMode;

use super::control::Snapshot;
use crate::api::{Reloads, State};

mod control_client;
mod links;
mod rules;

/// Families that are not named after their counter: the counter, the family,
/// the label, its value.
const RENAMED: [(&str, &str, &str); 3] = [
    ("bytes_up", "relay_bytes_total", "direction=\"up\""),
    ("bytes_down", "relay_bytes_total", "direction=\"down\""),
    ("bytes_spliced", "spliced_bytes_total", ""),
];

/// Everything, ready to be scraped.
pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page::of("posthaste");
    page.rows(PROCESS, snapshot);
    workers(&mut page, snapshot);
    rules::rules(&mut page, &snapshot.totals.rules);
    redirect(&mut page, snapshot);
    links::links(&mut page, &snapshot.links);
    if let Some(follow) = &snapshot.follow {
        control_client::follow(&mut page, follow);
    }
    page.rows(CONFIGURATION, &snapshot.reloads);
    page.finish()
}

/// What is true of the process.
#[rustfmt::skip]
const PROCESS: &[Row<Snapshot>] = &[
    ("build_info", VERSION, "The version that runs.", |_| Some(1.0)),
    ("process_start_time_seconds", "", "When the node started, since 1970.", |node| Some(node.started.as_secs_f64())),
    ("process_stopping", "", "Whether the node drains.", |node| truth(node.state == State::Draining)),
    ("replaced_nodes", "", "Nodes that this one has replaced and that still carry relays.", |node| Some(node.replaced as f64)),
    ("process_resident_memory_bytes", "", MEMORY, |_| resident_bytes()),
    ("guard_up", "", "Whether the process is there that cleans up when the node dies.", |node| truth(node.guard.pid.is_some())),
    ("guard_restarts_total", "", "Times that this process died and was started again.", |node| Some(node.guard.restarts as f64)),
    ("workers", "", "Worker threads.", |node| Some(node.workers as f64)),
    ("log_events_dropped_total", "", "Log lines of the node's own that were dropped.", |node| Some(node.events_dropped as f64)),
];

/// How the configuration was read.
#[rustfmt::skip]
const CONFIGURATION: &[Row<Reloads>] = &[
    ("config_reloads_total", "result=\"success\"", "Attempts to read the configuration again.", |reloads| Some(reloads.succeeded as f64)),
    ("config_reloads_total", "result=\"failure\"", "", |reloads| Some(reloads.failed as f64)),
    ("config_last_reload_successful", "", "Whether the last attempt succeeded.", |reloads| truth(reloads.last_error.is_none())),
    ("config_last_reload_success_timestamp_seconds", "", "When the configuration in force was read, since 1970.", |reloads| Some(reloads.last_success_unix_seconds)),
];

fn workers(page: &mut Page, snapshot: &Snapshot) {
    let mut last = "";
    for counter in &snapshot.totals.counters {
        if let Some((family, labels)) = family_of(counter.name) {
            // The format allows the head of a family once, before all of its samples.
            if family != last {
                page.family(family, family_help(family, counter.help));
                last = family;
            }
            page.sample(family, &labels, counter.value);
        } else {
            // By the conventions of Prometheus, counters end so and gauges do not.
            let end = if counter.grows { "_total" } else { "" };
            page.single(
                &format!("{}{end}", counter.name),
                counter.help,
                counter.value,
            );
        }
    }
    let ended = snapshot.totals.ended.iter().copied();
    page.by(
        "relays_ended_total",
        "Relays ended, by how they ended.",
        "outcome",
        ended,
    );
    let help = "Requests at explicit listeners that were not granted, by reason.";
    let denied = snapshot.totals.denied.iter().copied();
    page.by("requests_denied_total", help, "reason", denied);
}

/// The family and the label of a counter that has another name.
fn family_of(counter: &str) -> Option<(&'static str, String)> {
    if AcceptMode::named(counter).is_some() {
        return Some(("flows_total", label("accept", counter)));
    }
    let renamed = RENAMED.iter().find(|(name, ..)| *name == counter);
    renamed.map(|(_, family, label)| (*family, (*label).to_owned()))
}

/// What all members of a family have in common.
fn family_help<'a>(family: &str, own: &'a str) -> &'a str {
    match family {
        "relay_bytes_total" => "Bytes relayed: up is from clients to servers.",
        _ => own,
    }
}

fn redirect(page: &mut Page, snapshot: &Snapshot) {
    for (name, help, value) in &snapshot.redirect {
        match name.strip_suffix("_us") {
            Some(name) => {
                let seconds = *value as f64 / 1e6;
                page.single(&format!("redirect_{name}_seconds_total"), help, seconds);
            }
            None => page.single(&format!("redirect_{name}_total"), help, value),
        }
    }
    let help = "Whether flows are intercepted on an interface.";
    let attached = snapshot
        .interfaces
        .iter()
        .map(|one| (&one.name, u8::from(one.attached)));
    page.by("redirect_attached", help, "interface", attached);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::control::{Total, Totals};
    use crate::api::{Guard, Interface};
    use std::collections::HashSet;
    use std::time::Duration;

    fn snapshot() -> Snapshot {
        let counters = posthaste_relay::counters::Counters::default();
        let totals = counters.each().map(|(name, help, grows, _)| Total {
            name,
            help,
            grows,
            value: name.len() as u64,
        });
        Snapshot {
            state: State::Ready,
            started: Duration::from_millis(1_500),
            workers: 2,
            totals: Totals {
                counters: totals.collect(),
                ended: vec![("finished", 7), ("internal", 0)],
                denied: vec![("unauthorized", 3)],
                rules: vec![rules::tests::tallied("all"), rules::tests::tallied("web")],
            },
            redirect: vec![
                ("events_lost", "SYNs lost.", 3),
                ("saved_us", "Time.", 1500),
            ],
            interfaces: vec![Interface::absent("a\"b")],
            guard: Guard {
                pid: Some(77),
                restarts: 2,
            },
            links: links::tests::measured(),
            follow: Some(control_client::tests::followed()),
            reloads: Reloads {
                failed: 1,
                last_error: Some("no".into()),
                ..Reloads::default()
            },
            events_dropped: 0,
            replaced: 0,
        }
    }

    #[test]
    fn samples_have_one_family() {
        let page = render(&snapshot());
        let mut families = HashSet::new();
        let (mut family, mut kind) = ("", "");
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (family, kind) = rest.split_once(' ').unwrap();
                assert!(families.insert(family), "{family} repeats");
                let is_base = |part: &str| !["us", "ms", "milliseconds"].contains(&part);
                assert!(family.split('_').all(is_base), "{family} has another unit");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let name = name.split('{').next().unwrap();
                let of_histogram = ["_bucket", "_sum", "_count"];
                let mut parts = of_histogram.iter().map(|end| format!("{family}{end}"));
                let is_part = kind == "histogram" && parts.any(|part| part == name);
                assert!(is_part || name == family, "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }

    // promise: L7
    #[test]
    fn documented_names_and_values() {
        let page = render(&snapshot());
        for line in [
            "posthaste_process_start_time_seconds 1.5",
            "posthaste_relays 6",
            "posthaste_guard_up 1",
            "posthaste_guard_restarts_total 2",
            "posthaste_relays_opened_total 13",
            "posthaste_relays_ended_total{outcome=\"finished\"} 7",
            "posthaste_redirect_events_lost_total 3",
            "posthaste_redirect_saved_seconds_total 0.0015",
            "posthaste_redirect_attached{interface=\"a\\\"b\"} 0",
            "posthaste_link_up{peer=\"paris\"} 1",
            "posthaste_link_up{peer=\"rome\"} 0",
            "posthaste_link_rtt_seconds{peer=\"paris\"} 0.0205",
            "posthaste_link_loss_ratio{peer=\"paris\"} 0.015",
            "posthaste_link_probes_total{peer=\"rome\",result=\"lost\"} 6",
            "posthaste_stamp_refused_total{reason=\"auth\"} 3",
            "posthaste_config_reloads_total{result=\"failure\"} 1",
            "posthaste_config_last_reload_successful 0",
            "# TYPE posthaste_flows_total counter",
            "posthaste_flows_total{accept=\"strict\"} 6",
        ] {
            assert!(
                page.lines().any(|given| given == line),
                "{line} is not in\n{page}"
            );
        }
        assert_eq!(
            page.matches("posthaste_relay_bytes_total{direction=")
                .count(),
            2
        );
        assert!(!page.contains("posthaste_early"), "{page}");
        let unknown = "posthaste_link_rtt_seconds{peer=\"rome\"}";
        assert!(!page.contains(unknown), "absent, not 0: {page}");
    }
}
