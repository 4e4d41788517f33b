// SPDX-License-Identifier: Apache-2.0
//! The measuring thread: waits, reads answers, and carries out the links' actions.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caps::Capability;
use nix::poll::{PollFd, PollFlags};
use posthaste_relay::control::Handle;
use posthaste_relay::sys;
use posthaste_wire::header::NodeId;

use super::Shared;
use super::handshake_probes::HandshakeProbes;
use super::hops::Hops;
use super::link::{Errand, State};
use super::links::{Action, Links};
use super::reflector::{Reflector, Seen};
use super::refusal::Refusal;
use super::report::Report;
use super::sender::{Event, Sender};
use super::targets::{Settings, Target};
use super::udp::Udp;
use posthaste_daemon::log::{Level, Log, Quota};
use posthaste_daemon::thread::{Waker, lock, wait};

/// The thread's capabilities: to mark sockets, and to get timestamps of sent packets where the host
/// reserves them to privileged processes.
pub(super) const KEPT: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// Logged for a packet that is rejected.
const REFUSED: &str = "measuring packet refused";
/// Bound on hosts that are remembered as no peers. More are only counted.
const NO_PEERS_MAX: usize = 64;

/// The hosts from which nodes that are no peers have sent probes since the peers changed. Each is worth
/// one line: a node that was removed may send for ever.
#[derive(Debug, Default)]
struct NoPeers(HashSet<IpAddr>);

impl NoPeers {
    /// Whether this one is new.
    fn are_joined_by(&mut self, host: IpAddr) -> bool {
        self.0.len() < NO_PEERS_MAX && self.0.insert(host)
    }
}

/// The state of the thread.
pub(super) struct Thread {
    shared: Arc<Shared>,
    settings: Settings,
    reflector: Reflector,
    sender: Sender,
    handshake_probes: HandshakeProbes,
    hops: Hops,
    log: Log,
    complaints: Quota,
    others: NoPeers,
    events: Vec<Event>,
}

impl Thread {
    /// Opens the sockets that the settings need.
    pub(super) fn new(
        shared: Arc<Shared>,
        settings: Settings,
        reflectors: Vec<(SocketAddr, Udp)>,
        workers: Vec<Handle>,
        log: Log,
    ) -> Self {
        let clock = shared.clock.clone();
        let mut thread = Self {
            shared,
            settings,
            reflector: Reflector::new(reflectors, clock.clone()),
            sender: Sender::new(clock),
            handshake_probes: HandshakeProbes::default(),
            hops: Hops::new(workers),
            log,
            complaints: Quota::default(),
            others: NoPeers::default(),
            events: Vec::new(),
        };
        thread.adopt(&[]);
        thread
    }

    /// Measures until it is stopped.
    pub(super) fn run(mut self, waker: &Waker) {
        while !self.shared.stopped.load(Ordering::Relaxed) {
            self.wait(waker);
            // A statement of its own: in the condition below, the lock would be held while settings
            // are adopted.
            let next = lock(&self.shared.next).take();
            if let Some(next) = next {
                let former = std::mem::replace(&mut self.settings, next);
                self.adopt(&former.targets);
            }
            self.turn();
        }
    }

    /// Adopts the present settings.
    fn adopt(&mut self, former: &[Target]) {
        self.others = NoPeers::default();
        // Not fatal: a probe without a socket counts as lost, and handshakes measure instead.
        if let Err(error) = self.sender.prepare(&self.settings) {
            self.log.error(
                "could not open sockets to measure links",
                &[("error", &error)],
            );
        }
        let targets = &self.settings.targets;
        let mut links = lock(&self.shared.links);
        for target in former.iter().filter(|target| !targets.contains(target)) {
            // Another address or key may mean another host.
            links.forget(target.peer);
        }
        let peers: Vec<NodeId> = targets.iter().map(|target| target.peer).collect();
        links.set_peers(self.settings.schedule, &peers, sys::monotonic());
    }

    /// Waits for readable sockets or due actions.
    fn wait(&self, waker: &Waker) {
        let deadline = lock(&self.shared.links).deadline();
        // A node that only reflects sleeps until a probe arrives.
        let query = (!self.settings.targets.is_empty()).then(|| self.hops.deadline());
        let all = [deadline, query, self.handshake_probes.deadline()];
        let sockets = self.reflector.sockets().chain(self.sender.sockets());
        let readable = sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        // A connect() in progress makes its socket writable when it succeeds or fails (connect(2)).
        let probes = self.handshake_probes.sockets();
        let writable = probes.map(|probe| PollFd::new(probe.as_fd(), PollFlags::POLLOUT));
        wait(
            waker,
            readable.chain(writable),
            all.into_iter().flatten().min(),
        );
    }

