// SPDX-License-Identifier: Apache-2.0
//! Makes plans when they are due, on a thread that may take its time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_control::book::Changes;
use posthaste_control::message::Stamp;
use tokio::time::sleep;

use super::desk::Work;
use super::hub::Hub;

/// Before it is tried again to keep a plan, when the disk was full, say.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The last plan, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    pub(super) nodes: usize,
    /// In one direction.
    pub(super) links: usize,
    pub(super) chains: usize,
    /// Chains that were not used for want of a number.
    pub(super) unnumbered: usize,
    pub(super) took: Duration,
    /// By the controller's clock.
    pub(super) at: Duration,
}

/// Plans for as long as the controller runs.
pub(super) async fn plan_all(hub: Arc<Hub>) {
    loop {
        let now = hub.now();
        let (work, deadline) = {
            let mut inner = hub.lock();
            if inner.desk.tick(now) {
                inner.wake_all();
            }
            (inner.desk.work(now), inner.desk.deadline())
        };
        if let Some(work) = work {
            let theirs = Arc::clone(&hub);
            let took = tokio::task::spawn_blocking(move || make(&theirs, work)).await;
            // A node whose links come and go all the time has half of a CPU at most.
            sleep(took.unwrap_or_default()).await;
            continue;
        }
        tokio::select! {
            () = sleep(deadline.saturating_sub(now)) => {}
            () = hub.scheduler.notified() => {}
        }
    }
}

/// Makes a plan, keeps it, and has everybody told. Returns how long it took.
pub(super) fn make(hub: &Hub, work: Work) -> Duration {
    let Work { mut book, network } = work;
    let start = Instant::now();
    let changed = book.plan(&network, hub.now());
    let took = start.elapsed();
    let changes = book.take_changes();
    // No node may hear of a plan whose numbers could be given again.
    while let Err(error) = keep(hub, book.stamp(), book.next_number(), &changes, || {
        book.saved()
    }) {
        hub.counters.store_failures.add();
        hub.log.error(
            "cannot keep the plan: nodes are not told",
            &[("error", &error)],
        );
        thread::sleep(STORE_PAUSE);
    }
    let (chains, unnumbered) = book.chain_count();
    let (stamp, nodes) = (book.stamp(), network.nodes.len());
    let now = hub.now();
    let made = Made {
        nodes,
        links: network.matrix.links().count(),
        chains,
        unnumbered,
        took,
        at: now,
    };
    let mut inner = hub.lock();
    inner.desk.planned(book, now);
    inner.made = Some(made);
    inner.wake_all();
    drop(inner);
    hub.counters.plans.add();
    if changed {
        hub.counters.plans_changed.add();
        tell(hub, stamp, &made);
    }
    took
}

fn keep(
    hub: &Hub,
    stamp: Stamp,
    next_number: u32,
    changes: &Changes,
    all: impl FnOnce() -> posthaste_control::book::Saved,
) -> Result<(), posthaste_control::store::Error> {
    hub.store().save_plan(stamp, next_number, changes, all)
}

fn tell(hub: &Hub, stamp: Stamp, made: &Made) {
    hub.log.info(
        "planned",
        &[
            ("epoch", &stamp.epoch),
            ("version", &stamp.version),
            ("nodes", &made.nodes),
            ("links", &made.links),
            ("chains", &made.chains),
            (
                "took_ms",
                &format_args!("{:.1}", made.took.as_secs_f64() * 1000.0),
            ),
        ],
    );
    if made.unnumbered > 0 {
        let what = "chains were not used for want of a number";
        hub.log.warn(what, &[("chains", &made.unnumbered)]);
    }
}
