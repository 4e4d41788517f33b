// SPDX-License-Identifier: Apache-2.0
//! This host's nftables rules (also those of `iptables-nft`), as far as they matter to relays: which
//! base chains there are, and which rules limit what is forwarded.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;

use posthaste_netlink::{Message, Netlink, attributes, text, u32_at};

/// `NFNL_SUBSYS_NFTABLES`, and of its messages `NFT_MSG_NEWCHAIN`, `NFT_MSG_GETCHAIN`,
/// `NFT_MSG_NEWRULE`, `NFT_MSG_GETRULE`.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
/// Bytes of `struct nfgenmsg`; the first is the family.
const BODY_BYTES: usize = 4;
/// Attributes of chains: table, name, hook (and in it number), policy, type.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// Attributes of rules: chain, expressions. Of an expression: name, data.
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// In the data of `immediate`: data, and in that a verdict, with the chain that it leads to.
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;
/// In the data of `match`, an extension of iptables: its name.
const MATCH_NAME: u16 = 1;
/// In the data of `dynset`: what is kept of each element.
const DYNSET_EXPRESSION: u16 = 7;
const DYNSET_EXPRESSIONS: u16 = 10;
/// In the data of `target`, an extension of iptables: its name.
const TARGET_NAME: u16 = 1;
/// In the data of `meta` and `ct`: what is looked at.
const KEY: u16 = 2;
/// `NFT_META_TIME_NS` to `NFT_META_TIME_HOUR`; `NFT_CT_PKTS` to `NFT_CT_AVGPKT`.
const META_TIMES: RangeInclusive<u32> = 30..=32;
const CT_AMOUNTS: RangeInclusive<u32> = 14..=16;
/// In the data of `payload`: base and offset.
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
/// `NFT_PAYLOAD_TRANSPORT_HEADER`, `NFT_PAYLOAD_INNER_HEADER`.
const BASE_TRANSPORT: u32 = 2;
const BASE_INNER: u32 = 3;
/// Bytes of a TCP header without options.
const TCP_HEADER: u32 = 20;
/// Expressions, and extensions of iptables, that let some connections pass and not others like them, by
/// how many there are, by the time, or by what they carry.
const LIMITS: [&str; 16] = [
    "bpf",
    "connbytes",
    "connlimit",
    "hashlimit",
    "layer7",
    "limit",
    "ndpi",
    "numgen",
    "queue",
    "quota",
    "recent",
    "statistic",
    "string",
    "time",
    "tls",
    "u32",
];

/// Where a base chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// A chain that the kernel calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseChain {
    /// Family, table and name.
    pub(crate) name: String,
    pub(crate) hook: Hook,
    /// It is of type `nat`.
    pub(crate) translates: bool,
    /// What no rule accepts is dropped.
    pub(crate) drops: bool,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) chains: Vec<BaseChain>,
    /// The chains that forwarded packets pass in which a rule limits connections.
    pub(crate) limits: Vec<String>,
}

/// A chain by family, table and name.
type Name = (u8, String, String);

/// What one rule does.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    limits: bool,
    decides: bool,
    /// Chains that it jumps to. `None`: to ones that a map has.
    jumps: Vec<Option<String>>,
}

/// Reads the rules. None where the kernel has no nftables.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn rules() -> io::Result<Rules> {
    let mut netlink = match Netlink::netfilter() {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            return Ok(Rules::default());
        }
        opened => opened?,
    };
    let mut chains = BTreeMap::new();
    netlink.dump(
        Message::new(GET_CHAIN, 0, &[0; BODY_BYTES]),
        |kind, body| {
            chains.extend(chain(body).filter(|_| kind == NEW_CHAIN));
        },
    )?;
    let mut rules: BTreeMap<Name, Vec<Rule>> = BTreeMap::new();
    netlink.dump(Message::new(GET_RULE, 0, &[0; BODY_BYTES]), |kind, body| {
        if let Some((name, rule)) = rule(body).filter(|_| kind == NEW_RULE) {
            rules.entry(name).or_default().push(rule);
        }
    })?;
    let limits = limits(&chains, &rules);
    Ok(Rules {
        chains: chains.into_values().flatten().collect(),
        limits,
    })
}

/// The chains with limits that forwarded packets pass.
fn limits(
    chains: &BTreeMap<Name, Option<BaseChain>>,
    rules: &BTreeMap<Name, Vec<Rule>>,
) -> Vec<String> {
    let passed = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];
    let of_hook = |base: &BaseChain| passed.contains(&base.hook);
    let begin = chains
        .iter()
        .filter(|(_, base)| base.as_ref().is_some_and(of_hook));
    let mut waiting: Vec<&Name> = begin.map(|(name, _)| name).collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if !seen.insert(name) {
            continue;
        }
        let jumps = rules
            .get(name)
            .into_iter()
            .flatten()
            .flat_map(|rule| &rule.jumps);
        for jump in jumps {
            let led_to = chains.keys().filter(|(family, table, chain)| {
                let same = (family, table) == (&name.0, &name.1);
                same && jump.as_ref().is_none_or(|jump| jump == chain)
            });
            waiting.extend(led_to);
        }
    }
    let limited = seen.into_iter().filter(|name| {
        let of_chain = rules.get(*name).into_iter().flatten();
        of_chain.into_iter().any(|rule| rule.limits && rule.decides)
    });
    limited.map(shown).collect()
}

