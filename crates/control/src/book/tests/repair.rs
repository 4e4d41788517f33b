// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use posthaste_plan::planner::Transfer;

use super::*;

/// Ends of links and their round trips in milliseconds.
fn of_links(nodes: u64, links: &[(u64, u64, u32)]) -> Network {
    let mut network = Network {
        nodes: (1..=nodes).collect(),
        matrix: Matrix::new(usize::try_from(nodes).unwrap()).unwrap(),
    };
    for &(one, other, ms) in links {
        set(&mut network, one, other, Some(ms));
    }
    network
}

fn set(network: &mut Network, one: NodeNumber, other: NodeNumber, ms: Option<u32>) {
    let place = |node: NodeNumber| network.nodes.iter().position(|known| *known == node);
    let ends = (place(one).unwrap(), place(other).unwrap());
    let link = ms.map(|ms| Link::of_rtt(ms * 1000));
    network.matrix.set_both(ends.0, ends.1, link).unwrap();
}

/// From 1 to 5 by 2, 3 or 4, one longer than the other, or without any of them.
fn ladder() -> Network {
    let links = [
        (1, 5, 150),
        (1, 2, 40),
        (2, 5, 40),
        (1, 3, 45),
        (3, 5, 45),
        (1, 4, 60),
        (4, 5, 60),
    ];
    of_links(5, &links)
}

fn planned(network: &Network) -> Book {
    let mut book = Book::new(settings(), &Saved::default(), at(0));
    book.plan(network, at(0));
    book
}

/// An ordered pair of nodes.
type Ends = (NodeNumber, NodeNumber);

/// The ways of all pairs: by class, the nodes of each choice.
fn all_ways(book: &Book) -> BTreeMap<Ends, Vec<Vec<Vec<NodeNumber>>>> {
    let mut all = BTreeMap::new();
    for &slot in book.slots.order() {
        let from = book.slots.node(slot);
        let rows = book.rows(from, None).unwrap();
        let chains: BTreeMap<ChainNumber, Vec<NodeNumber>> = rows
            .chains
            .into_iter()
            .map(|chain| (chain.number, chain.nodes))
            .collect();
        for ways in rows.ways {
            let nodes = |number: &ChainNumber| match *number {
                DIRECT => vec![from, ways.egress],
                number => chains[&number].clone(),
            };
            let choices = ways.classes.iter().map(|choice| {
                let choice = ways.choices[usize::from(*choice)].iter();
                choice.map(nodes).collect()
            });
            all.insert((from, ways.egress), choices.collect());
        }
    }
    all
}

/// The pairs with ways over links of this kind.
fn pairs_over(book: &Book, is_such: impl Fn(Ends) -> bool) -> BTreeSet<Ends> {
    let over = |nodes: &Vec<NodeNumber>| nodes.windows(2).any(|ends| is_such((ends[0], ends[1])));
    let all = all_ways(book).into_iter();
    let over = all.filter(|(_, classes)| classes.iter().flatten().any(over));
    over.map(|(ends, _)| ends).collect()
}

fn is_between(one: NodeNumber, other: NodeNumber) -> impl Fn(Ends) -> bool {
    move |ends| ends == (one, other) || ends == (other, one)
}

/// The pairs whose ways are others, or went.
fn differing(before: &Book, after: &Book) -> BTreeSet<Ends> {
    let (before, after) = (all_ways(before), all_ways(after));
    let ends = before
        .keys()
        .filter(|ends| before.get(ends) != after.get(ends));
    ends.copied().collect()
}

#[test]
fn a_pair_whose_chain_dies_has_the_next_best_and_no_other_pair_is_touched() {
    let mut network = ladder();
    let (untouched, mut book) = (planned(&network), planned(&network));
    assert_eq!(all_ways(&book)[&(1, 5)][2][0], [1, 2, 5]);
    let held = book.stamp();
    set(&mut network, 2, 5, None);
    let over = pairs_over(&book, is_between(2, 5));
    let repaired = book.repair(&network, &[], at(1));
    assert_eq!((repaired.pairs, repaired.changed), (over.len(), true));
    assert_eq!(all_ways(&book)[&(1, 5)][2][0], [1, 3, 5]);
    assert_eq!(all_ways(&book)[&(2, 5)][2][0], [2, 1, 5]);
    assert_eq!(pairs_over(&book, is_between(2, 5)), [].into());
    assert_eq!(differing(&untouched, &book), over);
    for node in 1..=5 {
        let rows = book.rows(node, Some(held)).unwrap();
        let mut told = rows.ways.iter().map(|ways| (node, ways.egress));
        assert!(told.all(|ends| over.contains(&ends)));
    }
    assert_eq!(book.repair(&network, &[], at(2)), Repaired::default());
}

