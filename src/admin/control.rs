// SPDX-License-Identifier: Apache-2.0
//! The state of the control side: what was asked of the node and when.
//!
//! Signals and the admin API ask for the same things; both ask here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_relay::clock;
use posthaste_relay::control::{Denial, Handle};
use posthaste_relay::outcome::Outcome;
use tokio::sync::Notify;

use super::api::follow::Follow;
use super::api::links::Links;
use super::api::{Guard, Interface, ReloadReport, Reloads, State, Status};
use super::operations::Operations;
use crate::journal::Timestamp;
use crate::notify;

/// One per node.
pub(super) struct Control {
    pub(super) node: Arc<dyn Operations>,
    /// Since 1970, as the host's clock was then.
    started: Duration,
    /// The same by a clock that nobody sets.
    begun: Instant,
    asked: Mutex<Asked>,
    /// Held while the configuration is read: two at once would mix.
    reloading: Mutex<()>,
    /// Wakes whoever waits for a drain to begin.
    pub(super) draining: Notify,
}

/// What was asked so far.
#[derive(Debug)]
struct Asked {
    state: State,
    reloads: Reloads,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

impl Control {
    pub(super) fn new(node: Arc<dyn Operations>) -> Self {
        let started = unix_now();
        Self {
            node,
            started,
            begun: Instant::now(),
            asked: Mutex::new(Asked {
                state: State::Ready,
                reloads: Reloads {
                    last_success_unix_seconds: started.as_secs_f64(),
                    ..Reloads::default()
                },
            }),
            reloading: Mutex::new(()),
            draining: Notify::new(),
        }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn workers(&self) -> &[Handle] {
        self.node.workers()
    }

    pub(super) fn state(&self) -> State {
        self.asked().state
    }

    /// Reads the configuration again, with word to the log and to systemd.
    pub(super) fn reload(&self) -> anyhow::Result<ReloadReport> {
        let _alone = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        notify::reloading();
        let outcome = self.node.reload();
        self.asked()
            .reloads
            .record(&outcome, unix_now().as_secs_f64());
        let log = self.node.log();
        match &outcome {
            Ok(report) => {
                let rest = report.needs_restart.join(",");
                log.info(
                    "reloaded",
                    &[("rules", &report.rules), ("needs_restart", &rest)],
                );
                notify::ready("relaying");
            }
            Err(error) => {
                log.error(
                    "could not reload: the configuration stays",
                    &[("error", &format!("{error:#}"))],
                );
                notify::ready("relaying; the last reload failed");
            }
        }
        outcome
    }

    /// Begins to drain; asked again, shortens the time.
    pub(super) fn drain(&self, deadline: Option<Duration>) {
        let deadline = deadline.unwrap_or_else(|| self.node.drain_timeout());
        self.asked().state = State::Draining;
        let within = deadline.as_secs_f64();
        self.node.log().info("draining", &[("deadline_s", &within)]);
        self.node.drain(deadline);
        self.draining.notify_one();
    }

    /// `GET /status`
    pub(super) fn status(&self) -> Status {
        let snapshot = self.snapshot();
        let named =
            |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| -> BTreeMap<String, u64> {
                pairs
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            };
        let counters = &snapshot.totals.counters;
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            state: snapshot.state,
            started: Timestamp(self.started).to_string(),
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            config: self.node.config_file(),
            workers: snapshot.workers,
            counters: named(&mut counters.iter().map(|counter| (counter.name, counter.value))),
            ended: named(&mut snapshot.totals.ended.iter().copied()),
            redirect: named(
                &mut snapshot
                    .redirect
                    .iter()
                    .map(|(name, _, value)| (*name, *value)),
            ),
            interfaces: snapshot.interfaces,
            guard: snapshot.guard,
            reloads: snapshot.reloads,
            controller: snapshot.follow,
        }
    }

    /// Every number there is, at one moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        let (state, reloads) = {
            let asked = self.asked();
            (asked.state, asked.reloads.clone())
        };
        Snapshot {
            state,
            started: self.started,
            workers: self.workers().len(),
            totals: Totals::of(self.workers()),
            redirect: self.node.redirect_stats(),
            interfaces: self.node.interfaces(),
            guard: self.node.guard(),
            links: self.node.links(),
            follow: self.node.follow(),
            reloads,
            events_dropped: self.node.log().events_dropped(),
        }
    }
}

/// Every number of a node, at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) state: State,
    /// Since 1970.
    pub(crate) started: Duration,
    pub(crate) workers: usize,
    pub(crate) totals: Totals,
    /// The redirect program's counters: name, documentation, value.
    pub(crate) redirect: Vec<(&'static str, &'static str, u64)>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) guard: Guard,
    pub(crate) links: Links,
    /// The controller that is followed, if any.
    pub(crate) follow: Option<Follow>,
    pub(crate) reloads: Reloads,
    /// Lines of the node's own that the log dropped.
    pub(crate) events_dropped: u64,
}

/// The workers' counters, summed.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) counters: Vec<Total>,
    /// Relays ended, by label of the outcome.
    pub(crate) ended: Vec<(&'static str, u64)>,
    /// Requests denied, by label of the reason.
    pub(crate) denied: Vec<(&'static str, u64)>,
}

/// One counter, summed over the workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// Whether it only grows.
    pub(crate) grows: bool,
    pub(crate) value: u64,
}

impl Totals {
    fn of(workers: &[Handle]) -> Self {
        let mut counters: Vec<Total> = Vec::new();
        let mut ended: Vec<_> = Outcome::ALL
            .iter()
            .map(|outcome| (outcome.label(), 0))
            .collect();
        let reasons = Denial::ALL.iter();
        let mut denied: Vec<_> = reasons.map(|denial| (denial.label(), 0)).collect();
        for worker in workers {
            for (index, (name, help, grows, value)) in worker.counters.each().enumerate() {
                match counters.get_mut(index) {
                    Some(total) => total.value += value,
                    None => counters.push(Total {
                        name,
                        help,
                        grows,
                        value,
                    }),
                }
            }
            for (total, counter) in ended.iter_mut().zip(&worker.counters.ended) {
                total.1 += counter.read();
            }
            for (total, counter) in denied.iter_mut().zip(&worker.counters.denied) {
                total.1 += counter.read();
            }
        }
        Self {
            counters,
            ended,
            denied,
        }
    }
}

/// Since 1970.
pub(super) fn unix_now() -> Duration {
    clock::own()
}
