// SPDX-License-Identifier: Apache-2.0
//! Hops beside another connection, and while the rate of their link changes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bed::Bed;
use super::{Args, DROPS, Path, Subject};
use crate::content::Received;
use crate::network::Family;
use crate::record::Record;
use crate::target::Bound;
use crate::transfer::{Server, exchange};
use crate::{load, socket, threads};

const RATE: u32 = 100;
const REDUCED: u32 = 20;
const PORT: u16 = 8002;
/// More than is fetched in time.
const ENDLESS: u64 = 1 << 40;
/// How long both run before the bytes count, and how long they count.
const LEAD: Duration = Duration::from_secs(4);
const COUNTED: Duration = Duration::from_secs(12);
/// How long each rate lasts.
const PHASE: Duration = Duration::from_secs(5);
/// How long a rate must last to count as reached, and how much of it.
const WINDOW: Duration = Duration::from_millis(500);
const SHARE: f64 = 0.8;
/// How exactly the begin of a rate is found.
const STEP: Duration = Duration::from_millis(50);
const RATIO: &str = "share beside the other";
const FOLLOWED: &str = "until the new rate";

/// Runs all, and adds the results.
pub(super) fn measure(args: &Args, subjects: &[Subject], record: &mut Record) -> Result<()> {
    let hops = subjects.iter().filter(|subject| !subject.is_direct());
    for subject in hops.copied() {
        for beside in ["cubic", "itself"] {
            eprintln!("tunnels: {} beside {beside}", subject.name());
            let bed = Bed::build(
                args,
                subject,
                Path {
                    rate: RATE,
                    loss: 0.0,
                },
            )?;
            bed.warm_up()?;
            let shares = (0..args.repeats).map(|_| fairness(&bed, beside));
            let shares = shares.collect::<Result<_>>().context(subject.name())?;
            let labels = [("change", beside), ("subject", subject.name())];
            record.sample(RATIO, "", &labels, shares);
            if subject.is_own() {
                for bound in [Bound::AtLeast(0.5), Bound::AtMost(2.0)] {
                    record.target(format!("{}: {RATIO}, {beside}", subject.name()), bound);
                }
            }
        }
        eprintln!("tunnels: {} at changing rates", subject.name());
        changing(args, subject, record).context(subject.name())?;
    }
    record.table(
        "Beside another connection, and when the rate changes between 100 and 20 Mbit/s",
        |one| one.labels.contains_key("change"),
        &["change", "subject"],
        &[RATIO, FOLLOWED, DROPS],
    );
    Ok(())
}

/// The bytes of a flow over hops, by those of another one that began first.
fn fairness(bed: &Bed, beside: &str) -> Result<f64> {
    let (is_over, counts) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    let over = || is_over.load(Ordering::Relaxed);
    let watch = |place: usize| {
        let (count, over) = (&counts[place], &over);
        move |_: Instant, bytes: u64| {
            count.store(bytes, Ordering::Relaxed);
            over()
        }
    };
    let read = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    thread::scope(|scope| {
        let other = scope.spawn(|| match beside {
            "cubic" => fetch_cubic(bed, watch(1)),
            _ => bed.fetch_watched(ENDLESS, watch(1)).map(drop),
        });
        thread::sleep(LEAD / 4);
        let own = scope.spawn(|| bed.fetch_watched(ENDLESS, watch(0)));
        thread::sleep(LEAD);
        let before = read();
        thread::sleep(COUNTED);
        let after = read();
        is_over.store(true, Ordering::Relaxed);
        threads::join(other)?;
        threads::join(own)?;
        Ok((after[0] - before[0]) as f64 / (after[1] - before[1]).max(1) as f64)
    })
}

