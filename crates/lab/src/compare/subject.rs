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

use super::site::{Running, Site};
use crate::network::Network;
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
    /// The program that it needs, and its argument for the version; `None` for the kernel and the
    /// product.
    pub(super) program: Option<(&'static str, &'static str)>,
    /// Whether it differs from the others only with large transfers.
    pub(super) bulk_only: bool,
    /// Whether connections pass it unchanged.
    relays_nothing: bool,
    prepare: fn(&Network) -> Result<()>,
    start: fn(&Site<'_>) -> Result<Running>,
    /// Returns its command, if it is one process, with its files.
    launch: Option<fn(&Site<'_>) -> Result<Launched>>,
}

/// A prepared program, its files, and the address for clients.
pub(super) type Launched = (Command, Scratch, SocketAddr);

/// All subjects, in the order of tables. The first two are references.
pub(super) const ALL: &[Subject] = &[
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
        "posthaste-packet",
        "posthaste, data_path packet",
        Mode::Transparent,
        posthaste::packet,
    ),
    row(
        "posthaste-observing",
        "posthaste, watching handshakes and relaying nothing",
        Mode::Transparent,
        posthaste::observing,
    )
    .relays_nothing(),
    row(
        "posthaste-fixed",
        "posthaste, a listener with a destination",
        Mode::Fixed,
        posthaste::fixed,
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
) -> Subject {
    Subject {
        name,
        what,
        mode,
        nodes: 1,
        program: None,
        bulk_only: false,
        relays_nothing: false,
        prepare: |_| Ok(()),
        start,
        launch: None,
    }
}

impl Subject {
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

    const fn relays_nothing(mut self) -> Self {
        self.relays_nothing = true;
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

    /// Its command, if it is one process.
    pub(super) fn launch(&self, site: &Site<'_>) -> Result<Option<Launched>> {
        self.launch.map(|launch| launch(site)).transpose()
    }

    /// Prepares its network, once.
    pub(super) fn prepare(&self, network: &Network) -> Result<()> {
        (self.prepare)(network)
    }

    /// Starts it and waits until it relays.
    pub(super) fn start(&self, site: &Site<'_>) -> Result<Running> {
        (self.start)(site)
    }

    /// Whether it terminates connections and opens others.
    pub(super) fn relays(&self) -> bool {
        self.mode != Mode::Reference && !self.relays_nothing
    }

    /// Whether it is posthaste.
    pub(super) fn is_ours(&self) -> bool {
        self.mode != Mode::Reference && self.program.is_none()
    }

    /// The version of its program; an error if that is missing.
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
