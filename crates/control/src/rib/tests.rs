// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use posthaste_plan::Link;

use super::*;
use crate::route_table::RouteTable;
use posthaste_testkit::{Rng, simulate};

mod repair;

fn settings() -> Settings {
    Settings {
        classes: Classes::new(&[15_000, 450_000, 5_000_000], &[0, 20_000]).unwrap(),
        ..Settings::default()
    }
}

/// Nodes 1 to `nodes`, and links of any length between most.
fn network(rng: &mut Rng, nodes: u64) -> Network {
    let count = usize::try_from(nodes).unwrap();
    let mut network = Network {
        nodes: (1..=nodes).collect(),
        matrix: Matrix::new(count).unwrap(),
    };
    for one in 0..count {
        for other in 0..one {
            change(rng, &mut network, one, other);
        }
    }
    network
}

fn change(rng: &mut Rng, network: &mut Network, one: usize, other: usize) {
    let link = (!rng.once_in(8)).then(|| Link::of_rtt(1000 + rng.below(150_000)));
    network.matrix.set_both(one, other, link).unwrap();
}

/// The network without one of its nodes.
fn without(network: &Network, node: usize) -> Network {
    let nodes = network.nodes.iter().enumerate();
    let kept = nodes.filter(|(place, _)| *place != node);
    let (places, nodes): (Vec<usize>, Vec<u64>) = kept.unzip();
    let mut matrix = Matrix::new(nodes.len()).unwrap();
    for (from, &old_from) in places.iter().enumerate() {
        for (to, &old_to) in places.iter().enumerate().filter(|(to, _)| *to != from) {
            let link = network.matrix.link(old_from, old_to).copied();
            matrix.set(from, to, link).unwrap();
        }
    }
    Network { nodes, matrix }
}

/// Three nodes in a line, and a direct link that is hardly longer.
fn line(half_ms: u32) -> Network {
    let mut matrix = Matrix::new(3).unwrap();
    for (one, other, ms) in [(0, 1, half_ms), (1, 2, half_ms), (0, 2, 100)] {
        let link = Some(Link::of_rtt(ms * 1000));
        matrix.set_both(one, other, link).unwrap();
    }
    Network {
        nodes: vec![10, 20, 30],
        matrix,
    }
}

fn new_rib() -> Rib {
    Rib::new(settings(), PlanVersion::default())
}

#[test]
fn chain_only_in_own_routes() {
    let mut rib = new_rib();
    assert_eq!(rib.update(10, None), None);
    assert!(rib.plan(&line(50)));
    let first = PlanVersion {
        epoch: 1,
        version: 1,
    };
    assert_eq!(rib.plan_version(), first);
    let table = |node| {
        let mut table = RouteTable::new(node);
        table.apply(&rib.update(node, None).unwrap()).unwrap();
        table
    };
    let held = table(10);
    let chains = |egress| held.routes(egress, 2).collect::<Vec<_>>();
    let (by_one, direct): (&[u64], &[u64]) = (&[20], &[]);
    assert_eq!(chains(30), [by_one, direct]);
    assert_eq!(chains(20), [direct]);
    assert_eq!(table(30).routes(10, 2).next(), Some(by_one));
    // The node between receives nothing of it.
    let between = table(20);
    assert!(between.chains().all(|(_, nodes)| nodes.is_empty()));
    assert_eq!(rib.chain_count(), 2);
    assert_eq!(rib.neighbours(10), [20, 30].into());
    assert_eq!(rib.beside_in_chains(10), [20].into());
    assert_eq!(rib.beside_in_chains(20), [10, 30].into());
    assert!(!rib.plan(&line(50)));
    assert_eq!(rib.plan_version().version, 1);
}

// promise: V3
#[test]
fn restart_raises_version() {
    let mut rib = new_rib();
    rib.plan(&line(50));
    let last = rib.plan_version();
    let mut again = Rib::new(settings(), last);
    assert_eq!(again.update(20, None), None);
    assert!(again.plan(&line(50)));
    let version = last.version + 1;
    assert_eq!(again.plan_version(), PlanVersion { version, ..last });
    // What changed since a plan of before is not known.
    assert_eq!(again.update(20, Some(last)).unwrap().base, None);
}