#[test]
fn who_has_no_other_chain_has_the_direct_hop_or_one_by_a_node() {
    // By 3 it is no better than without a node.
    let whole = of_links(
        4,
        &[(1, 4, 100), (1, 2, 40), (2, 4, 40), (1, 3, 98), (3, 4, 98)],
    );
    let mut network = whole.clone();
    let mut book = planned(&network);
    set(&mut network, 1, 2, None);
    book.repair(&network, &[], at(1));
    assert_eq!(all_ways(&book)[&(1, 4)][0][0], [1, 4]);
    set(&mut network, 1, 4, None);
    book.repair(&network, &[], at(2));
    assert_eq!(all_ways(&book)[&(1, 4)][0], [[1, 3, 4]]);
    set(&mut network, 3, 4, None);
    assert!(book.repair(&network, &[], at(3)).changed);
    assert_eq!(all_ways(&book).get(&(1, 4)), None);
    // There is nothing to repair for pairs without ways: that is for plans.
    assert!(!book.repair(&whole, &[], at(4)).changed);
    assert!(book.plan(&whole, at(5)));
    assert_eq!(all_ways(&book)[&(1, 4)][2][0], [1, 2, 4]);
}

#[test]
fn repaired_chains_have_no_more_hops_than_planned_ones() {
    let settings = Settings {
        hops_max: 1,
        ..settings()
    };
    let mut network = ladder();
    let mut book = Book::new(settings, &Saved::default(), at(0));
    book.plan(&network, at(0));
    set(&mut network, 1, 5, None);
    assert!(book.repair(&network, &[], at(1)).changed);
    assert_eq!(all_ways(&book).get(&(1, 5)), None);
}

#[test]
fn a_node_that_is_gone_is_in_no_ways_and_the_others_go_around_it() {
    let mut book = planned(&ladder());
    let gone = |ends: Ends| ends.0 == 2 || ends.1 == 2;
    assert!(pairs_over(&book, gone).contains(&(1, 5)));
    assert!(book.repair(&without(&ladder(), 1), &[], at(1)).changed);
    assert_eq!(pairs_over(&book, gone), [].into());
    assert_eq!(all_ways(&book)[&(1, 5)][2][0], [1, 3, 5]);
    assert!(!all_ways(&book).contains_key(&(1, 2)));
    let rows = book
        .rows(
            1,
            Some(Stamp {
                epoch: 1,
                version: 1,
            }),
        )
        .unwrap();
    assert_eq!(rows.ways_gone, [2]);
    assert_eq!(book.beside_in_chains(2), [].into());
}

#[test]
fn a_chain_that_is_whole_again_comes_back_with_its_number() {
    let network = ladder();
    let mut book = planned(&network);
    let before = book.rows(1, None).unwrap();
    let mut broken = network.clone();
    set(&mut broken, 2, 5, None);
    book.repair(&broken, &[], at(1));
    assert!(
        !book.repair(&network, &[], at(2)).changed,
        "that is for plans"
    );
    assert!(book.plan(&network, at(3)));
    assert_eq!(all_ways(&book), all_ways(&planned(&network)));
    let after = book.rows(1, None).unwrap();
    let kept = before
        .chains
        .iter()
        .all(|chain| after.chains.contains(chain));
    assert!(kept, "chains and numbers stay");
}

