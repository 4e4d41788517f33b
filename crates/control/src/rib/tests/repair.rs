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

fn planned(network: &Network) -> Rib {
    let mut rib = new_rib();
    rib.plan(network);
    rib
}

/// An ordered pair of nodes.
type Ends = (NodeNumber, NodeNumber);

/// The ways of all pairs: by class, the nodes of each choice.
fn all_routes(rib: &Rib) -> BTreeMap<Ends, Vec<Vec<Vec<NodeNumber>>>> {
    let mut all = BTreeMap::new();
    for &index in rib.indexes.order() {
        let from = rib.indexes.node(index);
        let update = rib.update(from, None).unwrap();
        for routes in update.routes {
            let nodes = |place: &u8| {
                let inner = &routes.chains[usize::from(*place)];
                [&[from], &inner[..], &[routes.egress]].concat()
            };
            let choices = routes.classes.iter().map(|choice| {
                let choice = routes.choices[usize::from(*choice)].iter();
                choice.map(nodes).collect()
            });
            all.insert((from, routes.egress), choices.collect());
        }
    }
    all
}

/// The pairs with ways over links of this kind.
fn pairs_over(rib: &Rib, is_such: impl Fn(Ends) -> bool) -> BTreeSet<Ends> {
    let over = |nodes: &Vec<NodeNumber>| nodes.windows(2).any(|ends| is_such((ends[0], ends[1])));
    let all = all_routes(rib).into_iter();
    let over = all.filter(|(_, classes)| classes.iter().flatten().any(over));
    over.map(|(ends, _)| ends).collect()
}

fn is_between(one: NodeNumber, other: NodeNumber) -> impl Fn(Ends) -> bool {
    move |ends| ends == (one, other) || ends == (other, one)
}

/// The pairs whose ways are others, or went.
fn differing(before: &Rib, after: &Rib) -> BTreeSet<Ends> {
    let (before, after) = (all_routes(before), all_routes(after));
    let ends = before
        .keys()
        .filter(|ends| before.get(ends) != after.get(ends));
    ends.copied().collect()
}

// promise: V14
#[test]
fn dead_chain_falls_back() {
    let mut network = ladder();
    let (untouched, mut rib) = (planned(&network), planned(&network));
    assert_eq!(all_routes(&rib)[&(1, 5)][2][0], [1, 2, 5]);
    let held = rib.plan_version();
    set(&mut network, 2, 5, None);
    let over = pairs_over(&rib, is_between(2, 5));
    let repaired = rib.repair(&network, &[]);
    assert_eq!((repaired.pairs, repaired.changed), (over.len(), true));
    assert_eq!(all_routes(&rib)[&(1, 5)][2][0], [1, 3, 5]);
    assert_eq!(all_routes(&rib)[&(2, 5)][2][0], [2, 1, 5]);
    assert_eq!(pairs_over(&rib, is_between(2, 5)), [].into());
    assert_eq!(differing(&untouched, &rib), over);
    for node in 1..=5 {
        let update = rib.update(node, Some(held)).unwrap();
        let mut sent = update.routes.iter().map(|routes| (node, routes.egress));
        assert!(sent.all(|ends| over.contains(&ends)));
    }
    assert_eq!(rib.repair(&network, &[]), Repaired::default());
}

// promise: V14
#[test]
fn fallback_direct_or_one_node() {
    // By 3 it is no better than without a node.
    let whole = of_links(
        4,
        &[(1, 4, 100), (1, 2, 40), (2, 4, 40), (1, 3, 98), (3, 4, 98)],
    );
    let mut network = whole.clone();
    let mut rib = planned(&network);
    set(&mut network, 1, 2, None);
    rib.repair(&network, &[]);
    assert_eq!(all_routes(&rib)[&(1, 4)][0][0], [1, 4]);
    set(&mut network, 1, 4, None);
    rib.repair(&network, &[]);
    assert_eq!(all_routes(&rib)[&(1, 4)][0], [[1, 3, 4]]);
    set(&mut network, 3, 4, None);
    assert!(rib.repair(&network, &[]).changed);
    assert_eq!(all_routes(&rib).get(&(1, 4)), None);
    // There is nothing to repair for pairs without ways: that is for plans.
    assert!(!rib.repair(&whole, &[]).changed);
    assert!(rib.plan(&whole));
    assert_eq!(all_routes(&rib)[&(1, 4)][2][0], [1, 2, 4]);
}

#[test]
fn repairs_respect_hop_limit() {
    let settings = Settings {
        hops_max: 1,
        ..settings()
    };
    let mut network = ladder();
    let mut rib = Rib::new(settings, PlanVersion::default());
    rib.plan(&network);
    set(&mut network, 1, 5, None);
    assert!(rib.repair(&network, &[]).changed);
    assert_eq!(all_routes(&rib).get(&(1, 5)), None);
}