#[test]
fn removed_routes_reported_for_long() {
    let mut rib = new_rib();
    rib.plan(&line(50));
    let (held, left) = (rib.plan_version(), without(&line(50), 2));
    rib.plan(&left);
    assert_eq!(rib.update(10, Some(held)).unwrap().routes_removed, [30]);
    assert_eq!(rib.chain_count(), 0);
    // After a thousand more versions the slot is free, and changes to older plans are not known.
    let mut apart = left.clone();
    apart.matrix.set_both(0, 1, None).unwrap();
    let networks = [apart, left];
    for turn in 0..1100 {
        rib.plan(&networks[turn % 2]);
    }
    assert_eq!(rib.indexes.of(30), None);
    assert_eq!(rib.update(10, Some(held)).unwrap().base, None);
}

// promise: V2
#[test]
fn newer_epoch_advances() {
    let mut rib = new_rib();
    rib.plan(&line(50));
    let held = |epoch, version| PlanVersion { epoch, version };
    assert!(!rib.advance_epoch(held(1, 1)) && !rib.advance_epoch(held(0, 99)));
    assert!(!rib.advance_epoch(held(u64::MAX, 0)) && !rib.advance_epoch(held(2 + EPOCH_LEAP, 0)));
    assert!(rib.advance_epoch(held(1, 7)));
    assert_eq!(rib.plan_version(), held(2, 2));
    assert!(rib.advance_epoch(held(8, 1000)));
    assert_eq!(rib.plan_version(), held(9, 3));
    let update = rib.update(10, Some(held(1, 1))).unwrap();
    assert_eq!((update.base, update.plan_version), (None, held(9, 3)));
}

// promise: V8
#[test]
fn same_reports_same_plan() {
    let mut rng = Rng::new(7);
    let networks: Vec<Network> = (0..5).map(|_| network(&mut rng, 9)).collect();
    let plan = || {
        let mut rib = new_rib();
        for network in &networks {
            rib.plan(network);
        }
        (1..=9)
            .map(move |node| rib.update(node, None))
            .collect::<Vec<_>>()
    };
    assert_eq!(plan(), plan());
}

/// Networks change at random, and nodes receive some plans only: changes and the whole come to the same,
/// whatever the nodes hold.
// promise: V1
#[test]
fn changes_reach_newest_plan() {
    let mut sent = 0;
    simulate(25, |mut rng| {
        let mut rib = new_rib();
        let mut network = network(&mut rng, 8);
        let mut nodes: Vec<RouteTable> = (1..=8).map(RouteTable::new).collect();
        for _ in 0..60 {
            let (one, other) = (rng.below(8), rng.below(8));
            if one != other {
                change(&mut rng, &mut network, one, other);
            }
            let absent = rng.below(8);
            if rng.once_in(4) {
                rib.plan(&without(&network, absent));
            } else {
                rib.plan(&network);
            }
            for held in nodes.iter_mut().filter(|_| !rng.once_in(3)) {
                let update = rib.update(held.node(), held.plan_version()).unwrap();
                if held.plan_version() != Some(update.plan_version) {
                    sent += usize::from(update.base.is_some());
                    held.apply(&update).unwrap();
                    assert_eq!(held.whole(), rib.update(held.node(), None));
                }
            }
            check_counts(&rib);
        }
    });
    assert!(sent > 500, "{sent} changes");
}

/// What the RIB counts is what a count of all routes comes to.
fn check_counts(rib: &Rib) {
    let (mut chains, mut beside) = (0, BTreeMap::<NodeNumber, Vec<NodeNumber>>::new());
    for &index in rib.indexes.order() {
        let from = rib.indexes.node(index);
        for routes in rib.update(from, None).unwrap().routes {
            for inner in routes.chains.iter().filter(|inner| !inner.is_empty()) {
                chains += 1;
                let nodes = [&[from], &inner[..], &[routes.egress]].concat();
                for ends in nodes.windows(2) {
                    beside.entry(ends[0]).or_default().push(ends[1]);
                    beside.entry(ends[1]).or_default().push(ends[0]);
                }
            }
        }
    }
    assert_eq!(rib.chain_count(), chains);
    for &index in rib.indexes.order() {
        let node = rib.indexes.node(index);
        let counted = beside.remove(&node).unwrap_or_default();
        assert_eq!(rib.beside_in_chains(node), counted.into_iter().collect());
    }
}
