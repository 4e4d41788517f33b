// SPDX-License-Identifier: Apache-2.0
//! The targets, and whether they are met. Pure.

use super::figures::{Figures, Spread};
use super::load::{Load, Yield};
use crate::table::Table;
use crate::target::Bound;

/// One target: with a load, a subject of ours compared with others.
#[derive(Clone, Copy, Debug)]
struct Target {
    load: &'static str,
    ours: &'static str,
    against: Against,
    /// On the ratio of ours to theirs.
    bound: Bound,
}

/// The reference of a target.
#[derive(Clone, Copy, Debug)]
enum Against {
    /// The best of these in the run.
    BestOf(&'static [&'static str]),
    /// IP forwarding.
    Forwarding,
}

use Against::{BestOf, Forwarding};
use Bound::{AtLeast, AtMost};

/// The transparent node, with the default accept mode, and the one that clients address.
pub(super) const EARLY: &str = "posthaste-early";
const SERVING: &str = "posthaste-fixed";

/// Relays with a fixed server, the transparent one, and both with or without large pipes.
const FIXED: &[&str] = &["haproxy", "nginx"];
const TRANSPARENT: &[&str] = &["haproxy-transparent"];
const TUNED: &[&str] = &["haproxy-1m", "haproxy-transparent-1m"];
const DEFAULT: &[&str] = &["haproxy", "haproxy-transparent"];
const ALL_PEERS: &[&str] = &["haproxy", "haproxy-transparent", "nginx"];

/// All targets, in the order of the table.
const TARGETS: &[Target] = &[
    target("8k-64", EARLY, BestOf(TRANSPARENT), AtMost(0.62)),
    target("8k-64", EARLY, Forwarding, AtMost(3.5)),
    target("8k-64", SERVING, BestOf(FIXED), AtMost(0.65)),
    target("8k-64", SERVING, Forwarding, AtMost(3.5)),
    target("1k-64", EARLY, BestOf(TRANSPARENT), AtMost(0.60)),
    target("1k-64", EARLY, Forwarding, AtMost(3.5)),
    target("1k-64", SERVING, BestOf(FIXED), AtMost(0.60)),
    target("1k-64", SERVING, Forwarding, AtMost(3.5)),
    target("8k-low", EARLY, BestOf(TRANSPARENT), AtMost(0.72)),
    target("8k-low", EARLY, Forwarding, AtMost(5.5)),
    target("8k-low", SERVING, BestOf(FIXED), AtMost(0.72)),
    target("8k-low", SERVING, Forwarding, AtMost(5.5)),
    target("two-cores", EARLY, BestOf(TRANSPARENT), AtLeast(1.25)),
    target("two-cores", SERVING, BestOf(FIXED), AtLeast(1.25)),
    target("split", EARLY, BestOf(TRANSPARENT), AtLeast(1.25)),
    target("split", SERVING, BestOf(FIXED), AtLeast(1.25)),
    target("bulk-1", EARLY, BestOf(TUNED), AtMost(0.95)),
    target("bulk-1", EARLY, BestOf(DEFAULT), AtMost(0.27)),
    target("bulk-1", EARLY, Forwarding, AtMost(1.6)),
    target("1m", EARLY, BestOf(TUNED), AtMost(0.95)),
    target("ping-pong", EARLY, BestOf(ALL_PEERS), AtMost(0.72)),
    target("ping-pong", EARLY, Forwarding, AtMost(5.5)),
    target("syn", EARLY, BestOf(ALL_PEERS), AtMost(0.5)),
    target("syn", EARLY, Forwarding, AtMost(5.0)),
    target("syn-far", EARLY, BestOf(ALL_PEERS), AtMost(0.5)),
    target("syn-far", EARLY, Forwarding, AtMost(5.0)),
];

const fn target(load: &'static str, ours: &'static str, against: Against, bound: Bound) -> Target {
    Target {
        load,
        ours,
        against,
        bound,
    }
}

/// A target for one of our figures by itself, with the figure.
#[derive(Clone, Debug)]
pub(super) struct Alone {
    /// Its subject.
    pub(super) load: &'static str,
    pub(super) what: String,
    pub(super) value: f64,
    /// The upper bound.
    pub(super) most: f64,
    pub(super) unit: &'static str,
}

/// A target that was measured.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    /// The reference of the comparison.
    other: &'static str,
    /// `None` when noise hides the reference's figure.
    ratio: Option<Spread>,
}

