// SPDX-License-Identifier: Apache-2.0
//! The state of the control side: the requests to the node, and their times.
//!
//! Signals and the admin API make the same requests; both use this.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::bail;
use posthaste_relay::clock;
use posthaste_relay::control::{Denial, Handle};
use posthaste_relay::outcome::Outcome;
use posthaste_relay::sys;
use tokio::sync::{Notify, watch};

use super::fleet;
use super::operations::Operations;
use super::rules::{self, RuleTotal};
use super::socket::Place;
use crate::api::chains::Explanation;
use crate::api::control_client::Follow;
use crate::api::packets;
use crate::api::{
    Guard, Interface, Process, Relays, ReloadReport, Reloads, Replaced, State, Status,
};
use crate::chains::{self, Packets, Question};
use crate::upgrade;
use posthaste_daemon::log::Timestamp;
use posthaste_daemon::notify;
use posthaste_daemon::thread::lock;
use posthaste_measure::documents::Links;

/// One per node.
pub(super) struct Control {
    pub(super) node: Arc<dyn Operations>,
    /// Since 1970, by the host's clock at that time.
    started: Duration,
    /// The same by a clock that cannot be set.
    begun: Instant,
    requests: Mutex<Requests>,
    /// Held while the configuration is reloaded: two reloads at once would mix.
    reloading: Mutex<()>,
    /// Notified when a drain begins.
    pub(super) draining: Notify,
    /// The place of the admin socket.
    place: OnceLock<Arc<Place>>,
    /// Dropping it closes the metrics server.
    metrics: Mutex<Option<watch::Sender<()>>>,
}

