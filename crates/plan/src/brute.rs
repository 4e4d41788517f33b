// SPDX-License-Identifier: Apache-2.0
//! Planning by enumerating every chain, and small random graphs on which both planners must agree.

use std::num::{NonZeroU32, NonZeroU64};

use crate::fronts::{Fronts, Limits, Measure, Precision};
use crate::matrix::{Link, Matrix};
use crate::model::{Mode, Model};
use crate::planner::{Planner, Transfer};
use crate::table::{CHOICES, Classes};
use posthaste_testkit::Rng;

/// Graphs per test.
const GRAPHS: u32 = 1500;

/// Length and longest hop, as in points.
type Cost = (u32, u32);

/// Every chain from one node to another that passes no node twice.
fn all_chains(matrix: &Matrix, from: u16, to: u16, hops_max: usize) -> Vec<Vec<u16>> {
    let mut whole = Vec::new();
    let mut open = vec![vec![from]];
    while let Some(chain) = open.pop() {
        let last = chain[chain.len() - 1];
        if last == to {
            whole.push(chain);
            continue;
        }
        if chain.len() > hops_max {
            continue;
        }
        let nodes = u16::try_from(matrix.nodes()).unwrap();
        for next in (0..nodes).filter(|next| !chain.contains(next)) {
            if matrix.link(last.into(), next.into()).is_some() {
                open.push([&chain[..], &[next]].concat());
            }
        }
    }
    whole
}

fn cost(matrix: &Matrix, model: &Model, measure: Measure, chain: &[u16]) -> Cost {
    let links = chain
        .windows(2)
        .map(|ends| matrix.link(ends[0].into(), ends[1].into()).unwrap());
    let key = |link: &Link| match measure {
        Measure::RoundTrip => u64::from(link.rtt_us),
        Measure::TimeFor(bytes) => model.time_us(link, bytes),
    };
    let costs: u32 = chain[1..chain.len() - 1]
        .iter()
        .map(|&node| matrix.cost_us(node.into()))
        .sum();
    let length: u64 = links.clone().map(|link| model.length_us(link)).sum();
    let longest = links.map(key).max().unwrap();
    (
        u32::try_from(length).unwrap() + costs,
        u32::try_from(longest).unwrap(),
    )
}

/// The costs that no other beats, by ascending longest hop.
fn unbeaten(mut costs: Vec<Cost>) -> Vec<Cost> {
    costs.sort_by_key(|&(length, longest)| (longest, length));
    let mut front: Vec<Cost> = Vec::new();
    for cost in costs {
        if front.last().is_none_or(|last| cost.0 < last.0) {
            front.push(cost);
        }
    }
    front
}

/// A random graph: directed or not, with or without ties, with missing links and all kinds of
/// costs.
fn random_matrix(rng: &mut Rng, links_differ: bool) -> Matrix {
    let nodes = 2 + rng.below(6);
    let mut matrix = Matrix::new(nodes).unwrap();
    let longest = [4, 12, 100_000][rng.below(3)];
    let missing = [0, 2, 6][rng.below(3)];
    let directed = rng.below(2) == 0;
    for from in 0..nodes {
        let cost = [0, 1, 50][rng.below(3)];
        matrix.set_cost(from, cost).unwrap();
        for to in 0..nodes {
            if to == from || (!directed && to > from) || rng.below(10) < missing {
                continue;
            }
            let link = random_link(rng, longest, links_differ);
            matrix.set(from, to, Some(link)).unwrap();
            if !directed {
                matrix.set(to, from, Some(link)).unwrap();
            }
        }
    }
    matrix
}

fn random_link(rng: &mut Rng, longest_us: u32, links_differ: bool) -> Link {
    let mut link = Link::of_rtt(rng.below(longest_us));
    if links_differ {
        link.loss_ppm = [0, 0, 100, 20_000][rng.below(4)];
        link.rate = [None, NonZeroU64::new(5_000_000)][rng.below(2)];
        link.window = [None, NonZeroU32::new(64)][rng.below(2)];
    }
    link
}

fn random_limits(rng: &mut Rng) -> Limits {
    let hops_max = [None, Some(1), Some(2), Some(3), Some(4), Some(5)];
    Limits {
        hops_max: hops_max[rng.below(6)],
        ..Limits::default()
    }
}

