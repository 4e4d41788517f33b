// SPDX-License-Identifier: Apache-2.0
//! The time of planning, and the memory of its results.
//!
//! Times are processor times of the one thread used: other processes on the machine do not count.
//! For more nodes than published matrices have, matrices are generated from random places on earth.

use std::hint::black_box;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use posthaste_plan::fronts::Limits;
use posthaste_plan::table::Classes;
use posthaste_plan::{Matrix, Model, Planner};

use super::Args;
use super::data::Mesh;
use super::quality::to_matrix;
use crate::record::Record;
use crate::regions::{Place, distances};
use crate::rng::scramble;
use crate::target::Bound;

/// Cost of a node.
const COST_US: u32 = 500;

/// Look-ups per measurement.
const LOOK_UPS: u32 = 1_000_000;

/// The figures of a matrix, with their units, in the order of the table. Finding all chains; the
/// same plus storing the chains of all pairs for ten sizes, with fall-backs; and the same for four
/// access links as well, which gives the tables of all nodes. A look-up is one in a node's table.
pub(super) const FIGURES: [(&str, &str); 6] = [
    ("chains of a pair", ""),
    (SWEEP, "ms"),
    (CHAINS, "ms"),
    ("and access links", "ms"),
    (LOOK_UP, "ns"),
    ("a table", "bytes"),
];
pub(super) const SWEEP: &str = "sweep";
pub(super) const CHAINS: &str = "all chains";
const LOOK_UP: &str = "look-up";

/// Targets of processor time: nodes, figure and upper bound. Published and synthetic matrices of
/// this size have the same.
const TARGETS: [(usize, &str, f64); 5] = [
    (115, SWEEP, 5.0),
    (115, CHAINS, 10.0),
    (115, LOOK_UP, 100.0),
    (1000, SWEEP, 1000.0),
    (1000, LOOK_UP, 100.0),
];

/// Plans for the largest published graphs, and for synthetic ones. Adds samples and targets to the
/// record.
pub(super) fn measure(args: &Args, meshes: &[Mesh], record: &mut Record) -> Result<()> {
    let mut largest: Vec<&Mesh> = meshes.iter().collect();
    // Planning time grows with the nodes, so the largest graphs are the worst cases.
    largest.sort_by_key(|mesh| std::cmp::Reverse(mesh.rtts_ms.len()));
    for mesh in largest.into_iter().take(2) {
        sample(args, &mesh.name, &mesh.rtts_ms, record)?;
    }
    for &nodes in &args.nodes {
        let places = Place::random(nodes.into(), args.common.seed);
        for (kind, detours) in [("great circles", false), ("detours", true)] {
            let rtts_ms = distances(&places, detours, args.common.seed);
            sample(args, kind, &rtts_ms, record)?;
        }
    }
    Ok(())
}

fn sample(args: &Args, name: &str, rtts_ms: &[Vec<f64>], record: &mut Record) -> Result<()> {
    let nodes = rtts_ms.len();
    println!("planning for {nodes} nodes: {name}");
    let mut matrix = to_matrix(rtts_ms)?;
    (0..nodes).try_for_each(|node| matrix.set_cost(node, COST_US))?;
    let repeats = (0..args.repeats).map(|_| times(args, &matrix));
    let repeats = repeats.collect::<Result<Vec<_>>>()?;
    let count = nodes.to_string();
    for (place, (figure, unit)) in FIGURES.into_iter().enumerate() {
        let values = repeats.iter().map(|values| values[place]).collect();
        let labels = [("matrix", name), ("nodes", &count)];
        record.sample(figure, unit, &labels, values);
        for (_, _, most) in TARGETS
            .iter()
            .filter(|(of, what, _)| (*of, *what) == (nodes, figure))
        {
            let what = format!("{nodes} nodes, {name}: {figure}");
            record.target(what, Bound::AtMost(*most));
        }
    }
    Ok(())
}

/// The values of [`FIGURES`].
fn times(args: &Args, matrix: &Matrix) -> Result<[f64; 6]> {
    let model = Model::default();
    let planner = Planner::new(matrix, model, Limits::default());
    let classes = Classes::by_rounds(&model);
    let sizes_only = Classes::new(classes.sizes(), &[0])?;
    let nodes = matrix.nodes();
    let (sweep_ms, fronts) = timed(|| planner.fronts(0))?;
    let pairs = matrix
        .links()
        .map(|(from, to, _)| fronts.points(from, to).count());
    let chains = pairs.sum::<usize>() as f64 / matrix.links().count().max(1) as f64;
    // Freed now, not while the tables are timed.
    drop(fronts);
    let (chains_ms, _) = timed(|| planner.tables(&sizes_only))?;
    let (tables_ms, tables) = timed(|| planner.tables(&classes))?;
    let bytes = tables.iter().map(posthaste_plan::Table::bytes);
    let table_bytes = (bytes.sum::<usize>() / nodes) as f64;
    let (all_ms, ()) = timed(|| look_up(&tables[0], &classes, args.common.seed))?;
    // To make the questions up is no part of a look-up.
    let (idle_ms, ()) = timed(|| query_only(nodes, args.common.seed))?;
    let look_up_ns = (all_ms - idle_ms).max(0.0) * 1e6 / f64::from(LOOK_UPS);
    Ok([
        chains,
        sweep_ms,
        chains_ms,
        tables_ms,
        look_up_ns,
        table_bytes,
    ])
}

/// Looks up chains for random nodes, sizes and access links.
fn look_up(table: &posthaste_plan::Table, classes: &Classes, seed: u64) {
    for (egress, bytes, access_us) in questions(table.nodes(), seed) {
        let class = classes.of(bytes, access_us);
        let first = table.chains(egress, class).next();
        // Otherwise the compiler would leave the look-up out.
        black_box(first.map(<[u16]>::len));
    }
}

/// The same without the look-up, to measure the overhead.
fn query_only(nodes: usize, seed: u64) {
    questions(nodes, seed).for_each(|question| {
        black_box(question);
    });
}

fn questions(nodes: usize, seed: u64) -> impl Iterator<Item = (usize, u64, u32)> {
    let nodes = nodes as u64;
    (0..LOOK_UPS).map(move |number| {
        let random = scramble(seed ^ u64::from(number));
        let egress = usize::try_from(random % nodes).unwrap_or(0);
        let access_us = u32::try_from((random >> 20) % 60_000).unwrap_or(0);
        (egress, (random >> 40) % 16_000_000, access_us)
    })
}

/// Runs `work`; returns this thread's processor time in milliseconds, and the result.
fn timed<T>(work: impl FnOnce() -> T) -> Result<(f64, T)> {
    let before = processor_ms()?;
    let result = work();
    Ok((processor_ms()? - before, result))
}

fn processor_ms() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let time = time.context("read this thread's time")?;
    Ok(time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6)
}
