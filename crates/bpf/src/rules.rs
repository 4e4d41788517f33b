// SPDX-License-Identifier: Apache-2.0
//! Compiles a list of rules into the trie that the redirect program looks up.
//!
//! The trie returns the longest destination prefix, so each prefix has every rule that can apply
//! inside it, most specific first: longest destination, longest source, narrowest port range, order
//! of the list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use crate::error::Error;
use crate::objects::types;

/// Rules that the program compares per destination prefix (`CANDIDATES_MAX`).
const CANDIDATES_MAX: usize = 32;
/// Destination prefixes per generation; the map holds two generations during a change.
const PREFIXES_MAX: usize = 4096;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// What a rule does with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand it to a worker.
    Relay = 0,
    /// Leave it to IP forwarding.
    Forward = 1,
    /// Have the worker answer with a reset.
    Reject = 2,
}

/// What the redirect program does at a SYN that a rule relays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Report it to the worker, which connects to the server.
    pub connects_at_syn: bool,
    /// Hold it until the server has answered.
    pub holds_syn: bool,
    /// Hold it if the last connection to the server has failed.
    pub becomes_strict: bool,
}

impl Accept {
    /// `enum accept_bits` of the programs.
    fn bits(self) -> u8 {
        u8::from(self.connects_at_syn)
            | u8::from(self.holds_syn) << 1
            | u8::from(self.becomes_strict) << 2
    }

    /// Whether the SYN of an event with these bits was held.
    pub(crate) fn is_held(bits: u8) -> bool {
        bits & 2 != 0
    }
}

/// A prefix: 16 address bytes, v4-mapped for IPv4, and the number of significant bits of the 128
/// (IPv4 prefixes from 96).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixSpec {
    /// The first address.
    pub ip: [u8; 16],
    /// Number of leading bits that are significant.
    pub bits: u8,
}

/// One rule. Events carry its index in the list. An empty list of prefixes or ports matches
/// everything.
#[derive(Clone, Debug)]
pub struct RuleSpec {
    /// Prefixes of the original destination.
    pub destinations: Vec<PrefixSpec>,
    /// Prefixes of the client.
    pub sources: Vec<PrefixSpec>,
    /// Inclusive port ranges.
    pub ports: Vec<(u16, u16)>,
    /// What to do.
    pub action: Action,
    /// When to answer the client.
    pub accept: Accept,
    /// Initial congestion windows in segments, toward the client and toward the server; 0 keeps the
    /// kernel's default.
    pub windows: [u16; 2],
    /// Forward flows until a handshake between the same two hosts was observed. The number is that
    /// of the round trips that a relay shortens by its nearer half; the programs decide by it
    /// whether relaying is worthwhile.
    pub observe: Option<u8>,
    /// Carry flows packet by packet where the packet path takes them.
    pub packets: bool,
}

impl RuleSpec {
    /// Whether flows under it wait for an observed handshake.
    pub(crate) fn observes(&self) -> bool {
        self.action == Action::Relay && self.observe.is_some()
    }

    /// Whether flows under it may take the packet path.
    pub(crate) fn wants_packet_path(&self) -> bool {
        self.action == Action::Relay && self.packets
    }
}

impl PrefixSpec {
    const ALL: Self = Self {
        ip: [0; 16],
        bits: 0,
    };

    fn mask(self) -> u128 {
        u128::MAX
            .checked_shl(128 - u32::from(self.bits))
            .unwrap_or(0)
    }

    fn holds(self, other: Self) -> bool {
        let (own, theirs) = (u128::from_be_bytes(self.ip), u128::from_be_bytes(other.ip));
        self.bits <= other.bits && theirs & self.mask() == own
    }

    fn family(self) -> u8 {
        let mapped = self
            .ip
            .starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        if self.bits >= 96 && mapped {
            AF_INET
        } else {
            AF_INET6
        }
    }
}

/// One destination, source and port range of a rule.
#[derive(Clone, Copy)]
struct Candidate {
    destination: PrefixSpec,
    source: PrefixSpec,
    ports: (u16, u16),
    family: u8,
    rule: usize,
    action: Action,
    accept: Accept,
    windows: [u16; 2],
    observe: Option<u8>,
    packets: bool,
}

impl Candidate {
    /// Sorts the most specific first.
    fn order(&self) -> impl Ord + use<> {
        use std::cmp::Reverse;
        (
            Reverse(self.destination.bits),
            Reverse(self.source.bits),
            self.ports.1 - self.ports.0,
            self.rule,
        )
    }

    fn entry(&self) -> types::candidate {
        types::candidate {
            source: address(self.source.ip),
            source_mask: address(self.source.mask().to_be_bytes()),
            port_first: self.ports.0,
            port_last: self.ports.1,
            rule: u16::try_from(self.rule).expect("the configuration bounds the rules"),
            window_down: self.windows[0],
            window_up: self.windows[1],
            action: self.action as u8,
            accept: self.accept.bits(),
            family: self.family,
            observe: self.observe.is_some().into(),
            rounds: self.observe.unwrap_or(0),
            data_path: self.packets.into(),
        }
    }
}

