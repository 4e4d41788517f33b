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

use std::process::Command;

use anyhow::{Context, Result};

use super::site::{Running, Site};
use super::targets::{
    DIRECT, FORWARDING, HAPROXY_MULTIPATH, MASQUERADING, MULTIPATH, PACKET, PACKET_MASQUERADING,
};
use crate::network::{Network, fabric};

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

/// Some of the loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loads {
    All,
    /// Large transfers.
    Bulk,
    /// Clients with Multipath TCP.
    Multipath,
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
    /// Those under which it differs from the others.
    pub(super) loads: Loads,
    prepare: fn(&Network) -> Result<()>,
    start: Start,
}

/// Starts a subject and waits until it relays.
type Start = fn(&Site<'_>) -> Result<Running>;

/// All subjects, in the order of tables. The first two are references.
pub(super) const ALL: &[Subject] = &[
    reference(DIRECT, "client and server joined by a cable", nothing).nodes(0),
    reference(FORWARDING, "an IP router", forwarding).prepares(no_early_demux),
    reference(
        MASQUERADING,
        "an IP router with a strict filter and masquerading",
        forwarding,
    )
    .prepares(masquerade),
    fixed("haproxy", "HAProxy, splicing", haproxy::fixed).needs("haproxy"),
    fixed(
        "haproxy-1m",
        "HAProxy, tune.pipesize 1048576",
        haproxy::fixed_tuned,
    )
    .needs("haproxy")
    .shows(Loads::Bulk),
    transparent(
        "haproxy-transparent",
        HAPROXY_TRANSPARENT,
        haproxy::transparent,
    )
    .needs("haproxy")
    .prepares(haproxy::policy_routes),
    transparent(
        "haproxy-transparent-1m",
        "the same, tune.pipesize 1048576",
        haproxy::transparent_tuned,
    )
    .needs("haproxy")
    .prepares(haproxy::policy_routes)
    .shows(Loads::Bulk),
    transparent(
        HAPROXY_MULTIPATH,
        "the same, all sockets of Multipath TCP by mptcpize",
        haproxy::multipath,
    )
    .needs("haproxy")
    .prepares(haproxy::policy_routes)
    .shows(Loads::Multipath),
    fixed("nginx", "nginx stream", nginx::fixed).needs("nginx"),
    transparent(
        "posthaste-early",
        "posthaste, accept early",
        posthaste::early,
    ),
    transparent("posthaste-late", "posthaste, accept late", posthaste::late),
    transparent(
        MULTIPATH,
        "posthaste, accept early, multipath convert",
        posthaste::multipath,
    ),
    transparent(
        "posthaste-auto",
        "posthaste, data_path auto",
        posthaste::auto,
    ),
    transparent(PACKET, "posthaste, data_path packet", posthaste::packet),
    transparent(
        PACKET_MASQUERADING,
        "the same on a router with a strict filter and masquerading",
        posthaste::packet,
    )
    .prepares(masquerade),
    fixed(
        "posthaste-fixed",
        "posthaste, a listener with a destination",
        posthaste::fixed,
    ),
    fixed(
        "posthaste-explicit",
        "posthaste, requested by RFC 8803",
        posthaste::explicit,
    ),
    transparent(
        "posthaste-warm",
        "two nodes of posthaste, joined by warm hops",
        posthaste::warm,
    )
    .nodes(2)
    .prepares(posthaste::join),
];

const HAPROXY_TRANSPARENT: &str = "HAProxy, usesrc clientip, by policy routes";

const fn reference(name: &'static str, what: &'static str, start: Start) -> Subject {
    Subject {
        name,
        what,
        mode: Mode::Reference,
        nodes: 1,
        program: None,
        loads: Loads::All,
        prepare: |_| Ok(()),
        start,
    }
}

const fn fixed(name: &'static str, what: &'static str, start: Start) -> Subject {
    let mut subject = reference(name, what, start);
    subject.mode = Mode::Fixed;
    subject
}

const fn transparent(name: &'static str, what: &'static str, start: Start) -> Subject {
    let mut subject = reference(name, what, start);
    subject.mode = Mode::Transparent;
    subject
}

impl Subject {
    const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    const fn needs(mut self, program: &'static str) -> Self {
        self.program = Some(program);
        self
    }

    const fn shows(mut self, loads: Loads) -> Self {
        self.loads = loads;
        self
    }

    const fn prepares(mut self, prepare: fn(&Network) -> Result<()>) -> Self {
        self.prepare = prepare;
        self
    }

    /// Prepares its network, once.
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

    /// The version of its program; an error if that or what it needs is missing.
    pub(super) fn version(&self) -> Result<Option<String>> {
        let Some(program) = self.program else {
            return Ok(None);
        };
        // Both HAProxy and nginx print their version for it, one on stdout, the other on stderr.
        let output = Command::new(program)
            .arg("-v")
            .output()
            .context("`make setup-bench` installs it")?;
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

/// An office's router. Each connection has an entry of conntrack.
fn masquerade(network: &Network) -> Result<()> {
    no_early_demux(network)?;
    let router = network.node(0);
    fabric::masquerade(router)?;
    // The table would fill with connections that have ended. The key exists once rules track.
    router.sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "5")
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
