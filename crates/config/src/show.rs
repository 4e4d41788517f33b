// SPDX-License-Identifier: Apache-2.0
//! The configuration as meant, back in the shape of the file: every key with
//! its value. Reading the result gives the same configuration.

use std::ops::RangeInclusive;

use posthaste_relay::policy::{HalfOpenLimits, Match, Rule, SideOptions, Timeouts};
use serde::Serialize;

use super::value::{Word, show_duration, show_size};
use super::{Config, Packet, Transparent, observe};
use crate::groups::Group;

mod chains;
use chains::{Access, Chain, Controller, Listener, Measure, Peer, Route};

/// A [`Config`] in the shape of its file.
#[derive(Debug, Serialize)]
pub(super) struct Effective {
    version: u32,
    node: Node,
    admin: Admin,
    metrics: Metrics,
    transparent: Interception,
    observe: observe::Shown,
    packet: Packet,
    half_open: HalfOpen,
    defaults: Defaults,
    access: Access,
    measure: Measure,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<Controller>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listener: Vec<Listener>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peer: Vec<Peer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chain: Vec<Chain>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    route: Vec<Route>,
    // Never empty: a file without rules has the one that relays all.
    rule: Vec<EffectiveRule>,
}

#[derive(Debug, Serialize)]
struct Node {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    workers: usize,
    relays_max: u32,
    drain_timeout: String,
    upgrade_timeout: String,
    log_connections: bool,
}

