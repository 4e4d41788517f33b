// SPDX-License-Identifier: Apache-2.0
//! HAProxy: TCP mode, splicing, no log, no checks; with a fixed server, or transparent.

use std::fs;

use anyhow::{Context, Result};

use crate::compare::site::{PORT, Running, Site};
use crate::network::{Network, TO_CLIENT, TO_SERVER};
use crate::scratch::Scratch;

/// Bound on pipes for splicing: two per connection of the loads. HAProxy's own default would exceed
/// the limit of open files with many connections.
const PIPES_MAX: usize = 512;

/// Moves more bytes per call.
const TUNED: &str = "    tune.pipesize 1048576\n";

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    start(site, &["haproxy"], false, "")
}

pub(super) fn fixed_tuned(site: &Site<'_>) -> Result<Running> {
    start(site, &["haproxy"], false, TUNED)
}

pub(super) fn transparent(site: &Site<'_>) -> Result<Running> {
    start(site, &["haproxy"], true, "")
}

pub(super) fn transparent_tuned(site: &Site<'_>) -> Result<Running> {
    start(site, &["haproxy"], true, TUNED)
}

/// All its sockets are of Multipath TCP: it offers that to servers too.
pub(super) fn multipath(site: &Site<'_>) -> Result<Running> {
    start(site, &["mptcpize", "run", "haproxy"], true, "")
}

fn start(site: &Site<'_>, program: &[&str], transparent: bool, tuning: &str) -> Result<Running> {
    let files = Scratch::new()?;
    let file = files.path().join("haproxy.cfg");
    let configuration = configuration(site, transparent, tuning);
    fs::write(&file, &configuration).context("write HAProxy's configuration")?;
    let mut command = site.node().command(program[0])?;
    command.args(&program[1..]);
    // In the foreground: in the background its process id would be another one.
    command.arg("-db").arg("-f").arg(&file);
    let process = site.spawn("haproxy", command, site.cpus)?;
    let target = match transparent {
        true => site.server(),
        false => site.relay(),
    };
    Ok(Running {
        processes: vec![process],
        ..Running::bare(target, configuration)
    })
}

fn configuration(site: &Site<'_>, transparent: bool, tuning: &str) -> String {
    let (threads, connections, server) = (site.threads, site.connections, site.server());
    let bind = if transparent { " transparent" } else { "" };
    // A listener per thread, so that threads share none.
    let shards = if threads > 1 { " shards by-thread" } else { "" };
    // Each is pinned to its own CPU.
    let cpus = site.cpus.iter().map(ToString::to_string);
    let pinned = match threads {
        1 => String::new(),
        _ => format!(
            "    cpu-map auto:1/1-{threads} {}\n",
            cpus.collect::<Vec<_>>().join(" ")
        ),
    };
    let source = match transparent {
        true => "    source 0.0.0.0 usesrc clientip\n",
        false => "",
    };
    format!(
        "global\n    nbthread {threads}\n    maxconn {connections}\n    maxpipes {PIPES_MAX}\n{pinned}{tuning}\
         defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 60s\n    \
         timeout server 60s\n    option splice-request\n    option splice-response\n\
         listen relay\n    bind :{PORT}{bind} backlog 16384{shards}\n{source}    \
         server s1 {server}\n"
    )
}

/// Routes that bring the packets of both connections to a transparent relay, without netfilter.
pub(super) fn policy_routes(network: &Network) -> Result<()> {
    network.node(0).ip_batch(&[
        format!("rule add iif {TO_CLIENT} ipproto tcp dport {PORT} lookup 100"),
        format!("rule add iif {TO_SERVER} ipproto tcp sport {PORT} lookup 100"),
        "route add local default dev lo table 100".to_owned(),
    ])
}
