// SPDX-License-Identifier: Apache-2.0
//! Compiles a list of rules into the trie that the redirect program looks up.
//!
//! The trie returns the longest destination prefix, so each prefix has every rule that can apply
//! inside it, most specific first: longest destination, longest source, narrowest port range, order
//! of the list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::policy::{
    Action, Bypass, DataPath, Match, Multipath, Prefix, Rule, SideOptions,
};

use crate::error::Error;
use crate::layout::address;
use crate::objects::types;

/// Rules that the program compares per destination prefix (`CANDIDATES_MAX`).
const CANDIDATES_MAX: usize = 32;
/// Destination prefixes per generation; the map holds two generations during a change.
const PREFIXES_MAX: usize = 4096;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `ACCEPT_AT_SYN`, `ACCEPT_HOLDS` and `ACCEPT_YIELDS` of `enum accept_bits`.
const ACCEPT_AT_SYN: u8 = 1;
pub(crate) const ACCEPT_HOLDS: u8 = 2;
const ACCEPT_YIELDS: u8 = 4;

/// What the program does at a SYN under this mode.
fn accept_bits(mode: AcceptMode) -> u8 {
    let bits = [
        (mode.connects_at_syn(), ACCEPT_AT_SYN),
        (mode.holds_syn(), ACCEPT_HOLDS),
        (mode.becomes_strict(), ACCEPT_YIELDS),
    ];
    let set = bits.iter().filter(|(holds, _)| *holds);
    set.fold(0, |all, (_, bit)| all | bit)
}

/// `enum action`
fn action(action: Action) -> u8 {
    match action {
        Action::Relay => 0,
        Action::Forward => 1,
        Action::Reject => 2,
    }
}

/// `enum data_path`
fn data_path(path: DataPath) -> u8 {
    match path {
        DataPath::Socket => 0,
        DataPath::Packet => 1,
        DataPath::Auto => 2,
    }
}

/// `enum multipath`
fn multipath(multipath: Multipath) -> u8 {
    match multipath {
        Multipath::Off => 0,
        Multipath::Convert => 1,
        Multipath::Pass => 2,
    }
}

/// Whether relays under a rule wait for an observed handshake.
pub(crate) fn observes(rule: &Rule) -> bool {
    rule.action == Action::Relay && rule.uses_sockets() && rule.observe
}

/// Which rules want the packet path, if any does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// None.
    No,
    /// Some, if its flows survive the process: else sockets, which an upgrade keeps, serve better.
    IfLasting,
    /// Some that have no other way.
    Always,
}

/// How a rule wants the packet path.
pub(crate) fn wants_packet_path(rule: &Rule, chained: bool) -> Wanted {
    match rule.effective_data_path(chained) {
        _ if rule.action != Action::Relay => Wanted::No,
        DataPath::Packet => Wanted::Always,
        DataPath::Auto => Wanted::IfLasting,
        DataPath::Socket if wants_bypass(rule) => Wanted::IfLasting,
        DataPath::Socket => Wanted::No,
    }
}

/// Whether relays under a rule may leave their flows.
pub(crate) fn wants_bypass(rule: &Rule) -> bool {
    rule.action == Action::Relay && rule.uses_sockets() && rule.bypass != Bypass::Off
}

/// Whether a rule sets initial congestion windows.
pub(crate) fn sets_windows(rule: &Rule) -> bool {
    [&rule.downstream, &rule.upstream].map(window) != [0; 2]
}

/// The initial congestion window in segments; 0 keeps the kernel's default.
fn window(side: &SideOptions) -> u16 {
    u16::try_from(side.initial_window.unwrap_or(0)).unwrap_or(u16::MAX)
}

/// In units of 10 ms, at least one.
fn centiseconds(time: Duration) -> u16 {
    u16::try_from(time.as_millis() / 10)
        .unwrap_or(u16::MAX)
        .max(1)
}

