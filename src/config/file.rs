// SPDX-License-Identifier: Apache-2.0
//! The configuration file as written: every key optional, every value with its
//! place in the text. `build` decides what the values mean.

use std::fmt;

use serde::Deserialize;
use toml::{Spanned, Value};

pub(super) mod controller;

/// One value of any type, so that a wrong type is reported like a wrong value.
pub(super) type Scalar = Option<Spanned<Value>>;
/// A list of values, each with its own place.
pub(super) type List = Option<Vec<Spanned<Value>>>;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) version: Scalar,
    pub(super) node: Node,
    pub(super) admin: Admin,
    pub(super) metrics: Metrics,
    pub(super) transparent: Transparent,
    pub(super) observe: Observe,
    pub(super) half_open: HalfOpen,
    pub(super) defaults: Defaults,
    pub(super) rule: Vec<Spanned<Rule>>,
    pub(super) access: Access,
    pub(super) measure: Measure,
    pub(super) controller: Option<Spanned<Controller>>,
    pub(super) listener: Vec<Spanned<Listener>>,
    pub(super) peer: Vec<Spanned<Peer>>,
    pub(super) chain: Vec<Spanned<Chain>>,
    pub(super) route: Vec<Spanned<Route>>,
}

/// `[node]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    pub(super) workers: Scalar,
    pub(super) relays_max: Scalar,
    pub(super) drain_timeout: Scalar,
    pub(super) upgrade_timeout: Scalar,
    pub(super) log_connections: Scalar,
    pub(super) id: Scalar,
}

/// `[admin]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    pub(super) socket: Scalar,
    pub(super) group: Scalar,
}

/// `[metrics]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) listen: Scalar,
}

/// `[transparent]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Transparent {
    pub(super) interfaces: List,
    pub(super) mark: Scalar,
    pub(super) socket_mark: Scalar,
    pub(super) table: Scalar,
    pub(super) enabled: Scalar,
}

/// `[observe]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Observe {
    pub(super) ttl: Scalar,
    pub(super) bypass_for: Scalar,
    pub(super) gain_min: Scalar,
    pub(super) profiles_max: Scalar,
}

/// `[half_open]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HalfOpen {
    pub(super) total: Scalar,
    pub(super) reserve: Scalar,
    pub(super) per_prefix: Scalar,
    pub(super) expiry: Scalar,
}

/// `[defaults]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Defaults {
    pub(super) accept: Scalar,
    pub(super) observe: Scalar,
    pub(super) source_address: Scalar,
    pub(super) strict_after_failure: Scalar,
    pub(super) downstream: Side,
    pub(super) upstream: Side,
    pub(super) timeouts: Timeouts,
}

/// `[defaults.downstream]`, `[rule.upstream]` and their like.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Side {
    pub(super) congestion: Scalar,
    pub(super) initial_window: Scalar,
    pub(super) send_buffer: Scalar,
    pub(super) receive_buffer: Scalar,
    pub(super) notsent_lowat: Scalar,
    pub(super) keepalive_idle: Scalar,
    pub(super) keepalive_interval: Scalar,
    pub(super) keepalive_probes: Scalar,
    pub(super) user_timeout: Scalar,
}

/// `[defaults.timeouts]` and `[rule.timeouts]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Timeouts {
    pub(super) connect: Scalar,
    pub(super) idle: Scalar,
    #[serde(rename = "client-fin")]
    pub(super) client_fin: Scalar,
    #[serde(rename = "server-fin")]
    pub(super) server_fin: Scalar,
}

/// One `[[rule]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rule {
    pub(super) name: Scalar,
    pub(super) action: Scalar,
    pub(super) accept: Scalar,
    pub(super) observe: Scalar,
    pub(super) source_address: Scalar,
    pub(super) proxy_protocol: Scalar,
    pub(super) transfer_size: Scalar,
    pub(super) destinations: List,
    pub(super) sources: List,
    pub(super) ports: List,
    pub(super) downstream: Side,
    pub(super) upstream: Side,
    pub(super) timeouts: Timeouts,
}

/// `[access]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Access {
    pub(super) clients: List,
    pub(super) destinations: List,
    pub(super) cookies: Scalar,
    pub(super) cookie: Scalar,
    pub(super) allow_lookup: List,
}

/// `[measure]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Measure {
    pub(super) enabled: Scalar,
    pub(super) reflector: List,
    pub(super) open_to: List,
    pub(super) interval: Scalar,
    pub(super) interval_in_use: Scalar,
    pub(super) source_ports: Scalar,
}

/// `[controller]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Controller {
    pub(super) address: Scalar,
    pub(super) key: Scalar,
    pub(super) identity_file: Scalar,
    pub(super) state: Scalar,
    pub(super) transfer_size: Scalar,
    pub(super) lookup: Scalar,
}

/// One `[[listener]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listener {
    pub(super) mode: Scalar,
    pub(super) address: Scalar,
    pub(super) destination: Scalar,
}

/// One `[[peer]]`. Not to be shown: it may have a key in it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Peer {
    pub(super) name: Scalar,
    pub(super) id: Scalar,
    pub(super) address: Scalar,
    pub(super) key: Scalar,
    pub(super) key_file: Scalar,
    pub(super) key_id: Scalar,
    pub(super) header_in: Scalar,
    pub(super) source_addresses: List,
    pub(super) pool_min: Scalar,
    pub(super) pool_max: Scalar,
    pub(super) reflector: Scalar,
    pub(super) socket: Side,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Peer");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// One `[[chain]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Chain {
    pub(super) name: Scalar,
    pub(super) nodes: List,
}

/// One `[[route]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Route {
    pub(super) destinations: List,
    pub(super) sources: List,
    pub(super) ports: List,
    pub(super) chains: List,
    pub(super) direct: Scalar,
    pub(super) transfer_size: Scalar,
}
