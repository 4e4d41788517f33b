// SPDX-License-Identifier: Apache-2.0
//! Which rules and routes can never apply, because others go before them for every connection.
//! Pure; goes by the order of `Policy::classify`.
//!
//! A rule is taken apart into boxes: a range of destinations, of sources and of ports, of one family.
//! What boxes that go before it leave of a box is cut out of it, until nothing is left.

use posthaste_relay::policy::{Match, Prefix};

/// Boxes of all rules together that are looked at; more would take too long at every start.
const BOXES_MAX: usize = 1024;
/// Pieces of one box; one of which more are left is taken for one that can apply.
const PIECES_MAX: usize = 256;
/// All IPv4 addresses, as they are mapped.
const IPV4: (u128, u128) = (0xffff_0000_0000, 0xffff_ffff_ffff);
/// First and last address, source and port.
type Ranges = [(u128, u128); 3];

/// A rule that can never apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shadowed {
    /// Which, counted from 0.
    pub(super) index: usize,
    /// Those that go before it; none where it has destinations of one family and sources of another.
    pub(super) by: Vec<usize>,
}

/// One way for a rule to match.
#[derive(Clone, Copy, Debug)]
struct Reach {
    index: usize,
    is_ipv4: bool,
    ranges: Ranges,
    /// How narrow it is: what is larger goes first.
    specificity: (u8, u8, u16),
}

impl Reach {
    /// Whether it applies before `other`, which is of another rule.
    fn goes_before(&self, other: &Self) -> bool {
        self.index != other.index
            && self.is_ipv4 == other.is_ipv4
            && (self.specificity > other.specificity
                || self.specificity == other.specificity && self.index < other.index)
    }
}

/// The rules, or routes, that can never apply. None are reported of a file with very many.
pub(super) fn shadowed<'a>(all: impl Iterator<Item = &'a Match>) -> Vec<Shadowed> {
    let mut reaches = Vec::new();
    let mut count = 0;
    for (index, matches) in all.enumerate() {
        reaches_of(index, matches, &mut reaches);
        count = index + 1;
        if reaches.len() > BOXES_MAX {
            return Vec::new();
        }
    }
    (0..count)
        .filter_map(|index| {
            let by = shadows(index, &reaches)?;
            Some(Shadowed { index, by })
        })
        .collect()
}

/// What goes before every way of a rule to match; `None` when something of it is left.
fn shadows(index: usize, reaches: &[Reach]) -> Option<Vec<usize>> {
    let mut by = Vec::new();
    for own in reaches.iter().filter(|reach| reach.index == index) {
        let mut pieces = vec![own.ranges];
        let mut before = reaches.iter().filter(|other| other.goes_before(own));
        while !pieces.is_empty() && pieces.len() <= PIECES_MAX {
            // Nothing else goes before this way: what is left of it applies.
            let other = before.next()?;
            if pieces.iter().any(|piece| meet(piece, &other.ranges)) {
                pieces = pieces
                    .iter()
                    .flat_map(|piece| cut(piece, &other.ranges))
                    .collect();
                by.push(other.index);
            }
        }
        // One way to match is enough for a rule to apply.
        if !pieces.is_empty() {
            return None;
        }
    }
    by.sort_unstable();
    by.dedup();
    Some(by)
}

fn meet(one: &Ranges, other: &Ranges) -> bool {
    let both = one.iter().zip(other);
    both.into_iter()
        .all(|((first, last), (start, end))| first <= end && start <= last)
}

/// What is left of a box without another.
fn cut(piece: &Ranges, other: &Ranges) -> Vec<Ranges> {
    if !meet(piece, other) {
        return vec![*piece];
    }
    // Two pieces for each of the three sides at the most, so a cut leaves six boxes.
    let (mut left, mut rest) = (Vec::new(), *piece);
    for side in 0..piece.len() {
        let ((first, last), (start, end)) = (rest[side], other[side]);
        if first < start {
            let mut below = rest;
            below[side] = (first, start - 1);
            left.push(below);
        }
        if end < last {
            let mut above = rest;
            above[side] = (end + 1, last);
            left.push(above);
        }
        // The next side is cut within the rest alone, so no two pieces overlap.
        rest[side] = (first.max(start), last.min(end));
    }
    left
}

/// The ways for a rule to match.
fn reaches_of(index: usize, matches: &Match, reaches: &mut Vec<Reach>) {
    let ports: Vec<_> = match matches.ports.as_slice() {
        [] => vec![((0, u128::from(u16::MAX)), 0)],
        ranges => ranges
            .iter()
            .map(|range| {
                let (first, last) = (*range.start(), *range.end());
                // Inverted, so that a narrower range compares as larger, as longer prefixes do.
                ((first.into(), last.into()), u16::MAX - (last - first))
            })
            .collect(),
    };
    for is_ipv4 in [true, false] {
        let sources = spans(&matches.sources, is_ipv4);
        for (destination, destination_bits) in spans(&matches.destinations, is_ipv4) {
            for (source, source_bits) in &sources {
                for (port, narrow) in &ports {
                    reaches.push(Reach {
                        index,
                        is_ipv4,
                        ranges: [destination, *source, *port],
                        specificity: (destination_bits, *source_bits, *narrow),
                    });
                    if reaches.len() > BOXES_MAX {
                        return;
                    }
                }
            }
        }
    }
}

