// SPDX-License-Identifier: Apache-2.0
//! Makes and repairs plans when that is due, on threads that may take their time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_control::message::PlanVersion;
use posthaste_control::rib::{Network, Rib, Rollout};
use tokio::time::sleep;

use super::server::Server;
use super::state::Work;

/// Pause before a plan is stored again after a failure: the disk may be full.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The last plan, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    pub(super) nodes: usize,
    /// In one direction.
    pub(super) links: usize,
    pub(super) chains: usize,
    pub(super) took: Duration,
    /// By the controller's clock.
    pub(super) at: Duration,
}

/// Plans for as long as the controller runs. Tables are made beside the RIB, which is repaired meanwhile.
pub(super) async fn plan_all(server: Arc<Server>) {
    loop {
        let now = server.now();
        // In a block: the lock must not be held while this task waits.
        let (work, deadline) = {
            let mut inner = server.lock();
            if inner.state.tick(now) {
                inner.wake_all();
            }
            (inner.state.work(now), inner.state.deadline())
        };
        if let Some(work) = work {
            let theirs = Arc::clone(&server);
            tokio::task::spawn_blocking(move || {
                make(&theirs, work);
                theirs.scheduler.notify_one();
            });
            // There may be more: tables are made beside a repair.
            continue;
        }
        // Nothing may ever be due (`Duration::MAX`): then only a notification wakes this.
        tokio::select! {
            () = sleep(deadline.saturating_sub(now)) => {}
            () = server.scheduler.notified() => {}
        }
    }
}

/// Does what is to be done for plans.
pub(super) fn make(server: &Server, work: Work) {
    match work {
        Work::Tables(settings, network) => {
            let tables = settings.tables(&network);
            let rollout = Rollout::new(network, tables);
            server.lock().state.tabled(rollout);
        }
        Work::Rib(rib, rollout) => write(server, rib, rollout),
    }
}

/// Writes tables down until something dies or all is written, repairs the RIB by what is known now, keeps
/// it, and wakes the streams of all nodes.
fn write(server: &Server, mut rib: Box<Rib>, mut rollout: Option<Rollout>) {
    if let Some(rollout) = &mut rollout {
        rib.roll_out(rollout, || !server.lock().state.is_repair_due(server.now()));
    }
    // After the writing, so that what died during it is repaired in the same turn.
    let (network, worse) = server.lock().state.repairing(server.now());
    let start = Instant::now();
    let repaired = rib.repair(&network, &worse);
    // Without the store, which may wait for a disk.
    let took = start.elapsed();
    // Before `give_back`, from which on streams send rows of it.
    keep(server, rib.plan_version());
    let plan_version = rib.plan_version();
    let whole = give_back(server, rib, rollout);
    if repaired.changed {
        server.counters.repairs.add();
        send_repair(server, plan_version, repaired.pairs, took);
    }
    if let Some((has_changed, made)) = whole {
        server.counters.plans.add();
        // A plan like the one before is no event for an operator.
        if has_changed {
            server.counters.plans_changed.add();
            send(server, plan_version, &made);
        }
    }
}

/// Stores the version of the plan before any node receives it: a controller that starts again continues with
/// newer ones.
fn keep(server: &Server, plan_version: PlanVersion) {
    let try_it = || server.store().save_plan(plan_version);
    while let Err(error) = try_it() {
        server.counters.store_failures.add();
        server.log.error(
            "could not store the plan: nodes do not receive it",
            &[("error", &error)],
        );
        // On a thread of its own: streams and the API go on meanwhile.
        thread::sleep(STORE_PAUSE);
    }
}

/// Gives the RIB back, and wakes the streams of all nodes. Returns whether a plan differs, and what it is in numbers, if
/// one is whole by this.
fn give_back(server: &Server, rib: Box<Rib>, rollout: Option<Rollout>) -> Option<(bool, Made)> {
    // Counted before the lock is taken, which all streams wait for.
    let chains = rib.chain_count();
    let whole = rollout.as_ref().filter(|rollout| rollout.is_over());
    let whole = whole.map(|rollout| (rollout.has_changed(), made_of(rollout.network())));
    let now = server.now();
    let mut inner = server.lock();
    let took = inner.state.written(rib, rollout, now);
    inner.wake_all();
    server.rib_returned.notify_waiters();
    let (has_changed, made) = whole?;
    let made = Made {
        chains,
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

fn send_repair(server: &Server, plan_version: PlanVersion, pairs: usize, took: Duration) {
    server.log.info(
        "plan repaired",
        &[
            ("epoch", &plan_version.epoch),
            ("version", &plan_version.version),
            ("pairs", &pairs),
            ("took_ms", &millis(took)),
        ],
    );
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

fn send(server: &Server, plan_version: PlanVersion, made: &Made) {
    server.log.info(
        "the plan was computed",
        &[
            ("epoch", &plan_version.epoch),
            ("version", &plan_version.version),
            ("nodes", &made.nodes),
            ("links", &made.links),
            ("chains", &made.chains),
            ("took_ms", &millis(made.took)),
        ],
    );
}
