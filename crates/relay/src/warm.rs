// SPDX-License-Identifier: Apache-2.0
//! Warm hops: open idle connections to other nodes, ready for flows.
//!
//! This is the dialer's side; the worker itself is the acceptor's side, which has no pool. Each
//! worker has its own [`WarmHops`]; nothing is shared. It keeps as many hops to each peer as flows
//! are likely to need ([`pool`]), tracks which peers are down, and records the throughput of flows
//! ([`path`]).
//!
//! A worker drives it as follows:
//!
//! * Tokens from the base given to [`WarmHops::new`] on, over 48 bits, belong to it. The worker
//!   passes an event with such a token to [`WarmHops::on_ready`], which checks the socket whatever
//!   the event reports.
//! * At the end of each turn the worker calls [`WarmHops::on_time`], which costs nothing when
//!   nothing is due, and waits no longer than until [`WarmHops::deadline`]. All dials, pings and
//!   closes happen there, never while a flow is being opened.
//! * For a flow to a peer that is not [`WarmHops::down`] it calls [`WarmHops::take`]. The socket
//!   belongs to the worker from then on, and is in no epoll. Without a warm hop the flow uses a
//!   cold one.
//! * When a flow begins on a hop, warm or cold, dialed or accepted, it calls [`WarmHops::begin`];
//!   when that has sent its first bytes and is paced [`WarmHops::share`]; and when it has ended
//!   [`WarmHops::learn`].

mod backoff;
mod demand;
mod dial;
mod loss;
mod neighbour;
pub(crate) mod path;
mod pool;
mod socket;
mod uplinks;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{self, Dialer};

use crate::chain::{Peer, Transport};
use crate::rng::Rng;
use crate::slab::Slab;
use crate::sys::{self, Segments, TcpInfo};

use dial::{Dial, DialError, Dialed, Ready};
use neighbour::Neighbour;
use pool::{Action, End};
use socket::Look;

pub(crate) use neighbour::State;
pub(crate) use uplinks::{Uplinks, is_of_uplink};

/// Actions of one pool per turn: a dial takes some tens of microseconds, and flows wait meanwhile.
const ORDERS_MAX: usize = 32;
/// Interval of the check for dials that take too long.
const SWEEP: Duration = Duration::from_millis(250);
/// How often the addresses for further paths of Multipath TCP are read.
const UPLINKS_EVERY: Duration = Duration::from_secs(10);

/// Settings of all hops of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// This node.
    pub(crate) me: NodeId,
    /// `SO_MARK` of the sockets.
    pub(crate) mark: u32,
    /// The first of the tokens in the worker's epoll; 2^48 are used.
    pub(crate) token_base: u64,
    /// Seed of the random part of waits, different for each worker and start.
    pub(crate) seed: u64,
}

/// The warm hops of one worker to all its peers.
#[derive(Debug)]
pub(crate) struct WarmHops {
    common: Common,
    rng: Rng,
    /// By peer index.
    neighbours: Vec<Neighbour>,
    hops: Slab<Hop>,
    swept: Duration,
    /// When to read the addresses for further paths of Multipath TCP again.
    uplinks_due: Duration,
    /// Peers that are due at once, possibly repeated: a turn need not scan the others.
    woken: Vec<usize>,
    /// Earliest time at which another peer is due.
    next_due: Option<Duration>,
    /// Whether a dial was under way at the last check or since.
    is_dialing: bool,
}

/// A hop for a flow.
#[derive(Debug)]
pub(crate) struct Warm {
    /// Connected, non-blocking, in no epoll, set to reset on close. The last pong may be unread in
    /// it.
    pub(crate) socket: OwnedFd,
    /// Idle: [`Dialer::open`] returns the first bytes to send. It accepts a late pong.
    pub(crate) dialer: Dialer,
}

/// Removes the pacing bound of a hop: see [`WarmHops::share`].
pub(crate) fn unpace(socket: &OwnedFd) {
    // A socket that rejects the option was not paced.
    let _ = sys::set_pacing(socket, None);
}

#[derive(Debug)]
struct Hop {
    peer: usize,
    /// `None` only while a call works on it.
    stage: Option<Stage>,
}

