// SPDX-License-Identifier: Apache-2.0
//! The parts of this host's nftables rules (including those of `iptables-nft`) that matter to
//! relays: base chains, and rules that limit forwarded connections.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

use posthaste_netlink::{Message, Netlink, attribute, text, u32_at};

mod flowtables;
mod rule;

pub(crate) use flowtables::{Flowtable, flowtables};
pub(crate) use rule::MarkMatch;
use rule::{Rule, rule};

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
/// The hook of a base chain.
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
    /// Whether it is of type `nat`.
    pub(crate) translates: bool,
    /// Whether it drops or rejects what no rule accepts: by the policy, or by a rule for
    /// everything.
    pub(crate) drops: bool,
    /// Marks whose packets are accepted, whatever else they match, by a rule of this chain or of a
    /// chain it jumps to.
    pub(crate) accepts: Vec<MarkMatch>,
}

impl BaseChain {
    /// Whether it drops packets with this mark unless a rule accepts them for another property.
    pub(crate) fn drops_mark(&self, mark: u32) -> bool {
        self.drops && !self.accepts.iter().any(|accepted| accepted.fits(mark))
    }
}

/// The rules of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) chains: Vec<BaseChain>,
    /// Chains that forwarded packets pass and that limit connections.
    pub(crate) limits: Vec<String>,
    /// Whether a chain for forwarded packets alone may drop some.
    pub(crate) filters: bool,
}

/// A chain by family, table and name.
type Name = (u8, String, String);

/// Reads the rules. Empty if the kernel has no nftables.
///
/// # Errors
/// The kernel's error.
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
    let filters = filters(&chains, &rules);
    let with_rules = chains
        .iter()
        .filter_map(|(name, base)| Some(with_rules(base.clone()?, name, &chains, &rules)));
    Ok(Rules {
        chains: with_rules.collect(),
        limits,
        filters,
    })
}

/// A base chain with the effect of its rules.
fn with_rules(
    mut base: BaseChain,
    name: &Name,
    chains: &BTreeMap<Name, Option<BaseChain>>,
    rules: &BTreeMap<Name, Vec<Rule>>,
) -> BaseChain {
    let own = rules.get(name).into_iter().flatten();
    // A last rule that refuses everything has the effect of the policy.
    base.drops |= own.into_iter().any(Rule::refuses_all);
    let led_to = led_to(vec![name], chains, rules).into_iter();
    let all = led_to.filter_map(|name| rules.get(name)).flatten();
    base.accepts = all.filter_map(Rule::accepted_mark).collect();
    base
}

/// The chains with limits that forwarded packets pass.
fn limits(
    chains: &BTreeMap<Name, Option<BaseChain>>,
    rules: &BTreeMap<Name, Vec<Rule>>,
) -> Vec<String> {
    // Those of a forwarded packet; Input and Output are those of relays.
    let passed = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];
    let of_hook = |base: &BaseChain| passed.contains(&base.hook);
    let begin = chains
        .iter()
        .filter(|(_, base)| base.as_ref().is_some_and(of_hook));
    let seen = led_to(begin.map(|(name, _)| name).collect(), chains, rules);
    let limited = seen.into_iter().filter(|name| {
        let of_chain = rules.get(*name).into_iter().flatten();
        of_chain.into_iter().any(|rule| rule.limits && rule.decides)
    });
    limited.map(shown).collect()
}

/// Whether forwarded packets, and not those of relays, pass a rule or a policy that decides.
fn filters(chains: &BTreeMap<Name, Option<BaseChain>>, rules: &BTreeMap<Name, Vec<Rule>>) -> bool {
    let mut bases = chains
        .iter()
        .filter_map(|(name, base)| Some((name, base.as_ref()?)));
    bases.any(|(name, base)| {
        let own = rules.get(name).into_iter().flatten();
        // What it jumps to decides only if it does.
        base.hook == Hook::Forward && (base.drops || own.into_iter().any(|rule| rule.decides))
    })
}

/// Whether the host has rules of the former iptables about what it forwards: they are not read. Who may not look
/// for their tables cannot know.
pub(crate) fn has_legacy_filter() -> bool {
    let tables = ["ip_tables_names", "ip6_tables_names"];
    tables.into_iter().any(
        |names| match fs::read_to_string(format!("/proc/self/net/{names}")) {
            Ok(names) => names.lines().any(|name| name == "filter"),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        },
    )
}

/// The chains reachable from the given ones.
fn led_to<'a>(
    mut waiting: Vec<&'a Name>,
    chains: &'a BTreeMap<Name, Option<BaseChain>>,
    rules: &BTreeMap<Name, Vec<Rule>>,
) -> BTreeSet<&'a Name> {
    let mut seen = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        // Several rules may jump to one chain.
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
                // The verdicts of a map are not read: it may lead to any chain of its table.
                same && jump.as_ref().is_none_or(|jump| jump == chain)
            });
            waiting.extend(led_to);
        }
    }
    seen
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

/// A chain, with its hook if it is a base chain.
fn chain(body: &[u8]) -> Option<(Name, Option<BaseChain>)> {
    let family = *body.first()?;
    let all = body.get(BODY_BYTES..)?;
    let name = (
        family,
        text(attribute(all, TABLE)?),
        text(attribute(all, CHAIN_NAME)?),
    );
    let hook = attribute(all, CHAIN_HOOK).and_then(|hook| number(attribute(hook, HOOK_NUMBER)?));
    let hook = match hook {
        Some(0) => Some(Hook::Prerouting),
        Some(1) => Some(Hook::Input),
        Some(2) => Some(Hook::Forward),
        Some(3) => Some(Hook::Output),
        Some(4) => Some(Hook::Postrouting),
        _ => None,
    };
    // The families netdev and bridge number their hooks differently.
    let hook = hook.filter(|_| [1, 2, 10].contains(&family));
    let base = hook.map(|hook| BaseChain {
        name: shown(&name),
        hook,
        translates: attribute(all, CHAIN_TYPE).map(text).as_deref() == Some("nat"),
        drops: attribute(all, CHAIN_POLICY).and_then(number) == Some(0),
        accepts: Vec::new(),
    });
    Some((name, base))
}

/// A number in network order.
fn number(value: &[u8]) -> Option<u32> {
    u32_at(value, 0).map(u32::from_be)
}
