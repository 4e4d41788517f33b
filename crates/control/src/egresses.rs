// SPDX-License-Identifier: Apache-2.0
//! Which node connects to which destinations. Pure.
//!
//! A table decides, which configuration and API fill: the longest prefix counts. For what no entry of it
//! covers, it is the node that measured the shortest round trip by its own connections. Other nodes cannot
//! check what a node reports about destinations: one that lies can draw flows to itself that the table does
//! not cover. An operator who does not trust the nodes fills the table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::message::{Destination, Egress, NodeNumber, Prefix};

/// Most prefixes that one node may report.
pub const PREFIXES_MAX: usize = 4096;

/// Most prefixes that nodes are sent, unless the table alone has more: 2 MB at the most.
pub const LIST_MAX: usize = 65_536;

/// Handshakes that a round trip must rest on.
pub const HANDSHAKES_MIN: u32 = 3;

/// Another node takes a prefix over when it is nearer by this share, in per cent,
const SWITCH_GAIN_PERCENT: u64 = 5;

/// and by this time, in microseconds: the egress must not alternate between nodes that are equally near.
const BETTER_US: u32 = 2000;

/// The longest round trip that is believed, in microseconds.
const RTT_MAX_US: u32 = 30_000_000;

/// Whose destinations are whose.
#[derive(Debug)]
pub struct Egresses {
    /// How long a report counts.
    ttl: Duration,
    configured: BTreeMap<Prefix, NodeNumber>,
    set: BTreeMap<Prefix, NodeNumber>,
    /// By node, round trips in microseconds and until when they count.
    measured: BTreeMap<NodeNumber, BTreeMap<Prefix, (u32, Duration)>>,
    /// Which node had the measured prefixes last, and the round trip to them as sent, in microseconds.
    nearest: BTreeMap<Prefix, (NodeNumber, u32)>,
    /// Reports that were not believed, or for which there was no room.
    refused: u64,
}

impl Prefix {
    /// Whether no bit is set behind it, and there are as many bits.
    pub fn is_sound(&self) -> bool {
        self.bits <= 128 && self.mask(self.bits) == u128::from_be_bytes(self.address)
    }

    /// Whether all addresses of `other` are among these.
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && other.mask(self.bits) == u128::from_be_bytes(self.address)
    }

    /// The prefix of so many bits, at the most 128, that this begins with.
    fn shortened(&self, bits: u8) -> Self {
        Self {
            address: self.mask(bits).to_be_bytes(),
            bits,
        }
    }

    fn mask(&self, bits: u8) -> u128 {
        // The prefix of length 0 shifts by all 128 bits, which overflows; its mask is 0.
        let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        u128::from_be_bytes(self.address) & mask
    }
}

