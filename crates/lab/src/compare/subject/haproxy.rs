// SPDX-License-Identifier: Apache-2.0
//! HAProxy: TCP mode, splicing, no log, no checks; with a fixed server, or transparent.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::Launched;
use crate::compare::site::{self, PORT, Running, Site};
use crate::network::{Network, TO_CLIENT, TO_SERVER};
use crate::process::Process;
use crate::scratch::Scratch;

/// Pipes for splicing, at the most: two for each connection of the loads. What it reckons with by
/// itself would not fit the limit of open files where there are many connections.
const PIPES_MAX: usize = 512;

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    start(site, false, "")
}

pub(super) fn fixed_tuned(site: &Site<'_>) -> Result<Running> {
    start(site, false, TUNED)
}

pub(super) fn transparent(site: &Site<'_>) -> Result<Running> {
    start(site, true, "")
}

pub(super) fn transparent_tuned(site: &Site<'_>) -> Result<Running> {
    start(site, true, TUNED)
}

/// What makes it move much at a time.
const TUNED: &str = "    tune.pipesize 1048576\n";

pub(super) fn launch_fixed(site: &Site<'_>) -> Result<Launched> {
    launch(site, &configuration(site, false, ""))
        .map(|(command, files)| (command, files, site.relay()))
}

pub(super) fn launch_transparent(site: &Site<'_>) -> Result<Launched> {
    launch(site, &configuration(site, true, ""))
        .map(|(command, files)| (command, files, site.server()))
}

fn start(site: &Site<'_>, transparent: bool, tuning: &str) -> Result<Running> {
    let configuration = configuration(site, transparent, tuning);
    let (command, _files) = launch(site, &configuration)?;
    let mut process = Process::spawn("HAProxy", command)?;
    site::await_listener(&mut process, site.node())?;
    let target = if transparent {
        site.server()
    } else {
        site.relay()
    };
    Ok(Running {
        processes: vec![process],
        ..Running::bare(target, configuration)
    })
}

/// The command that starts it, and the directory of its configuration.
fn launch(site: &Site<'_>, configuration: &str) -> Result<(Command, Scratch)> {
    let files = Scratch::new()?;
    let file = files.path().join("haproxy.cfg");
    fs::write(&file, configuration).context("write HAProxy's configuration")?;
    let mut command = site.node().command("haproxy")?;
    command.arg("-db").arg("-f").arg(&file);
    site.confine(&mut command, None)?;
    Ok((command, files))
}

fn configuration(site: &Site<'_>, transparent: bool, tuning: &str) -> String {
    let (threads, connections, server) = (site.threads, site.connections, site.server());
    let bind = if transparent { " transparent" } else { "" };
    // Listeners of their own for the threads, which they need not share then.
    let shards = if threads > 1 { " shards by-thread" } else { "" };
    // Each stays on a CPU of its own.
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
