// SPDX-License-Identifier: Apache-2.0
//! How long a controller takes to write a plan down and to make the rows of all nodes from it, without
//! the planning itself, which `cargo bench -p posthaste-plan` measures; and how long a node takes to
//! follow, and to look ways up; and to repair a plan.
//!
//! Before its own figures it prints, for each number of nodes, how long a thread's processor worked: other
//! work of the machine counts less there.
//!
//! The matrix is that of `detours` there: random places, each link stretched by chance.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use posthaste_control::frame;
use posthaste_control::message::{NodeNumber, PlanVersion, RouteUpdate, ToNode};
use posthaste_control::rib::{Network, Repaired, Rib, Rollout, Settings};
use posthaste_control::route_table::RouteTable;
use posthaste_plan::table::Table;
use posthaste_plan::{Link, Matrix};
use posthaste_testkit::Rng;

/// What a chain pays for a node, in microseconds.
const NODE_COST_US: u32 = 500;

/// Nodes on a square of 100 ms, with links stretched by up to a half, and by `noise` more.
fn network(nodes: usize, noise: f64) -> Network {
    let (mut rng, mut other) = (Rng::new(1), Rng::new(2));
    let places: Vec<(f64, f64)> = (0..nodes).map(|_| (rng.uniform(), rng.uniform())).collect();
    let mut matrix = Matrix::new(nodes).expect("few nodes");
    for one in 0..nodes {
        matrix.set_cost(one, NODE_COST_US).expect("a short time");
        for two in 0..one {
            let (across, along) = (places[one].0 - places[two].0, places[one].1 - places[two].1);
            let stretch = 1.0 + 0.5 * rng.uniform() + noise * other.uniform();
            let rtt_us = 300.0 + 100_000.0 * across.hypot(along) * stretch;
            let link = Some(Link::of_nodes(whole(rtt_us)));
            matrix.set_both(one, two, link).expect("a short time");
        }
    }
    Network {
        nodes: (1..).take(nodes).collect(),
        matrix,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive and small"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

/// A network and its tables, which are none of our business.
struct Planned {
    network: Network,
    tables: Vec<Table>,
}

fn planned(settings: &Settings, nodes: usize, noise: f64) -> Planned {
    let network = network(nodes, noise);
    let tables = settings.tables(&network);
    Planned { network, tables }
}

impl Planned {
    fn rollout(&self) -> Rollout {
        Rollout::new(self.network.clone(), self.tables.clone())
    }
}

fn rib(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("RIB");
    group.sample_size(10);
    let settings = Settings::default();
    for nodes in [115, 1000] {
        let (first, next) = (
            planned(&settings, nodes, 0.0),
            planned(&settings, nodes, 0.02),
        );
        let empty = || Rib::new(settings.clone(), PlanVersion::default());
        group.bench_function(BenchmarkId::new("first plan", nodes), |bencher| {
            let plan = |(mut rib, mut rollout): (Rib, Rollout)| {
                rib.roll_out(&mut rollout, || true);
                rib
            };
            let begin = || (empty(), first.rollout());
            bencher.iter_batched(begin, plan, BatchSize::PerIteration);
        });
        let (mut rib, mut rollout) = (empty(), first.rollout());
        let first_plan = worked(|| rib.roll_out(&mut rollout, || true));
        let held = rib.plan_version();
        let numbers = first.network.nodes.clone();
        let all = |rib: &Rib, holds| {
            let update = |node: &NodeNumber| {
                rib.update(*node, holds)
                    .map_or(0, |update| update.routes.len())
            };
            numbers.iter().map(update).sum::<usize>()
        };
        group.bench_function(BenchmarkId::new("all rows, whole", nodes), |bencher| {
            bencher.iter(|| all(&rib, None));
        });
        let whole = worked(|| {
            black_box(all(&rib, None));
        });
        let mut bytes = 0;
        let encode = worked(|| bytes = encoded(&rib, &numbers));
        let near = worked(|| {
            let near = numbers.iter().map(|node| rib.neighbours(*node).len());
            black_box(near.sum::<usize>());
        });
        let before = rib.chain_count();
        let mut rollout = next.rollout();
        let another = worked(|| rib.roll_out(&mut rollout, || true));
        let changes = worked(|| {
            black_box(all(&rib, Some(held)));
        });
        let after = rib.chain_count();
        println!(
            "{nodes} nodes, of the processor: first plan took {first_plan:?}, all rows {whole:?}, with \
             encoding {encode:?}, all neighbours {near:?}, another plan {another:?}, all changes {changes:?}; \
             {before} chains, {after} with another plan; {} MB of rows, {} MB of memory at most",
            bytes / 1_000_000,
            peak_mb()
        );
        group.bench_function(BenchmarkId::new("all rows, changes", nodes), |bencher| {
            bencher.iter(|| all(&rib, Some(held)));
        });
        look_up(&mut group, &rib, nodes);
        repair(&mut rib, &next.network);
    }
    group.finish();
}

/// The link that most chains lead over dies, and then the node that most chains pass.
fn repair(rib: &mut Rib, network: &Network) {
    let (mut passed, mut used) = (BTreeMap::new(), BTreeMap::new());
    for from in &network.nodes {
        let update = rib.update(*from, None).expect("there is a plan");
        for (egress, inner) in chains_of(&update) {
            let nodes = [&[*from], inner, &[egress]].concat();
            inner
                .iter()
                .for_each(|node| *passed.entry(*node).or_insert(0) += 1);
            for ends in nodes.windows(2) {
                *used.entry((ends[0], ends[1])).or_insert(0) += 1;
            }
        }
    }
    let busiest = passed.into_iter().max_by_key(|(_, count)| *count);
    let (busiest, _) = busiest.expect("there are chains");
    let beside = used.into_iter().filter(|((one, _), _)| *one == busiest);
    let most = beside
        .max_by_key(|(_, count)| *count)
        .map(|((_, other), _)| (other, ()));
    let place = |number| network.nodes.iter().position(|node| *node == number);
    let (one, other) = (
        place(busiest),
        place(most.map_or(busiest, |(node, _)| node)),
    );
    let (one, other) = one.zip(other).expect("they are there");
    let mut network = network.clone();
    let all: Vec<usize> = (0..network.nodes.len()).collect();
    let mut died = |what: &str, others: &[usize]| {
        for &other in others.iter().filter(|other| **other != one) {
            network
                .matrix
                .set_both(one, other, None)
                .expect("two nodes");
        }
        let (mut repaired, held) = (Repaired::default(), rib.plan_version());
        let took = worked(|| repaired = rib.repair(&network, &[]));
        let update = worked(|| {
            let all = network
                .nodes
                .iter()
                .map(|node| rib.update(*node, Some(held)));
            black_box(all.count());
        });
        let pairs = repaired.pairs;
        println!(
            "{} nodes, of the processor: repair after a {what} died {took:?}, for {pairs} pairs; all \
             changes {update:?}",
            network.nodes.len()
        );
    };
    died("link", &[other]);
    died("node", &all);
}

/// The chains of a node with nodes between its ends: of each the egress and those nodes.
fn chains_of(update: &RouteUpdate) -> impl Iterator<Item = (NodeNumber, &[NodeNumber])> {
    let all = update.routes.iter().flat_map(|routes| {
        let chains = routes.chains.iter();
        chains.map(|nodes| (routes.egress, nodes.as_slice()))
    });
    all.filter(|(_, nodes)| !nodes.is_empty())
}

/// How long this thread's processor works on something.
fn worked(what: impl FnOnce()) -> Duration {
    let ran = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
        let first = text.split(' ').next().expect("three numbers");
        Duration::from_nanos(first.parse().expect("nanoseconds"))
    };
    let before = ran();
    what();
    ran() - before
}

/// The most memory that this process had, in megabytes.
fn peak_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes.map_or(0, |number| number.parse().unwrap_or(0)) / 1024
}

