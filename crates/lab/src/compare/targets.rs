// SPDX-License-Identifier: Apache-2.0
//! The targets, and whether they are met. Pure.

use super::figures::Figure;
use super::load::{Load, Yield};
use super::report::values;
use crate::record::Record;
use crate::stats::Spread;
use crate::target::{Bound, Target};

/// One comparison: with a load, a subject of ours and others.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    load: &'static str,
    ours: &'static str,
    /// The best of these in the run counts.
    others: &'static [&'static str],
    /// On the ratio of ours to theirs.
    bound: Bound,
}

use Bound::{AtLeast, AtMost};

/// The references of all subjects. What an IP router adds is the limit for any relay.
pub(super) const DIRECT: &str = "direct";
pub(super) const FORWARDING: &str = "forwarding";
pub(super) const MASQUERADING: &str = "masquerading";
const ROUTER: &[&str] = &[FORWARDING];
const MASQUERADING_ROUTER: &[&str] = &[MASQUERADING];

/// The transparent node, with the default accept mode, and the one that clients address.
pub(super) const EARLY: &str = "posthaste-early";
pub(super) const MULTIPATH: &str = "posthaste-multipath";
pub(super) const HAPROXY_MULTIPATH: &str = "haproxy-multipath";
const SERVING: &str = "posthaste-fixed";

/// The packet path, and on a router that masquerades.
pub(super) const PACKET: &str = "posthaste-packet";
pub(super) const PACKET_MASQUERADING: &str = "posthaste-packet-masquerading";

/// Relays with a fixed server, the transparent one, and both with or without large pipes.
const FIXED: &[&str] = &["haproxy", "nginx"];
const TRANSPARENT: &[&str] = &["haproxy-transparent"];
const MULTIPATH_PEER: &[&str] = &[HAPROXY_MULTIPATH];
const TUNED: &[&str] = &["haproxy-1m", "haproxy-transparent-1m"];
const DEFAULT: &[&str] = &["haproxy", "haproxy-transparent"];
const ALL_PEERS: &[&str] = &["haproxy", "haproxy-transparent", "nginx"];

/// All targets, in the order of the table.
const TARGETS: &[Comparison] = &[
    target("8k-64", EARLY, TRANSPARENT, AtMost(0.62)),
    target("8k-64", EARLY, ROUTER, AtMost(3.5)),
    target("8k-64", SERVING, FIXED, AtMost(0.65)),
    target("8k-64", SERVING, ROUTER, AtMost(3.5)),
    target("8k-64", PACKET, TRANSPARENT, AtMost(0.20)),
    target("8k-64", PACKET, ROUTER, AtMost(2.2)),
    target(
        "8k-64",
        PACKET_MASQUERADING,
        MASQUERADING_ROUTER,
        AtMost(1.4),
    ),
    // 1.25 of its requests per second.
    target("8k-multipath", MULTIPATH, MULTIPATH_PEER, AtMost(0.80)),
    target("1k-64", EARLY, TRANSPARENT, AtMost(0.60)),
    target("1k-64", EARLY, ROUTER, AtMost(3.5)),
    target("1k-64", SERVING, FIXED, AtMost(0.60)),
    target("1k-64", SERVING, ROUTER, AtMost(3.5)),
    target("8k-low", EARLY, TRANSPARENT, AtMost(0.72)),
    target("8k-low", EARLY, ROUTER, AtMost(5.5)),
    target("8k-low", SERVING, FIXED, AtMost(0.72)),
    target("8k-low", SERVING, ROUTER, AtMost(5.5)),
    target("two-cores", EARLY, TRANSPARENT, AtLeast(1.25)),
    target("two-cores", SERVING, FIXED, AtLeast(1.25)),
    target("two-cores", PACKET, TRANSPARENT, AtLeast(2.0)),
    target("two-cores", PACKET, ROUTER, AtLeast(0.85)),
    target("one-queue", EARLY, TRANSPARENT, AtLeast(1.0)),
    target("one-queue", PACKET, TRANSPARENT, AtLeast(2.0)),
    target("one-queue", PACKET, ROUTER, AtLeast(0.85)),
    target("split", EARLY, TRANSPARENT, AtLeast(1.25)),
    target("split", SERVING, FIXED, AtLeast(1.25)),
    target("split", PACKET, TRANSPARENT, AtLeast(2.0)),
    target("split", PACKET, ROUTER, AtLeast(0.85)),
    target("bulk-1", EARLY, TUNED, AtMost(0.95)),
    target("bulk-1", EARLY, DEFAULT, AtMost(0.27)),
    target("bulk-1", EARLY, ROUTER, AtMost(1.6)),
    target("1m", EARLY, TUNED, AtMost(0.95)),
    target("ping-pong", EARLY, ALL_PEERS, AtMost(0.72)),
    target("ping-pong", EARLY, ROUTER, AtMost(5.5)),
    target("syn", EARLY, ALL_PEERS, AtMost(0.5)),
    target("syn", EARLY, ROUTER, AtMost(5.0)),
    target("syn-far", EARLY, ALL_PEERS, AtMost(0.5)),
    target("syn-far", EARLY, ROUTER, AtMost(5.0)),
];

