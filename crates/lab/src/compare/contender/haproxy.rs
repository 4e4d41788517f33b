// SPDX-License-Identifier: Apache-2.0
//! HAProxy: TCP mode, splicing, no log, no checks; with a fixed server, or transparent.

use std::fs;

use anyhow::{Context, Result};

use super::{PORT, Running, Site};
use crate::network::{Network, TO_CLIENT, TO_SERVER};
use crate::process::Process;
use crate::scratch::Scratch;

/// More connections than any load has; two descriptors and a pipe each have to fit the limit of
/// open files.
const CONNECTIONS_MAX: u32 = 4000;

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

fn start(site: &Site<'_>, transparent: bool, tuning: &str) -> Result<Running> {
    let configuration = configuration(site, transparent, tuning);
    let files = Scratch::new()?;
    let file = files.path().join("haproxy.cfg");
    fs::write(&file, &configuration).context("write HAProxy's configuration")?;
    let mut command = site.node().command("haproxy")?;
    command.arg("-db").arg("-f").arg(&file);
    site.confine(&mut command, None)?;
    let mut process = Process::spawn("HAProxy", command)?;
    super::await_listener(&mut process, site.node())?;
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

fn configuration(site: &Site<'_>, transparent: bool, tuning: &str) -> String {
    let (threads, server) = (site.threads, site.server());
    let bind = if transparent { " transparent" } else { "" };
    // Listeners of their own for the threads, which they need not share then.
    let shards = if threads > 1 { " shards by-thread" } else { "" };
    let source = match transparent {
        true => "    source 0.0.0.0 usesrc clientip\n",
        false => "",
    };
    format!(
        "global\n    nbthread {threads}\n    maxconn {CONNECTIONS_MAX}\n{tuning}\
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
