// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use posthaste_plan::Link;

use super::*;
use crate::message::DIRECT;
use crate::rng::{Rng, simulate};
use crate::rows::Held;

mod repair;

const FIRST: ChainNumber = NUMBERS.start;
const LIFE: Duration = Duration::from_secs(100);

fn settings() -> Settings {
    Settings {
        classes: Classes::new(&[15_000, 450_000, 5_000_000], &[0, 20_000]).unwrap(),
        life: LIFE,
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
fn chains(book: &Book, node: NodeNumber) -> Vec<(ChainNumber, Vec<NodeNumber>)> {
    let rows = book.rows(node, None).unwrap();
    let chains = rows.chains.into_iter();
    chains.map(|chain| (chain.number, chain.nodes)).collect()
}

#[test]
fn every_node_of_a_chain_has_it_by_its_number() {
    let mut book = Book::new(settings(), &Saved::default(), at(0));
    assert_eq!(book.rows(10, None), None);
    assert!(book.plan(&line(50), at(0)));
    assert_eq!(
        book.stamp(),
        Stamp {
            epoch: 1,
            version: 1
        }
    );
    let there = (FIRST, vec![10, 20, 30]);
    let back = (FIRST + 1, vec![30, 20, 10]);
    for node in [10, 20, 30] {
        assert_eq!(chains(&book, node), [there.clone(), back.clone()]);
    }
    let mut held = Held::new(10);
    held.apply(&book.rows(10, None).unwrap()).unwrap();
    assert_eq!(held.ways(30, 2), [FIRST, DIRECT]);
    assert_eq!(held.ways(20, 2), [DIRECT]);
    assert_eq!(book.neighbours(10), [20, 30].into());
    assert_eq!(book.beside_in_chains(10), [20].into());
    assert_eq!(book.beside_in_chains(20), [10, 30].into());
    assert!(!book.plan(&line(50), at(10)));
    assert_eq!(book.stamp().version, 1);
}

#[test]
fn a_number_is_free_two_lives_after_its_chain_left() {
    let mut book = Book::new(settings(), &Saved::default(), at(0));
    book.plan(&line(50), at(0));
    let numbers = chains(&book, 20);
    assert!(book.plan(&line(500), at(10)));
    assert_eq!(chains(&book, 20), numbers);
    assert!(!book.plan(&line(500), at(109)));
    assert!(book.plan(&line(500), at(110)));
    assert_eq!(chains(&book, 20), []);
    let changes = book
        .rows(
            20,
            Some(Stamp {
                epoch: 1,
                version: 2,
            }),
        )
        .unwrap();
    assert_eq!(changes.chains_gone, [FIRST, FIRST + 1]);
    // Wanted again in time, it comes back.
    assert!(book.plan(&line(50), at(200)));
    assert_eq!(chains(&book, 20), numbers);
    book.plan(&line(500), at(210));
    book.plan(&line(500), at(310));
    book.take_changes();
    book.plan(&line(500), at(409));
    assert_eq!(book.chain_count(), (2, 0));
    book.plan(&line(500), at(410));
    assert_eq!(book.chain_count(), (0, 0));
    let freed = book.take_changes().freed;
    assert_eq!(freed, [FIRST, FIRST + 1]);
    // The next ones are others as long as there are any.
    book.plan(&line(50), at(420));
    assert_eq!(chains(&book, 20)[0].0, FIRST + 2);
}

#[test]
fn what_was_saved_is_in_rows_for_a_life() {
    let mut book = Book::new(settings(), &Saved::default(), at(0));
    book.plan(&line(50), at(0));
    let before = chains(&book, 20);
    let mut again = Book::new(settings(), &book.saved(), at(0));
    assert_eq!(again.rows(20, None), None);
    assert!(again.plan(&line(500), at(5)));
    assert_eq!(
        again.stamp(),
        Stamp {
            epoch: 1,
            version: 2
        }
    );
    assert_eq!(chains(&again, 20), before);
    again.plan(&line(500), at(100));
    assert_eq!(chains(&again, 20), []);
    let mut again = Book::new(settings(), &book.saved(), at(0));
    again.plan(&line(50), at(5));
    assert_eq!(chains(&again, 20), before);
    // Nobody knows what changed since a plan of before.
    assert_eq!(again.rows(20, Some(book.stamp())).unwrap().base, None);
}

#[test]
fn an_epoch_is_outrun_by_what_a_node_holds() {
    let mut book = Book::new(settings(), &Saved::default(), at(0));
    book.plan(&line(50), at(0));
    let held = |epoch, version| Stamp { epoch, version };
    assert!(!book.outrun(held(1, 1)) && !book.outrun(held(0, 99)));
    assert!(!book.outrun(held(u64::MAX, 0)) && !book.outrun(held(2 + EPOCH_LEAP, 0)));
    assert!(book.outrun(held(1, 7)));
    assert_eq!(book.stamp(), held(2, 2));
    assert!(book.outrun(held(8, 1000)));
    assert_eq!(book.stamp(), held(9, 3));
    let rows = book.rows(10, Some(held(1, 1))).unwrap();
    assert_eq!((rows.base, rows.stamp), (None, held(9, 3)));
}

#[test]
fn the_same_reports_make_the_same_plan() {
    let mut rng = Rng::new(7);
    let networks: Vec<Network> = (0..5).map(|_| network(&mut rng, 9)).collect();
    let plan = || {
        let mut book = Book::new(settings(), &Saved::default(), at(0));
        for (second, network) in (0..).zip(&networks) {
            book.plan(network, at(second));
        }
        (1..=9)
            .map(move |node| book.rows(node, None))
            .collect::<Vec<_>>()
    };
    assert_eq!(plan(), plan());
}

/// Networks that change at random, nodes that hear of some plans only: changes and the whole come to
/// the same, whatever they hold, and no number means two chains to nodes whose plans stand.
#[test]
fn changes_to_any_plan_make_the_newest() {
    let mut told = 0;
    simulate(25, |mut rng| {
        let mut book = Book::new(settings(), &Saved::default(), at(0));
        let mut network = network(&mut rng, 8);
        let mut nodes: Vec<(Held, u64)> = (1..=8).map(|node| (Held::new(node), 0)).collect();
        let mut second = 0;
        for _ in 0..60 {
            second += u64::from(1 + rng.below(40));
            let (one, other) = (rng.below(8) as usize, rng.below(8) as usize);
            if one != other {
                change(&mut rng, &mut network, one, other);
            }
            let absent = rng.below(8) as usize;
            if rng.once_in(4) {
                book.plan(&without(&network, absent), at(second));
            } else {
                book.plan(&network, at(second));
            }
            for (number, (held, stands)) in (1..).zip(&mut nodes) {
                if rng.once_in(3) {
                    continue;
                }
                let rows = book.rows(number, held.stamp()).unwrap();
                if held.stamp() != Some(rows.stamp) {
                    told += usize::from(rows.base.is_some());
                    held.apply(&rows).unwrap();
                    assert_eq!(held.whole(), book.rows(number, None));
                }
                *stands = second + LIFE.as_secs();
            }
            let standing = nodes.iter().filter(|(_, until)| *until > second);
            check_numbers(&standing.map(|(held, _)| held).collect::<Vec<_>>());
        }
    });
    assert!(told > 500, "{told} changes");
}

/// A number means the same to all, and a way that one node has leads on at all that hold the same plan
/// or a newer one.
fn check_numbers(nodes: &[&Held]) {
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
        let ways = held.whole().unwrap().ways.into_iter();
        let numbers = ways.flat_map(|ways| ways.choices.into_iter().flatten());
        for number in numbers.filter(|number| *number != DIRECT) {
            let chain = held.chain(number).unwrap();
            let newer = nodes.iter().filter(|other| other.stamp() >= held.stamp());
            for other in newer.filter(|other| chain.contains(&other.node())) {
                assert_eq!(other.chain(number), Some(chain));
            }
        }
    }
}