impl Egresses {
    /// Without any destination. Reports of nodes count for `ttl`.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            configured: BTreeMap::new(),
            set: BTreeMap::new(),
            measured: BTreeMap::new(),
            nearest: BTreeMap::new(),
            refused: 0,
        }
    }

    /// The part of the table that the configuration fills.
    pub fn configure(&mut self, table: BTreeMap<Prefix, NodeNumber>) {
        self.configured = table;
    }

    /// The part of the table that the API fills, which goes first where prefixes are equal.
    pub fn set(&mut self, table: BTreeMap<Prefix, NodeNumber>) {
        self.set = table;
    }

    /// What [`Egresses::set`] set last.
    pub fn table(&self) -> &BTreeMap<Prefix, NodeNumber> {
        &self.set
    }

    /// How many reports were not believed, or not kept.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// A node reports the round trips to destinations.
    pub fn measured(&mut self, node: NodeNumber, destinations: &[Destination], now: Duration) {
        let known = self.measured.entry(node).or_default();
        known.retain(|_, (_, until)| *until > now);
        for destination in destinations {
            let Destination {
                prefix,
                rtt_us,
                handshakes,
            } = *destination;
            let is_possible = prefix.is_sound() && (1..=RTT_MAX_US).contains(&rtt_us);
            // A prefix that is already stored takes no more memory: its report counts even when the
            // list is full.
            let is_known = known.contains_key(&prefix);
            // A node that reports without end must not fill the memory of the controller.
            if !is_possible || (known.len() >= PREFIXES_MAX && !is_known) {
                self.refused += 1;
            } else if handshakes >= HANDSHAKES_MIN {
                known.insert(prefix, (rtt_us, now + self.ttl));
            }
        }
    }

    /// The reports of a node do not count any more.
    pub fn forget(&mut self, node: NodeNumber) {
        self.measured.remove(&node);
    }

    /// The egresses among the nodes that are there, in the order of prefixes.
    pub fn list(&mut self, is_there: impl Fn(NodeNumber) -> bool, now: Duration) -> Vec<Egress> {
        let mut table = self.configured.clone();
        table.extend(self.set.iter().map(|(prefix, node)| (*prefix, *node)));
        table.retain(|_, node| is_there(*node));
        let mut all: BTreeMap<Prefix, (NodeNumber, u32)> = BTreeMap::new();
        for (node, prefixes) in self.measured.iter().filter(|(node, _)| is_there(**node)) {
            let counting = prefixes.iter().filter(|(_, (_, until))| *until > now);
            for (prefix, (rtt_us, _)) in counting {
                let incumbent = self.nearest.get(prefix).map(|(node, _)| node);
                let best = all.entry(*prefix).or_insert((*node, *rtt_us));
                if takes_over(incumbent, *best, (*node, *rtt_us)) {
                    *best = (*node, *rtt_us);
                }
            }
        }
        // Tables have few different lengths, so a look-up for each length replaces a tree of
        // prefixes.
        let lengths: BTreeSet<u8> = table.keys().map(|prefix| prefix.bits).collect();
        all.retain(|prefix, _| !is_covered(&table, &lengths, prefix));
        // The operator's table goes first: measurements fill what is left.
        let room = LIST_MAX.saturating_sub(table.len());
        let nearest = all.into_iter().map(|(prefix, (node, rtt_us))| {
            let listed = self.nearest.get(&prefix).filter(|(had, _)| *had == node);
            // The time as sent stays until it differs enough, or each plan would send every prefix
            // again.
            let kept = listed.filter(|(_, listed_us)| !differs(rtt_us, *listed_us));
            (prefix, kept.copied().unwrap_or((node, rtt_us)))
        });
        self.nearest = nearest.take(room).collect();
        let egress = |(prefix, node), rtt_us| Egress {
            prefix,
            node,
            rtt_us,
        };
        let nearest = self.nearest.iter();
        let nearest =
            nearest.map(|(prefix, (node, rtt_us))| egress((*prefix, *node), Some(*rtt_us)));
        let mut list: Vec<Egress> = nearest.collect();
        list.extend(table.into_iter().map(|entry| egress(entry, None)));
        list.sort_unstable_by_key(|egress| egress.prefix);
        list
    }
}

/// By more than a tenth, and more than a millisecond: smaller differences are not sent again.
fn differs(rtt_us: u32, from_us: u32) -> bool {
    rtt_us.abs_diff(from_us) > (from_us / 10).max(1000)
}

/// Whether another node is to have a prefix that `best` would have so far.
fn takes_over(
    incumbent: Option<&NodeNumber>,
    best: (NodeNumber, u32),
    other: (NodeNumber, u32),
) -> bool {
    let is_much_nearer = |near: u32, far: u32| {
        u64::from(near) * 100 <= u64::from(far) * (100 - SWITCH_GAIN_PERCENT)
            && near.saturating_add(BETTER_US) <= far
    };
    match incumbent {
        Some(incumbent) if *incumbent == best.0 => is_much_nearer(other.1, best.1),
        Some(incumbent) if *incumbent == other.0 => !is_much_nearer(best.1, other.1),
        // Nodes come in the order of their numbers: in a tie the lower one stays, after a restart
        // as well.
        _ => other.1 < best.1,
    }
}

