// SPDX-License-Identifier: Apache-2.0
//! `status --controller`: the nodes, links and plan of a controller.

use std::fmt::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::http;
use super::links::loss;
use super::show::{self, Column};
use crate::verb;
use posthaste_controller::documents::{Link, Links, Node, Nodes, Status};

/// Links shown; of a larger overlay a selection is shown.
const LINKS_MAX: usize = 200;

/// The output.
#[derive(Debug, Serialize, Deserialize)]
struct Overview {
    status: Status,
    nodes: Vec<Node>,
    links: Links,
}

/// Queries the controller at `url`, with the token in a file.
pub(super) fn status(url: &str, token_file: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let address = address_of(url)?;
    let token = token_file.map(|file| {
        let text = std::fs::read_to_string(file);
        text.with_context(|| format!("read {}", file.display()))
    });
    let token = token.transpose()?;
    let token = token.as_deref().map(str::trim);
    let nodes: Nodes = query(address, "/v1/nodes", token)?;
    let overview = Overview {
        status: query(address, "/v1/status", token)?,
        links: query(address, &format!("/v1/links?limit={LINKS_MAX}"), token)?,
        nodes: nodes.nodes,
    };
    if json {
        return verb::print_json(&overview);
    }
    verb::print(&text(&overview))
}

/// Names are not resolved, as elsewhere: addresses are literals.
fn address_of(url: &str) -> anyhow::Result<SocketAddr> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    rest.parse().with_context(|| {
        format!(
            "\"{url}\": expected an address and port such as http://127.0.0.1:9465 (names are not looked up)"
        )
    })
}

fn query<T: DeserializeOwned>(
    address: SocketAddr,
    target: &str,
    token: Option<&str>,
) -> anyhow::Result<T> {
    let stream = TcpStream::connect_timeout(&address, http::ANSWER_TIME_MAX);
    let stream = stream.with_context(|| format!("no controller answers at {address}"))?;
    stream
        .set_read_timeout(Some(http::ANSWER_TIME_MAX))
        .context("bound the wait")?;
    let token = token.map(|word| format!("Authorization: Bearer {word}\r\n"));
    http::exchange(stream, "GET", target, &token.unwrap_or_default())?.document("controller")
}

fn text(overview: &Overview) -> String {
    let Overview {
        status,
        nodes,
        links,
    } = overview;
    let plan = &status.plan;
    let mut text = format!(
        "posthaste controller {}, up {}: {} of {} nodes connected\n",
        status.version,
        seconds(status.uptime_seconds),
        status.connected,
        status.nodes
    );
    let age = plan.age_seconds.map_or_else(
        || "none made since the start".to_owned(),
        |age| format!("{} old", seconds(age)),
    );
    let _ = writeln!(
        text,
        "plan {}.{}, {age}: {} nodes, {} links, {} chains; {} nodes follow it\n",
        plan.plan_version.epoch,
        plan.plan_version.version,
        plan.nodes,
        plan.links,
        plan.chains,
        plan.followed_by
    );
    text += &show::table(NODES, nodes, 5);
    let _ = write!(text, "\n{}", show::table(LINKS, &links.links, 4));
    if links.incomplete {
        text.push_str("(there are more; the API has all)\n");
    }
    text
}

const NODES: &[Column<Node>] = &[
    ("NODE", |node| node.name.clone()),
    ("ID", |node| node.id.to_string()),
    ("STATE", |node| node.state.clone()),
    ("FOR", |node| or_absent(node.connected_seconds.map(seconds))),
    ("FROM", |node| or_absent(node.from.clone())),
    ("PLAN", |node| {
        let held = node.holds;
        or_absent(held.map(|held| format!("{}.{}", held.epoch, held.version)))
    }),
    ("CLOCK", |node| {
        let offset = node.clock_offset_seconds;
        or_absent(offset.map(|offset| format!("{offset:+.3}s")))
    }),
];

const LINKS: &[Column<Link>] = &[
    ("LINK", |link| link.from.clone()),
    ("", |link| link.to.clone()),
    ("REPORTED", |link| or_absent(link.reported.clone())),
    ("BACK", |link| {
        let disputed = if link.disputed { " (disputed)" } else { "" };
        or_absent(link.reported_back.clone()) + disputed
    }),
    ("RTT", |link| or_absent(link.rtt_us.map(show::micros))),
    ("LOSS", |link| loss(link.loss_ppm)),
];

fn or_absent(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn seconds(seconds: f64) -> String {
    show::span(show::millis(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_named_by_address() {
        for url in [
            "http://127.0.0.1:9465",
            "http://127.0.0.1:9465/",
            "127.0.0.1:9465",
        ] {
            assert_eq!(address_of(url).unwrap().port(), 9465);
        }
        assert!(address_of("http://[::1]:9465").unwrap().is_ipv6());
        for wrong in [
            "http://controller:9465",
            "https://127.0.0.1:9465",
            "127.0.0.1",
        ] {
            assert!(address_of(wrong).is_err(), "{wrong}");
        }
    }
}
