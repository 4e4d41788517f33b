// SPDX-License-Identifier: Apache-2.0
//! Makes and repairs plans when that is due, on threads that may take their time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_control::book::{Adoption, Book, Network};
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

/// Plans for as long as the controller runs. Tables are made beside the book, which is repaired meanwhile.
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
            tokio::task::spawn_blocking(move || {
                make(&theirs, work);
                theirs.scheduler.notify_one();
            });
            continue;
        }
        tokio::select! {
            () = sleep(deadline.saturating_sub(now)) => {}
            () = hub.scheduler.notified() => {}
        }
    }
}

/// Does what is to be done for plans.
pub(super) fn make(hub: &Hub, work: Work) {
    match work {
        Work::Tables(settings, network) => {
            let tables = settings.tables(&network);
            let adoption = Adoption::new(network, tables);
            hub.lock().desk.tabled(adoption);
        }
        Work::Book(book, adoption) => write(hub, book, adoption),
    }
}

/// Writes tables down until something dies or all is written, repairs the book by what is known now, keeps
/// it, and has everybody told.
fn write(hub: &Hub, mut book: Box<Book>, mut adoption: Option<Adoption>) {
    if let Some(adoption) = &mut adoption {
        book.adopt(adoption, hub.now(), || {
            !hub.lock().desk.is_repair_due(hub.now())
        });
    }
    let (network, worse) = hub.lock().desk.repairing(hub.now());
    let start = Instant::now();
    let repaired = book.repair(&network, &worse, hub.now());
    let took = start.elapsed();
    keep(hub, &mut book);
    let stamp = book.stamp();
    let whole = give_back(hub, book, adoption);
    if repaired.changed {
        hub.counters.repairs.add();
        tell_repair(hub, stamp, repaired.pairs, took);
    }
    if let Some((has_changed, made)) = whole {
        hub.counters.plans.add();
        if has_changed {
            hub.counters.plans_changed.add();
            tell(hub, stamp, &made);
        }
    }
}

/// Keeps what became another: no node may hear of a plan whose numbers could be given again.
fn keep(hub: &Hub, book: &mut Book) {
    let changes = book.take_changes();
    let (stamp, next) = (book.stamp(), book.next_number());
    let try_it = || {
        let mut store = hub.store();
        store.save_plan(stamp, next, &changes, || book.saved())
    };
    while let Err(error) = try_it() {
        hub.counters.store_failures.add();
        hub.log.error(
            "cannot keep the plan: nodes are not told",
            &[("error", &error)],
        );
        thread::sleep(STORE_PAUSE);
    }
}

/// Gives the book back, and has everybody told. Returns whether a plan differs, and what it is in numbers, if
/// one is whole by this.
fn give_back(hub: &Hub, book: Box<Book>, adoption: Option<Adoption>) -> Option<(bool, Made)> {
    let (chains, unnumbered) = book.chain_count();
    let whole = adoption.as_ref().filter(|adoption| adoption.is_over());
    let whole = whole.map(|adoption| (adoption.has_changed(), made_of(adoption.network())));
    let now = hub.now();
    let mut inner = hub.lock();
    let took = inner.desk.written(book, adoption, now);
    inner.wake_all();
    let (has_changed, made) = whole?;
    let made = Made {
        chains,
        unnumbered,
        took: took.unwrap_or_default(),
        at: now,
        ..made
    };
    inner.made = Some(made);
    Some((has_changed, made))
}

/// What was planned with.
fn made_of(network: &Network) -> Made {
    Made {
        nodes: network.nodes.len(),
        links: network.matrix.links().count(),
        ..Made::default()
    }
}

fn tell_repair(hub: &Hub, stamp: Stamp, pairs: usize, took: Duration) {
    hub.log.info(
        "repaired the plan",
        &[
            ("epoch", &stamp.epoch),
            ("version", &stamp.version),
            ("pairs", &pairs),
            ("took_ms", &millis(took)),
        ],
    );
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
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
            ("took_ms", &millis(made.took)),
        ],
    );
    if made.unnumbered > 0 {
        let what = "chains were not used for want of a number";
        hub.log.warn(what, &[("chains", &made.unnumbered)]);
    }
}
