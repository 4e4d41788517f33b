// SPDX-License-Identifier: Apache-2.0
//! The node's numbers in the Prometheus text format (version 0.0.4).
//!
//! Names are `posthaste_*` in base units; labels have few values, none of them
//! chosen by clients.

use std::fmt::{Display, Write};

use crate::admin::Snapshot;
use crate::admin::api::State;

mod control_client;
mod links;
mod rules;

/// Families that are not named after their counter: the counter, the family,
/// the label, its value.
const RENAMED: [(&str, &str, &str); 6] = [
    ("early", "flows_total", "accept=\"early\""),
    ("strict", "flows_total", "accept=\"strict\""),
    ("late", "flows_total", "accept=\"late\""),
    ("bytes_up", "relay_bytes_total", "direction=\"up\""),
    ("bytes_down", "relay_bytes_total", "direction=\"down\""),
    ("bytes_spliced", "spliced_bytes_total", ""),
];

/// Everything, ready to be scraped.
pub(crate) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page::of("posthaste");
    process(&mut page, snapshot);
    workers(&mut page, snapshot);
    denials(&mut page, snapshot);
    rules::rules(&mut page, &snapshot.totals.rules);
    redirect(&mut page, snapshot);
    links::links(&mut page, &snapshot.links);
    if let Some(follow) = &snapshot.follow {
        control_client::follow(&mut page, follow);
    }
    configuration(&mut page, snapshot);
    page.0
}

fn process(page: &mut Page, snapshot: &Snapshot) {
    page.family("build_info", "gauge", "The version that runs.");
    page.sample(
        "build_info",
        concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""),
        1,
    );
    page.single(
        "process_start_time_seconds",
        "gauge",
        "When the node started, since 1970.",
        snapshot.started.as_secs_f64(),
    );
    let stopping = u8::from(snapshot.state == State::Draining);
    page.single(
        "process_stopping",
        "gauge",
        "Whether the node drains.",
        stopping,
    );
    page.single(
        "replaced_nodes",
        "gauge",
        "Nodes that this one has replaced and that still carry relays.",
        snapshot.replaced,
    );
    process_memory(page);
    guard(page, snapshot);
    page.single("workers", "gauge", "Worker threads.", snapshot.workers);
    page.single(
        "log_events_dropped_total",
        "counter",
        "Log lines of the node's own that were dropped.",
        snapshot.events_dropped,
    );
}

fn guard(page: &mut Page, snapshot: &Snapshot) {
    page.single(
        "guard_up",
        "gauge",
        "Whether the process is there that cleans up when the node dies.",
        u8::from(snapshot.guard.pid.is_some()),
    );
    page.single(
        "guard_restarts_total",
        "counter",
        "Times that this process died and was started again.",
        snapshot.guard.restarts,
    );
}

fn workers(page: &mut Page, snapshot: &Snapshot) {
    let mut last = "";
    for counter in &snapshot.totals.counters {
        let renamed = RENAMED.iter().find(|(name, ..)| *name == counter.name);
        if let Some((_, family, labels)) = renamed {
            if *family != last {
                page.family(family, "counter", family_help(family, counter.help));
                last = family;
            }
            page.sample(family, labels, counter.value);
        } else if counter.grows {
            page.single(
                &format!("{}_total", counter.name),
                "counter",
                counter.help,
                counter.value,
            );
        } else {
            page.single(counter.name, "gauge", counter.help, counter.value);
        }
    }
    page.family(
        "relays_ended_total",
        "counter",
        "Relays ended, by how they ended.",
    );
    for (outcome, count) in &snapshot.totals.ended {
        page.sample(
            "relays_ended_total",
            &format!("outcome=\"{outcome}\""),
            count,
        );
    }
}

fn denials(page: &mut Page, snapshot: &Snapshot) {
    page.family(
        "requests_denied_total",
        "counter",
        "Requests at explicit listeners that were not granted, by reason.",
    );
    for (reason, count) in &snapshot.totals.denied {
        let labels = format!("reason=\"{reason}\"");
        page.sample("requests_denied_total", &labels, count);
    }
}

