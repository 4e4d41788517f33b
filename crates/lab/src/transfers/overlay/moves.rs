// SPDX-License-Identifier: Apache-2.0
//! Changes a link, or cuts it, and measures when new connections take another route, and the effect
//! on an open one.
//!
//! The nodes' logs show which of them carried a connection. The open connection carries bytes
//! continuously, limited by its client's reading rate.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::testbed::{Kind, LONG, SERVER, Testbed, target};
use super::topology::{Pair, Topology};
use super::{Args, KB, PATIENCE};
use crate::mesh::address;
use crate::model::Hops;
use crate::names::named;
use crate::threads;
use crate::transfer::{self, Timing};
use crate::web;

/// Factor of a link that gets slower.
const WORSE: f64 = 3.0;
/// Interval of new connections.
const EVERY: Duration = Duration::from_millis(100);
/// How long new connections are opened before and after.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(12);
/// Bytes of the open connection, and its rate per second: it lasts longer than the whole
/// measurement.
const LONG_BYTES: u64 = 64_000_000;
const LONG_RATE: f64 = 4_000_000.0;
/// Its timeout, with the link cut for a while.
const LONG_PATIENCE: Duration = Duration::from_secs(180);
/// Bound on the time until connections use the former route after the link is restored.
const RETURN: Duration = Duration::from_secs(45);
/// Nodes have logged connections that ended this long ago.
const LOGGED: Duration = Duration::from_millis(500);

named! {
    /// The change of a link.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Change {
        Worse = "three times as long",
        Cut = "cut",
    }
}

/// The results.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) change: Change,
    pub(super) before: BTreeSet<usize>,
    pub(super) after: BTreeSet<usize>,
    /// From the change to the first new connection on another route, in seconds.
    pub(super) moved_s: Option<f64>,
    /// The same to the first one after which none used the old route.
    pub(super) settled_s: Option<f64>,
    /// New connections: start after the first one, and duration, in seconds.
    pub(super) connections: Vec<(f64, Option<f64>)>,
    /// Duration of the open connection, in seconds.
    pub(super) long_s: f64,
}

/// Makes a link of the first pair's chain slower, and then cuts one.
pub(super) fn observe(
    args: &Args,
    topology: &Topology,
    testbed: &Testbed,
    moves: &mut Vec<Move>,
) -> Result<()> {
    for kind in [Change::Worse, Change::Cut] {
        let pair = topology.pairs[0];
        let chain = testbed.chain(pair, args.sizes[0] * KB)?;
        let length = |ends: &&[usize]| topology.rtt_ms(ends[0], ends[1]);
        // The longest hop bounds every round of a transfer, so the plan depends on it most.
        let longest = chain
            .windows(2)
            .max_by(|a, b| length(a).total_cmp(&length(b)));
        let longest = longest.context("a chain has hops")?;
        let (one, other) = (longest[0], longest[1]);
        let usual = |times| topology.link(one, other, times);
        let change = || match kind {
            Change::Worse => testbed.mesh.change(one, other, usual(WORSE)),
            // All packets are lost, instead of an interface that is down: hosts get no error, as on
            // a real path.
            Change::Cut => testbed.mesh.change(one, other, usual(1.0).loss(1.0)),
        };
        let restore = || testbed.mesh.change(one, other, usual(1.0));
        let seen = watch(args, testbed, pair, kind, change, restore)?;
        until_back(args, testbed, pair, &seen.before)?;
        moves.push(seen);
    }
    Ok(())
}

/// A connection: its start since the first one, and its result.
type Opened = (Duration, Result<Timing>);

