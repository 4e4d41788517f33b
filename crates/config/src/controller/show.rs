// SPDX-License-Identifier: Apache-2.0
//! A controller's configuration as meant, back in the shape of the file.

use std::time::Duration;

use super::super::show::{Show, Shown, section, sections};
use super::{Api, Controller, Plan, Token};

/// The configuration of a controller in the shape of its file.
pub(super) fn config(config: &Controller) -> Shown {
    let server = &config.server;
    let name = |id: u64| config.nodes.iter().find(|node| node.id == id);
    Shown::Section(vec![
        ("version", 1_u32.show()),
        (
            "server",
            section([
                ("listen", server.listen.show()),
                ("identity_file", server.identity_file.show()),
                ("store", server.store.show()),
                ("keepalive", server.keepalive.show()),
            ]),
        ),
        ("api", api(config.api.as_ref())),
        ("plan", plan(&config.plan)),
        (
            "measure",
            section([
                ("interval", config.interval.show()),
                ("interval_in_use", config.interval_in_use.show()),
            ]),
        ),
        (
            "node",
            sections(config.nodes.iter().map(|node| {
                section([
                    ("name", node.name.show()),
                    ("id", node.id.show()),
                    ("key", node.key.to_string().show()),
                ])
            })),
        ),
        // One section for each: which of them the file had in one list is not kept.
        (
            "prefix",
            sections(config.prefixes.iter().map(|(prefix, id)| {
                section([
                    ("destinations", [*prefix].show()),
                    ("node", name(*id).map(|node| node.name.as_str()).show()),
                ])
            })),
        ),
    ])
}

fn api(api: Option<&Api>) -> Option<Shown> {
    // The path alone: the word itself gives access to the API.
    let file = |token: fn(&Api) -> &Option<Token>| Some(token(api?).as_ref()?.file.clone());
    let listen = api.map(|api| api.listen);
    section([
        ("listen", listen.show().or_else(|| "off".show())),
        ("read_token_file", file(|api| &api.read_token).show()),
        ("operate_token_file", file(|api| &api.operate_token).show()),
    ])
}

fn plan(plan: &Plan) -> Option<Shown> {
    let access = plan.classes.access_us().iter();
    let access = access.map(|us| Duration::from_micros((*us).into()));
    let access: Vec<Duration> = access.collect();
    section([
        ("ttl", plan.ttl.show()),
        ("hops", if plan.warm { "warm" } else { "cold" }.show()),
        ("hops_max", plan.hops_max.show()),
        ("margin_percent", plan.margin_percent.show()),
        ("switch_gain_percent", plan.switch_gain_percent.show()),
        ("better_by", plan.better_by.show()),
        ("switch_loss_percent", plan.switch_loss_percent.show()),
        ("sizes", plan.classes.sizes().show()),
        ("access", access.show()),
    ])
}
