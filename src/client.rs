// SPDX-License-Identifier: Apache-2.0
//! The verbs that send requests to a running node over its admin socket.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::observed::Observed;
use crate::api::saved::Saved;
use crate::api::{Detail, Draining, Relay, Relays, ReloadReport, Status};
use crate::verb::{self, AdminArgs};

mod chains;
mod controller;
mod http;
mod links;
mod observed;
mod show;
mod summary;

/// Relays that `top` requests; of a busier node it shows a selection.
const TOP_RELAYS_MAX: usize = 20_000;

pub(crate) use chains::{ChainsArgs, chains};
pub(crate) use links::links;
pub(crate) use observed::observed;
pub(crate) use show::{Column, table};

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Number of relays to show
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    rows: usize,
    /// Number of updates, then exit (default: unlimited on a terminal, otherwise 1)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RelaysVerb {
    /// List open relays
    List {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print at most COUNT relays
        #[arg(long, value_name = "COUNT", default_value_t = 1000)]
        limit: usize,
    },
    /// Show one relay and its two connections
    Show {
        /// ID of the relay, as `relays list` prints it
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Reset both connections of a relay
    Kill {
        /// ID of the relay, as `relays list` prints it
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Seconds to wait for open relays; those left are reset (default: node.drain_timeout)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0);
    let duration = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected seconds, such as 2 or 0.5".into())
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Show all counters, and the time saved by each rule
    #[arg(long, conflicts_with_all = ["controller", "json"])]
    all: bool,
    /// Show the controller at this URL instead of a node, for example http://127.0.0.1:9465
    #[arg(long, value_name = "URL", conflicts_with = "socket")]
    controller: Option<String>,
    /// File with the token for the API of the controller
    #[arg(long, value_name = "FILE", requires = "controller")]
    token_file: Option<PathBuf>,
}

/// The `status` verb.
pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<()> {
    if let Some(url) = &args.controller {
        return controller::status(url, args.token_file.as_deref(), args.admin.json);
    }
    let mut status = status_of(&args.admin.socket)?;
    for node in &mut status.replaced {
        // It may have ended meanwhile.
        let theirs = status_of(Path::new(&node.socket)).ok();
        node.relays = theirs
            .as_ref()
            .and_then(|theirs| theirs.counters.get("relays").copied());
        node.deadline_seconds = theirs.and_then(|theirs| theirs.deadline_seconds);
    }
    let text = if args.all { show::all } else { summary::status };
    present(&args.admin, &status, text)
}

/// The `relays` verbs.
pub(crate) fn relays(verb: &RelaysVerb) -> anyhow::Result<()> {
    match verb {
        RelaysVerb::List { admin, limit } => {
            let relays: Relays = query(&admin.socket, "GET", &format!("/relays?limit={limit}"))?;
            present(admin, &relays, list)
        }
        RelaysVerb::Show { id, admin } => {
            let detail: Detail = query(&admin.socket, "GET", &target(id)?)?;
            present(admin, &detail, show::detail)
        }
        RelaysVerb::Kill { id, admin } => {
            let killed: Killed = query(&admin.socket, "DELETE", &target(id)?)?;
            present(admin, &killed, |_| format!("killed {id}\n"))
        }
    }
}

/// The `keys forget` verb.
pub(crate) fn forget_key(name: &str, admin: &AdminArgs) -> anyhow::Result<()> {
    // It becomes part of the request line, which must not end or change.
    let is_name = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii() && is_name(c)) {
        bail!("\"{name}\" is not a node's name: expected one from posthaste chains");
    }
    let forgotten: Killed = query(&admin.socket, "DELETE", &format!("/keys/{name}"))?;
    present(admin, &forgotten, |_| {
        format!("the key reported for {name} is accepted from now on\n")
    })
}

/// The JSON output of `relays kill` and `keys forget`; the node's response has no body.
#[derive(Debug, Serialize, serde::Deserialize)]
struct Killed {}

fn target(id: &str) -> anyhow::Result<String> {
    // It becomes part of the request line.
    if id.is_empty() || !id.chars().all(|c| c.is_ascii_hexdigit()) {
        bail!("\"{id}\" is not a relay's id: expected one from posthaste relays list");
    }
    Ok(format!("/relays/{id}"))
}

fn list(relays: &Relays) -> String {
    let rows = relays.relays.iter();
    let rows = rows.map(|relay| {
        (
            relay.clone(),
            show::bytes(relay.bytes_up),
            show::bytes(relay.bytes_down),
        )
    });
    let flows = match relays.packet_flows.as_slice() {
        [] => String::new(),
        flows => format!("\npacket path\n{}", table(show::PACKET_FLOWS, flows, 3)),
    };
    table(show::RELAYS, rows, 5) + &flows + &left_out(relays)
}

