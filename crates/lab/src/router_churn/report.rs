// SPDX-License-Identifier: Apache-2.0
//! The report of `router-churn`: samples by kind of connection and by fault, and the failures.

use std::collections::BTreeSet;

use super::clients::Life;
use super::plan::{Fault, Kind};
use super::verdict::{Pair, Verdict, expected};
use super::{Args, Path, Run};
use crate::names::Named;
use crate::record::{Record, Samples};
use crate::stream::End;
use crate::target::{Bound, Target};

/// Bound on connections described individually.
const DESCRIBED: usize = 20;

/// A connection in one of the networks.
type Course = fn(&Pair) -> &Life;

/// Both networks, by the label of samples.
const NETWORKS: [(&str, Course); 2] = [
    ("without", |pair| &pair.direct),
    ("with", |pair| &pair.node),
];

/// A count of connections: name, and which of a network count.
type Count = (&'static str, fn(&Pair, &Life) -> bool);

const COUNTS: [Count; 4] = [
    ("connections", |_, _| true),
    ("not as expected", |pair, life| {
        life.end() != expected(pair.plan.kind)
    }),
    ("hung", |_, life| life.end() == End::Hung),
    ("reset", |_, life| life.end() == End::Reset),
];

/// A count of connections whose end with the node differs: name, and which count.
type VerdictCount = (&'static str, fn(&Pair) -> bool);

const VERDICTS: [VerdictCount; 6] = [
    ("reset by its death", |one| one.verdict == Verdict::Killed),
    ("reset by a stale address", |one| {
        one.verdict == Verdict::Stale
    }),
    ("otherwise while a link is cut", |one| {
        one.verdict == Verdict::Cut
    }),
    ("passed", |one| one.verdict == Verdict::Passed),
    ("otherwise", |one| one.verdict == Verdict::Worse),
    ("BROKEN", |one| one.is_broken(true)),
];

/// How often a fault happened.
const TIMES: &str = "times";

/// Adds samples, tables, the target and remarks to the record.
pub(super) fn fill(record: &mut Record, args: &Args, run: &Run) {
    record.parameter("connections", args.connections);
    record.parameter("rate", args.rate);
    record.parameter("data_path", args.data_path.name());
    record.parameter("path", args.path.name());
    record.parameter("loss_percent", args.loss);
    record.parameter("ports", args.ports);
    for (kind, _) in Kind::SHARES {
        let of = run.pairs.iter().filter(|pair| pair.plan.kind == kind);
        sample(record, ("kind", kind.name()), &of.collect::<Vec<_>>());
    }
    for phase in phases(run) {
        let of = run.pairs.iter().filter(|pair| name(pair.phase) == phase);
        sample(record, ("meanwhile", phase), &of.collect::<Vec<_>>());
        let spans = run.spans.iter().filter(|span| span.fault.name() == phase);
        let labels = [("meanwhile", phase), ("node", "with")];
        record.sample(TIMES, "", &labels, vec![spans.count() as f64]);
    }
    for (title, label) in [
        ("Connections by kind", "kind"),
        (
            "Connections by what happened while they were open",
            "meanwhile",
        ),
    ] {
        let counts = COUNTS.map(|(name, _)| name);
        let quantities = [&[TIMES], &counts[..], &VERDICTS.map(|(name, _)| name)].concat();
        let is_shown = |one: &Samples| one.labels.contains_key(label);
        record.table(title, is_shown, &[label, "node"], &quantities);
    }
    record.targets = targets(args, run);
    record.remarks = remarks(run);
}

/// No promise is broken; no more connections hang than without a node; and where packets are lost at
/// random, no more deviate, both but for three standard deviations.
fn targets(args: &Args, run: &Run) -> Vec<Target> {
    let is_lossy = args.loss > 0.0;
    let count = |is_one: &dyn Fn(&Pair) -> bool| {
        let of = run.pairs.iter().filter(|pair| is_one(pair));
        of.count() as f64
    };
    let broken = count(&|pair| pair.is_broken(is_lossy));
    let what = "connections that break a promise";
    let mut targets = vec![Target::once(what, Some(broken), Bound::AtMost(0.0), "")];
    let mut compare = |what: &str, [without, with]: [f64; 2]| {
        let most = (without + 3.0 * without.max(1.0).sqrt()).ceil();
        targets.push(Target::once(what, Some(with), Bound::AtMost(most), ""));
    };
    if args.path == Path::Outages {
        // A cut explains any end of a pair, but not more of them.
        let hung = NETWORKS.map(|(_, life)| count(&|pair| life(pair).end() == End::Hung));
        compare("connections that hang", hung);
    }
    if is_lossy {
        // A cut ends many connections at once, in one of the networks more than in the other.
        let is_cut = |pair: &Pair| pair.phase.is_some_and(Fault::cuts);
        let unplanned = NETWORKS.map(|(_, life)| {
            count(&|pair| !is_cut(pair) && life(pair).end() != expected(pair.plan.kind))
        });
        compare(
            "connections that do not end as planned while no link is cut",
            unplanned,
        );
        let passed = [0, 1].map(|network: usize| count(&|pair| pair.passed[network]));
        compare("connections that pass while they are forbidden", passed);
    }
    targets
}

/// The names of the faults that happened, and of none.
fn phases(run: &Run) -> BTreeSet<&'static str> {
    let faults = run.spans.iter().map(|span| span.fault.name());
    faults.chain([name(None)]).collect()
}

fn name(fault: Option<Fault>) -> &'static str {
    fault.map_or("nothing", Fault::name)
}