#[test]
fn a_link_that_became_much_worse_is_left_where_there_is_better() {
    let mut network = ladder();
    let mut book = planned(&network);
    set(&mut network, 5, 2, Some(300));
    assert_eq!(
        book.repair(&network, &[], at(1)),
        Repaired::default(),
        "nobody said so"
    );
    let over = pairs_over(&book, is_between(2, 5));
    let repaired = book.repair(&network, &[(5, 2), (7, 9)], at(2));
    assert_eq!(repaired.pairs, over.len());
    assert_eq!(all_ways(&book)[&(1, 5)][2][0], [1, 3, 5]);
    // It is the only link of 2 to 5, and the way by 1 is shorter.
    assert_eq!(all_ways(&book)[&(2, 5)][2][0], [2, 1, 5]);
    assert!(!book.repair(&network, &[(2, 5)], at(3)).changed);
}

#[test]
fn before_the_first_plan_there_is_nothing_to_repair() {
    let mut book = Book::new(settings(), &planned(&ladder()).saved(), at(0));
    let stamp = book.stamp();
    assert_eq!(book.repair(&ladder(), &[], at(1)), Repaired::default());
    assert_eq!((book.stamp(), book.rows(1, None)), (stamp, None));
}

/// How long a transfer of each class takes over the first choice of a pair.
fn times_us(book: &Book, network: &Network, classes: &[Vec<Vec<NodeNumber>>]) -> Vec<u64> {
    let planner = Planner::new(&network.matrix, Model::default(), Limits::default());
    let sorted = &book.settings.classes;
    let access = sorted.access_us().len();
    let times = classes.iter().enumerate().map(|(class, choices)| {
        let place = |node: &NodeNumber| network.nodes.binary_search(node).unwrap();
        let nodes = choices[0]
            .iter()
            .map(|node| u16::try_from(place(node)).unwrap());
        let transfer = Transfer {
            bytes: sorted.sizes()[class / access],
            access_us: sorted.access_us()[class % access],
        };
        let time = planner.time_us(&nodes.collect::<Vec<u16>>(), transfer);
        time.expect("every link is there")
    });
    times.collect()
}

/// Every way is whole, and every pair has one that a link or two lead between, or a chain in its rows.
fn check_whole(book: &Book, network: &Network, had_ways: &BTreeSet<Ends>) {
    let link = |(one, other): Ends| {
        let place = |node| network.nodes.binary_search(&node).ok();
        let (one, other) = place(one).zip(place(other))?;
        network.matrix.link(one, other)
    };
    let ways = all_ways(book);
    for nodes in ways.values().flatten().flatten() {
        let whole = nodes
            .windows(2)
            .all(|ends| link((ends[0], ends[1])).is_some());
        assert!(whole, "{nodes:?} has a dead link");
    }
    for &(from, to) in had_ways.iter().filter(|ends| !ways.contains_key(ends)) {
        let by = |node| link((from, node)).is_some() && link((node, to)).is_some();
        assert!(!network.nodes.iter().any(|node| by(*node)), "{from} {to}");
        assert!(link((from, to)).is_none(), "{from} {to}");
        if !network.nodes.contains(&from) || !network.nodes.contains(&to) {
            continue;
        }
        for chain in book.rows(from, None).unwrap().chains {
            let ends = (chain.nodes[0], chain.nodes[chain.nodes.len() - 1]);
            let mut hops = chain.nodes.windows(2);
            assert!(ends != (from, to) || hops.any(|ends| link((ends[0], ends[1])).is_none()));
        }
    }
}

/// A plan is as fast as a new one, or nearly if it `owes` something to what was in use.
fn check_as_good(book: &Book, fresh: &Book, network: &Network, owes: bool) {
    let (ways, new) = (all_ways(book), all_ways(fresh));
    assert!(ways.keys().eq(new.keys()));
    for (ends, classes) in &ways {
        let times = times_us(book, network, classes).into_iter();
        for (time, best) in times.zip(times_us(book, network, &new[ends])) {
            let gives_way = book.settings.rules.gives_way(time, best);
            assert!(!gives_way || (!owes && time == best), "{ends:?}");
        }
    }
}

/// Rules that keep what is in use, or such that plans are as fast as new ones.
fn settings_that_keep(keeps: bool) -> Settings {
    let rules = Rules {
        margin_percent: 0,
        better_percent: 0,
        better_us: 0,
        worse_percent: 0,
        apart_percent: 0,
        apart_us: 0,
    };
    Settings {
        rules: if keeps { Rules::default() } else { rules },
        ..settings()
    }
}