/// The round trips over the whole path that a relay shortens: in early mode the handshake, and
/// those in which the congestion window grows until a transfer fits (RFC 6928, RFC 5681). Chains
/// may shorten more, which plans consider.
fn rounds(rule: &Rule, chained: bool) -> u8 {
    /// Transfer size without configuration: a median web object with what precedes it.
    const TYPICAL: u32 = 64 << 10;
    const INITIAL_WINDOW: u32 = 10 * 1448;
    if chained {
        return u8::MAX;
    }
    let bytes = rule.transfer_bytes.unwrap_or(TYPICAL);
    let (mut window, mut sent, mut rounds) = (INITIAL_WINDOW, INITIAL_WINDOW, 0);
    while sent < bytes {
        window = window.saturating_mul(2);
        sent = sent.saturating_add(window);
        rounds += 1;
    }
    rounds + u8::from(rule.accept.overlaps_handshakes())
}

/// The prefix that stands for an empty list: every address of both families.
fn all() -> Prefix {
    Prefix::new(Ipv6Addr::UNSPECIFIED.into(), 0).expect("no bit is set")
}

/// Whether `inner` lies in `outer`. Other than [`Prefix::contains`] it compares bits alone, as the
/// trie does: the program compares families by itself.
fn holds(outer: Prefix, inner: Prefix) -> bool {
    let (outside, inside) = (outer.octets(), inner.octets());
    outer.mapped_bits() <= inner.mapped_bits()
        && u128::from_be_bytes(inside) & outer.mask() == u128::from_be_bytes(outside)
}

fn family(prefix: Prefix) -> u8 {
    if prefix.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// One destination, source and port range of a rule.
struct Candidate<'a> {
    destination: Prefix,
    source: Prefix,
    ports: (u16, u16),
    family: u8,
    index: usize,
    rule: &'a Rule,
}

impl Candidate<'_> {
    /// Sorts the most specific first.
    fn order(&self) -> impl Ord + use<> {
        use std::cmp::Reverse;
        (
            Reverse(self.destination.mapped_bits()),
            Reverse(self.source.mapped_bits()),
            self.ports.1 - self.ports.0,
            self.index,
        )
    }

    fn entry(&self, chained: bool) -> types::candidate {
        let rule = self.rule;
        types::candidate {
            source: address(self.source.octets()),
            source_mask: address(self.source.mask().to_be_bytes()),
            port_first: self.ports.0,
            port_last: self.ports.1,
            rule: u16::try_from(self.index).expect("the configuration bounds the rules"),
            window_down: window(&rule.downstream),
            window_up: window(&rule.upstream),
            connect_cs: centiseconds(rule.timeouts.connect),
            action: action(rule.action),
            accept: accept_bits(rule.accept),
            family: self.family,
            observe: rule.observe.into(),
            rounds: if rule.observe {
                rounds(rule, chained)
            } else {
                0
            },
            data_path: data_path(rule.effective_data_path(chained)),
            multipath: multipath(rule.multipath),
            pad: [0; 1],
        }
    }
}

/// The trie's content: destination prefix to its candidates. `chained` is whether flows may be
/// sent through other nodes.
pub(crate) fn compile(
    rules: &[Rule],
    chained: bool,
) -> Result<BTreeMap<Prefix, types::candidates>, Error> {
    let candidates: Vec<Candidate<'_>> = rules.iter().enumerate().flat_map(expand).collect();
    let prefixes: BTreeSet<Prefix> = candidates.iter().map(|one| one.destination).collect();
    if prefixes.len() > PREFIXES_MAX {
        return Err(Error::TooManyPrefixes {
            count: prefixes.len(),
            most: PREFIXES_MAX,
        });
    }
    let entry = |prefix| Ok((prefix, collect(prefix, &candidates, chained)?));
    prefixes.into_iter().map(entry).collect()
}

/// Every combination of a rule's lists. Combinations of differing families are left out.
fn expand((index, rule): (usize, &Rule)) -> Vec<Candidate<'_>> {
    let matches = &rule.matches;
    let mut combinations = Vec::new();
    for destination in or_all(&matches.destinations, all()) {
        for source in or_all(&matches.sources, all()) {
            let Some(family) = common_family(matches, destination, source) else {
                continue;
            };
            for range in or_all(&matches.ports, 0..=u16::MAX) {
                combinations.push(Candidate {
                    destination,
                    source,
                    ports: (*range.start(), *range.end()),
                    family,
                    index,
                    rule,
                });
            }
        }
    }
    combinations
}

