// SPDX-License-Identifier: Apache-2.0
//! Parses one rule of nftables.

use std::ops::RangeInclusive;

use posthaste_netlink::{attribute, attributes, text, u32_at};

use super::{BODY_BYTES, Name, TABLE, number};

/// Attributes of rules: chain, expressions. Of an expression: name, data.
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// In the data of `immediate`: data, and in that a verdict, with its code and the target chain.
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// `NF_DROP`, `NF_ACCEPT`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// In the data of `match` and `target`, extensions of iptables: name, and the parameters of a
/// match.
const EXTENSION_NAME: u16 = 1;
const EXTENSION_INFO: u16 = 3;
/// In the data of `meta`: the key, and its value `NFT_META_MARK`.
const META_KEY: u16 = 2;
const META_MARK: u32 = 3;
/// In the data of `bitwise`: the mask.
const BITWISE_MASK: u16 = 4;
/// In the data of `cmp`: the comparison, of which 0 is "equal" and 1 "not equal", and the value.
const CMP_OP: u16 = 2;
const CMP_DATA: u16 = 3;
/// In the data of `dynset`: the expressions of each element.
const DYNSET_EXPRESSION: u16 = 7;
const DYNSET_EXPRESSIONS: u16 = 10;
/// In the data of `meta` and `ct`: the key. `NFT_META_TIME_NS` to `NFT_META_TIME_HOUR`;
/// `NFT_CT_PKTS` to `NFT_CT_AVGPKT`.
const KEY: u16 = 2;
const META_TIMES: RangeInclusive<u32> = 30..=32;
const CT_AMOUNTS: RangeInclusive<u32> = 14..=16;
/// In the data of `payload`: base and offset; `NFT_PAYLOAD_TRANSPORT_HEADER`,
/// `NFT_PAYLOAD_INNER_HEADER`.
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
const BASE_TRANSPORT: u32 = 2;
const BASE_INNER: u32 = 3;
/// Bytes of a TCP header without options.
const TCP_HEADER: u32 = 20;
/// Expressions, and extensions of iptables, that treat connections differently by their number, by
/// the time, or by their content.
const LIMITS: [&str; 17] = [
    "NFQUEUE",
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

/// The packet marks that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkMatch {
    pub(crate) mask: u32,
    pub(crate) value: u32,
    /// Whether it matches all other marks.
    pub(crate) inverted: bool,
}

impl MarkMatch {
    pub(crate) fn fits(self, mark: u32) -> bool {
        (mark & self.mask == self.value) != self.inverted
    }
}

/// The effect of one rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) limits: bool,
    pub(super) decides: bool,
    /// Chains that it jumps to. `None` for those of a map.
    pub(super) jumps: Vec<Option<String>>,
    /// Whether it accepts or refuses matching packets; `None` for neither.
    accepts: Option<bool>,
    /// The mask of a comparison with the packet's mark.
    mask: Option<u32>,
    mark: Option<MarkMatch>,
    /// Whether it has other conditions.
    is_narrower: bool,
}

/// A rule and its chain.
pub(super) fn rule(body: &[u8]) -> Option<(Name, Rule)> {
    let family = *body.first()?;
    let all = body.get(BODY_BYTES..)?;
    let name = (
        family,
        text(attribute(all, TABLE)?),
        text(attribute(all, RULE_CHAIN)?),
    );
    let mut rule = Rule::default();
    let expressions = attribute(all, RULE_EXPRESSIONS).unwrap_or_default();
    for (_, expression) in attributes(expressions) {
        rule.take(expression);
    }
    Some((name, rule))
}

impl Rule {
    /// Whether it drops or rejects every packet.
    pub(super) fn refuses_all(&self) -> bool {
        self.accepts == Some(false) && self.mark.is_none() && !self.is_narrower
    }

    /// The marks whose packets it accepts unconditionally.
    pub(super) fn accepted_mark(&self) -> Option<MarkMatch> {
        self.mark
            .filter(|_| self.accepts == Some(true) && !self.is_narrower)
    }

