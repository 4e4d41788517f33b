// SPDX-License-Identifier: Apache-2.0
//! Where the streams of nodes, the planner and the API meet: the state, the sessions and the store.
//!
//! One lock, held for as long as it takes to look something up. Plans are made without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_control::identity::PublicKey;
use posthaste_control::message::{Hello, NodeNumber, Prefix, ToController, ToNode, VERSION};
use posthaste_control::rib::Rib;
use posthaste_control::store::{Contents, Store};
use posthaste_control::time::{ClockServer, StoredClock};
use posthaste_control::tls::AllowedKeys;
use posthaste_relay::clock;
use tokio::sync::Notify;

use super::counters::Counters;
use super::state::{ControllerState, Limits};
use super::streams::Unauthorized;
use super::wire::{Dismissal, End};
use posthaste_config::controller::Controller;
use posthaste_daemon::log::{Level, Log};

#[cfg(test)]
pub(super) mod fixture;
mod inner;
mod meaning;

pub(super) use inner::{Inner, Session};

/// What all parts of a controller share.
#[derive(Debug)]
pub(super) struct Server {
    inner: Mutex<Inner>,
    store: Mutex<Store>,
    allowed_keys: AllowedKeys,
    keepalive: Duration,
    started: Instant,
    pub(super) log: Log,
    pub(super) counters: Counters,
    /// Something may be due earlier than was thought.
    pub(super) scheduler: Notify,
    /// The RIB is back from the thread that had it.
    pub(super) rib_returned: Notify,
}

impl Server {
    /// With what was kept.
    pub(super) fn new(config: Controller, store: Store, contents: Contents, log: Log) -> Self {
        let limits = Limits {
            ttl: config.plan.ttl,
            warm: config.plan.warm,
            keepalive: config.server.keepalive,
        };
        let intervals = (config.interval, config.interval_in_use);
        let rib = Rib::new(meaning::settings(&config), contents.plan_version);
        let mut state = ControllerState::new(limits, rib, intervals, Duration::ZERO);
        state.set_prefixes(contents.prefixes, Duration::ZERO);
        let clock_server = ClockServer::new(clock::own(), contents.time, Duration::ZERO);
        let server = Self {
            store: Mutex::new(store),
            allowed_keys: AllowedKeys::default(),
            keepalive: config.server.keepalive,
            started: Instant::now(),
            log,
            counters: Counters::default(),
            scheduler: Notify::new(),
            rib_returned: Notify::new(),
            inner: Mutex::new(Inner::new(
                state,
                config.clone(),
                contents.keys,
                clock_server,
            )),
        };
        // As a reload does, so that a start leads to the same state.
        server.configure(config);
        server
    }

    /// Takes on a configuration: nodes, prefixes, intervals, tokens. Nodes that are not on the list any
    /// more, or have another key, are sent away at once.
    pub(super) fn configure(&self, config: Controller) {
        // First: handshakes from here on are judged by the new list, and `enter` judges
        // those that passed under the former one.
        self.allowed_keys
            .set(config.nodes.iter().map(|node| node.key).collect());
        let now = self.now();
        let mut inner = self.lock();
        let before = meaning::keys(&inner.config);
        let after = meaning::keys(&config);
        let changed = before
            .into_iter()
            .filter(|(number, key)| after.get(number) != Some(key));
        // Those that were taken off the list while the controller did not run, too.
        let known = inner.exchange.keys().copied();
        let unlisted = known.filter(|number| !after.contains_key(number));
        let revoked: BTreeSet<NodeNumber> =
            changed.map(|(number, _)| number).chain(unlisted).collect();
        let intervals = (config.interval, config.interval_in_use);
        inner.state.configure(
            meaning::listed(&config),
            meaning::prefixes(&config),
            intervals,
            now,
        );
        // Nodes that stay keep their meters: a reload must not reset a limit.
        inner.conduct.retain(|number, _| after.contains_key(number));
        for number in revoked {
            inner.state.lose(number, now);
            inner.dismiss(number, Dismissal::Revoked);
        }
        inner.config = config;
        inner.wake_all();
        // The planner takes the lock as soon as it is notified.
        drop(inner);
        self.scheduler.notify_one();
    }

    /// Who may open a stream.
    pub(super) fn allowed_keys(&self) -> AllowedKeys {
        self.allowed_keys.clone()
    }

    /// By the controller's own clock, which nobody sets.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// How often either end of a stream sends a message at least.
    pub(super) fn keepalive(&self) -> Duration {
        self.keepalive
    }