/// The common family of both prefixes: 0 for either, `None` when they differ.
fn common_family(matches: &Match, destination: Prefix, source: Prefix) -> Option<u8> {
    let named = |list: &[Prefix], one: Prefix| (!list.is_empty()).then(|| family(one));
    match (
        named(&matches.destinations, destination),
        named(&matches.sources, source),
    ) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => Some(one.or(other).unwrap_or(0)),
    }
}

fn or_all<T: Clone>(list: &[T], all: T) -> Vec<T> {
    if list.is_empty() {
        vec![all]
    } else {
        list.to_vec()
    }
}

fn collect(
    prefix: Prefix,
    candidates: &[Candidate<'_>],
    chained: bool,
) -> Result<types::candidates, Error> {
    let holding = candidates
        .iter()
        .filter(|one| holds(one.destination, prefix));
    let mut holding: Vec<&Candidate<'_>> = holding.collect();
    // The program takes the first that matches.
    holding.sort_by_key(|one| one.order());
    if holding.len() > CANDIDATES_MAX {
        return Err(Error::TooManyCandidates {
            prefix: prefix.to_string(),
            count: holding.len(),
            most: CANDIDATES_MAX,
        });
    }
    let mut value = types::candidates {
        count: u32::try_from(holding.len()).expect("at most CANDIDATES_MAX"),
        list: [types::candidate::default(); CANDIDATES_MAX],
    };
    for (slot, one) in value.list.iter_mut().zip(holding) {
        *slot = one.entry(chained);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::ops::RangeInclusive;

    use posthaste_relay::policy::{SourceAddress, Timeouts};

    use super::*;

    fn v4(a: u8, b: u8, bits: u8) -> Prefix {
        Prefix::new(Ipv4Addr::new(a, b, 0, 0).into(), bits).unwrap()
    }

    fn rule(destinations: Vec<Prefix>, ports: Vec<RangeInclusive<u16>>) -> Rule {
        Rule {
            name: String::new(),
            matches: Match {
                destinations,
                sources: vec![],
                ports,
            },
            action: Action::Relay,
            accept: AcceptMode::EARLY,
            observe: false,
            source_address: SourceAddress::Auto,
            proxy_protocol: false,
            downstream: SideOptions::default(),
            upstream: SideOptions::default(),
            timeouts: Timeouts::default(),
            data_path: DataPath::Socket,
            bypass: Bypass::Off,
            multipath: Multipath::Pass,
            upstream_multipath: false,
            transfer_bytes: None,
        }
    }

    fn rules_at(prefix: Prefix, rules: &[Rule]) -> Vec<u16> {
        let found = compile(rules, false).unwrap()[&prefix];
        found.list[..found.count as usize]
            .iter()
            .map(|one| one.rule)
            .collect()
    }

    // promise: R1
    #[test]
    fn longer_prefix_inherits_rules() {
        let rules = [
            rule(vec![], vec![]),
            rule(vec![v4(10, 0, 8)], vec![80..=80]),
            rule(vec![v4(10, 1, 16)], vec![]),
        ];
        assert_eq!(rules_at(v4(10, 1, 16), &rules), [2, 1, 0]);
        assert_eq!(rules_at(v4(10, 0, 8), &rules), [1, 0]);
        assert_eq!(rules_at(all(), &rules), [0]);
    }

    #[test]
    fn narrower_ports_first() {
        let rules = [
            rule(vec![], vec![0..=65535]),
            rule(vec![], vec![80..=90]),
            rule(vec![], vec![80..=90]),
        ];
        assert_eq!(rules_at(all(), &rules), [1, 2, 0]);
    }

    #[test]
    fn contradicting_families_never_match() {
        let mut contradiction = rule(vec![v4(10, 0, 8)], vec![]);
        contradiction.matches.sources = vec![Prefix::new("2000::".parse().unwrap(), 16).unwrap()];
        assert!(compile(&[contradiction], false).unwrap().is_empty());
    }

    #[test]
    fn too_many_rules() {
        let rules = vec![rule(vec![v4(10, 0, 8)], vec![]); CANDIDATES_MAX + 1];
        let error = compile(&rules, false).unwrap_err().to_string();
        assert!(error.contains("33 rules"), "{error}");
    }
}
