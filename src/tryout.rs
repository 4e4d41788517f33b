// SPDX-License-Identifier: Apache-2.0
//! The `try` verb: runs a node for a limited time, and reports its effect on the services that were
//! used.
//!
//! The node is a separate process. It ends with this one, for whatever reason, and forwards new
//! flows from then on; open connections have an hour to end.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::api::Status;
use crate::client;
use crate::signals::Signals;
use crate::verb::{self, ConfigArgs};
use posthaste_config::Config;

mod lines;
mod process;
mod table;

use lines::Ended;
use process::{Node, is_signalled};
use table::Service;

/// How long connections that are open at the end may continue.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Interval of the progress display.
const LOOK: Duration = Duration::from_secs(1);
/// Bound on the profiles requested.
const DESTINATIONS_MAX: usize = 10_000;

#[derive(Args, Debug)]
pub(crate) struct TryArgs {
    /// Number of seconds to relay
    #[arg(value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    #[command(flatten)]
    config: ConfigArgs,
    /// Number of services to show, those with most connections first
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    rows: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Outcome {
    seconds: f64,
    /// Connections forwarded and observed, and connections relayed.
    watched: u64,
    relayed: u64,
    /// Connections that took the packet path, and the time that the first data of one left earlier,
    /// on average.
    packets: u64,
    packets_saved_ms: Option<f64>,
    /// Why others were not relayed.
    no_gain: u64,
    blocked: bool,
    services: Vec<Service>,
}

/// Executes the verb.
pub(crate) fn run(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load_or_default(args.config.config.as_deref())?;
    let socket = &config.admin_socket;
    // Only an answer shows a node: a socket file may be left over.
    if let Ok(status) = client::status_of(socket) {
        bail!(
            "a node runs here already (process {}): see posthaste status for what it saves",
            status.pid
        );
    }
    let signals = Signals::block([Signal::SIGINT, Signal::SIGTERM])?;
    let mut node = Node::start(args.config.config.as_deref())?;
    node.wait_until_ready(|| client::status_of(socket).is_ok())?;
    let begun = Instant::now();
    watch(args, &signals, &mut node, || client::status_of(socket))?;
    let seconds = begun.elapsed().as_secs_f64();
    let status = client::status_of(socket).context("read the node's status")?;
    // Before the node ends, since it alone has the profiles.
    let observed = client::observed_by(socket, DESTINATIONS_MAX)?;
    // A drain forwards new flows at once, and leaves open ones their time.
    client::end_within(socket, PATIENCE)?;
    let open = status.counters.get("relays").copied().unwrap_or(0);
    if open > 0 {
        eprintln!(
            "new connections are forwarded again; {open} relayed ones are open, and have an hour (Ctrl-C resets them)"
        );
    }
    node.wait_until_ended(&signals);
    let mut services = table::services(&observed, &node.ended());
    services.truncate(args.rows);
    let counter = |name: &str| status.redirect.get(name).copied().unwrap_or(0);
    let packets = counter("packet_opened");
    let outcome = Outcome {
        seconds,
        watched: counter("learned"),
        relayed: status.counters.get("relays_opened").copied().unwrap_or(0),
        packets,
        packets_saved_ms: (packets > 0)
            .then(|| counter("packet_saved_us") as f64 / 1e3 / packets as f64),
        no_gain: counter("no_gain"),
        blocked: status.blocked,
        services,
    };
    if args.json {
        verb::print_json(&outcome)?;
    } else {
        verb::print(&table::text(&outcome))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the time to pass, or for a signal.
fn watch(
    args: &TryArgs,
    signals: &Signals,
    node: &mut Node,
    status: impl Fn() -> anyhow::Result<Status>,
) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let shows = std::io::stderr().is_terminal();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || is_signalled(signals, left.min(LOOK)) {
            break;
        }
        if let Some(ended) = node.failure() {
            bail!("the node ended early: {ended}");
        }
        if shows && let Ok(status) = status() {
            let counter = |map: &BTreeMap<String, u64>, name| map.get(name).copied().unwrap_or(0);
            eprint!(
                "\r{:>5} s left: {} connections watched, {} relayed, {} by the packet path ",
                left.as_secs(),
                counter(&status.redirect, "learned"),
                counter(&status.counters, "relays_opened"),
                counter(&status.redirect, "packet_opened")
            );
        }
    }
    if shows {
        eprintln!();
    }
    Ok(())
}
