// SPDX-License-Identifier: Apache-2.0
//! The reverse path filters of this host's interfaces (RFC 3704), which Linux has for IPv4 only
//! (`net.ipv4.conf.*.rp_filter`).

use std::collections::HashSet;
use std::io;

use posthaste_netlink::{Message, Netlink, attribute, u32_at};

/// `RTM_NEWNETCONF`, `RTM_GETNETCONF`.
pub(super) const NEW: u16 = 80;
const GET: u16 = 82;
/// `struct netconfmsg`: the family, and padding.
const BODY: [u8; 4] = [2, 0, 0, 0];
/// `NETCONFA_IFINDEX`, `NETCONFA_RP_FILTER`.
const INDEX: u16 = 1;
const FILTER: u16 = 3;
/// The index of the setting for all interfaces (`NETCONFA_IFINDEX_ALL`).
const ALL: u32 = u32::MAX;
/// The filter that accepts packets only from sources that are routed through the interface.
const STRICT: u32 = 1;

/// The interfaces with a strict filter.
pub(crate) fn strict_sources() -> io::Result<HashSet<u32>> {
    let mut filters = Vec::new();
    Netlink::route()?.dump(Message::new(GET, 0, &BODY), |kind, body| {
        filters.extend(filter(body).filter(|_| kind == NEW));
    })?;
    Ok(strict(&filters))
}

/// An interface and its filter.
fn filter(body: &[u8]) -> Option<(u32, u32)> {
    let find = |wanted| u32_at(attribute(body.get(BODY.len()..)?, wanted)?, 0);
    Some((find(INDEX)?, find(FILTER)?))
}

/// The effective filter is the greater of the interface's and the one for all.
fn strict(filters: &[(u32, u32)]) -> HashSet<u32> {
    let of_all = filters.iter().find(|(index, _)| *index == ALL);
    let of_all = of_all.map_or(0, |(_, filter)| *filter);
    let strict = filters
        .iter()
        .filter(|(_, filter)| (*filter).max(of_all) == STRICT);
    strict.map(|(index, _)| *index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greater_filter_applies() {
        let strict_of = |all| strict(&[(ALL, all), (1, 0), (2, 1), (3, 2)]);
        assert_eq!(strict_of(0), [2].into());
        assert!(strict_of(1).is_superset(&[1, 2].into()) && !strict_of(1).contains(&3));
        assert!(strict_of(2).is_empty());
    }
}
