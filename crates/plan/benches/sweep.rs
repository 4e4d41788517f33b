// SPDX-License-Identifier: Apache-2.0
//! How long planning takes: the sweep, the tables of all nodes, and looking a chain up.
//!
//! The matrices are synthetic. `geo` is the great circle between random places, there and back in
//! fibre: no link is worse than a detour, and the sweep can pass none over. `detours` stretches each
//! link by chance, as routing does: most are beaten by a chain. Both with half a millisecond for each
//! node. `rate` gives every tenth link a low rate, so that each size is swept by itself.

use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use posthaste_plan::fronts::{Limits, Precision};
use posthaste_plan::matrix::INITIAL_BANDWIDTH;
use posthaste_plan::planner::Transfer;
use posthaste_plan::table::{Classes, Table};
use posthaste_plan::{Link, Matrix, Model, Planner};
use posthaste_testkit::Rng;

/// What a chain pays for a node, in microseconds.
const NODE_COST_US: u32 = 500;

/// Kilometres around the earth, and in a millisecond of fibre.
const RADIUS_KM: f64 = 6371.0;
const KM_PER_MS: f64 = 200.0;

/// Random places, as points on a ball.
fn places(count: usize, rng: &mut Rng) -> Vec<[f64; 3]> {
    let mut place = || {
        let (height, turn) = (
            2.0 * rng.uniform() - 1.0,
            std::f64::consts::TAU * rng.uniform(),
        );
        let radius = (1.0 - height * height).sqrt();
        [radius * turn.cos(), radius * turn.sin(), height]
    };
    (0..count).map(|_| place()).collect()
}

fn matrix(nodes: usize, stretch: impl Fn(&mut Rng, f64) -> Link) -> Matrix {
    let mut rng = Rng::new(1);
    let places = places(nodes, &mut rng);
    let mut matrix = Matrix::new(nodes).expect("few nodes");
    for one in 0..nodes {
        matrix.set_cost(one, NODE_COST_US).expect("a short time");
        for other in 0..one {
            let cosine: f64 = (0..3)
                .map(|axis| places[one][axis] * places[other][axis])
                .sum();
            let rtt_ms = 2.0 * RADIUS_KM * cosine.clamp(-1.0, 1.0).acos() / KM_PER_MS;
            let link = stretch(&mut rng, rtt_ms);
            matrix
                .set_both(one, other, Some(link))
                .expect("a short time");
        }
    }
    matrix
}