/// The trie's content: destination prefix to its candidates.
pub(crate) fn compile(
    rules: &[RuleSpec],
) -> Result<BTreeMap<PrefixSpec, types::candidates>, Error> {
    let candidates: Vec<Candidate> = rules.iter().enumerate().flat_map(expand).collect();
    let prefixes: BTreeSet<PrefixSpec> = candidates.iter().map(|one| one.destination).collect();
    if prefixes.len() > PREFIXES_MAX {
        return Err(Error::TooManyPrefixes {
            count: prefixes.len(),
            most: PREFIXES_MAX,
        });
    }
    let entry = |prefix| Ok((prefix, collect(prefix, &candidates)?));
    prefixes.into_iter().map(entry).collect()
}

/// Every combination of a rule's lists. Combinations of differing families are left out.
fn expand((rule, spec): (usize, &RuleSpec)) -> Vec<Candidate> {
    let mut all = Vec::new();
    for &destination in or_all(&spec.destinations, &PrefixSpec::ALL) {
        for &source in or_all(&spec.sources, &PrefixSpec::ALL) {
            let Some(family) = common_family(spec, destination, source) else {
                continue;
            };
            for &ports in or_all(&spec.ports, &(0, u16::MAX)) {
                all.push(Candidate {
                    destination,
                    source,
                    ports,
                    family,
                    rule,
                    action: spec.action,
                    accept: spec.accept,
                    windows: spec.windows,
                    observe: spec.observe,
                    packets: spec.packets,
                });
            }
        }
    }
    all
}

/// The common family of both prefixes: 0 for either, `None` when they differ.
fn common_family(spec: &RuleSpec, destination: PrefixSpec, source: PrefixSpec) -> Option<u8> {
    let named = |list: &[PrefixSpec], one: PrefixSpec| (!list.is_empty()).then(|| one.family());
    match (
        named(&spec.destinations, destination),
        named(&spec.sources, source),
    ) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => Some(one.or(other).unwrap_or(0)),
    }
}

fn or_all<'a, T>(list: &'a [T], all: &'a T) -> &'a [T] {
    if list.is_empty() {
        std::slice::from_ref(all)
    } else {
        list
    }
}

fn collect(prefix: PrefixSpec, candidates: &[Candidate]) -> Result<types::candidates, Error> {
    let holding = candidates
        .iter()
        .filter(|one| one.destination.holds(prefix));
    let mut holding: Vec<&Candidate> = holding.collect();
    holding.sort_by_key(|one| one.order());
    if holding.len() > CANDIDATES_MAX {
        return Err(Error::TooManyCandidates {
            prefix: format!("{}/{}", Ipv6Addr::from(prefix.ip), prefix.bits),
            count: holding.len(),
            most: CANDIDATES_MAX,
        });
    }
    let mut value = types::candidates {
        count: u32::try_from(holding.len()).expect("at most CANDIDATES_MAX"),
        list: [types::candidate::default(); CANDIDATES_MAX],
    };
    for (slot, one) in value.list.iter_mut().zip(holding) {
        *slot = one.entry();
    }
    Ok(value)
}

pub(crate) fn address(ip: [u8; 16]) -> types::address {
    types::address { word: words(ip) }
}

/// The 16 bytes of an address as four words, as the programs store it.
pub(crate) fn words(ip: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(ip.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(a: u8, b: u8, bits: u8) -> PrefixSpec {
        let mut ip = [0; 16];
        ip[10..14].copy_from_slice(&[0xff, 0xff, a, b]);
        PrefixSpec {
            ip,
            bits: 96 + bits,
        }
    }

    fn rule(destinations: Vec<PrefixSpec>, ports: Vec<(u16, u16)>) -> RuleSpec {
        RuleSpec {
            destinations,
            sources: vec![],
            ports,
            action: Action::Relay,
            accept: Accept::default(),
            windows: [0; 2],
            observe: None,
            packets: false,
        }
    }

    fn rules_at(prefix: PrefixSpec, rules: &[RuleSpec]) -> Vec<u16> {
        let found = compile(rules).unwrap()[&prefix];
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
            rule(vec![v4(10, 0, 8)], vec![(80, 80)]),
            rule(vec![v4(10, 1, 16)], vec![]),
        ];
        assert_eq!(rules_at(v4(10, 1, 16), &rules), [2, 1, 0]);
        assert_eq!(rules_at(v4(10, 0, 8), &rules), [1, 0]);
        assert_eq!(rules_at(PrefixSpec::ALL, &rules), [0]);
    }

    #[test]
    fn narrower_ports_first() {
        let rules = [
            rule(vec![], vec![(0, 65535)]),
            rule(vec![], vec![(80, 90)]),
            rule(vec![], vec![(80, 90)]),
        ];
        assert_eq!(rules_at(PrefixSpec::ALL, &rules), [1, 2, 0]);
    }

    #[test]
    fn contradicting_families_never_match() {
        let mut contradiction = rule(vec![v4(10, 0, 8)], vec![]);
        contradiction.sources = vec![PrefixSpec {
            ip: [0x20; 16],
            bits: 16,
        }];
        assert!(compile(&[contradiction]).unwrap().is_empty());
    }

    #[test]
    fn too_many_rules() {
        let rules = vec![rule(vec![v4(10, 0, 8)], vec![]); CANDIDATES_MAX + 1];
        let error = compile(&rules).unwrap_err().to_string();
        assert!(error.contains("33 rules"), "{error}");
    }
}