    /// A node of this key sends its hello.
    pub(super) fn enter(
        &self,
        hello: Hello,
        key: PublicKey,
        from: SocketAddr,
    ) -> Result<Session, End> {
        let denied = |why: String| Err(End::Denied(why));
        // Versions begin at 1. A node of a newer one is sent messages of ours.
        if hello.version == 0 {
            return denied(format!(
                "version {} of messages is not spoken",
                hello.version
            ));
        }
        let (number, now) = (hello.number, self.now());
        let mut inner = self.lock();
        // The list may have changed since the handshake.
        if meaning::keys(&inner.config).get(&number) != Some(&key) {
            return denied(format!("node {number} has another key, or none"));
        }
        // After the key was compared: nobody else can use up the quota of a node.
        let conduct = inner.conduct.entry(number).or_default();
        if !conduct.may_come(now) {
            return Err(End::Excessive("the node comes again and again"));
        }
        let line = conduct.lines.take(Instant::now());
        let (exchange, software) = (hello.exchange, hello.software.clone());
        let spoken = hello.version.min(VERSION);
        if let Err(error) = inner.state.enter(hello, now) {
            return denied(error.to_string());
        }
        // Before the new session takes the place of the former, which would dismiss itself.
        inner.dismiss(number, Dismissal::Replaced);
        let session = inner.session(number, from, now);
        let known = inner.exchange.insert(number, exchange);
        let name = inner.name(number);
        // The store may wait for a disk: not under the lock that all streams share.
        drop(inner);
        self.counters.registrations.add();
        if let Some(left_out) = line {
            let fields: [(&str, &dyn Display); 4] = [
                ("node", &name),
                ("from", &from),
                ("software", &software),
                ("version", &spoken),
            ];
            self.log
                .event_after(left_out, Level::Info, "node connected", &fields);
        }
        self.keep_exchange(&name, number, known, exchange);
        self.scheduler.notify_one();
        Ok(session)
    }

    /// Keeps the key that other nodes hold on to.
    fn keep_exchange(
        &self,
        name: &str,
        number: NodeNumber,
        known: Option<[u8; 32]>,
        sent: [u8; 32],
    ) {
        // A write to the store for each stream would let a node wear the disk out.
        if known == Some(sent) {
            return;
        }
        if known.is_some() {
            let what = "a node sent another exchange key than before: others keep the former";
            self.log.warn(what, &[("node", &name)]);
        }
        if let Err(error) = self.store().set_key(number, Some(sent)) {
            self.counters.store_failures.add();
            self.log
                .error("could not store the key of a node", &[("error", &error)]);
        }
    }

    /// The first message to a node.
    pub(super) fn welcome(&self, number: NodeNumber) -> ToNode {
        self.lock().state.welcome(number)
    }

    /// The time that nodes receive, now.
    pub(super) fn time(&self) -> StoredClock {
        let now = self.now();
        self.lock().time(now)
    }

    /// Stores the time that nodes received.
    pub(super) fn keep_time(&self) {
        let time = self.time();
        if let Err(error) = self.store().set_time(time) {
            self.counters.store_failures.add();
            self.log
                .error("could not store the clock offset", &[("error", &error)]);
        }
    }

    /// A node sent a message of so many bytes. Returns for how long nothing more is to be read of it.
    pub(super) fn received(
        &self,
        number: NodeNumber,
        ticket: u64,
        (message, bytes): (ToController, usize),
    ) -> Result<Duration, End> {
        let now = self.now();
        let mut inner = self.lock();
        let Some(wake) = inner.wake_of(number, ticket) else {
            // It was read before the newer stream dismissed this one.
            return Err(End::Dismissed(Dismissal::Replaced));
        };
        let conduct = inner.conduct.entry(number).or_default();
        // Before its content is examined: a message that is refused costs time, too.
        let pause = conduct.on_message(bytes, now);
        self.counters.messages.add();
        if let ToController::Nack { why, .. } = &message {
            self.on_nack(&mut inner, number, why, now)?;
        }
        inner.state.received(number, message, now)?;
        drop(inner);
        wake.notify_one();
        self.scheduler.notify_one();
        Ok(pause)
    }