/// Whether an entry of a table, whose prefixes have these lengths, speaks of these destinations.
fn is_covered(
    table: &BTreeMap<Prefix, NodeNumber>,
    lengths: &BTreeSet<u8>,
    prefix: &Prefix,
) -> bool {
    let mut lengths = lengths.range(..=prefix.bits);
    lengths.any(|bits| table.contains_key(&prefix.shortened(*bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(900);

    fn prefix(text: &str) -> Prefix {
        let (address, bits) = text.split_once('/').unwrap();
        let (address, more) = match address.parse().unwrap() {
            std::net::IpAddr::V4(address) => (address.to_ipv6_mapped(), 96),
            std::net::IpAddr::V6(address) => (address, 0),
        };
        Prefix {
            address: address.octets(),
            bits: bits.parse::<u8>().unwrap() + more,
        }
    }

    fn sent(prefix: Prefix, rtt_us: u32) -> Destination {
        Destination {
            prefix,
            rtt_us,
            handshakes: HANDSHAKES_MIN,
        }
    }

    fn list(egresses: &mut Egresses) -> Vec<(Prefix, NodeNumber)> {
        let list = egresses.list(|node| node < 9, Duration::ZERO);
        list.iter()
            .map(|egress| (egress.prefix, egress.node))
            .collect()
    }

    #[test]
    fn prefixes_match_addresses() {
        let wide = prefix("10.0.0.0/8");
        assert!(wide.covers(&prefix("10.1.0.0/16")) && wide.covers(&wide));
        assert!(!wide.covers(&prefix("11.0.0.0/8")) && !wide.covers(&prefix("0.0.0.0/0")));
        assert!(prefix("::/0").covers(&wide) && wide.is_sound());
        assert!(!prefix("10.0.0.1/8").is_sound());
        let long = Prefix { bits: 129, ..wide };
        assert!(!long.is_sound());
    }

    // promise: V7
    #[test]
    fn table_before_measurements() {
        let mut egresses = Egresses::new(LIFE);
        let (wide, narrow) = (prefix("10.0.0.0/8"), prefix("10.1.0.0/16"));
        let other = prefix("2001:db8::/32");
        egresses.measured(1, &[sent(narrow, 5), sent(other, 5)], Duration::ZERO);
        assert_eq!(list(&mut egresses), [(narrow, 1), (other, 1)]);
        egresses.configure([(wide, 2), (other, 9)].into());
        assert_eq!(list(&mut egresses), [(wide, 2), (other, 1)]);
        egresses.set([(wide, 3)].into());
        assert_eq!(list(&mut egresses), [(wide, 3), (other, 1)]);
        assert_eq!(egresses.table().len(), 1);
    }

    // promise: E4
    #[test]
    fn nearest_node_with_hysteresis() {
        let mut egresses = Egresses::new(LIFE);
        let prefix = prefix("192.0.2.0/24");
        let mut nearest = |node, rtt_us| {
            egresses.measured(node, &[sent(prefix, rtt_us)], Duration::ZERO);
            list(&mut egresses)[0].1
        };
        assert_eq!(nearest(4, 50_000), 4);
        assert_eq!(nearest(3, 47_501), 4);
        assert_eq!(nearest(5, 47_501), 4);
        assert_eq!(nearest(3, 47_500), 3);
        assert_eq!(nearest(4, 46_000), 3);
        assert_eq!(nearest(9, 1), 3);
        egresses.forget(3);
        assert_eq!(list(&mut egresses)[0].1, 4);
    }

    #[test]
    fn distances_reported_without_noise() {
        let mut egresses = Egresses::new(LIFE);
        let (measured, filled) = (prefix("192.0.2.0/24"), prefix("10.0.0.0/8"));
        egresses.configure([(filled, 2)].into());
        let mut far = |rtt_us| {
            egresses.measured(4, &[sent(measured, rtt_us)], Duration::ZERO);
            let list = egresses.list(|_| true, Duration::ZERO);
            list.iter()
                .map(|egress| (egress.node, egress.rtt_us))
                .collect::<Vec<_>>()
        };
        assert_eq!(far(50_000), [(2, None), (4, Some(50_000))]);
        assert_eq!(far(54_999), [(2, None), (4, Some(50_000))]);
        assert_eq!(far(55_001), [(2, None), (4, Some(55_001))]);
    }

    // promise: V5
    #[test]
    fn impossible_refused_old_forgotten() {
        let mut egresses = Egresses::new(LIFE);
        let sound = prefix("192.0.2.0/24");
        let few = Destination {
            handshakes: HANDSHAKES_MIN - 1,
            ..sent(sound, 5)
        };
        let refused = [
            sent(sound, 0),
            sent(prefix("192.0.2.1/24"), 5),
            sent(sound, u32::MAX),
        ];
        egresses.measured(1, &refused, Duration::ZERO);
        egresses.measured(1, &[few], Duration::ZERO);
        assert_eq!((egresses.refused(), list(&mut egresses)), (3, vec![]));
        let many = (0..=4096_u32).map(|number| {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&number.to_be_bytes());
            sent(Prefix { address, bits: 32 }, 5)
        });
        egresses.measured(2, &many.collect::<Vec<_>>(), Duration::ZERO);
        assert_eq!(
            (egresses.refused(), list(&mut egresses).len()),
            (4, PREFIXES_MAX)
        );
        assert_eq!(egresses.list(|_| true, LIFE), []);
    }
}