/// First and last address of the prefixes of a family, and how narrow each is; of no prefix, all.
fn spans(prefixes: &[Prefix], is_ipv4: bool) -> Vec<((u128, u128), u8)> {
    if prefixes.is_empty() {
        // Mapped addresses in the second do not matter: families are never compared.
        let all = if is_ipv4 { IPV4 } else { (0, u128::MAX) };
        return vec![(all, 0)];
    }
    let of_family = prefixes.iter().filter(|prefix| prefix.is_ipv4() == is_ipv4);
    of_family
        .map(|prefix| {
            let (bits, first) = (prefix.mapped_bits(), u128::from_be_bytes(prefix.octets()));
            // A shift by all 128 bits overflows: nothing is behind a whole address.
            let behind = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
            ((first, first | behind), bits)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use posthaste_relay::flow::Flow;

    use super::*;
    use crate::value::prefix_text;

    fn rule(destinations: &[&str], sources: &[&str], ports: &[(u16, u16)]) -> Match {
        let read = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| prefix_text(text).unwrap())
                .collect()
        };
        Match {
            destinations: read(destinations),
            sources: read(sources),
            ports: ports.iter().map(|(first, last)| *first..=*last).collect(),
        }
    }

    fn found(rules: &[Match]) -> Vec<(usize, Vec<usize>)> {
        let all = shadowed(rules.iter()).into_iter();
        all.map(|shadowed| (shadowed.index, shadowed.by)).collect()
    }

    #[test]
    fn shadowed_rules_found() {
        let all = || rule(&[], &[], &[]);
        assert_eq!(found(&[all(), all()]), [(1, vec![0])]);
        // Narrower ones go first wherever they stand.
        assert_eq!(found(&[all(), rule(&["10.0.0.0/8"], &[], &[])]), []);
        assert_eq!(found(&[all(), rule(&[], &[], &[(80, 80)])]), []);
        // Halves of a prefix, of a range, and both families of everything.
        let halves = rule(&["10.0.0.0/9", "10.128.0.0/9"], &[], &[]);
        assert_eq!(
            found(&[rule(&["10.0.0.0/8"], &[], &[]), halves]),
            [(0, vec![1])]
        );
        let ports = [
            rule(&[], &[], &[(1, 100)]),
            rule(&[], &[], &[(1, 50)]),
            rule(&[], &[], &[(51, 100)]),
        ];
        assert_eq!(found(&ports), [(0, vec![1, 2])]);
        let families = rule(&["0.0.0.0/0", "::/0"], &[], &[]);
        assert_eq!(found(&[families, all()]), [(1, vec![0])]);
        // A hole is left: port 60.
        let holed = [
            rule(&[], &[], &[(1, 100)]),
            rule(&[], &[], &[(1, 59)]),
            rule(&[], &[], &[(61, 100)]),
        ];
        assert_eq!(found(&holed), []);
    }

    #[test]
    fn two_families_never_meet() {
        let mixed = rule(&["10.0.0.0/8"], &["2001:db8::/32"], &[]);
        assert_eq!(found(&[mixed]), [(0, vec![])]);
    }

    #[test]
    fn very_many_are_left_alone() {
        let rules = vec![rule(&[], &[], &[]); BOXES_MAX];
        assert_eq!(found(&rules), []);
    }

    /// Rules from a few prefixes and ports: every possible flow is classified.
    // promise: H14
    #[test]
    fn shadowed_never_applies() {
        let places = [
            "0.0.0.0/0",
            "10.0.0.0/30",
            "10.0.0.0/31",
            "10.0.0.2/31",
            "10.0.0.1",
        ];
        let ports = [(1, 4), (1, 2), (3, 4), (2, 3)];
        let chance = |seed: (u64, u64, &str), below: usize| {
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(seed);
            usize::try_from(hash % below as u64).unwrap()
        };
        let mut shadowed_ones = 0;
        for case in 0..300 {
            let rules: Vec<Match> = (0..5)
                .map(|number| {
                    let pick = |what, list: &[&'static str]| -> Vec<&'static str> {
                        let at = chance((case, number, what), list.len() + 1);
                        list.get(at).copied().into_iter().collect()
                    };
                    let ports = ports.get(chance((case, number, "ports"), ports.len() + 1));
                    rule(
                        &pick("to", &places),
                        &pick("from", &places[..3]),
                        &ports.copied().into_iter().collect::<Vec<_>>(),
                    )
                })
                .collect();
            let dead: Vec<usize> = found(&rules).into_iter().map(|(index, _)| index).collect();
            let applied = applied(&rules);
            for index in 0..rules.len() {
                assert_eq!(
                    dead.contains(&index),
                    !applied.contains(&index),
                    "{case}: {rules:?}"
                );
            }
            shadowed_ones += dead.len();
        }
        assert!(shadowed_ones > 50, "{shadowed_ones} are too few");
    }

    /// The rules that some flow has.
    fn applied(rules: &[Match]) -> Vec<usize> {
        let hosts = |others: [u8; 4]| {
            let near = (0..5).map(|last| IpAddr::from([10, 0, 0, last]));
            near.chain([
                IpAddr::V4(Ipv4Addr::from(others)),
                "2001:db8::1".parse().unwrap(),
            ])
        };
        let mut found = Vec::new();
        for client in hosts([192, 0, 2, 1]) {
            for server in hosts([192, 0, 2, 2]).filter(|ip| ip.is_ipv4() == client.is_ipv4()) {
                for port in 1..=5 {
                    let flow = Flow::new(SocketAddr::new(client, 9), SocketAddr::new(server, port));
                    let rule = Match::best(rules.iter(), &flow);
                    found.extend(rule);
                }
            }
        }
        found
    }
}