// promise: V14
#[test]
fn removed_node_avoided() {
    let mut rib = planned(&ladder());
    let removed = |ends: Ends| ends.0 == 2 || ends.1 == 2;
    assert!(pairs_over(&rib, removed).contains(&(1, 5)));
    assert!(rib.repair(&without(&ladder(), 1), &[]).changed);
    assert_eq!(pairs_over(&rib, removed), [].into());
    assert_eq!(all_routes(&rib)[&(1, 5)][2][0], [1, 3, 5]);
    assert!(!all_routes(&rib).contains_key(&(1, 2)));
    let update = rib
        .update(
            1,
            Some(PlanVersion {
                epoch: 1,
                version: 1,
            }),
        )
        .unwrap();
    assert_eq!(update.routes_removed, [2]);
    assert_eq!(rib.beside_in_chains(2), [].into());
}

// promise: V14
#[test]
fn restored_link_used_again() {
    let network = ladder();
    let mut rib = planned(&network);
    let mut broken = network.clone();
    set(&mut broken, 2, 5, None);
    rib.repair(&broken, &[]);
    assert!(!rib.repair(&network, &[]).changed, "that is for plans");
    assert!(rib.plan(&network));
    assert_eq!(all_routes(&rib), all_routes(&planned(&network)));
}

// promise: V14
#[test]
fn worse_link_replaced_where_better() {
    let mut network = ladder();
    let mut rib = planned(&network);
    set(&mut network, 5, 2, Some(300));
    assert_eq!(
        rib.repair(&network, &[]),
        Repaired::default(),
        "it was not reported"
    );
    let over = pairs_over(&rib, is_between(2, 5));
    let repaired = rib.repair(&network, &[(5, 2), (7, 9)]);
    assert_eq!(repaired.pairs, over.len());
    assert_eq!(all_routes(&rib)[&(1, 5)][2][0], [1, 3, 5]);
    // It is the only link of 2 to 5, and the way by 1 is shorter.
    assert_eq!(all_routes(&rib)[&(2, 5)][2][0], [2, 1, 5]);
    assert!(!rib.repair(&network, &[(2, 5)]).changed);
}

#[test]
fn no_repair_before_plan() {
    let mut rib = Rib::new(settings(), planned(&ladder()).plan_version());
    let plan_version = rib.plan_version();
    assert_eq!(rib.repair(&ladder(), &[]), Repaired::default());
    assert_eq!(
        (rib.plan_version(), rib.update(1, None)),
        (plan_version, None)
    );
}

