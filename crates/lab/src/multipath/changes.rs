// SPDX-License-Identifier: Apache-2.0
//! Downloads while a path joins, fails, returns, or is left for the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::Protocol;

use super::arrivals::Arrivals;
use super::site::{Ends, FASTER, LIMIT, Path, SLOWER, Site};
use super::subjects::EARLY;
use super::{Args, GOODPUT, node};
use crate::record::Record;
use crate::target::{Bound, Target};
use crate::threads;

const GAP: &str = "longest gap";
const RETURN: &str = "until the rate is back";
/// In which the second path of a connection must join.
const JOIN_MAX: Duration = Duration::from_secs(1);
/// Bytes of a download that its client ends.
const ENDLESS: u64 = 1 << 40;
/// From the start of a download to the failure, from there to the return, and to the end.
const BEFORE: Duration = Duration::from_millis(1200);
const OUTAGE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(8);
/// How long a client is on one path only, and on both before it leaves the next.
const AWAY: Duration = Duration::from_millis(400);
const OVERLAP: Duration = Duration::from_millis(600);
/// The median time without a byte in seconds, and that to the rate of both paths.
const GAP_GOAL: f64 = 1.0;
const RETURN_GOAL: f64 = 5.0;
/// That rate, as bytes in a second: nine tenths of the limit.
const FULL_RATE: f64 = LIMIT * 0.9 * 1e6 / 8.0;

/// A way to fail, and to work again.
struct Failure {
    name: &'static str,
    begin: fn(&Site, Path) -> Result<()>,
    end: fn(&Site, Path) -> Result<()>,
}

const FAILURES: [Failure; 2] = [
    Failure {
        name: "link down",
        begin: Site::link_down,
        end: Site::link_up,
    },
    Failure {
        name: "silent",
        begin: Site::silence,
        end: Site::unsilence,
    },
];

/// Runs all, and adds the results.
pub(super) fn run(args: &Args, record: &mut Record) -> Result<()> {
    joins(args, record).context("joins")?;
    for failure in &FAILURES {
        eprintln!("multipath: {}", failure.name);
        fail(args, failure, record).context(failure.name)?;
    }
    handovers(args, record).context("handovers")?;
    record.table(
        "A download whose faster path fails for 3 s, or whose client changes paths",
        |one| one.quantity != GOODPUT,
        &["change"],
        &[GAP, RETURN],
    );
    Ok(())
}

/// Opens connections one after the other. Each must get its second path, and none may cost the
/// server a connection more.
fn joins(args: &Args, record: &mut Record) -> Result<()> {
    eprintln!("multipath: joins");
    let site = Site::build(Ends::Client)?;
    let _server = site.serve(Protocol::TCP)?;
    let node = node(&site.router, args, EARLY)?;
    let count = u64::from(args.joins);
    let mut missing = count;
    for _ in 0..count {
        let (before, begin) = (site.joined()?, Instant::now());
        let has_joined = || site.joined().is_ok_and(|joined| joined > before);
        site.download(Protocol::MPTCP, ENDLESS, || {
            has_joined() || begin.elapsed() > JOIN_MAX
        })?;
        missing -= u64::from(has_joined());
    }
    let beyond = node.counter("relays_opened")?.saturating_sub(count);
    record.parameter("connections that must get a second path", count);
    none(record, "connections without a second path", missing);
    none(record, "upstream connections for a second path", beyond);
    Ok(())
}

/// Adds a figure that must be zero.
fn none(record: &mut Record, what: &str, measured: u64) {
    let bound = Bound::AtMost(0.0);
    let target = Target::once(what, Some(measured as f64), bound, "");
    record.targets.push(target);
}

/// The faster path fails in the middle of downloads, and returns.
fn fail(args: &Args, failure: &Failure, record: &mut Record) -> Result<()> {
    let site = Site::build(Ends::Client)?;
    let _server = site.serve(Protocol::TCP)?;
    let _node = node(&site.router, args, EARLY)?;
    let (mut gaps, mut returns) = (Vec::new(), Vec::new());
    for _ in 0..args.failures {
        let (at, arrivals) = download_while(&site, || {
            thread::sleep(BEFORE);
            let began = Instant::now();
            (failure.begin)(&site, FASTER)?;
            thread::sleep(OUTAGE);
            (failure.end)(&site, FASTER)?;
            let ended = Instant::now();
            thread::sleep(AFTER);
            Ok((began, ended))
        })?;
        let (began, ended) = at;
        gaps.push(arrivals.longest_gap(began, ended).as_secs_f64());
        let back = arrivals.until_rate(ended, FULL_RATE);
        // One that does not come back counts as long as it was waited for.
        returns.push(back.unwrap_or(AFTER).as_secs_f64());
    }
    let labels = [("change", failure.name)];
    record.sample(GAP, "s", &labels, gaps);
    record.target(format!("{GAP}, {}", failure.name), Bound::AtMost(GAP_GOAL));
    record.sample(RETURN, "s", &labels, returns);
    record.target(
        format!("{RETURN}, {}", failure.name),
        Bound::AtMost(RETURN_GOAL),
    );
    Ok(())
}

/// A client leaves one path and then the other, again and again, in one download.
fn handovers(args: &Args, record: &mut Record) -> Result<()> {
    eprintln!("multipath: handovers");
    let site = Site::build(Ends::Client)?;
    let _server = site.serve(Protocol::TCP)?;
    let node = node(&site.router, args, EARLY)?;
    let (times, arrivals) = download_while(&site, || {
        thread::sleep(BEFORE);
        let paths = [FASTER, SLOWER].into_iter().cycle();
        let mut times = Vec::new();
        for path in paths.take(args.handovers as usize) {
            let left = Instant::now();
            site.detach(path)?;
            thread::sleep(AWAY);
            site.attach(path)?;
            thread::sleep(OVERLAP);
            times.push((left, Instant::now()));
        }
        Ok(times)
    })?;
    let gaps = times.iter();
    let gaps = gaps.map(|(from, to)| arrivals.longest_gap(*from, *to).as_secs_f64());
    record.sample(GAP, "s", &[("change", "handover")], gaps.collect());
    record.target(format!("{GAP}, handover"), Bound::AtMost(GAP_GOAL));
    let beyond = node.counter("relays_opened")?.saturating_sub(1);
    record.parameter("handovers of one download", args.handovers);
    none(record, "further connections over all handovers", beyond);
    Ok(())
}

/// Downloads, every byte checked, until `change` returns. Fails when either does, or when the
/// download ends before.
fn download_while<T>(site: &Site, change: impl FnOnce() -> Result<T>) -> Result<(T, Arrivals)> {
    let is_over = AtomicBool::new(false);
    let over = || is_over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let download = scope.spawn(|| site.download(Protocol::MPTCP, ENDLESS, over));
        let changed = change();
        is_over.store(true, Ordering::Relaxed);
        let arrivals = threads::join(download)?;
        Ok((changed?, arrivals))
    })
}