const fn target(
    load: &'static str,
    ours: &'static str,
    others: &'static [&'static str],
    bound: Bound,
) -> Comparison {
    Comparison {
        load,
        ours,
        others,
        bound,
    }
}

/// All targets that were measured: ratios of marginal CPU time, of added delay, or of transactions
/// a second.
pub(super) fn all(loads: &[Load], record: &Record) -> Vec<Target> {
    let measured = TARGETS.iter().filter_map(|target| {
        let load = loads.iter().find(|load| load.name == target.load)?;
        let (other, ratio) = rate(target, load, record)?;
        Some(Target {
            what: format!("{}: {} to {other}", target.load, target.ours),
            measured: ratio,
            bound: target.bound,
            unit: String::new(),
        })
    });
    measured.collect()
}

/// The reference of a comparison, and the ratio to it; `None` where noise hides its figure.
fn rate(
    target: &Comparison,
    load: &Load,
    record: &Record,
) -> Option<(&'static str, Option<Spread>)> {
    let deciding = |name| values(record, Figure::deciding(load.yields), load.name, name);
    let ours = deciding(target.ours)?;
    let ratio = |name: &'static str| Some((name, Spread::of_ratio(ours, deciding(name)?)));
    // Subjects that are not installed have no figures, and are no rivals.
    let ratios = target.others.iter().filter_map(|&name| ratio(name));
    // The best reference is the one that makes our ratio worst; one with an unknown figure may be
    // the best.
    let worst = |spread: &Option<Spread>| match (spread, load.yields) {
        (None, _) => f64::INFINITY,
        (Some(spread), Yield::Rate) => -spread.median,
        (Some(spread), _) => spread.median,
    };
    ratios.max_by(|a, b| worst(&a.1).total_cmp(&worst(&b.1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{load, subject};
    use crate::names::Named;

    #[test]
    fn targets_name_what_there_is() {
        let (loads, subjects) = (load::all(), subject::ALL);
        let subject = |name: &str| subjects.iter().any(|one| one.name == name);
        for target in TARGETS {
            assert!(
                loads.iter().any(|load| load.name == target.load),
                "{target:?}"
            );
            assert!(subject(target.ours) && target.others.iter().all(|name| subject(name)));
        }
    }

    fn found(load: &str, values: &[(&str, f64)]) -> Vec<[String; 4]> {
        let loads: Vec<Load> = load::all()
            .into_iter()
            .filter(|one| one.name == load)
            .collect();
        let mut record = Record::start("test", 1);
        for (subject, value) in values {
            for figure in [Figure::Marginal, Figure::Rate] {
                let labels = [("load", load), ("subject", *subject)];
                record.sample(figure.name(), "", &labels, vec![*value]);
            }
        }
        let row = |target: &Target| {
            let measured = target
                .measured
                .map_or_else(String::new, |ratio| ratio.to_string());
            let (bound, verdict) = (target.bound.to_string(), target.verdict().to_owned());
            [target.what.clone(), measured, bound, verdict]
        };
        all(&loads, &record).iter().map(row).collect()
    }

    #[test]
    fn best_peer_counts() {
        let values = [("haproxy", 100.0), ("nginx", 80.0), (SERVING, 56.0)];
        let rows = found("8k-64", &values);
        assert_eq!(rows.len(), 1, "forwarding was not measured");
        assert_eq!(
            rows[0],
            [
                "8k-64: posthaste-fixed to nginx",
                "0.70",
                "<= 0.65",
                "MISSED"
            ]
        );
        let rows = found(
            "two-cores",
            &[("haproxy", 100.0), ("nginx", 120.0), (SERVING, 156.0)],
        );
        assert_eq!(
            rows[0],
            [
                "two-cores: posthaste-fixed to nginx",
                "1.30",
                ">= 1.25",
                "met"
            ]
        );
        assert!(found("8k-64", &[("haproxy", 1.0)]).is_empty());
        let rows = found(
            "8k-64",
            &[("haproxy", 100.0), ("nginx", -1.0), (SERVING, 56.0)],
        );
        assert_eq!(rows[0][1..], ["", "<= 0.65", "UNCLEAR"]);
    }
}