fn watch(
    args: &Args,
    testbed: &Testbed,
    pair: Pair,
    kind: Change,
    change: impl Fn() -> Result<()>,
    restore: impl Fn() -> Result<()>,
) -> Result<Move> {
    let client = testbed.client(pair)?;
    let size = args.sizes[0];
    let server = target(args, pair, size, Kind::Chain(Hops::Warm));
    let long = SocketAddr::new(address(pair.server, SERVER, args.family), LONG);
    let start = Instant::now();
    let (opened, long_s, changed) = thread::scope(|scope| {
        let open = scope.spawn(move || client.run_in(|| read_slowly(long)));
        let mut changed = None;
        let mut fetches = Vec::new();
        let mut due = start;
        while due < start + BEFORE + AFTER {
            if changed.is_none() && due >= start + BEFORE {
                change()?;
                changed = Some(start.elapsed());
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            fetches.push(scope.spawn(move || -> Opened {
                let began = start.elapsed();
                (began, web::fetch(client, server, size, PATIENCE))
            }));
            due += EVERY;
        }
        // Before the threads end: the open connection waits for the link.
        restore()?;
        let opened: Vec<Opened> = fetches.into_iter().map(threads::join).collect();
        let long_s = threads::join(open);
        let changed = changed.context("the link was changed")?;
        anyhow::Ok((
            opened,
            long_s.context("the connection that was open")?,
            changed,
        ))
    })?;
    // Relays log a connection when it has ended.
    thread::sleep(LOGGED);
    check(testbed, kind, &opened, changed, long_s)
}

fn check(
    testbed: &Testbed,
    kind: Change,
    opened: &[Opened],
    changed: Duration,
    long_s: f64,
) -> Result<Move> {
    let passed = testbed.passed();
    let ways: Vec<(Duration, Option<&BTreeSet<usize>>)> = opened
        .iter()
        .map(|(began, end)| {
            let client = end.as_ref().ok().map(|fetched| fetched.local);
            (*began, client.and_then(|client| passed.get(&client)))
        })
        .collect();
    let first = ways.iter().find_map(|(_, way)| *way);
    let before = first.context("nobody logged the first connection")?.clone();
    let since = |(began, _): &(Duration, _)| (began.checked_sub(changed)).map(|s| s.as_secs_f64());
    let is_new = |way: &Option<&BTreeSet<usize>>| way.is_some_and(|way| *way != before);
    let moved = ways
        .iter()
        .find(|(began, way)| *began >= changed && is_new(way));
    // Connections on the old way may follow the first on a new one: nodes get the plan one by one.
    let last_old = ways.iter().rposition(|(_, way)| !is_new(way));
    let settled = ways.get(last_old.map_or(0, |place| place + 1));
    let after = ways.iter().rev().find_map(|(_, way)| *way);
    Ok(Move {
        change: kind,
        after: after.cloned().unwrap_or_default(),
        moved_s: moved.and_then(since),
        settled_s: settled.and_then(since),
        connections: opened
            .iter()
            .map(|(began, end)| {
                let took = end.as_ref().ok().map(|one| one.complete.as_secs_f64());
                (began.as_secs_f64(), took)
            })
            .collect(),
        before,
        long_s,
    })
}

/// Waits until connections use the former route.
fn until_back(args: &Args, testbed: &Testbed, pair: Pair, before: &BTreeSet<usize>) -> Result<()> {
    let deadline = Instant::now() + RETURN;
    let server = target(args, pair, args.sizes[0], Kind::Chain(Hops::Warm));
    while Instant::now() < deadline {
        let fetched = web::fetch(testbed.client(pair)?, server, args.sizes[0], PATIENCE)?;
        thread::sleep(LOGGED);
        if testbed.passed().get(&fetched.local) == Some(before) {
            return Ok(());
        }
    }
    // The next change is measured on the route in use then.
    Ok(())
}

/// Fetches from the calling thread's namespace, slowly, and checks every byte. Returns the
/// duration.
fn read_slowly(server: SocketAddr) -> Result<f64> {
    let mut request = transfer::Request::new(server.ip(), server.port(), LONG_BYTES);
    request.deadline = LONG_PATIENCE;
    let start = Instant::now();
    let timing = transfer::fetch_paced(&request, |received| {
        let due = start + Duration::from_secs_f64(received as f64 / LONG_RATE);
        thread::sleep(due.saturating_duration_since(Instant::now()));
    })?;
    Ok(timing.complete.as_secs_f64())
}