fn random_model(rng: &mut Rng) -> Model {
    Model {
        mode: [Mode::Early, Mode::Late][rng.below(2)],
        ..Model::default()
    }
}

/// Checks that every pair's front is that of all chains, and that its chains have the costs of
/// their points.
fn agree(matrix: &Matrix, model: &Model, measure: Measure, limits: Limits) -> usize {
    let fronts = Fronts::of(matrix, model, measure, limits);
    let hops_max = limits.hops_max.map_or(usize::MAX, usize::from);
    let nodes = u16::try_from(matrix.nodes()).unwrap();
    let mut points = 0;
    let mut chain = Vec::new();
    for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        let all = all_chains(matrix, from, to, hops_max);
        let costs = all.iter().map(|chain| cost(matrix, model, measure, chain));
        let expected = unbeaten(costs.collect());
        let mut found = Vec::new();
        for point in fronts.points(from.into(), to.into()) {
            fronts.chain(from.into(), to.into(), &point, &mut chain);
            assert!(all.contains(&chain), "{chain:?} in {matrix:?}");
            let message = (point.length_us, point.longest_us);
            assert_eq!(
                message,
                cost(matrix, model, measure, &chain),
                "{chain:?} in {matrix:?}"
            );
            found.push(message);
        }
        assert_eq!(found, expected, "{from} to {to}, {limits:?}, in {matrix:?}");
        points += found.len();
    }
    points
}

// promise: G1
#[test]
fn all_chains_none_beaten() {
    let mut rng = Rng::new(1);
    let mut points = 0;
    for _ in 0..GRAPHS {
        let matrix = random_matrix(&mut rng, false);
        let model = random_model(&mut rng);
        points += agree(&matrix, &model, Measure::RoundTrip, Limits::default());
    }
    assert!(points > 20_000, "only {points} points were compared");
}

// promise: G2
#[test]
fn bounded_chains_are_best() {
    let mut rng = Rng::new(2);
    for _ in 0..GRAPHS {
        let matrix = random_matrix(&mut rng, false);
        let limits = random_limits(&mut rng);
        agree(&matrix, &Model::default(), Measure::RoundTrip, limits);
    }
}

// promise: G2
#[test]
fn loss_and_rate_exact() {
    let mut rng = Rng::new(3);
    for _ in 0..GRAPHS {
        let matrix = random_matrix(&mut rng, true);
        let limits = random_limits(&mut rng);
        let measure = Measure::TimeFor(rng.below(3_000_000));
        agree(&matrix, &random_model(&mut rng), measure, limits);
    }
}

/// More nodes than one block: too many to enumerate every chain.
fn large_matrix(rng: &mut Rng, directed: bool) -> Matrix {
    let nodes = 17 + rng.below(24);
    let places: Vec<u32> = (0..nodes).map(|_| rng.below(60)).collect();
    let mut matrix = Matrix::new(nodes).unwrap();
    for from in 0..nodes {
        matrix.set_cost(from, rng.below(3) * 300).unwrap();
        for to in (0..nodes).filter(|to| *to < from || (directed && *to > from)) {
            // Few distinct round trips, so that all longest hops can be tried in turn.
            let apart = places[from].abs_diff(places[to]) / 4 + rng.below(6);
            let link = Some(Link::of_rtt((1 + apart) * 4000));
            matrix.set(from, to, link).unwrap();
            if !directed {
                matrix.set(to, from, link).unwrap();
            }
        }
    }
    matrix
}

/// The fronts from a node, by last node: for each bound of the longest hop the shortest chains of
/// at most so many hops.
fn fronts_from(matrix: &Matrix, from: usize, hops_max: usize) -> Vec<Vec<Cost>> {
    let mut rtts: Vec<u32> = matrix.links().map(|(_, _, link)| link.rtt_us).collect();
    rtts.sort_unstable();
    rtts.dedup();
    let mut fronts = vec![Vec::new(); matrix.nodes()];
    for longest in rtts {
        let mut lengths = vec![None; matrix.nodes()];
        lengths[from] = Some(0);
        for _ in 0..hops_max {
            let before = lengths.clone();
            let links = matrix.links().filter(|(_, _, link)| link.rtt_us <= longest);
            for (one, other, link) in links {
                let Some(length) = before[one] else { continue };
                let cost = if one == from { 0 } else { matrix.cost_us(one) };
                let length: u32 = length + link.rtt_us + cost;
                lengths[other] =
                    Some(lengths[other].map_or(length, |known: u32| known.min(length)));
            }
        }
        for (to, length) in lengths.into_iter().enumerate() {
            fronts[to].extend(
                length
                    .filter(|_| to != from)
                    .map(|length| (length, longest)),
            );
        }
    }
    fronts.into_iter().map(unbeaten).collect()
}

