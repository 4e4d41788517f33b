// SPDX-License-Identifier: Apache-2.0
//! Whose destinations are whose, as the API shows and sets it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{anyhow, bail, ensure};
use posthaste_control::message::{NodeNumber, Prefix};

use crate::documents::{PrefixEntry, PrefixTable, Prefixes};
use crate::server::{Inner, Server};
use posthaste_config::prefix_text;

/// Prefixes that the API may set.
const PREFIXES_MAX: usize = 10_000;

/// All there are.
pub(super) fn list(server: &Server) -> Prefixes {
    let inner = server.lock();
    let configured = inner.config.prefixes.iter();
    let set = inner.state.egresses.table().iter();
    let in_force = inner.state.list().iter();
    Prefixes {
        configured: configured
            .map(|(prefix, node)| PrefixEntry {
                prefix: prefix.to_string(),
                node: inner.name(*node),
            })
            .collect(),
        set: set
            .map(|(prefix, node)| entry(&inner, *prefix, *node))
            .collect(),
        in_force: in_force
            .map(|egress| entry(&inner, egress.prefix, egress.node))
            .collect(),
    }
}

/// Sets those of the API. Returns how many there are.
///
/// # Errors
/// One of them cannot be understood, names no node or comes twice; or it cannot be kept. Nothing is changed.
pub(super) fn put(server: &Server, table: &PrefixTable) -> anyhow::Result<usize> {
    let count = table.prefixes.len();
    ensure!(
        count <= PREFIXES_MAX,
        "{count} prefixes: expected at most {PREFIXES_MAX}"
    );
    // Released again below: `set_prefixes` locks the store before the state.
    let numbers: BTreeMap<String, NodeNumber> = {
        let inner = server.lock();
        let nodes = inner.config.nodes.iter();
        nodes.map(|node| (node.name.clone(), node.id)).collect()
    };
    let mut all = BTreeMap::new();
    for PrefixEntry { prefix, node } in &table.prefixes {
        let number = numbers.get(node);
        let number = number.ok_or_else(|| anyhow!("there is no node \"{node}\""))?;
        let read = prefix_text(prefix).map_err(|form| anyhow!("\"{prefix}\": {form}"))?;
        let read = Prefix {
            address: read.octets(),
            bits: read.mapped_bits(),
        };
        // By meaning: an IPv6 prefix can be written in several ways.
        if all.insert(read, *number).is_some() {
            bail!("\"{prefix}\" is named twice");
        }
    }
    server.set_prefixes(all)?;
    Ok(count)
}

fn entry(inner: &Inner, prefix: Prefix, node: NodeNumber) -> PrefixEntry {
    PrefixEntry {
        prefix: text(prefix),
        node: inner.name(node),
    }
}

/// As people write it.
fn text(prefix: Prefix) -> String {
    let address = Ipv6Addr::from(prefix.address);
    match address.to_canonical() {
        // A shorter prefix holds more than the mapped IPv4 addresses, ::ffff:0:0/96.
        IpAddr::V4(address) if prefix.bits >= 96 => format!("{address}/{}", prefix.bits - 96),
        _ => format!("{address}/{}", prefix.bits),
    }
}
