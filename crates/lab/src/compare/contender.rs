// SPDX-License-Identifier: Apache-2.0
//! The contenders: each a name, what it is, and how it is started.
//!
//! Another one is a row in [`ALL`] and a function that starts it and says how clients reach the
//! server through it. It gets a network of its own, which it may prepare once, and is to keep to
//! the CPUs, threads and priority that its [`Site`] says. It is started anew for every load: only
//! one relay runs at a time, so that none takes what another could have, such as the memory that
//! the kernel lets a user have in pipes.

mod haproxy;
mod nginx;
mod posthaste;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::CpuSet;

use crate::boot::memory;
use crate::netns::Namespace;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::sys;

/// The port of the server, and of relays that clients address themselves.
pub(super) const PORT: u16 = 8000;

/// The nice value of everything that is measured, so that others on the machine disturb less.
pub(super) const NICE: i32 = -10;

/// How long a contender may take to start.
const READY: Duration = Duration::from_secs(30);

/// How clients find the server through a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Without a relay: what relays are measured against.
    Reference,
    /// Clients address the relay, which knows or is told the server; it calls with its own address.
    Fixed,
    /// Clients address the server, and the server sees the client's address.
    Transparent,
}

/// One contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    /// By which it is asked for.
    pub(super) name: &'static str,
    /// What it is, in a few words.
    pub(super) what: &'static str,
    pub(super) mode: Mode,
    /// How many routers or relays there are between client and server.
    pub(super) nodes: usize,
    /// The program that it needs, and what prints its version; none for the kernel and the product.
    pub(super) program: Option<(&'static str, &'static str)>,
    /// Whether it differs from the others only where much is carried.
    pub(super) bulk_only: bool,
    prepare: fn(&Network) -> Result<()>,
    start: fn(&Site<'_>) -> Result<Running>,
    /// What starts it, if that is one process, with its files.
    launch: Option<fn(&Site<'_>) -> Result<Launched>>,
}

/// A program made ready to start, the files that it reads, and whom clients connect to then.
pub(super) type Launched = (Command, Scratch, SocketAddr);

/// All contenders, in the order of tables. The first two are references.
pub(super) const ALL: [Contender; 11] = [
    row(
        "direct",
        "client and server joined by a cable",
        Mode::Reference,
        nothing,
    )
    .nodes(0),
    row("forwarding", "an IP router", Mode::Reference, forwarding).prepares(no_early_demux),
    row("haproxy", "HAProxy, splicing", Mode::Fixed, haproxy::fixed)
        .launches(haproxy::launch_fixed)
        .needs("haproxy", "-v"),
    row(
        "haproxy-1m",
        "HAProxy, tune.pipesize 1048576",
        Mode::Fixed,
        haproxy::fixed_tuned,
    )
    .needs("haproxy", "-v")
    .bulk_only(),
    row(
        "haproxy-transparent",
        "HAProxy, usesrc clientip, by policy routes",
        Mode::Transparent,
        haproxy::transparent,
    )
    .prepares(haproxy::policy_routes)
    .launches(haproxy::launch_transparent)
    .needs("haproxy", "-v"),
    row(
        "haproxy-transparent-1m",
        "the same, tune.pipesize 1048576",
        Mode::Transparent,
        haproxy::transparent_tuned,
    )
    .prepares(haproxy::policy_routes)
    .needs("haproxy", "-v")
    .bulk_only(),
    row("nginx", "nginx stream", Mode::Fixed, nginx::fixed)
        .launches(nginx::launch_fixed)
        .needs("nginx", "-v"),
    row(
        "posthaste-early",
        "posthaste, accept early",
        Mode::Transparent,
        posthaste::early,
    ),
    row(
        "posthaste-late",
        "posthaste, accept late",
        Mode::Transparent,
        posthaste::late,
    ),
    row(
        "posthaste-explicit",
        "posthaste, asked by RFC 8803",
        Mode::Fixed,
        posthaste::explicit,
    ),
    row(
        "posthaste-warm",
        "two nodes of posthaste, joined by warm hops",
        Mode::Transparent,
        posthaste::warm,
    )
    .prepares(posthaste::join)
    .nodes(2),
];

const fn row(
    name: &'static str,
    what: &'static str,
    mode: Mode,
    start: fn(&Site<'_>) -> Result<Running>,
) -> Contender {
    Contender {
        name,
        what,
        mode,
        nodes: 1,
        program: None,
        bulk_only: false,
        prepare: |_| Ok(()),
        start,
        launch: None,
    }
}

impl Contender {
    const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    const fn needs(mut self, program: &'static str, version: &'static str) -> Self {
        self.program = Some((program, version));
        self
    }

    const fn bulk_only(mut self) -> Self {
        self.bulk_only = true;
        self
    }

    const fn prepares(mut self, prepare: fn(&Network) -> Result<()>) -> Self {
        self.prepare = prepare;
        self
    }

    const fn launches(mut self, launch: fn(&Site<'_>) -> Result<Launched>) -> Self {
        self.launch = Some(launch);
        self
    }

    /// What starts it, if that is one process.
    pub(super) fn launch(&self, site: &Site<'_>) -> Result<Option<Launched>> {
        self.launch.map(|launch| launch(site)).transpose()
    }

    /// Does, once, what its network needs.
    pub(super) fn prepare(&self, network: &Network) -> Result<()> {
        (self.prepare)(network)
    }

    /// Starts it and waits until it relays.
    pub(super) fn start(&self, site: &Site<'_>) -> Result<Running> {
        (self.start)(site)
    }

    /// Whether it is posthaste.
    pub(super) fn is_ours(&self) -> bool {
        self.mode != Mode::Reference && self.program.is_none()
    }

    /// The version of the program it needs; an error when that is missing.
    pub(super) fn version(&self) -> Result<Option<String>> {
        let Some((program, option)) = self.program else {
            return Ok(None);
        };
        let output = Command::new(program).arg(option).output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
    }
}

/// Where a contender is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) network: &'a Network,
    /// The CPUs that it may use.
    pub(super) cpus: &'a [usize],
    /// How many threads are to relay.
    pub(super) threads: usize,
    /// How many connections there may be at a time.
    pub(super) connections: usize,
    pub(super) binary: &'a Binary,
}

impl Site<'_> {
    pub(super) fn node(&self) -> &Namespace {
        self.network.node(0)
    }

    pub(super) fn server(&self) -> SocketAddr {
        SocketAddr::new(self.network.server_address(Family::V4), PORT)
    }

    /// Where clients address the relay itself.
    fn relay(&self) -> SocketAddr {
        SocketAddr::new(self.network.node_address(0, Family::V4), PORT)
    }

    /// Confines a program that was made ready to start to all CPUs of the site, or to one.
    pub(super) fn confine(&self, command: &mut Command, thread: Option<usize>) -> Result<()> {
        let all = self.cpus;
        let cpus = thread.map_or(all, |thread| &all[thread % all.len()..=thread % all.len()]);
        sys::confine(command, cpu_set(cpus)?, NICE);
        Ok(())
    }
}

/// Waits until a process in a namespace listens on [`PORT`].
fn await_listener(process: &mut Process, namespace: &Namespace) -> Result<()> {
    process.wait_until("listener", READY, |_| namespace.run_in(is_listening))
}

/// Whether anybody listens on [`PORT`] in the namespace of the calling thread.
fn is_listening() -> bool {
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let sockets = ["tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
    let port = format!(":{PORT:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        // 0A is TCP_LISTEN.
        local && fields.nth(1) == Some("0A")
    };
    sockets.iter().any(|text| text.lines().any(listens))
}

/// The set of these CPUs.
pub(super) fn cpu_set(cpus: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    Ok(set)
}

/// A contender that relays. Its processes end with it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) processes: Vec<Process>,
    pub(super) nodes: Vec<Node>,
    /// Whom clients connect to.
    pub(super) target: SocketAddr,
    /// Whom they ask for there, by RFC 8803.
    pub(super) ask_for: Option<SocketAddr>,
    /// Its configuration, for the record.
    pub(super) configuration: String,
}

impl Running {
    /// A contender without processes.
    fn bare(target: SocketAddr, configuration: impl Into<String>) -> Self {
        Self {
            processes: Vec::new(),
            nodes: Vec::new(),
            target,
            ask_for: None,
            configuration: configuration.into(),
        }
    }

    /// Ends it in order, so that it leaves nothing to the next one.
    pub(super) fn stop(self) -> Result<()> {
        for mut node in self.nodes {
            node.stop(READY).context("stop a node")?;
        }
        Ok(())
    }

    /// All its processes and their descendants.
    pub(super) fn pids(&self) -> Result<Vec<u32>> {
        let own = self.processes.iter().map(Process::pid);
        let all = own.chain(self.nodes.iter().map(|node| node.process().pid()));
        let families = all.map(memory::family).collect::<Result<Vec<_>>>()?;
        Ok(families.concat())
    }
}

fn nothing(site: &Site<'_>) -> Result<Running> {
    Ok(Running::bare(site.server(), "one veth link"))
}

/// Sockets of the router, which has none of these flows, are not to be looked for.
const NO_EARLY_DEMUX: (&str, &str) = ("net.ipv4.tcp_early_demux", "0");

fn no_early_demux(network: &Network) -> Result<()> {
    network.node(0).sysctl(NO_EARLY_DEMUX.0, NO_EARLY_DEMUX.1)
}

fn forwarding(site: &Site<'_>) -> Result<Running> {
    let (key, value) = NO_EARLY_DEMUX;
    let configuration = format!("net.ipv4.ip_forward = 1, {key} = {value}");
    Ok(Running::bare(site.server(), configuration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_references_come_first() {
        let mut names: Vec<_> = ALL.iter().map(|contender| contender.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert_eq!([ALL[0].name, ALL[1].name], ["direct", "forwarding"]);
    }
}