#[test]
fn many_nodes_exact() {
    let mut rng = Rng::new(8);
    for round in 0..12 {
        let matrix = large_matrix(&mut rng, round % 2 == 0);
        let hops_max = [None, Some(2), Some(4)][round % 3];
        let limits = Limits {
            hops_max,
            ..Limits::default()
        };
        let model = Model::default();
        let fronts = Fronts::of(&matrix, &model, Measure::RoundTrip, limits);
        let hops_max = hops_max.map_or_else(|| matrix.nodes(), usize::from);
        let mut chain = Vec::new();
        for from in 0..matrix.nodes() {
            for (to, expected) in fronts_from(&matrix, from, hops_max).iter().enumerate() {
                let mut found = Vec::new();
                for point in fronts.points(from, to) {
                    fronts.chain(from, to, &point, &mut chain);
                    assert!(chain.len() <= hops_max + 1);
                    let ends = [chain[0], chain[chain.len() - 1]].map(usize::from);
                    assert_eq!(ends, [from, to]);
                    found.push((point.length_us, point.longest_us));
                    let real = cost(&matrix, &model, Measure::RoundTrip, &chain);
                    assert_eq!(found.last(), Some(&real));
                }
                assert_eq!(&found, expected, "{from} to {to}, {limits:?}");
            }
        }
    }
}

/// The points of near chains are correct, they are few, and nearly as fast as any.
#[test]
fn near_chains_nearly_fast() {
    let mut rng = Rng::new(9);
    let (mut near_points, mut all_points) = (0, 0);
    for round in 0..10 {
        let matrix = large_matrix(&mut rng, round % 2 == 0);
        let model = Model::default();
        let planner = |precision| {
            let hops_max = Some(4);
            let limits = Limits {
                hops_max,
                precision,
            };
            Planner::new(&matrix, model, limits)
        };
        let (near, exact) = (planner(Precision::Near), planner(Precision::Exact));
        let (near_fronts, fronts) = (near.fronts(0), exact.fronts(0));
        let pairs = (0..matrix.nodes()).flat_map(|from| (0..from).map(move |to| (from, to)));
        let mut chain = Vec::new();
        for (from, to) in pairs.flat_map(|(from, to)| [(from, to), (to, from)]) {
            all_points += fronts.points(from, to).count();
            for point in near_fronts.points(from, to) {
                near_points += 1;
                near_fronts.chain(from, to, &point, &mut chain);
                let real = cost(&matrix, &model, Measure::RoundTrip, &chain);
                assert_eq!((point.length_us, point.longest_us), real);
                assert!(chain.len() <= 5);
            }
            for bytes in [0, 100_000, 10_000_000] {
                let transfer = Transfer {
                    bytes,
                    access_us: 0,
                };
                let (_, best) = exact.choose(&fronts, from, to, transfer).unwrap();
                let (_, time) = near.choose(&near_fronts, from, to, transfer).unwrap();
                assert!(
                    time <= best + best / 32 + 400,
                    "{time} for {best}, {from} to {to}"
                );
            }
        }
    }
    assert!(
        near_points * 10 < all_points * 9,
        "{near_points} of {all_points}"
    );
}

#[test]
fn threads_change_nothing() {
    let mut rng = Rng::new(10);
    for round in 0..GRAPHS / 15 {
        let matrix = random_matrix(&mut rng, round % 2 == 0);
        let planner = Planner::new(&matrix, Model::default(), random_limits(&mut rng));
        let classes = Classes::by_rounds(&Model::default());
        let tables = planner.tables(&classes);
        for threads in [2, 3, 20] {
            assert_eq!(planner.tables_by(&classes, threads), tables);
        }
    }
}