/// Links die, or become others: which.
fn disturb(rng: &mut Rng, network: &mut Network) -> Vec<Ends> {
    let mut worse = Vec::new();
    for _ in 0..=rng.below(3) {
        let (one, other) = (rng.below(9) as usize, rng.below(9) as usize);
        if one == other {
            continue;
        }
        if rng.once_in(2) {
            network.matrix.set_both(one, other, None).unwrap();
        } else {
            change(rng, network, one, other);
            worse.push((network.nodes[one], network.nodes[other]));
        }
    }
    worse
}

/// Writes tables of what was down, and repairs what is written each time that it is left off: how often.
fn adopt(
    rng: &mut Rng,
    book: &mut Book,
    mut adoption: Adoption,
    (network, worse): (&Network, &[Ends]),
    second: u64,
) -> usize {
    let mut interrupted = 0;
    while !adoption.is_over() {
        let mut left = rng.below(9);
        book.adopt(&mut adoption, at(second), || {
            left = left.saturating_sub(1);
            left > 0
        });
        interrupted += usize::from(!adoption.is_over());
        book.repair(network, worse, at(second));
        check_whole(book, network, &[].into());
    }
    interrupted
}

/// Links die and become worse between plans, also while tables are written down. Repaired plans are whole,
/// nodes that follow changes have what those have that are told all, pairs without such links stay as they
/// are, and the next plan is as good as one that was never repaired.
#[test]
fn whatever_dies_repairs_leave_whole_plans_and_the_next_plan_owes_them_nothing() {
    let (mut repairs, mut interrupted) = (0, 0);
    simulate(12, |mut rng| {
        let owes = rng.once_in(2);
        let settings = settings_that_keep(owes);
        let fresh = |network: &Network| {
            let mut book = Book::new(settings.clone(), &Saved::default(), at(0));
            book.plan(network, at(0));
            book
        };
        let mut network = network(&mut rng, 9);
        let mut book = fresh(&network);
        let mut nodes: Vec<Held> = (1..=9).map(Held::new).collect();
        for second in 1..40 {
            let old = network.clone();
            let worse = disturb(&mut rng, &mut network);
            // Tables of what was may be on their way.
            if rng.once_in(3) {
                let adoption = Adoption::new(old.clone(), settings.tables(&old));
                interrupted += adopt(&mut rng, &mut book, adoption, (&network, &worse), second);
            }
            let present = if rng.once_in(4) {
                without(&network, rng.below(9) as usize)
            } else {
                network.clone()
            };
            let before = all_ways(&book);
            let dead = |(one, other): Ends| {
                let place = |node| present.nodes.binary_search(&node).ok();
                let ends = place(one).zip(place(other));
                ends.is_none_or(|(one, other)| present.matrix.link(one, other).is_none())
                    || worse.contains(&(one, other))
                    || worse.contains(&(other, one))
            };
            let over = pairs_over(&book, dead);
            let repaired = book.repair(&present, &worse, at(second));
            repairs += usize::from(repaired.changed);
            check_whole(&book, &present, &before.keys().copied().collect());
            let after = all_ways(&book);
            for ends in before.keys().filter(|ends| !over.contains(ends)) {
                assert_eq!(before[ends], after[ends], "{ends:?}");
            }
            if rng.once_in(3) {
                book.plan(&present, at(second));
                check_as_good(&book, &fresh(&present), &present, owes);
            }
            for held in nodes.iter_mut().filter(|_| !rng.once_in(3)) {
                let rows = book.rows(held.node(), held.stamp()).unwrap();
                if held.stamp() != Some(rows.stamp) {
                    held.apply(&rows).unwrap();
                }
                assert_eq!(held.whole(), book.rows(held.node(), None));
            }
            let told = nodes.iter().filter(|held| held.stamp().is_some());
            check_numbers(&told.collect::<Vec<_>>());
        }
    });
    let seen = format!("{repairs} repairs, {interrupted} times left off");
    assert!(repairs > 150 && interrupted > 150, "{seen}");
}