#[derive(Debug)]
enum Stage {
    Dialing(Dial),
    /// With the token of the unanswered ping.
    Waiting(Ready, Option<u32>),
}

impl WarmHops {
    /// Starts no dial: [`Self::on_time`] does.
    pub(crate) fn new(common: Common, peers: &[Peer], now: Duration) -> Self {
        let mut rng = Rng::new(common.seed);
        let neighbours = peers.iter();
        let neighbours = neighbours
            .map(|peer| Neighbour::new(peer, rng.next(), now))
            .collect();
        Self {
            common,
            rng,
            neighbours,
            hops: Slab::new(),
            swept: now,
            uplinks_due: now,
            woken: Vec::new(),
            next_due: Some(now),
            is_dialing: false,
        }
    }

    /// Replaces the peers. Hops to peers with the same address and keys are kept, with their
    /// measurements; the others are closed.
    pub(crate) fn replace(&mut self, peers: &[Peer], now: Duration) {
        let mut former: Vec<Option<Neighbour>> = self.neighbours.drain(..).map(Some).collect();
        let mut places = vec![None; former.len()];
        let places_of: HashMap<(NodeId, SocketAddr), usize> = former
            .iter()
            .enumerate()
            .filter_map(|(at, one)| {
                let Peer { id, address, .. } = one.as_ref()?.peer;
                Some(((id, address), at))
            })
            .collect();
        for peer in peers {
            let at = places_of.get(&(peer.id, peer.address)).copied();
            let serves = |one: &Neighbour| one.serves(peer);
            let at = at.filter(|at| former[*at].as_ref().is_some_and(serves));
            let kept = at.and_then(|at| {
                places[at] = Some(self.neighbours.len());
                former[at].take()
            });
            let mut neighbour = kept.unwrap_or_else(|| Neighbour::new(peer, self.rng.next(), now));
            neighbour.pool.set_limits(peer.pool);
            neighbour.peer = peer.clone();
            neighbour.due = Some(now);
            self.neighbours.push(neighbour);
        }
        self.uplinks_due = now;
        self.woken.clear();
        self.next_due = (!self.neighbours.is_empty()).then_some(now);
        self.is_dialing = self.neighbours.iter().any(|one| one.pool.dialing() > 0);
        let keys: Vec<u64> = self.hops.iter().map(|(key, _)| key).collect();
        for key in keys {
            let place = self.hops.get(key).and_then(|hop| places[hop.peer]);
            match (place, self.hops.get_mut(key)) {
                (Some(place), Some(hop)) => hop.peer = place,
                _ => self.dismiss(key),
            }
        }
    }

    /// Handles an event of the socket with this token, less the base.
    pub(crate) fn on_ready(&mut self, key: u64, now: Duration) {
        let Some(hop) = self.hops.get_mut(key) else {
            return;
        };
        let neighbour = &mut self.neighbours[hop.peer];
        neighbour.due = Some(now);
        self.woken.push(hop.peer);
        match hop.stage.take() {
            Some(Stage::Dialing(dial)) => self.go_on(key, dial, now),
            Some(Stage::Waiting(mut ready, ping)) => match ready.listen(ping) {
                Ok(left) => {
                    hop.stage = Some(Stage::Waiting(ready, left));
                    if ping.is_some() && left.is_none() {
                        neighbour.pool.on_pong(key, now);
                    }
                }
                Err(end) => {
                    neighbour.on_lost(key, end, now);
                    self.hops.remove(key);
                }
            },
            None => {}
        }
    }

    /// Does what is due. Call it at the end of each turn.
    pub(crate) fn on_time(&mut self, epoll: &Epoll, now: Duration) {
        if now >= self.swept + SWEEP {
            self.swept = now;
            self.give_up_dials(now);
            self.is_dialing = self.neighbours.iter().any(|one| one.pool.dialing() > 0);
        }
        if self.next_due.is_some_and(|due| due <= now) {
            self.next_due = None;
            (0..self.neighbours.len()).for_each(|peer| self.schedule(peer, now));
        }
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken.dedup();
        for &peer in &woken {
            self.look_after(peer, epoll, now);
            self.is_dialing |= self.neighbours[peer].pool.dialing() > 0;
            // More may be due than fits in a turn.
            self.schedule(peer, now);
        }
    }