    fn turn(&mut self) {
        // First: the sender of a probe that stays here too long discards the time.
        self.reflect();
        let now = sys::monotonic();
        // Returned below, so that turns reuse one allocation.
        let mut events = std::mem::take(&mut self.events);
        // Answers before actions: a probe whose answer is in a queue must not time out.
        self.sender.collect(&self.settings, now, &mut events);
        let shared = Arc::clone(&self.shared);
        // For the whole turn, so that the API never shows half of one.
        let mut links = lock(&shared.links);
        for event in events.drain(..) {
            self.on_event(event, &mut links, now);
        }
        self.events = events;
        if !self.settings.targets.is_empty() {
            self.hops.pass_on(&mut links, now);
        }
        self.handshake_probe(&mut links, now);
        while let Some(action) = links.poll_action(now) {
            self.carry_out(action, &mut links, now);
        }
        // Again: the actions may have added handshakes.
        self.handshake_probe(&mut links, now);
        while let Some((report, was)) = links.next_report(now) {
            // The links stay locked meanwhile, hence a sink must not wait.
            shared.sink.on_report(&report);
            // A round trip that changes is no event for an operator.
            if report.state != was {
                self.log_change(&report);
            }
        }
    }

    fn reflect(&mut self) {
        let shared = Arc::clone(&self.shared);
        let (log, complaints) = (&self.log, &mut self.complaints);
        let others = &mut self.others;
        let note = |seen| match seen {
            Seen::Answered => shared.counts.on_reflected(),
            Seen::Refused(from, refusal, ahead_ms) => {
                complain(&shared, log, complaints, from, (refusal, ahead_ms));
            }
            Seen::NoPeer(from) => {
                shared.counts.on_refused(Refusal::AuthTag);
                if others.are_joined_by(from.ip()) {
                    let fields: [(&str, &dyn Display); 2] =
                        [("from", &from), ("reason", &Refusal::AuthTag.label())];
                    log.info(REFUSED, &fields);
                }
            }
        };
        self.reflector.serve(&self.settings, sys::monotonic(), note);
    }

    fn on_event(&mut self, event: Event, links: &mut Links, now: Duration) {
        match event {
            Event::Answer(peer, probe, rtt_us) => {
                links.on_answer(peer, probe, rtt_us, now);
            }
            Event::Refused(peer, probe) => links.on_refused(peer, probe, now),
            Event::Bad(from, refusal) => {
                let why = (refusal, None);
                complain(&self.shared, &self.log, &mut self.complaints, from, why);
            }
        }
    }

    fn carry_out(&mut self, action: Action, links: &mut Links, now: Duration) {
        let Action { peer, errand } = action;
        let target = self.settings.target(peer);
        match (errand, target) {
            (Errand::Probe { port, sequence }, Some(target)) => {
                let probe = (port, sequence);
                if self
                    .sender
                    .send(&self.settings, target, probe, now)
                    .is_err()
                {
                    // Lost at once, not after its timeout.
                    links.on_refused(peer, probe, now);
                }
            }
            (Errand::Handshake { within }, Some(target)) => {
                self.handshake_probes.add(peer, target.listener, within);
            }
            // The links match the settings.
            (_, None) => {}
        }
    }

    fn handshake_probe(&mut self, links: &mut Links, now: Duration) {
        let done = |peer, rtt_us| links.on_handshake(peer, rtt_us, now);
        self.handshake_probes.advance(self.settings.mark, now, done);
    }

    /// Logs links that become up or dead.
    fn log_change(&self, report: &Report) {
        let peer = u64::from(report.peer);
        match (report.state, report.rtt_us) {
            (State::Dead, _) => self.log.warn("link is down", &[("peer", &peer)]),
            (_, Some(rtt_us)) => self
                .log
                .info("link is up", &[("peer", &peer), ("rtt_us", &rtt_us)]),
            _ => self.log.warn("link is not measured", &[("peer", &peer)]),
        }
    }
}

/// Counts a rejected packet, and logs it within bounds.
fn complain(
    shared: &Shared,
    log: &Log,
    complaints: &mut Quota,
    from: SocketAddr,
    (refusal, ahead_ms): (Refusal, Option<i64>),
) {
    shared.counts.on_refused(refusal);
    if let Some(left_out) = complaints.take(Instant::now()) {
        let reason = refusal.label();
        let mut fields: Vec<(&str, &dyn Display)> = vec![("from", &from), ("reason", &reason)];
        if let Some(ahead_ms) = &ahead_ms {
            fields.push(("clock_ahead_ms", ahead_ms));
        }
        log.event_after(left_out, Level::Warn, REFUSED, &fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peers_reported_once() {
        let mut others = NoPeers::default();
        let host = |last| IpAddr::from([192, 0, 2, last]);
        assert!(others.are_joined_by(host(1)));
        assert!(!others.are_joined_by(host(1)));
        let new = (2..=255).filter(|last| others.are_joined_by(host(*last)));
        assert_eq!(new.count(), NO_PEERS_MAX - 1);
    }
}