/// How long a transfer of each class takes over the first choice of a pair.
fn times_us(rib: &Rib, network: &Network, classes: &[Vec<Vec<NodeNumber>>]) -> Vec<u64> {
    let planner = Planner::new(&network.matrix, Model::default(), Limits::default());
    let sorted = &rib.settings.classes;
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

/// The chains that a pair used before, with their ends.
fn recent_chains(rib: &Rib, (from, to): Ends) -> Vec<Vec<NodeNumber>> {
    let Some((first, last)) = rib.indexes.of(from).zip(rib.indexes.of(to)) else {
        return Vec::new();
    };
    let pair = &rib.pairs[usize::from(first)][usize::from(last)];
    let chains = pair.recent.iter().map(|chain| {
        let inner = chain.inner().iter().map(|index| rib.indexes.node(*index));
        std::iter::once(from).chain(inner).chain([to]).collect()
    });
    chains.collect()
}

/// From 1 to 5 by two chains of three hops, and by nothing shorter.
// promise: V14
#[test]
fn recent_chain_used_again() {
    let links = [
        (1, 2, 10),
        (2, 3, 10),
        (3, 5, 10),
        (1, 4, 15),
        (4, 6, 15),
        (6, 5, 15),
    ];
    let mut network = of_links(6, &links);
    let mut rib = planned(&network);
    assert_eq!(all_routes(&rib)[&(1, 5)][0][0], [1, 2, 3, 5]);
    set(&mut network, 2, 3, Some(100));
    assert!(rib.plan(&network));
    assert_eq!(all_routes(&rib)[&(1, 5)][0][0], [1, 4, 6, 5]);
    // The former one is not a chain of two hops, and not in use.
    set(&mut network, 2, 3, Some(10));
    set(&mut network, 4, 6, None);
    assert!(rib.repair(&network, &[]).changed);
    assert_eq!(all_routes(&rib)[&(1, 5)][0][0], [1, 2, 3, 5]);
}

/// Every route is whole, and every pair has one that a link or two lead between, or that it had recently.
fn check_whole(rib: &Rib, network: &Network, had_routes: &BTreeSet<Ends>) {
    let link = |(one, other): Ends| {
        let place = |node| network.nodes.binary_search(&node).ok();
        let (one, other) = place(one).zip(place(other))?;
        network.matrix.link(one, other)
    };
    let routes = all_routes(rib);
    for nodes in routes.values().flatten().flatten() {
        let whole = nodes
            .windows(2)
            .all(|ends| link((ends[0], ends[1])).is_some());
        assert!(whole, "{nodes:?} has a dead link");
    }
    for &(from, to) in had_routes.iter().filter(|ends| !routes.contains_key(ends)) {
        let by = |node| link((from, node)).is_some() && link((node, to)).is_some();
        assert!(!network.nodes.iter().any(|node| by(*node)), "{from} {to}");
        assert!(link((from, to)).is_none(), "{from} {to}");
        for nodes in recent_chains(rib, (from, to)) {
            let mut hops = nodes.windows(2);
            assert!(
                hops.any(|ends| link((ends[0], ends[1])).is_none()),
                "{nodes:?}"
            );
        }
    }
}

/// A plan is as fast as a new one, or nearly if it `owes` something to what was in use.
fn check_as_good(rib: &Rib, fresh: &Rib, network: &Network, owes: bool) {
    let (routes, new) = (all_routes(rib), all_routes(fresh));
    assert!(routes.keys().eq(new.keys()));
    for (ends, classes) in &routes {
        let times = times_us(rib, network, classes).into_iter();
        for (time, best) in times.zip(times_us(rib, network, &new[ends])) {
            let gives_way = rib.settings.rules.gives_way(time, best);
            assert!(!gives_way || (!owes && time == best), "{ends:?}");
        }
    }
}

/// Rules that keep what is in use, or such that plans are as fast as new ones.
fn settings_that_keep(keeps: bool) -> Settings {
    let rules = Rules {
        margin_percent: 0,
        switch_gain_percent: 0,
        better_us: 0,
        switch_loss_percent: 0,
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
        let (one, other) = (rng.below(9), rng.below(9));
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
fn roll_out(
    rng: &mut Rng,
    rib: &mut Rib,
    mut rollout: Rollout,
    (network, worse): (&Network, &[Ends]),
) -> usize {
    let mut interrupted = 0;
    while !rollout.is_over() {
        let mut left: u32 = rng.below(9);
        rib.roll_out(&mut rollout, || {
            left = left.saturating_sub(1);
            left > 0
        });
        interrupted += usize::from(!rollout.is_over());
        rib.repair(network, worse);
        check_whole(rib, network, &[].into());
    }
    interrupted
}

/// Links die and become worse between plans, also while tables are written down. Repaired plans are whole,
/// nodes that follow changes have what those have that are sent all, pairs without such links stay as they
/// are, and the next plan is as good as one that was never repaired.
// promise: V14
#[test]
fn random_deaths_whole_plans() {
    let (mut repairs, mut interrupted) = (0, 0);
    simulate(12, |mut rng| {
        let owes = rng.once_in(2);
        let settings = settings_that_keep(owes);
        let fresh = |network: &Network| {
            let mut rib = Rib::new(settings.clone(), PlanVersion::default());
            rib.plan(network);
            rib
        };
        let mut network = network(&mut rng, 9);
        let mut rib = fresh(&network);
        let mut nodes: Vec<RouteTable> = (1..=9).map(RouteTable::new).collect();
        for _ in 1..40 {
            let old = network.clone();
            let worse = disturb(&mut rng, &mut network);
            // Tables of what was may be on their way.
            if rng.once_in(3) {
                let rollout = Rollout::new(old.clone(), settings.tables(&old));
                interrupted += roll_out(&mut rng, &mut rib, rollout, (&network, &worse));
            }
            let present = if rng.once_in(4) {
                without(&network, rng.below(9))
            } else {
                network.clone()
            };
            let before = all_routes(&rib);
            let dead = |(one, other): Ends| {
                let place = |node| present.nodes.binary_search(&node).ok();
                let ends = place(one).zip(place(other));
                ends.is_none_or(|(one, other)| present.matrix.link(one, other).is_none())
                    || worse.contains(&(one, other))
                    || worse.contains(&(other, one))
            };
            let over = pairs_over(&rib, dead);
            let repaired = rib.repair(&present, &worse);
            repairs += usize::from(repaired.changed);
            check_whole(&rib, &present, &before.keys().copied().collect());
            let after = all_routes(&rib);
            for ends in before.keys().filter(|ends| !over.contains(ends)) {
                assert_eq!(before[ends], after[ends], "{ends:?}");
            }
            if rng.once_in(3) {
                rib.plan(&present);
                check_as_good(&rib, &fresh(&present), &present, owes);
            }
            for held in nodes.iter_mut().filter(|_| !rng.once_in(3)) {
                let update = rib.update(held.node(), held.plan_version()).unwrap();
                if held.plan_version() != Some(update.plan_version) {
                    held.apply(&update).unwrap();
                }
                assert_eq!(held.whole(), rib.update(held.node(), None));
            }
            check_counts(&rib);
        }
    });
    let seen = format!("{repairs} repairs, {interrupted} times left off");
    assert!(repairs > 150 && interrupted > 150, "{seen}");
}
