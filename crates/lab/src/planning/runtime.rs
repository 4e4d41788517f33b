// SPDX-License-Identifier: Apache-2.0
//! The time of planning, and the memory of its results.
//!
//! Times are processor times of the one thread used: other processes on the machine do not count.
//! For more nodes than published matrices have, matrices are generated from the places of the
//! Topology Zoo.

use std::hint::black_box;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use posthaste_plan::fronts::Limits;
use posthaste_plan::table::Classes;
use posthaste_plan::{Matrix, Model, Planner};

use super::Args;
use super::data::Mesh;
use super::quality::to_matrix;
use crate::regions::{Place, distances};
use crate::rng::{scramble, shuffled};

/// Cost of a node.
const COST_US: u32 = 500;

/// Look-ups per measurement.
const LOOK_UPS: u32 = 1_000_000;

/// Measurements of one matrix. Times are in milliseconds, one per repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) matrix: String,
    pub(super) nodes: usize,
    /// Finding all chains.
    pub(super) sweep_ms: Vec<f64>,
    /// The same plus storing the chains of all pairs for ten sizes, with fall-backs.
    pub(super) chains_ms: Vec<f64>,
    /// The same for four access links as well: the tables of all nodes.
    pub(super) tables_ms: Vec<f64>,
    /// A look-up in one node's table, in nanoseconds.
    pub(super) look_up_ns: Vec<f64>,
    /// Chains per pair that are not beaten.
    pub(super) chains: Vec<f64>,
    /// Size of one node's table.
    pub(super) table_bytes: Vec<f64>,
}

/// Plans for the largest published graphs, and for synthetic ones.
pub(super) fn measure(args: &Args, meshes: &[Mesh], cities: &[Place]) -> Result<Vec<Times>> {
    let mut all = Vec::new();
    let mut largest: Vec<&Mesh> = meshes.iter().collect();
    // Planning time grows with the nodes, so the largest graphs are the worst cases.
    largest.sort_by_key(|mesh| std::cmp::Reverse(mesh.rtts_ms.len()));
    for mesh in largest.into_iter().take(2) {
        let matrix = with_costs(to_matrix(&mesh.rtts_ms)?)?;
        all.push(of(args, &mesh.name, &matrix)?);
    }
    for &nodes in &args.nodes {
        let places = choose(cities, nodes.into(), args.common.seed);
        for (kind, detours) in [("great circles", false), ("detours", true)] {
            let matrix = with_costs(to_matrix(&distances(&places, detours, args.common.seed))?)?;
            all.push(of(args, kind, &matrix)?);
        }
    }
    Ok(all)
}

fn of(args: &Args, name: &str, matrix: &Matrix) -> Result<Times> {
    let model = Model::default();
    let planner = Planner::new(matrix, model, Limits::default());
    let classes = Classes::by_rounds(&model);
    let sizes_only = Classes::new(classes.sizes(), &[0])?;
    let nodes = matrix.nodes();
    println!("planning for {nodes} nodes: {name}");
    let mut times = Times {
        matrix: name.to_owned(),
        nodes,
        ..Times::default()
    };
    for _ in 0..args.repeats {
        let (sweep_ms, fronts) = timed(|| planner.fronts(0))?;
        times.sweep_ms.push(sweep_ms);
        let pairs = matrix
            .links()
            .map(|(from, to, _)| fronts.points(from, to).count());
        let chains = pairs.sum::<usize>() as f64 / matrix.links().count().max(1) as f64;
        times.chains.push(chains);
        // Freed now, not while the tables are timed.
        drop(fronts);
        let (chains_ms, _) = timed(|| planner.tables(&sizes_only))?;
        times.chains_ms.push(chains_ms);
        let (tables_ms, tables) = timed(|| planner.tables(&classes))?;
        times.tables_ms.push(tables_ms);
        let bytes = tables.iter().map(posthaste_plan::Table::bytes);
        times
            .table_bytes
            .push((bytes.sum::<usize>() / nodes) as f64);
        let (all_ms, ()) = timed(|| look_up(&tables[0], &classes, args.common.seed))?;
        // To make the questions up is no part of a look-up.
        let (idle_ms, ()) = timed(|| query_only(nodes, args.common.seed))?;
        times
            .look_up_ns
            .push((all_ms - idle_ms).max(0.0) * 1e6 / f64::from(LOOK_UPS));
    }
    Ok(times)
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

fn with_costs(mut matrix: Matrix) -> Result<Matrix> {
    for node in 0..matrix.nodes() {
        matrix.set_cost(node, COST_US)?;
    }
    Ok(matrix)
}

/// `count` places: cities in random order, then midpoints between two.
fn choose(cities: &[Place], count: usize, seed: u64) -> Vec<Place> {
    let mut places: Vec<Place> = shuffled(cities, seed, 0).into_iter().take(count).collect();
    let missing = count - places.len();
    let others = shuffled(cities, seed, 1);
    for pair in others.windows(2).cycle().take(missing) {
        places.push(Place {
            longitude: f64::midpoint(pair[0].longitude, pair[1].longitude),
            latitude: f64::midpoint(pair[0].latitude, pair[1].latitude),
        });
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_node_count() {
        let place = |longitude, latitude| Place {
            longitude,
            latitude,
        };
        let cities = [place(0.0, 0.0), place(90.0, 0.0), place(0.0, 90.0)];
        assert_eq!(choose(&cities, 7, 1).len(), 7);
        assert_eq!(choose(&cities, 2, 1).len(), 2);
    }
}