#[derive(Debug, Serialize)]
struct Admin {
    socket: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<NameOrNumber>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum NameOrNumber {
    Name(String),
    Number(u32),
}

impl NameOrNumber {
    fn of(group: &Group) -> Self {
        match &group.name {
            Some(name) => Self::Name(name.clone()),
            None => Self::Number(group.id),
        }
    }
}

#[derive(Debug, Serialize)]
struct Metrics {
    listen: String,
}

#[derive(Debug, Serialize)]
struct Interception {
    enabled: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<String>,
    mark: u32,
    socket_mark: u32,
    table: u32,
}

#[derive(Debug, Serialize)]
struct HalfOpen {
    total: u32,
    reserve: u32,
    per_prefix: u32,
    expiry: String,
}

/// What is left of `[defaults]` once every rule has its own copy.
#[derive(Debug, Serialize)]
struct Defaults {
    strict_after_failure: String,
}

/// What a rule or a route matches.
#[derive(Debug, Serialize)]
pub struct Matches {
    /// Prefixes; empty for every destination.
    pub destinations: Vec<String>,
    /// Prefixes; empty for every source.
    pub sources: Vec<String>,
    /// Ports of the destination, `80` or `8000-8099`; empty for every port.
    pub ports: Vec<String>,
}

impl Matches {
    /// The texts of a match, as a file has them.
    pub fn of(matches: &Match) -> Self {
        Self {
            destinations: texts(&matches.destinations),
            sources: texts(&matches.sources),
            ports: matches.ports.iter().map(ports).collect(),
        }
    }
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[derive(Debug, Serialize)]
struct EffectiveRule {
    name: String,
    action: &'static str,
    accept: &'static str,
    observe: bool,
    data_path: &'static str,
    bypass: bool,
    multipath: &'static str,
    upstream_multipath: bool,
    source_address: &'static str,
    proxy_protocol: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_size: Option<String>,
    #[serde(flatten)]
    matches: Matches,
    downstream: Side,
    upstream: Side,
    timeouts: Limits,
}

#[derive(Debug, Serialize)]
struct Side {
    congestion: String,
    initial_window: NumberOrAuto,
    send_buffer: String,
    receive_buffer: String,
    notsent_lowat: String,
    keepalive_idle: String,
    keepalive_interval: String,
    keepalive_probes: u32,
    user_timeout: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum NumberOrAuto {
    Number(u32),
    Auto(&'static str),
}

#[derive(Debug, Serialize)]
struct Limits {
    connect: String,
    idle: String,
    #[serde(rename = "client-fin")]
    client_fin: String,
    #[serde(rename = "server-fin")]
    server_fin: String,
}

impl Effective {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            version: 1,
            node: Node {
                id: config.policy.chains.me.map(u64::from),
                workers: config.node.workers,
                relays_max: config.node.relays_max,
                drain_timeout: show_duration(config.node.drain_timeout),
                upgrade_timeout: show_duration(config.node.upgrade_timeout),
                log_connections: config.node.log_connections,
            },
            admin: Admin {
                socket: config.admin_socket.display().to_string(),
                group: config.admin_group.as_ref().map(NameOrNumber::of),
            },
            metrics: Metrics {
                listen: config
                    .metrics
                    .map_or_else(|| "off".into(), |address| address.to_string()),
            },
            transparent: interception(&config.transparent),
            observe: observe::Shown::of(&config.observe),
            packet: config.packet,
            half_open: half_open(&config.policy.half_open),
            defaults: Defaults {
                strict_after_failure: show_duration(config.policy.strict_after_failure),
            },
            access: Access::of(config),
            measure: Measure::of(&config.measure),
            controller: Controller::of(config),
            listener: Listener::all(config),
            peer: chains::peers(config),
            chain: chains::chains(config),
            route: chains::routes(config),
            rule: config.policy.rules.iter().map(rule).collect(),
        }
    }
}

fn interception(transparent: &Transparent) -> Interception {
    Interception {
        enabled: transparent.enabled,
        interfaces: transparent.interfaces.clone(),
        mark: transparent.mark,
        socket_mark: transparent.socket_mark,
        table: transparent.table,
    }
}

fn half_open(limits: &HalfOpenLimits) -> HalfOpen {
    HalfOpen {
        total: limits.total,
        reserve: limits.reserve,
        per_prefix: limits.per_prefix,
        expiry: show_duration(limits.expiry),
    }
}

fn rule(rule: &Rule) -> EffectiveRule {
    EffectiveRule {
        name: rule.name.clone(),
        action: rule.action.word(),
        accept: rule.accept.name(),
        observe: rule.observe,
        data_path: rule.data_path.word(),
        bypass: rule.bypass,
        multipath: rule.multipath.word(),
        upstream_multipath: rule.upstream_multipath,
        source_address: rule.source_address.word(),
        proxy_protocol: rule.proxy_protocol,
        transfer_size: rule.transfer_bytes.map(show_size),
        matches: Matches::of(&rule.matches),
        downstream: side(&rule.downstream),
        upstream: side(&rule.upstream),
        timeouts: limits(&rule.timeouts),
    }
}

/// A range of ports in the form of the configuration.
pub fn ports(range: &RangeInclusive<u16>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}-{}", range.start(), range.end())
    }
}

fn side(side: &SideOptions) -> Side {
    let buffer = |bytes: Option<u32>| bytes.map_or_else(|| "auto".into(), show_size);
    Side {
        congestion: side.congestion.clone().unwrap_or_else(|| "auto".into()),
        initial_window: side
            .initial_window
            .map_or(NumberOrAuto::Auto("auto"), NumberOrAuto::Number),
        send_buffer: buffer(side.send_buffer_bytes),
        receive_buffer: buffer(side.receive_buffer_bytes),
        notsent_lowat: show_size(side.notsent_lowat_bytes),
        keepalive_idle: show_duration(side.keepalive_idle),
        keepalive_interval: show_duration(side.keepalive_interval),
        keepalive_probes: side.keepalive_probes,
        user_timeout: show_duration(side.user_timeout),
    }
}

fn limits(timeouts: &Timeouts) -> Limits {
    Limits {
        connect: show_duration(timeouts.connect),
        idle: show_duration(timeouts.idle),
        client_fin: show_duration(timeouts.client_fin),
        server_fin: show_duration(timeouts.server_fin),
    }
}