    /// Evaluates an expression.
    fn take(&mut self, expression: &[u8]) {
        let name = attribute(expression, EXPRESSION_NAME)
            .map(text)
            .unwrap_or_default();
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
        let extension = attribute(data, EXTENSION_NAME)
            .filter(|_| ["match", "target"].contains(&name.as_str()))
            .map(text);
        self.limits |= LIMITS.contains(&extension.as_deref().unwrap_or(&name));
        self.limits |= looks_beyond(&name, data);
        match name.as_str() {
            "counter" | "log" => {}
            "immediate" => self.take_verdict(data),
            "reject" | "queue" | "synproxy" | "target" => {
                self.decides = true;
                let rejects = name == "reject" || extension.as_deref() == Some("REJECT");
                // Only a reject is certain: the others leave the verdict to a program, a proxy or a
                // target.
                self.accepts = rejects.then_some(false);
            }
            // It may be a map of verdicts.
            "lookup" => {
                self.decides = true;
                self.jumps.push(None);
                self.is_narrower = true;
            }
            "dynset" => {
                // With an expression for each element it is a meter, such as a limit for each
                // source.
                let kept = [DYNSET_EXPRESSION, DYNSET_EXPRESSIONS];
                self.limits |= kept.iter().any(|kind| attribute(data, *kind).is_some());
                self.is_narrower = true;
            }
            _ => self.take_condition(&name, extension.as_deref(), data),
        }
    }

    fn take_verdict(&mut self, data: &[u8]) {
        let verdict =
            attribute(data, IMMEDIATE_DATA).and_then(|data| attribute(data, DATA_VERDICT));
        let Some(verdict) = verdict else { return };
        self.decides = true;
        self.jumps
            .extend(attribute(verdict, VERDICT_CHAIN).map(|chain| Some(text(chain))));
        // Other verdicts, such as jumps, leave the decision to further rules.
        self.accepts = match attribute(verdict, VERDICT_CODE).and_then(number) {
            Some(ACCEPT) => Some(true),
            Some(DROP) => Some(false),
            _ => None,
        };
    }

    /// Evaluates a condition. Marks are in host byte order.
    fn take_condition(&mut self, name: &str, extension: Option<&str>, data: &[u8]) {
        let value =
            |kind| attribute(attribute(data, kind)?, DATA_VALUE).and_then(|value| u32_at(value, 0));
        let of_mark = |kind| attribute(data, kind).and_then(number) == Some(META_MARK);
        match (name, self.mask, extension) {
            // The comparison follows, behind a mask if the rule has one.
            ("meta", None, _) if of_mark(META_KEY) => self.mask = Some(u32::MAX),
            ("bitwise", Some(_), _) if self.mark.is_none() => self.mask = value(BITWISE_MASK),
            ("cmp", Some(mask), _) if self.mark.is_none() => {
                let op = attribute(data, CMP_OP).and_then(number);
                self.mark = value(CMP_DATA).map(|value| MarkMatch {
                    mask,
                    value,
                    inverted: op == Some(1),
                });
                self.is_narrower |= self.mark.is_none() || op.is_none_or(|op| op > 1);
            }
            ("match", None, Some("mark")) => {
                self.mark = attribute(data, EXTENSION_INFO).and_then(mark_of_iptables);
                self.is_narrower |= self.mark.is_none();
            }
            // Any other condition may leave packets out.
            _ => self.is_narrower = true,
        }
    }
}

/// Whether an expression reads a property that differs between connections of two hosts with one
/// service: the time, amounts of data, content.
fn looks_beyond(name: &str, data: &[u8]) -> bool {
    let field = |kind| attribute(data, kind).and_then(number);
    match name {
        "meta" => field(KEY).is_some_and(|key| META_TIMES.contains(&key)),
        "ct" => field(KEY).is_some_and(|key| CT_AMOUNTS.contains(&key)),
        "payload" => match field(PAYLOAD_BASE) {
            Some(BASE_INNER) => true,
            Some(BASE_TRANSPORT) => field(PAYLOAD_OFFSET).is_some_and(|at| at >= TCP_HEADER),
            _ => false,
        },
        _ => false,
    }
}

/// `struct xt_mark_mtinfo1`: mark, mask, whether it is inverted.
fn mark_of_iptables(info: &[u8]) -> Option<MarkMatch> {
    Some(MarkMatch {
        mask: u32_at(info, 4)?,
        value: u32_at(info, 0)?,
        inverted: *info.get(8)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_mark_comparison() {
        let of = |mask, value, inverted| MarkMatch {
            mask,
            value,
            inverted,
        };
        let bit = 0x1000_0000;
        assert!(of(bit, bit, false).fits(bit | 7));
        assert!(of(bit, 0, true).fits(bit | 7));
        assert!(!of(bit, 0, true).fits(7));
        assert!(!of(u32::MAX, bit, false).fits(bit | 7));
    }

    #[test]
    fn unconditional_rules_refuse_all() {
        let of = |accepts, is_narrower| Rule {
            accepts,
            is_narrower,
            ..Rule::default()
        };
        assert!(of(Some(false), false).refuses_all());
        for other in [
            of(Some(false), true),
            of(Some(true), false),
            of(None, false),
        ] {
            assert!(!other.refuses_all());
        }
    }
}
