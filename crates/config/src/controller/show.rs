// SPDX-License-Identifier: Apache-2.0
//! A controller's configuration as meant, back in the shape of the file.

use std::time::Duration;

use serde::Serialize;

use super::super::value::show_duration;
use super::{Controller, Token};

/// A [`Controller`] in the shape of its file.
#[derive(Debug, Serialize)]
pub(super) struct Effective {
    version: u32,
    server: Server,
    api: Api,
    plan: Plan,
    measure: Measure,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node: Vec<Node>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prefix: Vec<Prefix>,
}

#[derive(Debug, Serialize)]
struct Server {
    listen: Vec<String>,
    identity_file: String,
    store: String,
    keepalive: String,
}

#[derive(Debug, Serialize)]
struct Api {
    listen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operate_token_file: Option<String>,
}

#[derive(Debug, Serialize)]
struct Plan {
    ttl: String,
    hops: &'static str,
    hops_max: u8,
    margin_percent: u32,
    switch_gain_percent: u32,
    better_by: String,
    switch_loss_percent: u32,
    sizes: Vec<u64>,
    access: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Measure {
    interval: String,
    interval_in_use: String,
}

#[derive(Debug, Serialize)]
struct Node {
    name: String,
    id: u64,
    key: String,
}

#[derive(Debug, Serialize)]
struct Prefix {
    destinations: Vec<String>,
    node: String,
}

impl Effective {
    pub(super) fn of(config: &Controller) -> Self {
        let server = &config.server;
        let nodes = config.nodes.iter();
        Self {
            version: 1,
            server: Server {
                listen: server.listen.iter().map(ToString::to_string).collect(),
                identity_file: server.identity_file.display().to_string(),
                store: server.store.display().to_string(),
                keepalive: show_duration(server.keepalive),
            },
            api: api(config),
            plan: plan(config),
            measure: Measure {
                interval: show_duration(config.interval),
                interval_in_use: show_duration(config.interval_in_use),
            },
            node: nodes
                .map(|node| Node {
                    name: node.name.clone(),
                    id: node.id,
                    key: node.key.to_string(),
                })
                .collect(),
            prefix: prefixes(config),
        }
    }
}

fn api(config: &Controller) -> Api {
    let file = |token: &Option<Token>| {
        let token = token.as_ref();
        // The path alone: the word itself gives access to the API.
        token.map(|token| token.file.display().to_string())
    };
    let api = config.api.as_ref();
    Api {
        listen: api.map_or_else(|| "off".to_owned(), |api| api.listen.to_string()),
        read_token_file: api.and_then(|api| file(&api.read_token)),
        operate_token_file: api.and_then(|api| file(&api.operate_token)),
    }
}

fn plan(config: &Controller) -> Plan {
    let plan = &config.plan;
    let access = plan.classes.access_us().iter();
    Plan {
        ttl: show_duration(plan.ttl),
        hops: if plan.warm { "warm" } else { "cold" },
        hops_max: plan.hops_max,
        margin_percent: plan.margin_percent,
        switch_gain_percent: plan.switch_gain_percent,
        better_by: show_duration(plan.better_by),
        switch_loss_percent: plan.switch_loss_percent,
        sizes: plan.classes.sizes().to_vec(),
        access: access
            .map(|us| show_duration(Duration::from_micros((*us).into())))
            .collect(),
    }
}

fn prefixes(config: &Controller) -> Vec<Prefix> {
    let name = |id: u64| {
        let node = config.nodes.iter().find(|node| node.id == id);
        node.map_or_else(String::new, |node| node.name.clone())
    };
    let each = config.prefixes.iter();
    each.map(|(prefix, id)| Prefix {
        // One section for each: which of them the file had in one list is not kept.
        destinations: vec![prefix.to_string()],
        node: name(*id),
    })
    .collect()
}
