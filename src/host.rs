// SPDX-License-Identifier: Apache-2.0
//! What a node installs on its host, and its removal.
//!
//! Ownership is by number: the node's rules and routes have its routing protocol number, sockets
//! its mark, tc filters its handle. Nothing else is ever changed and nothing is flushed.
//! Installation and removal are idempotent. Works on the network namespace of the calling thread.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use posthaste_netlink::Netlink;
use serde::Serialize;

use crate::{reach, verb};
use posthaste_config::{Config, Transparent};
use posthaste_daemon::privileges;

mod changes;
mod conflicts;
mod conntrack;
mod filters;
mod instance_lock;
mod links;
pub(crate) mod nftables;
mod path_manager;
mod reverse_path;
mod routing;
mod sockets;
#[cfg(test)]
mod tests;
mod tuning;

pub(crate) use changes::{ChangeWatch, HostChange};
pub(crate) use conflicts::{conflicts, gaps};
pub(crate) use conntrack::Conntrack;
pub(crate) use instance_lock::{Claim, REPLACED_MAX, give_to_owner_of_directory};
pub(crate) use links::{Framing, Link, LinkEvent, LinkWatch, bridges_filter, links, watch_links};
pub(crate) use path_manager::subflow_endpoints;
pub(crate) use reverse_path::strict_sources;
pub(crate) use routing::{Family, Rule};
pub(crate) use sockets::Destroyer;
pub(crate) use tuning::{PATH_LIMITS, Recommendation, Setting, Tuning, recommendations};

/// Interval of the check whether sockets have ended.
const LAST_WORDS_INTERVAL: Duration = Duration::from_millis(20);

/// The report of an installation or a removal, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Changes made.
    pub(crate) done: Vec<String>,
    /// What was already in place.
    pub(crate) unchanged: Vec<String>,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

/// Installs the routing rule and the local route of both families; nothing for a node that does not
/// intercept, or whose flows take the packet path.
pub(crate) fn install(config: &Config) -> anyhow::Result<Report> {
    let mut report = Report::default();
    if config.transparent.enabled && config.relays() {
        routing::install(&config.transparent, &mut report)?;
    }
    Ok(report)
}

/// Removes everything of a node: rules, routes, tc filters, the file of its hand-over socket, and every
/// TCP socket with its mark, so that no TIME_WAIT socket swallows a later flow.
///
/// The caller holds the [`Claim`] on this network namespace. Every part is tried; the first
/// failure is returned at the end.
pub(crate) fn remove(wanted: &Transparent) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let routing = routing::remove(&mut report);
    let filters = filters::remove(&mut report);
    let sockets = sockets::destroy(wanted.socket_mark);
    // A node that has ended in order has removed it.
    let _ = std::fs::remove_file(handover_socket()?);
    routing?;
    filters?;
    let sockets = sockets?;
    if sockets > 0 {
        report
            .done
            .push(format!("destroyed {sockets} leftover sockets"));
    }
    Ok(report)
}

/// Removes a node that ends or has died. The last holder of a part of the claim removes everything;
/// the others leave what another node needs.
pub(crate) fn leave(
    claim: &Claim,
    wanted: &Transparent,
    successions: u16,
) -> anyhow::Result<Report> {
    // No node may start between the look at the claim and the removal, or its rule would go too.
    let _change = claim.change()?;
    // Rule and route still deliver the packets of the other nodes.
    if claim.is_superseded() || !claim.is_alone()? {
        let mut report = Report::default();
        filters::remove_of(successions, &mut report)?;
        return Ok(report);
    }
    // The claim goes even if this fails, since the node ends in any case.
    let removed = remove(wanted);
    claim.remove_file();
    removed
}

/// Path of the socket on which the node of this network namespace hands over to its successor.
pub(crate) fn handover_socket() -> anyhow::Result<PathBuf> {
    instance_lock::path_of("handover")
}

/// Waits until the last bytes of the sockets that relays left to the kernel are acknowledged, or
/// for `most`: removing interception would cut them off.
pub(crate) fn await_last_words(socket_mark: u32, most: Duration) {
    let until = Instant::now() + most;
    // If sockets cannot be listed there is nothing to wait for.
    while Instant::now() < until && sockets::finishing(socket_mark).unwrap_or(false) {
        std::thread::sleep(LAST_WORDS_INTERVAL);
    }
}

/// Every routing rule of this host.
pub(crate) fn rules() -> anyhow::Result<Vec<Rule>> {
    let mut netlink = Netlink::route().context("open a netlink socket")?;
    let mut all = Vec::new();
    for family in Family::BOTH {
        all.extend(routing::rules(&mut netlink, family).context("list routing rules")?);
    }
    Ok(all)
}

/// Whether a table has routes that no node installed.
pub(crate) fn table_in_use(table: u32) -> anyhow::Result<bool> {
    let mut netlink = Netlink::route().context("open a netlink socket")?;
    for family in Family::BOTH {
        if routing::table_in_use(&mut netlink, family, table).context("list routes")? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The `setup` verb.
pub(crate) fn setup(config: &Config, tuning: Tuning, json: bool) -> anyhow::Result<()> {
    privileges::require(&privileges::HOST)?;
    // Before anything is installed, so that a refusal leaves nothing behind.
    tuning::require(tuning)?;
    let mut report = install(config)?;
    tuning::apply(config, tuning, &mut report)?;
    print_report(&report, json)
}

/// What [`teardown`] leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// The kernel settings of `setup`.
    pub(crate) tuning: bool,
    /// Open flows of the packet path.
    pub(crate) flows: bool,
}

/// The `teardown` verb.
pub(crate) fn teardown(config: &Config, kept: Kept, json: bool) -> anyhow::Result<()> {
    privileges::require(&privileges::HOST)?;
    // Fails quickly; the claim would wait for a guard first.
    reach::ensure_alone(&config.admin_socket)?;
    let claim = Claim::take()?;
    let change = claim.change()?;
    if !claim.is_alone()? {
        let note = "nothing is removed: nodes that were replaced still carry relays, and the last of them cleans up";
        let notes = vec![note.to_owned()];
        let report = Report {
            notes,
            ..Report::default()
        };
        return print_report(&report, json);
    }
    let mut report = remove(&config.transparent)?;
    if !kept.flows {
        remove_packet_path(&mut report)?;
    }
    claim.remove_file();
    drop(change);
    if !kept.tuning {
        tuning::restore(&mut report)?;
    }
    print_report(&report, json)
}

/// Removes the packet path that a node left, and resets its open flows.
fn remove_packet_path(report: &mut Report) -> anyhow::Result<()> {
    let netns = posthaste_relay::sys::netns_cookie()?;
    if let Some(orphans) = posthaste_bpf::Orphans::find(netns) {
        let count = orphans.abort().context("reset flows of the packet path")?;
        if count > 0 {
            let done = format!(
                "reset {count} open flows of the packet path, as far as their ends are reachable"
            );
            report.done.push(done);
        }
    }
    if posthaste_bpf::remove_packet_pins(netns)? {
        let done = "removed the packet path that a killed node left".to_owned();
        report.done.push(done);
    }
    Ok(())
}

fn print_report(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return verb::print_json(report);
    }
    let mut text = String::new();
    for line in report.done.iter().chain(&report.notes) {
        text.push_str(line);
        text.push('\n');
    }
    if report.done.is_empty() {
        text.push_str("nothing to do\n");
    }
    verb::print(&text)
}