/// A connection from node to node, of no flow.
fn fetch_cubic(bed: &Bed, mut watch: impl FnMut(Instant, u64) -> bool + Send) -> Result<()> {
    let network = &bed.network;
    let _server = Server::start(network.node(1), PORT, "cubic")?;
    let target = SocketAddr::new(network.node_address(1, Family::V4), PORT);
    let object = load::Request::Object(ENDLESS).encode();
    let mut received = Received::of(ENDLESS);
    network.node(0).run_in(|| {
        exchange(
            socket::toward(target)?,
            target,
            &object,
            super::bed::DEADLINE,
            |part| Ok(watch(Instant::now(), received.take(part)?)),
        )
    })?;
    Ok(())
}

/// A flow while the rate falls and rises.
fn changing(args: &Args, subject: Subject, record: &mut Record) -> Result<()> {
    let bed = Bed::build(
        args,
        subject,
        Path {
            rate: RATE,
            loss: 0.0,
        },
    )?;
    bed.warm_up()?;
    let (mut falls, mut rises, mut drops) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.repeats {
        let is_over = AtomicBool::new(false);
        let mut arrivals = Vec::new();
        let before = bed.network.stats();
        let changed = thread::scope(|scope| {
            let flow = scope.spawn(|| {
                bed.fetch_watched(ENDLESS, |at, bytes| {
                    arrivals.push((at, bytes));
                    is_over.load(Ordering::Relaxed)
                })
            });
            let change = |rate| {
                thread::sleep(PHASE);
                bed.change_rate(rate).map(|()| Instant::now())
            };
            let changed = change(REDUCED).and_then(|fall| Ok((fall, change(RATE)?)));
            thread::sleep(PHASE);
            is_over.store(true, Ordering::Relaxed);
            threads::join(flow)?;
            changed
        })?;
        let after = bed.network.stats();
        falls.push(until_rate(&arrivals, changed.0, REDUCED));
        rises.push(until_rate(&arrivals, changed.1, RATE));
        let packets = after.packets + after.dropped - before.packets - before.dropped;
        drops.push((after.overflowed - before.overflowed) as f64 * 100.0 / packets as f64);
    }
    for (change, seconds) in [("100 to 20", falls), ("20 to 100", rises)] {
        let labels = [("change", change), ("subject", subject.name())];
        record.sample(FOLLOWED, "s", &labels, seconds);
        if subject.is_own() {
            let what = format!("{}: {FOLLOWED}, {change} Mbit/s", subject.name());
            record.target(what, Bound::AtMost(1.0));
        }
    }
    let labels = [("change", "both"), ("subject", subject.name())];
    record.sample(DROPS, "%", &labels, drops);
    if subject.is_own() {
        let what = format!("{}: drops while the rate changes", subject.name());
        record.target(what, Bound::AtMost(2.0));
    }
    Ok(())
}

/// Seconds from a moment to the first window with most of a rate in Mbit/s; as long as was waited
/// if there is none.
fn until_rate(arrivals: &[(Instant, u64)], from: Instant, rate: u32) -> f64 {
    let wanted = f64::from(rate) * 1e6 / 8.0 * SHARE * WINDOW.as_secs_f64();
    let bytes_at = |moment: Instant| {
        let later = arrivals.partition_point(|(at, _)| *at <= moment);
        later.checked_sub(1).map_or(0, |last| arrivals[last].1)
    };
    let mut starts = (0..)
        .map(|step| STEP * step)
        .take_while(|&after| after < PHASE);
    let found = starts.find(|&after| {
        let start = from + after;
        (bytes_at(start + WINDOW) - bytes_at(start)) as f64 >= wanted
    });
    found.unwrap_or(PHASE).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_until_a_rate() {
        let start = Instant::now();
        // 20 Mbit/s are 2500 bytes a millisecond; nothing in the first 300.
        let at = |ms| start + Duration::from_millis(ms);
        let arrivals: Vec<_> = (300..3000).map(|ms| (at(ms), (ms - 300) * 2500)).collect();
        assert!((until_rate(&arrivals, start, REDUCED) - 0.2).abs() < 1e-9);
        assert!((until_rate(&arrivals, start, RATE) - 5.0).abs() < 1e-9);
    }
}
