// SPDX-License-Identifier: Apache-2.0
//! The workers' knowledge of links: round trips of the hops that they opened, peers in use, and
//! peers that are down. Queried at intervals, without waiting for the answers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use posthaste_relay::control::{Command, Handle, Known, PeerState};
use posthaste_wire::header::NodeId;

use super::links::Links;

/// Interval of the queries.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a link counts as in use after a flow.
const IN_USE: Duration = Duration::from_secs(60);
/// How long a round trip counts as new.
const RECENT: Duration = Duration::from_secs(2);

/// Queries the workers of a node.
#[derive(Debug)]
pub(super) struct Hops {
    workers: Vec<Handle>,
    /// The pending answer, by worker.
    answers: Vec<Option<Receiver<Known>>>,
    requested: Duration,
    peers: HashMap<(usize, NodeId), Seen>,
    /// Until when links count as in use.
    used: HashMap<NodeId, Duration>,
}

/// A worker's last report about a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    flows: u64,
    opened: Duration,
    down: bool,
}

impl Hops {
    pub(super) fn new(workers: Vec<Handle>) -> Self {
        let answers = workers.iter().map(|_| None).collect();
        Self {
            workers,
            answers,
            requested: Duration::ZERO,
            peers: HashMap::new(),
            used: HashMap::new(),
        }
    }

    /// Queries if it is time, and passes on the answers.
    pub(super) fn pass_on(&mut self, links: &mut Links, now: Duration) {
        for worker in 0..self.answers.len() {
            if let Some(known) = self.answer(worker) {
                for state in &known.peers {
                    self.on_state(worker, state, links, now);
                }
            }
        }
        if now < self.deadline() {
            return;
        }
        self.requested = now;
        for (worker, waiting) in self.workers.iter().zip(&mut self.answers) {
            // One query in flight per worker: one that is stalled must not collect a queue.
            if waiting.is_none() {
                let (answer, answers) = channel();
                worker.send(Command::Peers { answer });
                *waiting = Some(answers);
            }
        }
        self.used.retain(|peer, until| {
            let goes_on = now < *until;
            links.set_in_use(*peer, goes_on, now);
            goes_on
        });
    }

    /// When the next query is due.
    pub(super) fn deadline(&self) -> Duration {
        self.requested + QUERY_INTERVAL
    }

    fn answer(&mut self, worker: usize) -> Option<Known> {
        let waiting = self.answers[worker].take()?;
        match waiting.try_recv() {
            Ok(known) => Some(known),
            // The worker ended or dropped the query: the next interval repeats it.
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                self.answers[worker] = Some(waiting);
                None
            }
        }
    }

    fn on_state(&mut self, worker: usize, state: &PeerState, links: &mut Links, now: Duration) {
        let flows = state.totals.taken + state.totals.missed;
        let down = state.down_for.is_some();
        // By worker as well: each counts its own flows.
        let seen = self.peers.entry((worker, state.peer)).or_default();
        if flows != std::mem::replace(&mut seen.flows, flows) && flows > 0 {
            self.used.insert(state.peer, now + IN_USE);
            links.set_in_use(state.peer, true, now);
        }
        if let Some((rtt, age)) = state.opened {
            let at = now.saturating_sub(age);
            // Each time once: a worker repeats the shortest one of late in its answers.
            if age < RECENT && at > seen.opened {
                seen.opened = at;
                let rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
                links.on_hop(state.peer, rtt_us, at, now);
            }
        }
        // Only the change: a peer that stays down must not be checked every second.
        if down && !std::mem::replace(&mut seen.down, down) {
            links.suspect(state.peer, now);
        }
        seen.down = down;
    }
}
