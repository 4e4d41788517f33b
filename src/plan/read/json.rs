// SPDX-License-Identifier: Apache-2.0
//! JSON: an object with nodes, which may have costs, and links between them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use posthaste_plan::{Link, Matrix};
use serde::Deserialize;

use super::{Free, Names, Network, Problem, add, loss_ppm, micros, rate};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    nodes: Vec<NodeEntry>,
    links: Vec<LinkEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: String,
    cost_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    from: String,
    to: String,
    rtt_ms: f64,
    #[serde(default)]
    loss_percent: f64,
    rate_mbit: Option<f64>,
    window_segments: Option<NonZeroU32>,
    #[serde(default)]
    both: bool,
}

pub(super) fn read(text: &str) -> Result<Network, Problem> {
    let file: File = serde_json::from_str(text).map_err(|error| {
        let whole = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        // serde_json puts the place at the end; here the line precedes the message.
        let what = whole.strip_suffix(&place).unwrap_or(&whole);
        Problem::at(error.line(), format!("{what} at column {}", error.column()))
    })?;
    let mut names = Names::default();
    let mut costs = Vec::new();
    for (number, node) in (1..).zip(&file.nodes) {
        let named = |what| Problem::whole(format!("node {number} ({:?}): {what}", node.name));
        let new = names.names.len();
        // A new name gets the next number.
        if names.number(&node.name).map_err(named)? != new {
            return Err(named("there is another of that name".to_owned()));
        }
        costs.push(node.cost_ms.map(micros).transpose().map_err(named)?);
    }
    let (mut links, mut free) = (Vec::new(), Free::default());
    for (number, entry) in (1..).zip(&file.links) {
        let named = |what| {
            let LinkEntry { from, to, .. } = entry;
            Problem::whole(format!("link {number} ({from:?} to {to:?}): {what}"))
        };
        let from = names.number(&entry.from).map_err(named)?;
        let to = names.number(&entry.to).map_err(named)?;
        let link = link(entry).map_err(named)?;
        free.note(link, None, || {
            let LinkEntry { from, to, .. } = entry;
            format!("link {number} ({from:?} to {to:?}): rtt_ms")
        });
        links.push(((from, to), link, entry));
    }
    let whole = |error: posthaste_plan::matrix::Error| Problem::whole(error.to_string());
    let mut matrix = Matrix::new(names.names.len()).map_err(whole)?;
    let given = costs.into_iter().enumerate();
    let given: BTreeMap<usize, u32> = given
        .filter_map(|(node, cost)| Some((node, cost?)))
        .collect();
    for (node, cost) in &given {
        matrix.set_cost(*node, *cost).map_err(whole)?;
    }
    for (number, ((from, to), link, entry)) in (1..).zip(links) {
        let named = |what| Problem::whole(format!("link {number}: {what}"));
        add(&mut matrix, (from, to), link).map_err(named)?;
        if entry.both {
            add(&mut matrix, (to, from), link).map_err(named)?;
        }
    }
    Ok(Network {
        costed: given.into_keys().collect(),
        free,
        ..Network::without_costs(names.names, matrix)
    })
}

fn link(entry: &LinkEntry) -> Result<Link, String> {
    Ok(Link {
        rtt_us: micros(entry.rtt_ms)?,
        loss_ppm: loss_ppm(entry.loss_percent)?,
        rate: entry.rate_mbit.map(rate).transpose()?,
        window: entry.window_segments,
        assumed: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_links_are_read() {
        let text = r#"{
            "nodes": [{"name": "x", "cost_ms": 0.5}, {"name": "a"}],
            "links": [
                {"from": "a", "to": "x", "rtt_ms": 20, "loss_percent": 1},
                {"from": "a", "to": "b", "rtt_ms": 1.5, "rate_mbit": 10, "both": true}
            ]
        }"#;
        let network = read(text).unwrap();
        assert_eq!(network.names, ["x", "a", "b"]);
        assert_eq!(network.matrix.cost_us(0), 500);
        assert!(network.costed.contains(&0) && !network.costed.contains(&1));
        assert_eq!(network.matrix.link(1, 0).unwrap().loss_ppm, 10_000);
        assert_eq!(network.matrix.link(0, 1), None);
        assert_eq!(network.matrix.link(2, 1), network.matrix.link(1, 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let problem = |text: &str| read(text).unwrap_err().of_file("f");
        assert_eq!(
            problem(r#"{"links": [{"from": "a", "to": "b", "rtt_ms": -2}]}"#),
            "f: link 1 (\"a\" to \"b\"): -2 is not a time: expected milliseconds from 0 to 60000"
        );
        assert_eq!(
            problem(r#"{"nodes": [{"name": "a"}, {"name": "a"}], "links": []}"#),
            "f: node 2 (\"a\"): there is another of that name"
        );
    }
}