    /// A node reports that rows do not fit: so often, and no more.
    fn on_nack(
        &self,
        inner: &mut Inner,
        number: NodeNumber,
        why: &str,
        now: Duration,
    ) -> Result<(), End> {
        self.counters.nacks.add();
        let name = inner.name(number);
        let conduct = inner.conduct.entry(number).or_default();
        if let Some(left_out) = conduct.lines.take(Instant::now()) {
            let fields: [(&str, &dyn Display); 2] = [("node", &name), ("why", &why)];
            self.log
                .event_after(left_out, Level::Warn, "route update refused", &fields);
        }
        if conduct.may_nack(now) {
            return Ok(());
        }
        Err(End::Excessive(
            "the node rejected route updates again and again: is it of another version?",
        ))
    }

    /// The next message that is due on a stream.
    pub(super) fn due(&self, number: NodeNumber, ticket: u64) -> Option<ToNode> {
        let now = self.now();
        let mut inner = self.lock();
        // A replaced stream must not take what is due on the newer one.
        inner.wake_of(number, ticket)?;
        let time = inner.time(now);
        let due = inner.state.due(number, time.sent);
        if let Some(ToNode::RouteUpdate(update)) = &due {
            let counters = &self.counters;
            let sent = if update.base.is_some() {
                &counters.updates_incremental
            } else {
                &counters.updates_full
            };
            sent.add();
        }
        due
    }

    /// What a stream sends when nothing is due.
    pub(super) fn idle(&self, number: NodeNumber) -> ToNode {
        self.lock().state.idle(number)
    }

    /// A stream has ended.
    pub(super) fn leave(&self, number: NodeNumber, ticket: u64, end: &End) {
        let now = self.now();
        let mut inner = self.lock();
        let name = inner.name(number);
        // The end of a replaced stream takes nothing from the newer one.
        if inner.wake_of(number, ticket).is_some() {
            inner.sessions.remove(&number);
            inner.state.leave(number, now);
        }
        let conduct = inner.conduct.get_mut(&number);
        // A node that is off the list has no quota any more; this is its last line.
        let line = conduct.map_or(Some(0), |conduct| conduct.lines.take(Instant::now()));
        drop(inner);
        self.counters.end(end);
        if let Some(left_out) = line {
            let fields: [(&str, &dyn Display); 3] =
                [("node", &name), ("code", &end.label()), ("why", end)];
            self.log
                .event_after(left_out, Level::Info, "node disconnected", &fields);
        }
        self.scheduler.notify_one();
    }

    /// A stream whose key is known did not begin as it should.
    pub(super) fn not_let_in(&self, from: SocketAddr, key: PublicKey, end: &End) {
        self.counters.end(end);
        // One quota for all: who is not on the list can connect from many addresses.
        let line = self.lock().lines.take(Instant::now());
        if let Some(left_out) = line {
            let fields: [(&str, &dyn Display); 4] = [
                ("from", &from),
                ("key", &key),
                ("code", &end.label()),
                ("why", end),
            ];
            self.log
                .event_after(left_out, Level::Warn, "node denied", &fields);
        }
    }

    /// A connection did not become a stream.
    pub(super) fn turned_away(&self, from: SocketAddr, why: &Unauthorized) {
        self.counters.turn_away(why);
        let line = self.lock().lines.take(Instant::now());
        if let Some(left_out) = line {
            let detail = match why {
                Unauthorized::Handshake(detail) => detail.as_str(),
                _ => "-",
            };
            let fields: [(&str, &dyn Display); 3] = [
                ("from", &from),
                ("reason", &why.label()),
                ("detail", &detail),
            ];
            self.log
                .event_after(left_out, Level::Warn, "unknown key rejected", &fields);
        }
    }

    /// Sets whose destinations are whose, by the API; survives the controller.
    pub(super) fn set_prefixes(&self, table: BTreeMap<Prefix, NodeNumber>) -> anyhow::Result<()> {
        // Until all is done: of two that are set at once the same is to be kept and in force.
        let mut store = self.store();
        // Stored before it is in force: a restart must not lose what nodes have received.
        store.set_prefixes(&table)?;
        let now = self.now();
        let mut inner = self.lock();
        inner.state.set_prefixes(table, now);
        inner.wake_all();
        Ok(())
    }

    /// Every stream is to end.
    pub(super) fn stop(&self) {
        let mut inner = self.lock();
        // Collected: `dismiss` borrows the sessions.
        let numbers: Vec<NodeNumber> = inner.sessions.keys().copied().collect();
        for number in numbers {
            inner.dismiss(number, Dismissal::Stopping);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic ends the process.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
