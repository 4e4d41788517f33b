// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use posthaste_plan::Link;

use super::*;
use crate::message::DIRECT;
use crate::rng::{Rng, simulate};
use crate::route_table::RouteTable;

mod repair;

const FIRST: ChainNumber = NUMBERS.start;
const LIFE: Duration = Duration::from_secs(100);

fn settings() -> Settings {
    Settings {
        classes: Classes::new(&[15_000, 450_000, 5_000_000], &[0, 20_000]).unwrap(),
        ttl: LIFE,
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

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// The chains in the rows of a node.
fn chains(rib: &Rib, node: NodeNumber) -> Vec<(ChainNumber, Vec<NodeNumber>)> {
    let update = rib.update(node, None).unwrap();
    let chains = update.chains.into_iter();
    chains.map(|chain| (chain.number, chain.nodes)).collect()
}

#[test]
fn chain_at_every_node() {
    let mut rib = Rib::new(settings(), &Saved::default(), at(0));
    assert_eq!(rib.update(10, None), None);
    assert!(rib.plan(&line(50), at(0)));
    assert_eq!(
        rib.plan_version(),
        PlanVersion {
            epoch: 1,
            version: 1
        }
    );
    let there = (FIRST, vec![10, 20, 30]);
    let back = (FIRST + 1, vec![30, 20, 10]);
    for node in [10, 20, 30] {
        assert_eq!(chains(&rib, node), [there.clone(), back.clone()]);
    }
    let mut held = RouteTable::new(10);
    held.apply(&rib.update(10, None).unwrap()).unwrap();
    assert_eq!(held.routes(30, 2), [FIRST, DIRECT]);
    assert_eq!(held.routes(20, 2), [DIRECT]);
    assert_eq!(rib.neighbours(10), [20, 30].into());
    assert_eq!(rib.beside_in_chains(10), [20].into());
    assert_eq!(rib.beside_in_chains(20), [10, 30].into());
    assert!(!rib.plan(&line(50), at(10)));
    assert_eq!(rib.plan_version().version, 1);
}

// promise: V3
#[test]
fn number_reuse_after_two_ttls() {
    let mut rib = Rib::new(settings(), &Saved::default(), at(0));
    rib.plan(&line(50), at(0));
    let numbers = chains(&rib, 20);
    assert!(rib.plan(&line(500), at(10)));
    assert_eq!(chains(&rib, 20), numbers);
    assert!(!rib.plan(&line(500), at(109)));
    assert!(rib.plan(&line(500), at(110)));
    assert_eq!(chains(&rib, 20), []);
    let changes = rib
        .update(
            20,
            Some(PlanVersion {
                epoch: 1,
                version: 2,
            }),
        )
        .unwrap();
    assert_eq!(changes.chains_removed, [FIRST, FIRST + 1]);
    // Wanted again in time, it comes back.
    assert!(rib.plan(&line(50), at(200)));
    assert_eq!(chains(&rib, 20), numbers);
    rib.plan(&line(500), at(210));
    rib.plan(&line(500), at(310));
    rib.take_changes();
    rib.plan(&line(500), at(409));
    assert_eq!(rib.chain_count(), (2, 0));
    rib.plan(&line(500), at(410));
    assert_eq!(rib.chain_count(), (0, 0));
    let freed = rib.take_changes().freed;
    assert_eq!(freed, [FIRST, FIRST + 1]);
    // The next ones are others as long as there are any.
    rib.plan(&line(50), at(420));
    assert_eq!(chains(&rib, 20)[0].0, FIRST + 2);
}

// promise: V3
#[test]
fn restored_chains_for_one_ttl() {
    let mut rib = Rib::new(settings(), &Saved::default(), at(0));
    rib.plan(&line(50), at(0));
    let before = chains(&rib, 20);
    let mut again = Rib::new(settings(), &rib.saved(), at(0));
    assert_eq!(again.update(20, None), None);
    assert!(again.plan(&line(500), at(5)));
    assert_eq!(
        again.plan_version(),
        PlanVersion {
            epoch: 1,
            version: 2
        }
    );
    assert_eq!(chains(&again, 20), before);
    again.plan(&line(500), at(100));
    assert_eq!(chains(&again, 20), []);
    let mut again = Rib::new(settings(), &rib.saved(), at(0));
    again.plan(&line(50), at(5));
    assert_eq!(chains(&again, 20), before);
    // Nobody knows what changed since a plan of before.
    assert_eq!(
        again.update(20, Some(rib.plan_version())).unwrap().base,
        None
    );
}

// promise: V2
#[test]
fn newer_epoch_advances() {
    let mut rib = Rib::new(settings(), &Saved::default(), at(0));
    rib.plan(&line(50), at(0));
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
        let mut rib = Rib::new(settings(), &Saved::default(), at(0));
        for (second, network) in (0..).zip(&networks) {
            rib.plan(network, at(second));
        }
        (1..=9)
            .map(move |node| rib.update(node, None))
            .collect::<Vec<_>>()
    };
    assert_eq!(plan(), plan());
}

/// Networks that change at random, nodes that hear of some plans only: changes and the whole come to
/// the same, whatever they hold, and no number means two chains to nodes whose plans stand.
// promise: V1, V3
#[test]
fn changes_reach_newest_plan() {
    let mut sent = 0;
    simulate(25, |mut rng| {
        let mut rib = Rib::new(settings(), &Saved::default(), at(0));
        let mut network = network(&mut rng, 8);
        let mut nodes: Vec<(RouteTable, u64)> =
            (1..=8).map(|node| (RouteTable::new(node), 0)).collect();
        let mut second = 0;
        for _ in 0..60 {
            second += u64::from(1 + rng.below(40));
            let (one, other) = (rng.below(8) as usize, rng.below(8) as usize);
            if one != other {
                change(&mut rng, &mut network, one, other);
            }
            let absent = rng.below(8) as usize;
            if rng.once_in(4) {
                rib.plan(&without(&network, absent), at(second));
            } else {
                rib.plan(&network, at(second));
            }
            for (number, (held, renew_lease)) in (1..).zip(&mut nodes) {
                if rng.once_in(3) {
                    continue;
                }
                let update = rib.update(number, held.plan_version()).unwrap();
                if held.plan_version() != Some(update.plan_version) {
                    sent += usize::from(update.base.is_some());
                    held.apply(&update).unwrap();
                    assert_eq!(held.whole(), rib.update(number, None));
                }
                *renew_lease = second + LIFE.as_secs();
            }
            let standing = nodes.iter().filter(|(_, until)| *until > second);
            check_numbers(&standing.map(|(held, _)| held).collect::<Vec<_>>());
        }
    });
    assert!(sent > 500, "{sent} changes");
}

/// A number means the same to all, and a way that one node has leads on at all that hold the same plan
/// or a newer one.
fn check_numbers(nodes: &[&RouteTable]) {
    let mut known = BTreeMap::new();
    for held in nodes {
        for chain in held.whole().unwrap().chains {
            let nodes = known
                .entry(chain.number)
                .or_insert_with(|| chain.nodes.clone());
            assert_eq!(*nodes, chain.nodes, "chain {}", chain.number);
        }
    }
    for held in nodes {
        let routes = held.whole().unwrap().routes.into_iter();
        let numbers = routes.flat_map(|routes| routes.choices.into_iter().flatten());
        for number in numbers.filter(|number| *number != DIRECT) {
            let chain = held.chain(number).unwrap();
            let newer = nodes
                .iter()
                .filter(|other| other.plan_version() >= held.plan_version());
            for other in newer.filter(|other| chain.contains(&other.node())) {
                assert_eq!(other.chain(number), Some(chain));
            }
        }
    }
}