/// Adds the counts of these connections in both networks.
fn sample(record: &mut Record, label: (&str, &str), of: &[&Pair]) {
    for (node, life) in NETWORKS {
        for (name, is_one) in COUNTS {
            let count = of.iter().filter(|pair| is_one(pair, life(pair))).count();
            record.sample(name, "", &[label, ("node", node)], vec![count as f64]);
        }
    }
    // The verdicts compare the two, so they count once.
    for (name, is_one) in VERDICTS {
        let count = of.iter().filter(|pair| is_one(pair)).count();
        record.sample(name, "", &[label, ("node", "with")], vec![count as f64]);
    }
}

/// The last connection before this one that had its addresses and ports: the router may still track it.
fn former<'a>(all: &'a [Pair], pair: &Pair, life: Course) -> Option<&'a Pair> {
    let ends = |pair: &Pair| {
        let client = pair.plan.client_address();
        (client, life(pair).port, pair.plan.target())
    };
    let before = all.iter().filter(|one| {
        life(one).port.is_some() && ends(one) == ends(pair) && life(one).begun < life(pair).begun
    });
    before.max_by_key(|one| life(one).begun)
}

fn remarks(run: &Run) -> Vec<String> {
    let all = &run.pairs;
    let ends = |life: Course| {
        let some = End::ALL.iter().filter_map(|&end| {
            let count = all.iter().filter(|pair| life(pair).end() == end).count();
            (count > 0).then(|| format!("{count} {}", end.name()))
        });
        some.collect::<Vec<_>>().join(", ")
    };
    // A node that observes first relays only what it expects to gain from.
    let share = run.relayed as f64 / (all.len().max(1) as f64) * 100.0;
    let mut remarks = vec![
        format!(
            "{} connections and {} faults in {:.0} s; the node carried {} of the connections, {share:.0} %.",
            all.len(),
            run.spans.len(),
            run.took.as_secs_f64(),
            run.relayed,
        ),
        format!("Without node: {}.", ends(NETWORKS[0].1)),
        format!("With node: {}.", ends(NETWORKS[1].1)),
    ];
    let [without, with] = [0, 1].map(|network: usize| {
        let passed = all.iter().filter(|pair| pair.passed[network]);
        passed.count()
    });
    remarks.push(format!(
        "Passed while they were forbidden: {without} without node, {with} with node."
    ));
    remarks.extend(run.troubles.iter().cloned());
    for (network, (node, life)) in NETWORKS.into_iter().enumerate() {
        let passed = all.iter().filter(|pair| pair.passed[network]);
        let lines = passed.map(|pair| {
            let port = life(pair).port.unwrap_or_default();
            let number = pair.plan.number;
            let former = former(all, pair, life).map_or_else(
                || "not used before".to_owned(),
                |former| format!("used before: {}", former.line(&run.log)),
            );
            format!("Passed {node} node: connection {number}, client's port {port}, {former}")
        });
        remarks.extend(lines.take(DESCRIBED));
    }
    for (heading, check) in [
        ("BROKEN", (|pair| pair.is_broken(true)) as fn(&Pair) -> bool),
        ("Passed", |pair| pair.verdict == Verdict::Passed),
        ("Otherwise", |pair| pair.verdict == Verdict::Worse),
        ("By a stale address", |pair| pair.verdict == Verdict::Stale),
        ("Hung with the node only", |pair| {
            pair.node.end() == End::Hung && pair.direct.end() != End::Hung
        }),
    ] {
        let of = all.iter().filter(|pair| check(pair));
        let lines = of.map(|pair| format!("{heading}: {}", pair.line(&run.log)));
        remarks.extend(lines.take(DESCRIBED));
    }
    remarks
}