// promise: G4
#[test]
fn link_order_irrelevant() {
    let mut rng = Rng::new(4);
    for _ in 0..GRAPHS / 3 {
        let matrix = random_matrix(&mut rng, true);
        let links: Vec<_> = matrix.links().collect();
        let mut again = Matrix::new(matrix.nodes()).unwrap();
        for place in rng.permutation(links.len()) {
            let (from, to, link) = links[place];
            again.set(from, to, Some(*link)).unwrap();
        }
        for node in 0..matrix.nodes() {
            again.set_cost(node, matrix.cost_us(node)).unwrap();
        }
        let classes = Classes::new(&[10_000, 1_000_000], &[0, 20]).unwrap();
        let tables = |matrix: &Matrix| {
            Planner::new(matrix, Model::default(), Limits::default()).tables(&classes)
        };
        assert_eq!(tables(&matrix), tables(&again));
    }
}

// promise: G4
#[test]
fn node_numbers_irrelevant() {
    let mut rng = Rng::new(5);
    for _ in 0..GRAPHS / 3 {
        let matrix = random_matrix(&mut rng, false);
        let renamed = rng.permutation(matrix.nodes());
        let mut other = Matrix::new(matrix.nodes()).unwrap();
        for (from, to, link) in matrix.links() {
            other.set(renamed[from], renamed[to], Some(*link)).unwrap();
        }
        for (node, &name) in renamed.iter().enumerate() {
            other.set_cost(name, matrix.cost_us(node)).unwrap();
        }
        let fronts = |matrix: &Matrix| {
            Fronts::of(
                matrix,
                &Model::default(),
                Measure::RoundTrip,
                Limits::default(),
            )
        };
        let (fronts, others) = (fronts(&matrix), fronts(&other));
        for (from, to, _) in matrix.links() {
            let costs = |fronts: &Fronts, from, to| -> Vec<Cost> {
                let points = fronts.points(from, to);
                points
                    .map(|point| (point.length_us, point.longest_us))
                    .collect()
            };
            assert_eq!(
                costs(&fronts, from, to),
                costs(&others, renamed[from], renamed[to])
            );
        }
    }
}

/// For every pair and class, the table's first chain is as fast as the fastest of all chains; the
/// others are chains of the pair, and all differ.
// promise: G3
#[test]
fn tables_name_fastest_chain() {
    let mut rng = Rng::new(6);
    for round in 0..GRAPHS / 3 {
        let matrix = random_matrix(&mut rng, round % 2 == 0);
        let limits = random_limits(&mut rng);
        let hops_max = limits.hops_max.map_or(usize::MAX, usize::from);
        let planner = Planner::new(&matrix, random_model(&mut rng), limits);
        let access_us = [0, 3, 10_000];
        let classes = Classes::new(&[1_000, 100_000, 10_000_000], &access_us).unwrap();
        let tables = planner.tables(&classes);
        let pairs =
            (0..matrix.nodes()).flat_map(|from| (0..matrix.nodes()).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let ends = [from, to].map(|node| u16::try_from(node).unwrap());
            let all = all_chains(&matrix, ends[0], ends[1], hops_max);
            for (&bytes, access_us) in classes.sizes().iter().zip(access_us) {
                let transfer = Transfer { bytes, access_us };
                let time = |chain: &Vec<u16>| planner.time_us(chain, transfer).unwrap();
                let chains = tables[from].chains(to, classes.of(bytes, access_us));
                let whole = |inner: &[u16]| [&ends[..1], inner, &ends[1..]].concat();
                let chains: Vec<Vec<u16>> = chains.map(whole).collect();
                assert_eq!(
                    chains.first().map(&time),
                    all.iter().map(time).min(),
                    "{from} to {to}, {transfer:?}, {limits:?} in {matrix:?}"
                );
                assert!(chains.len() <= CHOICES && chains.iter().all(|chain| all.contains(chain)));
                assert!((1..chains.len()).all(|place| !chains[..place].contains(&chains[place])));
            }
        }
        assert_eq!(tables[0].chains(0, classes.of(0, 0)).count(), 0);
    }
}

/// Every pair has as many fall-backs as its front has points.
// promise: G3
#[test]
fn fallbacks_are_kept() {
    let mut rng = Rng::new(7);
    for _ in 0..GRAPHS / 3 {
        let matrix = random_matrix(&mut rng, false);
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let classes = Classes::by_rounds(&Model::default());
        let tables = planner.tables(&classes);
        let fronts = planner.fronts(0);
        for (from, to, _) in matrix.links() {
            let kept = tables[from].chains(to, classes.of(100_000, 0)).count();
            assert_eq!(kept, fronts.points(from, to).count().min(CHOICES));
        }
    }
}