/// Which relays are missing from the list, and why.
fn left_out(relays: &Relays) -> String {
    match (relays.silent_workers, relays.incomplete) {
        (0, true) => "(there are more; --limit COUNT)\n".into(),
        (0, false) => String::new(),
        (silent, _) => {
            format!("(workers that did not answer: {silent}; their relays are not listed)\n")
        }
    }
}

/// The `drain` verb.
pub(crate) fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let parameters = args
        .timeout
        .map(|timeout| format!("?timeout_ms={}", timeout.as_millis()));
    let target = format!("/drain{}", parameters.unwrap_or_default());
    let draining: Draining = query(&args.admin.socket, "POST", &target)?;
    present(&args.admin, &draining, |draining| {
        format!("draining; open relays: {}\n", draining.relays)
    })
}

/// Drains the node at an admin socket with a deadline.
pub(crate) fn end_within(socket: &Path, deadline: Duration) -> anyhow::Result<()> {
    let target = format!("/drain?timeout_ms={}", deadline.as_millis());
    query::<Draining>(socket, "POST", &target).map(drop)
}

/// The profiles of the node at an admin socket.
pub(crate) fn observed_by(socket: &Path, limit: usize) -> anyhow::Result<Observed> {
    query(socket, "GET", &format!("/observed?limit={limit}"))
}

/// The status of the node at an admin socket.
pub(crate) fn status_of(socket: &Path) -> anyhow::Result<Status> {
    query(socket, "GET", "/status")
}

/// The `reload` verb.
pub(crate) fn reload(args: &AdminArgs) -> anyhow::Result<()> {
    reload_at(args).map(drop)
}

/// The same; returns the keys that need a restart.
pub(crate) fn reload_at(args: &AdminArgs) -> anyhow::Result<Vec<String>> {
    let report: ReloadReport = query(&args.socket, "POST", "/reload")?;
    present(args, &report, show::reload)?;
    Ok(report.needs_restart)
}

/// The `top` verb.
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<()> {
    let socket = &args.admin.socket;
    let is_terminal = std::io::stdout().is_terminal();
    let count = args.count.unwrap_or(if is_terminal { u64::MAX } else { 1 });
    let mut before = Look::take(socket)?;
    for _ in 0..count {
        // Rates need two snapshots, so the first output takes an interval, too.
        sleep(args.interval);
        let now = Look::take(socket)?;
        let busiest = now.busiest(&before, args.rows);
        if args.admin.json {
            verb::print(&format!("{}\n", serde_json::to_string(&busiest)?))?;
        } else {
            // Home, then clear to the end: no flicker, and nothing of the former output remains.
            let clear = if is_terminal { "\x1b[H\x1b[2J" } else { "" };
            verb::print(&format!("{clear}{}", busiest.text(&now.status)))?;
        }
        before = now;
    }
    Ok(())
}

/// A snapshot of the node.
struct Look {
    at: Instant,
    status: Status,
    relays: Relays,
}

/// The output of `top`.
#[derive(Debug, Serialize)]
struct Busiest {
    relays_open: u64,
    up_bytes_per_second: f64,
    down_bytes_per_second: f64,
    /// Savings of relays since the node started.
    saved: Saved,
    /// Whether some open relays are missing, so that a busier one may be too.
    incomplete: bool,
    relays: Vec<Busy>,
}

/// One relay and its rates over the last interval.
#[derive(Debug, Serialize)]
struct Busy {
    #[serde(flatten)]
    relay: Relay,
    up_bytes_per_second: f64,
    down_bytes_per_second: f64,
}

impl Look {
    fn take(socket: &Path) -> anyhow::Result<Self> {
        let relays: Relays = query(socket, "GET", &format!("/relays?limit={TOP_RELAYS_MAX}"))?;
        Ok(Self {
            at: Instant::now(),
            status: query(socket, "GET", "/status")?,
            relays,
        })
    }

    fn counter(&self, name: &str) -> u64 {
        self.status.counters.get(name).copied().unwrap_or(0)
    }

    /// The `rows` relays that moved most since `before`.
    fn busiest(&self, before: &Self, rows: usize) -> Busiest {
        let elapsed = self.at.duration_since(before.at);
        // With an interval of 0 the two looks may be at one time.
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let then: HashMap<&str, &Relay> = before
            .relays
            .relays
            .iter()
            .map(|relay| (relay.id.as_str(), relay))
            .collect();
        let busy = self.relays.relays.iter().filter_map(|relay| {
            let earlier = then.get(relay.id.as_str());
            // The rate of a relay that was open but not listed before is unknown.
            let is_new = u128::from(relay.age_ms) <= elapsed.as_millis();
            (earlier.is_some() || is_new || !before.relays.incomplete).then(|| Busy {
                relay: relay.clone(),
                up_bytes_per_second: rate(
                    relay.bytes_up,
                    earlier.map_or(0, |earlier| earlier.bytes_up),
                ),
                down_bytes_per_second: rate(
                    relay.bytes_down,
                    earlier.map_or(0, |earlier| earlier.bytes_down),
                ),
            })
        });
        let mut relays: Vec<Busy> = busy.collect();
        let total = |busy: &Busy| busy.up_bytes_per_second + busy.down_bytes_per_second;
        relays.sort_by(|a, b| {
            total(b)
                .total_cmp(&total(a))
                // Relays with the same rate keep their places from update to update.
                .then_with(|| a.relay.id.cmp(&b.relay.id))
        });
        relays.truncate(rows);
        Busiest {
            relays_open: self.counter("relays"),
            up_bytes_per_second: rate(self.counter("bytes_up"), before.counter("bytes_up")),
            down_bytes_per_second: rate(self.counter("bytes_down"), before.counter("bytes_down")),
            saved: self.status.saved.clone(),
            incomplete: self.relays.incomplete,
            relays,
        }
    }
}