/// The requests so far.
#[derive(Debug)]
struct Requests {
    state: State,
    /// Whether a request ends the node.
    end_requested: bool,
    /// Deadline of open relays.
    deadline: Option<Instant>,
    reloads: Reloads,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("requests", &self.requests)
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
            requests: Mutex::new(Requests {
                state: State::Ready,
                end_requested: false,
                deadline: None,
                reloads: Reloads {
                    last_success_unix_seconds: started.as_secs_f64(),
                    ..Reloads::default()
                },
            }),
            reloading: Mutex::new(()),
            draining: Notify::new(),
            place: OnceLock::new(),
            metrics: Mutex::default(),
        }
    }

    /// Sets the place of the admin socket.
    pub(super) fn answers_at(&self, place: &Arc<Place>) {
        let _ = self.place.set(Arc::clone(place));
    }

    pub(super) fn place(&self) -> Option<&Arc<Place>> {
        self.place.get()
    }

    /// A receiver that ends when the metrics server must close.
    pub(super) fn open_metrics(&self) -> watch::Receiver<()> {
        let (open, closing) = watch::channel(());
        *lock(&self.metrics) = Some(open);
        closing
    }

    pub(super) fn close_metrics(&self) {
        lock(&self.metrics).take();
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        lock(&self.requests)
    }

    pub(super) fn workers(&self) -> &[Handle] {
        self.node.workers()
    }

    pub(super) fn state(&self) -> State {
        self.requests().state
    }

    pub(super) fn is_ending(&self) -> bool {
        self.requests().end_requested
    }

    /// Begins to end, or shortens the deadline.
    pub(super) fn end(&self, state: State, deadline: Duration) {
        let mut requests = self.requests();
        let until = Instant::now() + deadline;
        requests.deadline = Some(requests.deadline.map_or(until, |set| set.min(until)));
        // A replaced node stays one: its successor reports states to the service manager.
        if requests.state != State::Replaced {
            requests.state = state;
        }
    }

    /// Reloads the configuration, and reports that to the log and to systemd.
    pub(super) fn reload(&self) -> anyhow::Result<ReloadReport> {
        let _alone = lock(&self.reloading);
        if self.state() == State::Replaced {
            bail!(
                "another process has taken this node's place, and has a configuration of its own"
            );
        }
        notify::reloading();
        let outcome = self.node.reload();
        self.requests()
            .reloads
            .record(&outcome, unix_now().as_secs_f64());
        let log = self.node.log();
        match &outcome {
            Ok(report) => {
                let rest = report.needs_restart.join(",");
                log.info(
                    "the configuration was reloaded",
                    &[("rules", &report.rules), ("needs_restart", &rest)],
                );
                notify::ready("relaying");
            }
            Err(error) => {
                log.error(
                    "reload failed: the previous configuration is in force",
                    &[("error", &format!("{error:#}"))],
                );
                // After RELOADING=1 systemd waits for READY=1, whatever the result (sd_notify(3)).
                notify::ready("relaying; the last reload failed");
            }
        }
        outcome
    }

    /// Begins to drain; a second call shortens the deadline.
    pub(super) fn drain(&self, deadline: Option<Duration>) {
        let deadline = deadline.unwrap_or_else(|| self.node.drain_timeout());
        self.end(State::Draining, deadline);
        self.requests().end_requested = true;
        let within = deadline.as_secs_f64();
        self.node
            .log()
            .info("the node drains", &[("deadline_s", &within)]);
        // A replaced node is no longer the one that the service manager follows.
        if self.state() == State::Draining {
            notify::stopping(deadline);
        }
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
        let documents = snapshot.totals.rules.iter().map(RuleTotal::document);
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
            blocked: self.node.is_blocked(),
            packet_path_trouble: self.node.packet_path_trouble(),
            transparent: self.node.configuration().transparent.enabled,
            saved: rules::saved(&snapshot.totals.rules),
            rules: documents.collect(),
            guard: snapshot.guard,
            reloads: snapshot.reloads,
            controller: snapshot.follow,
            deadline_seconds: self.time_left().map(|left| left.as_secs_f64()),
            replaced: self.replaced(),
            process: Process {
                binary: upgrade::binary_identity(),
                supervised: notify::supervised(),
                watchdog_us: notify::watchdog_limit()
                    .and_then(|limit| u64::try_from(limit.as_micros()).ok()),
            },
        }
    }

    /// `GET /relays`: at most `limit` relays and flows of the packet path, relays first.
    pub(super) fn relays(&self, limit: usize) -> anyhow::Result<Relays> {
        let mut relays = fleet::list(self.workers(), limit);
        let room = limit - relays.relays.len();
        // One more than is shown, as for relays.
        let flows = self.node.packet_flows(room.saturating_add(1))?;
        let now = sys::monotonic();
        relays.incomplete |= flows.len() > room;
        relays.packet_flows = flows
            .iter()
            .take(room)
            .map(|flow| packets::Flow::of(flow, now))
            .collect();
        Ok(relays)
    }

    /// `GET /chains/explain`
    pub(super) fn explain(&self, question: &Question) -> anyhow::Result<Explanation> {
        let followed = self.node.followed(question.destination());
        let packets = Packets {
            flow: self.node.packet_knowledge(&question.flow())?,
            blocked: self.node.is_blocked(),
            bypassed: self.node.is_bypassed(&question.flow())?,
        };
        Ok(chains::explain(
            &self.node.configuration(),
            question,
            Some(&fleet::known(self.workers())),
            followed.as_ref(),
            Some(&packets),
        ))
    }

    /// Time left for relays, if the node ends.
    fn time_left(&self) -> Option<Duration> {
        let deadline = self.requests().deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// The nodes that this one has replaced.
    fn replaced(&self) -> Vec<Replaced> {
        let live = self.node.predecessors().live();
        let each = live.map(|(pid, socket)| Replaced {
            pid,
            socket: socket.display().to_string(),
            // The verb queries these nodes: one that hangs must not delay this answer.
            relays: None,
            deadline_seconds: None,
        });
        each.collect()
    }

    /// All figures at one moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        // The lock is held for these two only: the other figures take longer.
        let (state, reloads) = {
            let requests = self.requests();
            (requests.state, requests.reloads.clone())
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
            replaced: self.node.predecessors().live().count(),
        }
    }
}

/// All figures of a node at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) state: State,
    /// Since 1970.
    pub(super) started: Duration,
    pub(super) workers: usize,
    pub(super) totals: Totals,
    /// The redirect program's counters: name, documentation, value.
    pub(super) redirect: Vec<(&'static str, &'static str, u64)>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) guard: Guard,
    pub(super) links: Links,
    /// The controller of this node, if any.
    pub(super) follow: Option<Follow>,
    pub(super) reloads: Reloads,
    /// Log lines of the node itself that were dropped.
    pub(super) events_dropped: u64,
    /// Nodes that this one has replaced and that still carry relays.
    pub(super) replaced: usize,
}

/// The workers' counters, summed.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) counters: Vec<Total>,
    /// Relays ended, by label of the outcome.
    pub(super) ended: Vec<(&'static str, u64)>,
    /// Requests denied, by label of the reason.
    pub(super) denied: Vec<(&'static str, u64)>,
    /// Durations and savings of relays, by rule.
    pub(super) rules: Vec<RuleTotal>,
}

/// One counter, summed over the workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Whether it is monotonic.
    pub(super) grows: bool,
    pub(super) value: u64,
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
                // Every worker lists the same counters in the same order.
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
            rules: rules::of_workers(workers),
        }
    }
}

/// Since 1970.
pub(super) fn unix_now() -> Duration {
    clock::own()
}