fn of_ms(rtt_ms: f64) -> Link {
    Link::of_rtt(whole(rtt_ms * 1e3))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive and small"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

/// A random number below `bound`.
fn below(rng: &mut Rng, bound: f64) -> u32 {
    whole(rng.uniform() * bound * 0.999_999)
}

fn geo(nodes: usize) -> Matrix {
    matrix(nodes, |_, rtt_ms| of_ms(rtt_ms))
}

/// Stretched by 1.2 and half the size of a normal number, of which twelve uniform ones make one.
fn detours(nodes: usize) -> Matrix {
    matrix(nodes, |rng, rtt_ms| {
        let normal = (0..12).map(|_| rng.uniform()).sum::<f64>() - 6.0;
        of_ms(rtt_ms * (1.2 + 0.5 * normal.abs()) + 0.3)
    })
}

fn rates(nodes: usize) -> Matrix {
    matrix(nodes, |rng, rtt_ms| Link {
        rate: (rng.uniform() < 0.1)
            .then_some(NonZeroU64::new(10_000_000))
            .flatten(),
        ..of_ms(rtt_ms * 1.2)
    })
}

/// Like `detours`, and every tenth link loses some packets.
fn losses(nodes: usize) -> Matrix {
    matrix(nodes, |rng, rtt_ms| Link {
        loss_ppm: if rng.uniform() < 0.1 {
            below(rng, 1e4)
        } else {
            0
        },
        ..of_ms(rtt_ms * (1.0 + rng.uniform()) + 0.3)
    })
}

/// Like `detours`, and a link is up to a twentieth longer than its reverse.
fn directed(nodes: usize) -> Matrix {
    let (mut matrix, mut rng) = (detours(nodes), Rng::new(3));
    for (from, to) in (0..nodes).flat_map(|from| (0..from).map(move |to| (from, to))) {
        let known = matrix.link(from, to).copied();
        let link = known.map(|link| Link {
            rtt_us: link.rtt_us + below(&mut rng, f64::from(link.rtt_us) / 20.0),
            ..link
        });
        matrix.set(from, to, link).expect("a short time");
    }
    matrix
}

/// A kind of matrix, by name.
type Kind = (&'static str, fn(usize) -> Matrix);

fn sweep(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sweep");
    group.sample_size(10);
    let kinds: [Kind; 2] = [("geo", geo), ("detours", detours)];
    for nodes in [115, 250, 500, 1000] {
        for (name, make) in kinds {
            let matrix = make(nodes);
            let planner = Planner::new(&matrix, Model::default(), Limits::default());
            group.bench_function(BenchmarkId::new(name, nodes), |bencher| {
                bencher.iter(|| planner.fronts(0));
            });
        }
    }
    let matrix = detours(115);
    let limits = Limits {
        hops_max: Some(4),
        ..Limits::default()
    };
    let planner = Planner::new(&matrix, Model::default(), limits);
    group.bench_function("detours, 4 hops/115", |bencher| {
        bencher.iter(|| planner.fronts(0));
    });
    group.finish();
}

/// The sweep, and everything that is chosen from it: tables of all nodes, for ten sizes and four
/// access links.
fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tables");
    group.sample_size(10);
    let model = Model::default();
    let classes = Classes::by_rounds(&model);
    let mut bench = |(name, make): Kind, nodes| {
        let matrix = make(nodes);
        let planner = Planner::new(&matrix, model, Limits::default());
        group.bench_function(BenchmarkId::new(name, nodes), |bencher| {
            bencher.iter(|| planner.tables(&classes));
        });
    };
    for nodes in [115, 500, 1000] {
        bench(("geo", geo), nodes);
        bench(("detours", detours), nodes);
    }
    // Ten sweeps: of more nodes they take minutes.
    bench(("rates", rates), 115);
    group.finish();
}

/// A pair, size and access link at random, and what of the chain makes its label.
fn look_up(criterion: &mut Criterion) {
    let model = Model::default();
    let classes = Classes::by_rounds(&model);
    for nodes in [115, 1000] {
        let matrix = detours(nodes);
        let planner = Planner::new(&matrix, model, Limits::default());
        let table = planner.tables(&classes).swap_remove(0);
        println!("the table of one of {nodes} nodes: {} bytes", table.bytes());
        let mut rng = Rng::new(2);
        let questions: Vec<_> = (0..4096)
            .map(|_| {
                let egress = below(&mut rng, nodes as f64) as usize;
                (egress, below(&mut rng, 2e7), below(&mut rng, 6e4))
            })
            .collect();
        let mut next = questions.iter().cycle();
        criterion.bench_function(&format!("look up/{nodes}"), |bencher| {
            bencher.iter(|| {
                let &(egress, bytes, access_us) = next.next().expect("it goes on for ever");
                let class = classes.of(bytes.into(), access_us);
                let chain = table.chains(egress, class).next().unwrap_or(&[]);
                black_box(chain.first().copied())
            });
        });
    }
}

/// The limits of a controller: nearly the best chains of four hops at most, between nodes that assume a rate.
/// Printed, as time of the thread's processor: a few runs are minutes.
fn controller(_: &mut Criterion) {
    let model = Model::default();
    let classes = Classes::by_rounds(&model);
    let limits = |precision| Limits {
        hops_max: Some(4),
        precision,
    };
    let kinds: [Kind; 4] = [
        ("geo", geo),
        ("detours", detours),
        ("directed", directed),
        ("loss", losses),
    ];
    for (name, make) in kinds {
        let mut matrix = make(1000);
        matrix.assume(Some(INITIAL_BANDWIDTH));
        let all = [Precision::Exact, Precision::Near].map(|precision| {
            let planner = Planner::new(&matrix, model, limits(precision));
            let mut fronts = None;
            let found = worked(|| fronts = Some(planner.fronts(448_880)));
            let (entries, bytes) = fronts.take().map_or((0, 0), |fronts| fronts.size());
            let mut tables = Vec::new();
            let written = worked(|| tables = planner.tables(&classes));
            println!(
                "{name}, 1000 nodes, 4 hops, {precision:?}: all chains of a size {found:?} ({entries}, {} MB), all tables {written:?}",
                bytes / 1_000_000
            );
            times(&planner, &tables, &classes)
        });
        let pairs = all[1].iter().zip(&all[0]);
        let mut slower: Vec<f64> = pairs.map(|(near, exact)| near / exact - 1.0).collect();
        slower.sort_by(f64::total_cmp);
        println!(
            "{name}: near chains are slower by {:.3} % on average, 99 of 100 by {:.2} % at most, all by {:.2} %",
            slower.iter().sum::<f64>() / slower.len() as f64 * 100.0,
            slower[slower.len() * 99 / 100] * 100.0,
            slower[slower.len() - 1] * 100.0
        );
    }
}

/// How long transfers of all classes take from some nodes to all others, by their tables or without a node between.
fn times(planner: &Planner<'_>, tables: &[Table], classes: &Classes) -> Vec<f64> {
    let mut times = Vec::new();
    for from in (0..1000u16).step_by(40) {
        for to in (0..1000u16).filter(|to| *to != from) {
            for (&bytes, &access_us) in classes
                .sizes()
                .iter()
                .flat_map(|size| classes.access_us().iter().map(move |access| (size, access)))
            {
                let transfer = Transfer { bytes, access_us };
                let time = |inner: &[u16]| {
                    let chain = [&[from], inner, &[to]].concat();
                    planner.time_us(&chain, transfer).expect("it has all links")
                };
                let class = classes.of(bytes, access_us);
                let best = tables[usize::from(from)].chains(to.into(), class).next();
                times.push(time(best.unwrap_or(&[])).min(time(&[])) as f64);
            }
        }
    }
    times
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

criterion_group!(benches, controller, sweep, tables, look_up);
criterion_main!(benches);