impl Busiest {
    fn text(&self, status: &Status) -> String {
        let mut head = format!(
            "posthaste {}: {} relays, {} half open, up {}, down {}\n",
            status.state.word(),
            self.relays_open,
            status.counters.get("half_open").copied().unwrap_or(0),
            show::rate(self.up_bytes_per_second),
            show::rate(self.down_bytes_per_second)
        );
        for line in summary::saved(&self.saved) {
            head += &format!("{line}\n");
        }
        head.push('\n');
        let rows = self.relays.iter();
        let rows = rows.map(|busy| {
            (
                busy.relay.clone(),
                show::rate(busy.up_bytes_per_second),
                show::rate(busy.down_bytes_per_second),
            )
        });
        let rest = if self.incomplete {
            "(not all relays were looked at)\n"
        } else {
            ""
        };
        head + &table(show::RELAYS, rows, 5) + rest
    }
}

/// Sends a request and reads the response; an error response is an error.
fn query<T: DeserializeOwned>(socket: &Path, method: &str, target: &str) -> anyhow::Result<T> {
    http::request(socket, method, target)?.document("node")
}

fn present<T: Serialize>(
    args: &AdminArgs,
    answer: &T,
    text: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    if args.json {
        return verb::print_json(answer);
    }
    verb::print(&text(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(at: Instant, relays: &[(&str, u64, u64)], incomplete: bool) -> Look {
        let relay = |(id, age_ms, bytes): &(&str, u64, u64)| Relay {
            id: (*id).into(),
            client: String::new(),
            server: String::new(),
            rule: String::new(),
            accept: String::new(),
            phase: String::new(),
            age_ms: *age_ms,
            idle_ms: 0,
            bytes_up: *bytes,
            bytes_down: 0,
        };
        let status = serde_json::json!({
            "version": "", "pid": 1, "state": "ready", "started": "", "uptime_seconds": 1.0,
            "config": null, "workers": 1, "interfaces": [], "transparent": true, "blocked": false,
            "counters": {}, "ended": {}, "redirect": {}, "rules": [], "controller": null,
            "saved": {"relays": 0, "first_byte_seconds": 0.0, "end_seconds": 0.0,
                "slower": 0, "slower_seconds": 0.0},
            "reloads": {"succeeded": 0, "failed": 0, "last_success_unix_seconds": 0.0, "last_error": null},
            "guard": {"pid": 2, "restarts": 0}, "deadline_seconds": null, "replaced": [],
            "process": {"binary": "", "supervised": false, "watchdog_us": null},
        });
        Look {
            at,
            status: serde_json::from_value(status).unwrap(),
            relays: Relays {
                relays: relays.iter().map(relay).collect(),
                incomplete,
                silent_workers: 0,
                packet_flows: Vec::new(),
            },
        }
    }

    #[test]
    fn unlisted_relay_no_rate() {
        let at = Instant::now();
        let after = at + Duration::from_secs(1);
        let now = looked(after, &[("a", 9_000, 9_000), ("b", 500, 700)], true);
        let busy = |incomplete| {
            let before = looked(at, &[], incomplete);
            let busiest = now.busiest(&before, 20).relays;
            let shown = busiest.into_iter().map(|busy| busy.relay.id);
            shown.collect::<Vec<_>>()
        };
        assert_eq!(busy(true), ["b"], "of the other nobody knows");
        assert_eq!(busy(false), ["a", "b"]);
    }

    #[test]
    fn omissions_are_explained() {
        let relays = |incomplete, silent_workers| Relays {
            relays: Vec::new(),
            incomplete,
            silent_workers,
            packet_flows: Vec::new(),
        };
        assert_eq!(left_out(&relays(false, 0)), "");
        assert!(left_out(&relays(true, 0)).contains("--limit"));
        let silent = left_out(&relays(true, 2));
        assert!(
            silent.contains("did not answer: 2") && !silent.contains("--limit"),
            "{silent}"
        );
    }
}