    /// Notes when a peer is due.
    fn schedule(&mut self, peer: usize, now: Duration) {
        match self.neighbours[peer].due {
            Some(due) if due <= now => self.woken.push(peer),
            Some(due) => self.next_due = Some(self.next_due.map_or(due, |next| next.min(due))),
            None => {}
        }
    }

    /// The latest time at which to call [`Self::on_time`].
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let sweep = self.is_dialing.then(|| self.swept + SWEEP);
        let woken = self.woken.iter();
        let woken = woken.filter_map(|peer| self.neighbours[*peer].due);
        woken.chain(self.next_due).chain(sweep).min()
    }

    /// A hop to a peer for a flow. The flow counts as demand also if there is no hop. The hop is
    /// open, and carried no flow yet.
    pub(crate) fn take(&mut self, peer: usize, epoll: &Epoll, now: Duration) -> Option<Warm> {
        let neighbour = self.neighbours.get_mut(peer)?;
        neighbour.pool.on_flow(now);
        neighbour.due = Some(now);
        self.woken.push(peer);
        while let Some(key) = neighbour.pool.take() {
            let stage = self.hops.remove(key).and_then(|hop| hop.stage);
            let Some(Stage::Waiting(ready, ping)) = stage else {
                continue;
            };
            // An end that has arrived since the last turn has not been handled yet.
            match socket::look(&ready.socket) {
                Look::Silent => {}
                // The pong has arrived and was not read yet.
                Look::Spoken if ping.is_some() => {}
                Look::Closed => {
                    neighbour.on_lost(key, End::Closed, now);
                    continue;
                }
                Look::Spoken | Look::Broken => {
                    neighbour.on_lost(key, End::Broken, now);
                    continue;
                }
            }
            neighbour.totals.taken += 1;
            // The worker watches it with the token of the flow.
            let _ = epoll.delete(&ready.socket);
            return Some(Warm {
                socket: ready.socket,
                dialer: ready.dialer,
            });
        }
        neighbour.totals.missed += 1;
        None
    }

    /// A flow took a stream of a tunnel, which is as open as a warm hop.
    pub(crate) fn note_stream(&mut self, peer: usize) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.totals.taken += 1;
        }
    }

    /// Whether to read which addresses this host has for further paths of Multipath TCP.
    pub(crate) fn wants_uplinks(&self, now: Duration) -> bool {
        let mut neighbours = self.neighbours.iter();
        now >= self.uplinks_due
            && neighbours.any(|neighbour| neighbour.peer.transport == Transport::Mptcp)
    }

    /// This host has these.
    pub(crate) fn set_uplinks(&mut self, addresses: &[IpAddr], now: Duration) {
        self.uplinks_due = now + UPLINKS_EVERY;
        for neighbour in &mut self.neighbours {
            if neighbour.peer.transport == Transport::Mptcp {
                let ipv6 = neighbour.peer.address.is_ipv6();
                neighbour.uplinks.set(addresses, ipv6);
            }
        }
    }

    /// By which uplinks hops to a peer may begin, if there is such a peer.
    pub(crate) fn uplinks(&mut self, peer: usize) -> Option<&mut Uplinks> {
        let neighbour = self.neighbours.get_mut(peer)?;
        Some(&mut neighbour.uplinks)
    }

    /// Whether an idle hop to a peer is available.
    pub(crate) fn has_waiting(&self, peer: usize) -> bool {
        let neighbour = self.neighbours.get(peer);
        neighbour.is_some_and(|one| one.pool.waiting() > 0)
    }

    /// Whether the peer is down by the latest information, so that flows should take another route.
    pub(crate) fn down(&self, peer: usize) -> bool {
        self.neighbours.get(peer).is_some_and(|one| one.pool.down())
    }

    /// When a peer last sent bytes over an idle hop.
    pub(crate) fn received(&self, peer: usize) -> Duration {
        let neighbour = self.neighbours.get(peer);
        neighbour.map_or(Duration::ZERO, |one| one.pool.received())
    }

    /// A hop to a peer was reset without a reply: pings the idle hops before they carry a flow.
    pub(crate) fn verify_hops(&mut self, peer: usize, now: Duration) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.pool.check_all();
            neighbour.due = Some(now);
            self.woken.push(peer);
        }
    }

    /// Records the throughput of a flow over a hop to a peer, at its end.
    pub(crate) fn learn(&mut self, peer: usize, info: &TcpInfo, now: Duration) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            // A flow from a SYN option began before its socket had a round trip time.
            neighbour.round = info.min_rtt().or(neighbour.round);
            neighbour.path.learn(info, now);
        }
    }

    /// Records the losses of a hop to or from a peer that its flow had for `age`.
    pub(crate) fn learn_losses(
        &mut self,
        peer: usize,
        seen: &Segments,
        age: Duration,
        now: Duration,
    ) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.losses.learn(seen, age, now);
        }
    }

    /// Whether a flow that begins should take a tunnel to a peer, by what hops over TCP have lost.
    pub(crate) fn avoids_tcp(&mut self, peer: usize, now: Duration) -> bool {
        let neighbour = self.neighbours.get_mut(peer);
        neighbour.is_some_and(|neighbour| neighbour.losses.avoids_tcp(now))
    }

    /// The estimated bandwidth of the path to a peer in bytes per second, 0 if unknown; and its
    /// round trip time, if known.
    pub(crate) fn next_hop(&self, peer: usize, now: Duration) -> (u32, Option<Duration>) {
        let neighbour = self.neighbours.get(peer);
        neighbour.map_or((0, None), |neighbour| {
            (neighbour.path.rate(now), neighbour.round)
        })
    }

    /// Starts a flow on a hop to or from a peer. A flow with a window above the kernel's default is
    /// paced at the estimated bandwidth; returns whether it is. With `is_new` the hop was opened
    /// for the flow, so its round trip time is recorded.
    pub(crate) fn begin(
        &mut self,
        peer: usize,
        socket: &OwnedFd,
        is_new: bool,
        now: Duration,
    ) -> bool {
        let (Some(neighbour), Some((round, window))) =
            (self.neighbours.get_mut(peer), sys::round_and_window(socket))
        else {
            return false;
        };
        neighbour.round = round.or(neighbour.round);
        if let (true, Some(round)) = (is_new, round) {
            neighbour.on_round(round, now);
        }
        if window <= path::WINDOW_KERNEL {
            return false;
        }
        let pace = neighbour.path.first_pace(neighbour.round, now);
        // After a bound is removed, the kernel keeps pacing. A failure to pace does not stop the
        // flow.
        let _ = sys::set_pacing(socket, Some(pace.unwrap_or(u32::MAX)));
        if pace.is_none() {
            unpace(socket);
        }
        pace.is_some()
    }

    /// Bounds a flow that has sent its first bytes over such a hop to its share of the path.
    /// Returns for how long: then call [`unpace`], and also [`Self::unshare`], even if the flow
    /// ends before.
    pub(crate) fn share(
        &mut self,
        peer: usize,
        socket: &OwnedFd,
        now: Duration,
    ) -> Option<Duration> {
        let neighbour = self.neighbours.get_mut(peer)?;
        let share = neighbour.path.share(neighbour.round, now);
        let _ = sys::set_pacing(socket, Some(share.pacing_rate));
        Some(share.hold)
    }

    /// A flow has given up its share of the path.
    pub(crate) fn unshare(&mut self, peer: usize) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.path.unshare();
        }
    }

    /// The state of the hops to each peer, by peer index.
    pub(crate) fn states(&self, now: Duration) -> impl Iterator<Item = State<'_>> {
        self.neighbours.iter().map(move |one| one.state(now))
    }

    /// Carries out the actions of a peer's pool, up to [`ORDERS_MAX`].
    fn look_after(&mut self, peer: usize, epoll: &Epoll, now: Duration) {
        // It stays due if the loop ends at its bound.
        self.neighbours[peer].due = Some(now);
        for _ in 0..ORDERS_MAX {
            match self.neighbours[peer].pool.poll_action(now) {
                Some(Action::Ping(key)) => self.ping(key, now),
                Some(Action::Bury(key)) => {
                    self.neighbours[peer].totals.lost += 1;
                    self.hops.remove(key);
                }
                Some(Action::Dismiss(key)) => self.dismiss(key),
                Some(Action::Dial) => self.dial(peer, epoll, now),
                None => {
                    let neighbour = &mut self.neighbours[peer];
                    neighbour.due = neighbour.pool.deadline();
                    return;
                }
            }
        }
    }

    fn dial(&mut self, peer: usize, epoll: &Epoll, now: Duration) {
        let neighbour = &mut self.neighbours[peer];
        let Common { me, mark, .. } = self.common;
        let source = neighbour.uplinks.source(now);
        let dial = match Dial::begin(&neighbour.peer, source, (me, mark), now) {
            Ok(dial) => dial,
            Err(error) => return neighbour.on_dial_failed((None, source), error, now),
        };
        let key = self.hops.insert(Hop { peer, stage: None });
        let token = self.common.token_base + key;
        let interest = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        if let Err(error) = epoll.add(&dial.socket, EpollEvent::new(interest, token)) {
            self.hops.remove(key);
            let error = DialError::Socket(error.into());
            return neighbour.on_dial_failed((None, source), error, now);
        }
        neighbour.pool.on_dial(key, now);
        if let Some(hop) = self.hops.get_mut(key) {
            hop.stage = Some(Stage::Dialing(dial));
        }
    }

    /// Advances a dial as far as possible.
    fn go_on(&mut self, key: u64, dial: Dial, now: Duration) {
        let Some(hop) = self.hops.get_mut(key) else {
            return;
        };
        let neighbour = &mut self.neighbours[hop.peer];
        let source = dial.source();
        match dial.advance(now) {
            Ok(Dialed::Not(dial)) => hop.stage = Some(Stage::Dialing(dial)),
            Ok(Dialed::Ready(ready)) => {
                neighbour.on_opened(ready.min_rtt, now);
                neighbour.pool.on_ready(key, ready.rtt, now);
                hop.stage = Some(Stage::Waiting(ready, None));
            }
            Err(error) => {
                self.hops.remove(key);
                neighbour.on_dial_failed((Some(key), source), error, now);
            }
        }
        neighbour.due = Some(now);
    }

    fn give_up_dials(&mut self, now: Duration) {
        let late =
            |hop: &Hop| matches!(&hop.stage, Some(Stage::Dialing(dial)) if dial.deadline() <= now);
        let late: Vec<u64> = self
            .hops
            .iter()
            .filter(|(_, hop)| late(hop))
            .map(|(key, _)| key)
            .collect();
        for key in late {
            // Its next step fails with the reason, by how far the dial has come.
            self.on_ready(key, now);
        }
    }

    fn ping(&mut self, key: u64, now: Duration) {
        let Some(hop) = self.hops.get_mut(key) else {
            return;
        };
        // Random, so that a late pong to an earlier ping does not count.
        let token = u32::try_from(self.rng.next() >> 32).unwrap_or(0);
        if let Some(Stage::Waiting(ready, ping)) = &mut hop.stage {
            let bytes = hop::ping(token);
            *ping = Some(token);
            // The send buffer is empty, so the kernel takes all eight bytes.
            if socket::write(&ready.socket, &bytes) == Ok(bytes.len()) {
                return;
            }
        }
        self.neighbours[hop.peer].on_lost(key, End::Broken, now);
        self.hops.remove(key);
    }

    /// Closes a surplus hop with a FIN, so that the acceptor sees no error and the close is
    /// delivered reliably.
    fn dismiss(&mut self, key: u64) {
        let stage = self.hops.remove(key).and_then(|hop| hop.stage);
        if let Some(Stage::Waiting(ready, _)) = stage {
            let _ = sys::set_reset_on_close(&ready.socket, false);
        }
    }
}

#[cfg(test)]
mod tests;