/// How many bytes the rows of all nodes have on their streams.
fn encoded(rib: &Rib, nodes: &[NodeNumber]) -> usize {
    let update = nodes.iter().filter_map(|node| rib.update(*node, None));
    let mut frame = Vec::new();
    let mut bytes = 0;
    for update in update {
        frame.clear();
        frame::write(&ToNode::RouteUpdate(update), &mut frame).expect("they are bounded");
        bytes += frame.len();
    }
    bytes
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn look_up(group: &mut Group<'_>, rib: &Rib, nodes: usize) {
    let update = rib.update(1, None).expect("there is a plan");
    let held = || RouteTable::new(1);
    group.bench_function(BenchmarkId::new("follow all rows", nodes), |bencher| {
        let follow = |mut held: RouteTable| held.apply(&update).expect("they fit");
        bencher.iter_batched(held, follow, BatchSize::PerIteration);
    });
    let mut held = held();
    held.apply(&update).expect("they fit");
    let mut rng = Rng::new(3);
    let mut below = |bound: usize| whole(rng.uniform() * bound as f64 * 0.999_999);
    let questions: Vec<(u64, u64, u32)> = (0..4096)
        .map(|_| {
            (
                u64::from(2 + below(nodes - 1)),
                below(20_000_000).into(),
                below(60_000),
            )
        })
        .collect();
    let mut next = questions.iter().cycle();
    group.bench_function(BenchmarkId::new("look up", nodes), |bencher| {
        bencher.iter(|| {
            let &(egress, bytes, access_us) = next.next().expect("it goes on for ever");
            let class = held.class(bytes, access_us).expect("there is a plan");
            let chain = held.routes(egress, class).next();
            black_box(chain.map(|nodes| nodes.first().copied()))
        });
    });
}

criterion_group!(benches, rib);
criterion_main!(benches);