/// What all members of a family have in common.
fn family_help<'a>(family: &str, own: &'a str) -> &'a str {
    match family {
        "flows_total" => "Flows relayed, by when the client was answered.",
        "relay_bytes_total" => "Bytes relayed: up is from clients to servers.",
        _ => own,
    }
}

fn redirect(page: &mut Page, snapshot: &Snapshot) {
    for (name, help, value) in &snapshot.redirect {
        page.single(&format!("redirect_{name}_total"), "counter", help, value);
    }
    page.family(
        "redirect_attached",
        "gauge",
        "Whether flows are intercepted on an interface.",
    );
    for interface in &snapshot.interfaces {
        let labels = format!("interface=\"{}\"", escaped(&interface.name));
        page.sample("redirect_attached", &labels, u8::from(interface.attached));
    }
}

fn configuration(page: &mut Page, snapshot: &Snapshot) {
    let reloads = &snapshot.reloads;
    page.family(
        "config_reloads_total",
        "counter",
        "Attempts to read the configuration again.",
    );
    page.sample(
        "config_reloads_total",
        "result=\"success\"",
        reloads.succeeded,
    );
    page.sample("config_reloads_total", "result=\"failure\"", reloads.failed);
    let good = u8::from(reloads.last_error.is_none());
    page.single(
        "config_last_reload_successful",
        "gauge",
        "Whether the last attempt succeeded.",
        good,
    );
    page.single(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        "When the configuration in force was read, since 1970.",
        reloads.last_success_unix_seconds,
    );
}

/// The text so far, and what every name begins with.
pub(crate) struct Page(pub(crate) String, &'static str);

impl Page {
    /// An empty page.
    pub(crate) fn of(prefix: &'static str) -> Self {
        Self(String::new(), prefix)
    }

    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.trim();
        let prefix = self.1;
        let _ = writeln!(
            self.0,
            "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}"
        );
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let prefix = self.1;
        let _ = match labels {
            "" => writeln!(self.0, "{prefix}_{name} {value}"),
            labels => writeln!(self.0, "{prefix}_{name}{{{labels}}} {value}"),
        };
    }

    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }
}

/// A label value. Interface names may hold quotes and backslashes.
pub(crate) fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// How much memory the process has.
pub(crate) fn process_memory(page: &mut Page) {
    if let Some(bytes) = resident_bytes() {
        page.single(
            "process_resident_memory_bytes",
            "gauge",
            "Memory of the process that is in RAM.",
            bytes,
        );
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::api::{Guard, Interface, Reloads};
    use crate::admin::{Total, Totals};
    use std::collections::HashSet;
    use std::time::Duration;

    fn snapshot() -> Snapshot {
        let counters = posthaste_relay::counters::Counters::default();
        let each = counters.each().enumerate();
        let totals = each.map(|(index, (name, help, grows, _))| Total {
            name,
            help,
            grows,
            value: 100 + index as u64,
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
            redirect: vec![("events_lost", "SYNs lost.", 3)],
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
            "posthaste_relays 100",
            "posthaste_guard_up 1",
            "posthaste_guard_restarts_total 2",
            "posthaste_relays_opened_total 101",
            "posthaste_relays_ended_total{outcome=\"finished\"} 7",
            "posthaste_redirect_events_lost_total 3",
            "posthaste_redirect_attached{interface=\"a\\\"b\"} 0",
            "posthaste_link_up{peer=\"paris\"} 1",
            "posthaste_link_up{peer=\"rome\"} 0",
            "posthaste_link_rtt_seconds{peer=\"paris\"} 0.0205",
            "posthaste_link_loss_ratio{peer=\"paris\"} 0.015",
            "posthaste_link_probes_total{peer=\"rome\",fate=\"lost\"} 6",
            "posthaste_stamp_refused_total{reason=\"auth\"} 3",
            "posthaste_config_reloads_total{result=\"failure\"} 1",
            "posthaste_config_last_reload_successful 0",
            "# TYPE posthaste_flows_total counter",
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