/// The table of targets, without those that were not measured.
pub(super) fn table(
    loads: &[Load],
    figures: impl Fn(&Load, &'static str) -> Option<Figures>,
    alone: &[Alone],
) -> Option<Table> {
    let title = "Targets: ratios of marginal CPU time, of added delay or of transactions a second; \
                 and figures of posthaste by itself";
    let name = |subject: &str| subject.trim_start_matches("posthaste-").to_owned();
    let compared = TARGETS.iter().filter_map(|target| {
        let load = loads.iter().find(|load| load.name == target.load)?;
        let Verdict { other, ratio } = rate(target, load, &figures)?;
        let median = ratio.map(|ratio| ratio.median);
        Some([
            target.load.to_owned(),
            name(target.ours),
            other.to_owned(),
            ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string()),
            target.bound.to_string(),
            target.bound.verdict(median).to_owned(),
        ])
    });
    let alone = alone.iter().map(|one| {
        let spread = Spread::of(&[one.value]);
        let bound = AtMost(one.most);
        [
            format!("{}, {}", one.load, one.what),
            name(EARLY),
            "-".to_owned(),
            format!(
                "{} {}",
                spread.map_or_else(String::new, Spread::brief),
                one.unit
            ),
            format!("{bound} {}", one.unit),
            bound.verdict(spread.map(|spread| spread.median)).to_owned(),
        ]
    });
    let columns = ["load", "posthaste", "against", "ratio", "target", "verdict"];
    let mut table = Table::new(title, &columns);
    compared.chain(alone).for_each(|row| table.push(row));
    (!table.rows.is_empty()).then_some(table)
}

fn rate(
    target: &Target,
    load: &Load,
    figures: &impl Fn(&Load, &'static str) -> Option<Figures>,
) -> Option<Verdict> {
    let deciding = |name| Some(figures(load, name)?.deciding(load.yields).to_vec());
    let ours = deciding(target.ours)?;
    let others = match target.against {
        Forwarding => &["forwarding"][..],
        BestOf(names) => names,
    };
    let ratio = |name: &'static str| Some((name, Spread::of_ratio(&ours, &deciding(name)?)));
    let ratios = others.iter().filter_map(|&name| ratio(name));
    // The best reference is the one that makes our ratio worst; one with an unknown figure may be
    // the best.
    let worst = |spread: &Option<Spread>| match (spread, load.yields) {
        (None, _) => f64::INFINITY,
        (Some(spread), Yield::Rate) => -spread.median,
        (Some(spread), _) => spread.median,
    };
    let (other, ratio) = ratios.max_by(|a, b| worst(&a.1).total_cmp(&worst(&b.1)))?;
    Some(Verdict { other, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures::Figure;
    use crate::compare::{load, subject};

    #[test]
    fn targets_name_what_there_is() {
        let (loads, subjects) = (load::all(), subject::ALL);
        let subject = |name: &str| subjects.iter().any(|one| one.name == name);
        for target in TARGETS {
            assert!(
                loads.iter().any(|load| load.name == target.load),
                "{target:?}"
            );
            let others = match target.against {
                Forwarding => &["forwarding"][..],
                BestOf(names) => names,
            };
            assert!(subject(target.ours) && others.iter().all(|name| subject(name)));
        }
    }

    fn found(load: &str, values: &[(&str, f64)]) -> Vec<Vec<String>> {
        let loads: Vec<Load> = load::all()
            .into_iter()
            .filter(|one| one.name == load)
            .collect();
        let figures = |_: &Load, name: &'static str| {
            let value = values.iter().find(|(other, _)| *other == name)?.1;
            let both = [Figure::Marginal, Figure::Rate];
            Some(Figures(both.map(|figure| (figure, vec![value])).into()))
        };
        table(&loads, figures, &[])
            .map(|table| table.rows)
            .unwrap_or_default()
    }

    #[test]
    fn absolute_targets_checked() {
        let alone = |value| Alone {
            load: "boot",
            what: "median".to_owned(),
            value,
            most: 2.0,
            unit: "ms",
        };
        let table = table(&[], |_, _| None, &[alone(1.9), alone(2.1)]).unwrap();
        assert_eq!(
            table.rows[0],
            ["boot, median", "early", "-", "1.90 ms", "<= 2 ms", "met"]
        );
        assert_eq!(table.rows[1][5], "MISSED");
    }

    #[test]
    fn best_peer_counts() {
        let values = [("haproxy", 100.0), ("nginx", 80.0), (SERVING, 56.0)];
        let rows = found("8k-64", &values);
        assert_eq!(rows.len(), 1, "forwarding was not measured");
        assert_eq!(
            rows[0][2..],
            ["nginx", "0.70 (0.70 to 0.70)", "<= 0.65", "MISSED"]
        );
        let rows = found(
            "two-cores",
            &[("haproxy", 100.0), ("nginx", 120.0), (SERVING, 156.0)],
        );
        assert_eq!(
            rows[0][2..],
            ["nginx", "1.30 (1.30 to 1.30)", ">= 1.25", "met"]
        );
        assert!(found("8k-64", &[("haproxy", 1.0)]).is_empty());
        let rows = found(
            "8k-64",
            &[("haproxy", 100.0), ("nginx", -1.0), (SERVING, 56.0)],
        );
        assert_eq!(rows[0][2..], ["nginx", "-", "<= 0.65", "UNCLEAR"]);
    }
}
