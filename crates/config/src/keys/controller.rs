// SPDX-License-Identifier: Apache-2.0
//! The keys of a controller's file.

use std::time::Duration;

use posthaste_control::rib::HOPS_MAX;

use super::Accepted::{Duration as Length, Form, Number, Or, Words};
use super::Kind::{Many, Named, One};
use super::Usual::{Computed, Is, Required};
use super::node::{HEX, HOUR, INTERVAL_MIN, MONTH, NAME, NODE_ID, PATH, SECOND};
use super::{Controller, Reload, Table, keep, key, rows};

const PERCENT_MAX: u32 = 90;

/// Every key of a controller's file.
#[rustfmt::skip]
pub(in super::super) static CONTROLLER: Table = &[
    rows(&[""], One, &[
        key("version", Required, Number(1, 1), "the version of the format of the file"),
    ]),
    rows(&["server"], One, &[
        key("listen", Required, Form("addresses and ports, each once"), "where nodes connect").list()
            .at_start(keep!(ControllerKeeps, server.listen)),
        key("identity_file", Required, PATH, "the controller's secret, made by `posthaste keys identity`")
            .at_start(Reload::ControllerKeeps(keep_identity)),
        key("store", Is("\"/var/lib/posthaste/controller.redb\""), PATH, "the data that must survive the controller")
            .at_start(keep!(ControllerKeeps, server.store)),
        key("keepalive", Is("\"10s\""), Length(SECOND, Duration::from_secs(300)),
            "how often either end of a stream sends something").at_start(keep!(ControllerKeeps, server.keepalive)),
    ]),
    rows(&["api"], One, &[
        key("listen", Is("\"127.0.0.1:9465\""), Or(&Form("address and port"), "off"), "the API and metrics")
            .at_start(Reload::ControllerKeeps(keep_api_address)),
        key("read_token_file", Computed("none: every client that reaches the API may read"), PATH,
            "a file with 16 to 200 letters and digits"),
        key("operate_token_file", Computed("none: no client may change anything"), PATH, "the same"),
    ]),
    rows(&["plan"], One, &[
        key("ttl", Is("\"15m\""), Length(Duration::from_secs(2), MONTH),
            "how long nodes follow a plan after the controller last confirmed it"),
        key("hops", Is("\"cold\""), Words(&["cold", "warm"]), "whether hops are opened for each flow or wait open"),
        key("hops_max", Is("4"), Number(1, HOPS_MAX as u32), "the most hops of a chain"),
        key("margin_percent", Is("10"), Number(0, PERCENT_MAX), "a chain must be so much faster than the hop without nodes between"),
        key("switch_gain_percent", Is("5"), Number(0, PERCENT_MAX),
            "a better chain replaces a chain in use if it is this much better"),
        key("better_by", Is("\"2ms\""), Length(Duration::ZERO, Duration::from_secs(10)), "and better by this time as well"),
        key("switch_loss_percent", Is("10"), Number(0, 1000), "or if it takes so much longer than when it was chosen"),
        key("sizes", Computed("ten sizes by the rounds of slow start"), Form("ascending sizes; with `access` at most 64 combinations"),
            "chains are chosen for transfers of these sizes").list(),
        key("access", Is("[\"0s\", \"10ms\", \"20ms\", \"40ms\"]"), Form("ascending durations up to `\"10s\"`"),
            "and over access links of these round trips").list(),
    ]).at_start(keep!(ControllerKeeps, plan)),
    rows(&["measure"], One, &[
        key("interval", Is("\"10s\""), Length(INTERVAL_MIN, HOUR), "how often nodes measure a link"),
        key("interval_in_use", Computed("`\"1s\"`, at most `interval`"), Length(INTERVAL_MIN, HOUR),
            "the same, of links that chains use"),
    ]),
    rows(&["node"], Named, &[
        key("name", Required, NAME, "shown in logs, lists and to other nodes"),
        key("id", Required, NODE_ID, "its `node.id`"),
        key("key", Required, HEX, "its public key, as `posthaste keys public` prints it on the node; used once"),
    ]),
    rows(&["prefix"], Many, &[
        key("destinations", Required, Form("prefixes"), "the longest prefix counts").list(),
        key("node", Required, Form("the name of a `[[node]]`"), "the egress of these destinations"),
    ]),
];

/// A file at another place may have the same secret in it.
fn keep_identity(now: &Controller, next: &mut Controller) -> bool {
    let is_same = now.server.identity.public() == next.server.identity.public();
    next.server.identity.clone_from(&now.server.identity);
    next.server
        .identity_file
        .clone_from(&now.server.identity_file);
    is_same
}

/// The tokens beside it apply at once.
fn keep_api_address(now: &Controller, next: &mut Controller) -> bool {
    let address = |config: &Controller| config.api.as_ref().map(|api| api.listen);
    let is_same = address(now) == address(next);
    match (&now.api, &mut next.api) {
        (Some(now), Some(next)) => next.listen = now.listen,
        (now, next) => next.clone_from(now),
    }
    is_same
}
