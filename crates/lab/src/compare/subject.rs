// SPDX-License-Identifier: Apache-2.0
//! The subjects: each with a name, a description, and a function that starts it.
//!
//! To add one, add a row to [`ALL`] and a function that starts it and returns how clients reach the
//! server through it; tables, charts and `--list` take it from there. It has its own network, which it may prepare once, and must use only the
//! CPUs, threads and priority of its [`Site`]. It is started anew for every load: only one relay
//! runs at a time, so that none takes shared resources of another, such as the kernel's per-user
//! limit on pipe memory.

mod haproxy;
mod nginx;
mod posthaste;

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use super::site::{self, Running, Site};
use super::targets::{DIRECT, FORWARDING};
use crate::network::Network;
use crate::process::Process;
use crate::scratch::Scratch;

/// How clients reach the server through a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Without a relay: the reference for relays.
    Reference,
    /// Clients address the relay, which has the server configured or in the request; it connects
    /// with its own address.
    Fixed,
    /// Clients address the server, which gets the client's address.
    Transparent,
}

impl Mode {
    /// The subject with which those of a mode are compared.
    pub(super) fn rival(self) -> &'static str {
        match self {
            Self::Transparent => "haproxy-transparent",
            Self::Fixed | Self::Reference => "haproxy",
        }
    }
}

/// One subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// A short description.
    pub(super) what: &'static str,
    pub(super) mode: Mode,
    /// Number of routers or relays between client and server.
    pub(super) nodes: usize,
    /// The program that it needs; `None` for the kernel and the product.
    pub(super) program: Option<&'static str>,
    /// Whether it differs from the others only with large transfers.
    pub(super) bulk_only: bool,
    prepare: fn(&Network) -> Result<()>,
    start: Start,
}

/// How a subject is started.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// By a function that waits until it relays.
    Run(fn(&Site<'_>) -> Result<Running>),
    /// As a process with all threads, by its command.
    Process(Prepare),
    /// As a process for each thread, by the command for each.
    Processes(Prepare),
}

/// Prepares the process of a thread.
type Prepare = fn(&Site<'_>, usize) -> Result<Launch>;

/// A prepared program.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) command: Command,
    pub(super) configuration: String,
    /// The directory with its configuration, until it has read that.
    pub(super) _files: Scratch,
    /// The address for clients.
    pub(super) target: SocketAddr,
}

/// All subjects, in the order of tables. The first two are references.
pub(super) const ALL: &[Subject] = &[
    reference(DIRECT, "client and server joined by a cable")
        .nodes(0)
        .runs(nothing),
    reference(FORWARDING, "an IP router")
        .prepares(no_early_demux)
        .runs(forwarding),
    fixed("haproxy", "HAProxy, splicing").process("haproxy", haproxy::fixed),
    fixed("haproxy-1m", "HAProxy, tune.pipesize 1048576")
        .bulk_only()
        .process("haproxy", haproxy::fixed_tuned),
    transparent(
        "haproxy-transparent",
        "HAProxy, usesrc clientip, by policy routes",
    )
    .prepares(haproxy::policy_routes)
    .process("haproxy", haproxy::transparent),
    transparent("haproxy-transparent-1m", "the same, tune.pipesize 1048576")
        .prepares(haproxy::policy_routes)
        .bulk_only()
        .process("haproxy", haproxy::transparent_tuned),
    fixed("nginx", "nginx stream").processes("nginx", nginx::fixed),
    transparent("posthaste-early", "posthaste, accept early").runs(posthaste::early),
    transparent("posthaste-late", "posthaste, accept late").runs(posthaste::late),
    transparent("posthaste-packet", "posthaste, data_path packet").runs(posthaste::packet),
    fixed(
        "posthaste-fixed",
        "posthaste, a listener with a destination",
    )
    .runs(posthaste::fixed),
    fixed("posthaste-explicit", "posthaste, requested by RFC 8803").runs(posthaste::explicit),
    transparent(
        "posthaste-warm",
        "two nodes of posthaste, joined by warm hops",
    )
    .nodes(2)
    .prepares(posthaste::join)
    .runs(posthaste::warm),
];

const fn reference(name: &'static str, what: &'static str) -> Subject {
    Subject {
        name,
        what,
        mode: Mode::Reference,
        nodes: 1,
        program: None,
        bulk_only: false,
        prepare: |_| Ok(()),
        start: Start::Run(nothing),
    }
}

const fn fixed(name: &'static str, what: &'static str) -> Subject {
    let mut subject = reference(name, what);
    subject.mode = Mode::Fixed;
    subject
}

const fn transparent(name: &'static str, what: &'static str) -> Subject {
    let mut subject = reference(name, what);
    subject.mode = Mode::Transparent;
    subject
}

impl Subject {
    const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    const fn runs(mut self, start: fn(&Site<'_>) -> Result<Running>) -> Self {
        self.start = Start::Run(start);
        self
    }

    const fn process(mut self, program: &'static str, launch: Prepare) -> Self {
        self.program = Some(program);
        self.start = Start::Process(launch);
        self
    }

    const fn processes(mut self, program: &'static str, launch: Prepare) -> Self {
        self.program = Some(program);
        self.start = Start::Processes(launch);
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

    /// Its command, if it is one process.
    pub(super) fn launch(&self, site: &Site<'_>) -> Result<Option<Launch>> {
        match self.start {
            Start::Run(_) => Ok(None),
            Start::Process(launch) | Start::Processes(launch) => launch(site, 0).map(Some),
        }
    }

    /// Prepares its network, once.
    pub(super) fn prepare(&self, network: &Network) -> Result<()> {
        (self.prepare)(network)
    }

    /// Starts it and waits until it relays.
    pub(super) fn start(&self, site: &Site<'_>) -> Result<Running> {
        let (launch, count) = match self.start {
            Start::Run(start) => return start(site),
            Start::Process(launch) => (launch, 1),
            Start::Processes(launch) => (launch, site.threads),
        };
        let mut running = Running::bare(site.relay(), "");
        for thread in 0..count {
            let program = launch(site, thread)?;
            let mut process = Process::spawn(self.name, program.command)?;
            site::await_listener(&mut process, site.node())?;
            running.processes.push(process);
            (running.target, running.configuration) = (program.target, program.configuration);
        }
        Ok(running)
    }

    /// Whether it terminates connections and opens others.
    pub(super) fn relays(&self) -> bool {
        self.mode != Mode::Reference
    }

    /// Whether it is posthaste.
    pub(super) fn is_ours(&self) -> bool {
        self.mode != Mode::Reference && self.program.is_none()
    }

    /// The version of its program; an error if that is missing.
    pub(super) fn version(&self) -> Result<Option<String>> {
        let Some(program) = self.program else {
            return Ok(None);
        };
        // Both HAProxy and nginx print their version for it, one on stdout, the other on stderr.
        let output = Command::new(program).arg("-v").output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
    }
}

fn nothing(site: &Site<'_>) -> Result<Running> {
    Ok(Running::bare(site.server(), "one veth link"))
}

/// Skips the look-up of router sockets, which has none of these flows.
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
    fn unique_names_references_first() {
        let mut names: Vec<_> = ALL.iter().map(|subject| subject.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert_eq!([ALL[0].name, ALL[1].name], ["direct", "forwarding"]);
    }
}