fn shown((family, table, chain): &Name) -> String {
    let family = match i32::from(*family) {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        7 => "bridge",
        5 => "netdev",
        _ => "other",
    };
    format!("{family} {table} {chain}")
}

/// A chain, with what the kernel calls it for, if it does.
fn chain(body: &[u8]) -> Option<(Name, Option<BaseChain>)> {
    let family = *body.first()?;
    let all = body.get(BODY_BYTES..)?;
    let name = (
        family,
        text(find(all, TABLE)?),
        text(find(all, CHAIN_NAME)?),
    );
    let hook = find(all, CHAIN_HOOK).and_then(|hook| number(find(hook, HOOK_NUMBER)?));
    let hook = match hook {
        Some(0) => Some(Hook::Prerouting),
        Some(1) => Some(Hook::Input),
        Some(2) => Some(Hook::Forward),
        Some(3) => Some(Hook::Output),
        Some(4) => Some(Hook::Postrouting),
        _ => None,
    };
    // Those of netdev and bridge count their hooks otherwise.
    let hook = hook.filter(|_| [1, 2, 10].contains(&family));
    let base = hook.map(|hook| BaseChain {
        name: shown(&name),
        hook,
        translates: find(all, CHAIN_TYPE).map(text).as_deref() == Some("nat"),
        drops: find(all, CHAIN_POLICY).and_then(number) == Some(0),
    });
    Some((name, base))
}

fn rule(body: &[u8]) -> Option<(Name, Rule)> {
    let family = *body.first()?;
    let all = body.get(BODY_BYTES..)?;
    let name = (
        family,
        text(find(all, TABLE)?),
        text(find(all, RULE_CHAIN)?),
    );
    let mut rule = Rule::default();
    let expressions = find(all, RULE_EXPRESSIONS).unwrap_or_default();
    for (_, expression) in attributes(expressions) {
        rule.take(expression);
    }
    Some((name, rule))
}

impl Rule {
    /// Takes an expression into account.
    fn take(&mut self, expression: &[u8]) {
        let name = find(expression, EXPRESSION_NAME)
            .map(text)
            .unwrap_or_default();
        let data = find(expression, EXPRESSION_DATA).unwrap_or_default();
        let extension = find(data, MATCH_NAME).filter(|_| name == "match").map(text);
        self.limits |= LIMITS.contains(&extension.as_deref().unwrap_or(&name));
        self.limits |= looks_beyond(&name, data);
        match name.as_str() {
            "immediate" => {
                let verdict = find(data, IMMEDIATE_DATA).and_then(|data| find(data, DATA_VERDICT));
                if let Some(verdict) = verdict {
                    self.decides = true;
                    self.jumps
                        .extend(find(verdict, VERDICT_CHAIN).map(|chain| Some(text(chain))));
                }
            }
            // It may be a map of verdicts.
            "lookup" => {
                self.decides = true;
                self.jumps.push(None);
            }
            "dynset" => {
                let kept = [DYNSET_EXPRESSION, DYNSET_EXPRESSIONS];
                self.limits |= kept.iter().any(|kind| find(data, *kind).is_some());
            }
            "reject" | "queue" | "synproxy" | "target" => self.decides = true,
            _ => {}
        }
    }
}

/// Whether an expression looks at what differs between one connection of two hosts with a service and
/// the next, or hands it to a program that may: the time, amounts of data, what is carried.
fn looks_beyond(name: &str, data: &[u8]) -> bool {
    let field = |kind| find(data, kind).and_then(number);
    match name {
        "meta" => field(KEY).is_some_and(|key| META_TIMES.contains(&key)),
        "ct" => field(KEY).is_some_and(|key| CT_AMOUNTS.contains(&key)),
        "payload" => match field(PAYLOAD_BASE) {
            Some(BASE_INNER) => true,
            Some(BASE_TRANSPORT) => field(PAYLOAD_OFFSET).is_some_and(|at| at >= TCP_HEADER),
            _ => false,
        },
        "target" => find(data, TARGET_NAME).map(text).as_deref() == Some("NFQUEUE"),
        _ => false,
    }
}

/// The value of an attribute.
fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(bytes);
    let (_, value) = all.find(|(kind, _)| *kind == wanted)?;
    Some(value)
}

/// A number in network order.
fn number(value: &[u8]) -> Option<u32> {
    u32_at(value, 0).map(u32::from_be)
}
