// SPDX-License-Identifier: Apache-2.0
//! The file of a node.

use posthaste_relay::policy::{Match, Rule, SideOptions};

use super::super::value::{Word, show_size};
use super::super::{Config, Transparent};
use super::{Key, Show, Shown, chains, section, sections};

/// The configuration of a node in the shape of its file.
pub(in super::super) fn config(config: &Config) -> Shown {
    let (policy, node, observe) = (&config.policy, &config.node, &config.observe);
    let half_open = &policy.half_open;
    let group = config.admin_group.as_ref();
    Shown::Section(vec![
        ("version", 1_u32.show()),
        (
            "node",
            section([
                ("id", policy.chains.me.map(u64::from).show()),
                ("workers", node.workers.show()),
                ("relays_max", node.relays_max.show()),
                ("drain_timeout", node.drain_timeout.show()),
                ("upgrade_timeout", node.upgrade_timeout.show()),
                ("log_connections", node.log_connections.show()),
            ]),
        ),
        (
            "admin",
            section([
                ("socket", config.admin_socket.show()),
                (
                    "group",
                    group.and_then(|group| group.name.show().or_else(|| group.id.show())),
                ),
            ]),
        ),
        ("metrics", section([("listen", or_off(config.metrics))])),
        ("transparent", transparent(&config.transparent)),
        (
            "observe",
            section([
                ("ttl", observe.ttl.show()),
                ("bypass_for", observe.bypass_for.show()),
                ("gain_min", observe.gain_min.show()),
                ("profiles_max", observe.profiles_max.show()),
            ]),
        ),
        (
            "packet",
            section([
                ("flows", config.packet.flows.show()),
                ("idle", config.packet.idle.show()),
            ]),
        ),
        (
            "half_open",
            section([
                ("total", half_open.total.show()),
                ("reserve", half_open.reserve.show()),
                ("per_prefix", half_open.per_prefix.show()),
                ("expiry", half_open.expiry.show()),
            ]),
        ),
        // Every rule has its own copy of the other defaults.
        (
            "defaults",
            section([("strict_after_failure", policy.strict_after_failure.show())]),
        ),
        ("access", chains::access(config)),
        ("measure", chains::measure(&config.measure)),
        ("controller", chains::controller(config)),
        ("listener", chains::listeners(config)),
        ("peer", chains::peers(config)),
        ("chain", chains::chains(config)),
        ("route", chains::routes(config)),
        ("rule", sections(policy.rules.iter().map(rule))),
    ])
}

/// A value, or `off`.
pub(super) fn or_off<T: Show>(value: Option<T>) -> Option<Shown> {
    value.show().or_else(|| "off".show())
}

fn transparent(transparent: &Transparent) -> Option<Shown> {
    let names = &transparent.interfaces;
    section([
        ("enabled", transparent.enabled.show()),
        // The reader accepts no empty list.
        (
            "interfaces",
            names.first().and_then(|_| names.as_slice().show()),
        ),
        ("mark", transparent.mark.show()),
        ("socket_mark", transparent.socket_mark.show()),
        ("table", transparent.table.show()),
    ])
}

fn rule(rule: &Rule) -> Option<Shown> {
    let timeouts = &rule.timeouts;
    let own = [
        ("name", rule.name.show()),
        ("action", rule.action.word().show()),
        ("accept", rule.accept.name().show()),
        ("observe", rule.observe.show()),
        ("data_path", rule.data_path.word().show()),
        ("bypass", rule.bypass.word().show()),
        ("multipath", rule.multipath.word().show()),
        ("upstream_multipath", rule.upstream_multipath.show()),
        ("source_address", rule.source_address.word().show()),
        ("proxy_protocol", rule.proxy_protocol.show()),
        ("transfer_size", rule.transfer_bytes.map(show_size).show()),
    ];
    let of_sockets = [
        ("downstream", side(&rule.downstream)),
        ("upstream", side(&rule.upstream)),
        (
            "timeouts",
            section([
                ("connect", timeouts.connect.show()),
                ("idle", timeouts.idle.show()),
                ("client-fin", timeouts.client_fin.show()),
                ("server-fin", timeouts.server_fin.show()),
            ]),
        ),
    ];
    let keys = own.into_iter().chain(matches(&rule.matches));
    section(keys.chain(of_sockets))
}

/// What a rule or a route matches.
pub(super) fn matches(matches: &Match) -> [Key; 3] {
    [
        ("destinations", matches.destinations.show()),
        ("sources", matches.sources.show()),
        ("ports", matches.ports.show()),
    ]
}

/// The settings of sockets.
pub(super) fn side(side: &SideOptions) -> Option<Shown> {
    let or_auto = |shown: Option<Shown>| shown.or_else(|| "auto".show());
    let buffer = |bytes: Option<u32>| or_auto(bytes.map(show_size).show());
    section([
        ("congestion", or_auto(side.congestion.show())),
        ("initial_window", or_auto(side.initial_window.show())),
        ("send_buffer", buffer(side.send_buffer_bytes)),
        ("receive_buffer", buffer(side.receive_buffer_bytes)),
        ("notsent_lowat", show_size(side.notsent_lowat_bytes).show()),
        ("keepalive_idle", side.keepalive_idle.show()),
        ("keepalive_interval", side.keepalive_interval.show()),
        ("keepalive_probes", side.keepalive_probes.show()),
        ("user_timeout", side.user_timeout.show()),
    ])
}
