// SPDX-License-Identifier: Apache-2.0
//! Warm hops: open connections to other nodes that wait for flows.
//!
//! The dialer's side; the acceptor's is the worker's own, and it has no pool.
//! Each worker has its own [`WarmHops`]; nothing is shared.
//! It keeps as many hops to each peer as flows are likely to need ([`pool`]),
//! knows which peers are not there, and remembers what flows achieved
//! ([`path`]).
//!
//! A worker drives it so:
//!
//! * Tokens from the base given to [`WarmHops::new`] on, over 48 bits, are
//!   its own. An event with such a token goes to [`WarmHops::on_ready`],
//!   whatever the event says: the socket is asked.
//! * At the end of each turn it calls [`WarmHops::on_time`], which costs
//!   nothing when nothing is due, and waits no longer than until
//!   [`WarmHops::deadline`]. All dials, pings and closes happen there, never
//!   while a flow is being opened.
//! * For a flow to a peer that is not [`WarmHops::down`] it calls
//!   [`WarmHops::take`]. The socket is the worker's from then on, in no epoll.
//!   Without a hop the flow goes over a cold one.
//! * When a flow begins on a hop, warm or cold, dialed or accepted, it calls
//!   [`WarmHops::begin`], when that has sent its first bytes and is paced
//!   [`WarmHops::share`], and when it has ended [`WarmHops::learn`].

mod backoff;
mod demand;
mod dial;
mod neighbour;
pub(crate) mod path;
mod pool;
mod socket;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{self, Dialer};

use crate::chain::Peer;
use crate::rng::Rng;
use crate::slab::Slab;
use crate::sys::{self, TcpInfo};

use dial::{Dial, DialError, Dialed, Ready};
use neighbour::Neighbour;
use pool::{Action, End};
use socket::Look;

pub(crate) use neighbour::State;

/// Orders of one pool that are carried out in one turn: a dial costs some ten
/// microseconds, and flows wait meanwhile.
const ORDERS_MAX: usize = 32;
/// How often dials are looked through for those that take too long.
const SWEEP: Duration = Duration::from_millis(250);

/// What the hops of a worker have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// This node.
    pub(crate) me: NodeId,
    /// `SO_MARK` of the sockets.
    pub(crate) mark: u32,
    /// The first of the tokens in the worker's epoll; 2^48 are used.
    pub(crate) token_base: u64,
    /// For chance in waiting, different for each worker and start.
    pub(crate) seed: u64,
}

/// The warm hops of one worker to all its peers.
#[derive(Debug)]
pub(crate) struct WarmHops {
    common: Common,
    rng: Rng,
    /// By the index of the peer.
    neighbours: Vec<Neighbour>,
    hops: Slab<Hop>,
    swept: Duration,
    /// Peers that are due at once, some twice: a turn need not look at all the others.
    woken: Vec<usize>,
    /// No other peer is due before.
    next_due: Option<Duration>,
    /// When dials were last looked through, or since, one was going on.
    is_dialing: bool,
}

/// A hop for a flow.
#[derive(Debug)]
pub(crate) struct Warm {
    /// Connected, non-blocking, in no epoll, armed to reset when closed. The
    /// pong of a last ping may be in it.
    pub(crate) socket: OwnedFd,
    /// Idle: [`Dialer::open`] gives the first bytes to send. It takes a late
    /// pong.
    pub(crate) dialer: Dialer,
}

/// Lifts the pace that a hop was given: see [`WarmHops::share`].
pub(crate) fn unpace(socket: &OwnedFd) {
    // A socket that cannot be paced was not.
    let _ = sys::set_pacing(socket, None);
}

#[derive(Debug)]
struct Hop {
    peer: usize,
    /// Taken out only for as long as something is done with it.
    stage: Option<Stage>,
}

#[derive(Debug)]
enum Stage {
    Dialing(Dial),
    /// With the number of the ping without a pong.
    Waiting(Ready, Option<u32>),
}

impl WarmHops {
    /// Dials nothing yet: [`Self::on_time`] does.
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
            woken: Vec::new(),
            next_due: Some(now),
            is_dialing: false,
        }
    }

    /// Other peers from now on. Hops to those that are reached as before are
    /// kept, with all that is known of them; the others are closed.
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

    /// Something has happened to the socket with this token, less the base.
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

    /// Does what is due: at the end of each turn.
    pub(crate) fn on_time(&mut self, epoll: &Epoll, now: Duration) {
        if now >= self.swept + SWEEP {
            self.swept = now;
            self.give_up_dials(now);
            self.is_dialing = self.neighbours.iter().any(|one| one.pool.dialing() > 0);
        }
        if self.next_due.is_some_and(|due| due <= now) {
            self.wake_due(now);
        }
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken.dedup();
        for &peer in &woken {
            self.look_after(peer, epoll, now);
            let neighbour = &self.neighbours[peer];
            self.is_dialing |= neighbour.pool.dialing() > 0;
            match neighbour.due {
                // More is to be done than fits a turn.
                Some(due) if due <= now => self.woken.push(peer),
                Some(due) => self.next_due = Some(self.next_due.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
    }

    /// Wakes those that are due by the clock.
    fn wake_due(&mut self, now: Duration) {
        self.next_due = None;
        for (peer, neighbour) in self.neighbours.iter().enumerate() {
            match neighbour.due {
                Some(due) if due <= now => self.woken.push(peer),
                Some(due) => self.next_due = Some(self.next_due.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
    }

    /// When [`Self::on_time`] is to be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let sweep = self.is_dialing.then(|| self.swept + SWEEP);
        let woken = self.woken.iter();
        let woken = woken.filter_map(|peer| self.neighbours[*peer].due);
        woken.chain(self.next_due).chain(sweep).min()
    }

    /// A hop to a peer for a flow, whose arrival is noted also when there is
    /// none. It is open, and nothing has been said over it.
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
            match socket::look(&ready.socket) {
                Look::Silent => {}
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
            let _ = epoll.delete(&ready.socket);
            return Some(Warm {
                socket: ready.socket,
                dialer: ready.dialer,
            });
        }
        neighbour.totals.missed += 1;
        None
    }

    /// Whether a hop to a peer waits for a flow.
    pub(crate) fn has_waiting(&self, peer: usize) -> bool {
        let neighbour = self.neighbours.get(peer);
        neighbour.is_some_and(|one| one.pool.waiting() > 0)
    }

    /// Whether flows had better go another way: the last that is known of the
    /// peer is that it is not there.
    pub(crate) fn down(&self, peer: usize) -> bool {
        self.neighbours.get(peer).is_some_and(|one| one.pool.down())
    }

    /// When a peer last said something over a hop that waited.
    pub(crate) fn received(&self, peer: usize) -> Duration {
        let neighbour = self.neighbours.get(peer);
        neighbour.map_or(Duration::ZERO, |one| one.pool.received())
    }

    /// A hop to a peer was reset without an answer: those that wait are asked whether
    /// they live, before they carry anything.
    pub(crate) fn verify_hops(&mut self, peer: usize, now: Duration) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.pool.check_all();
            neighbour.due = Some(now);
            self.woken.push(peer);
        }
    }

    /// Takes note of what a flow achieved over a hop to a peer, at its end.
    pub(crate) fn learn(&mut self, peer: usize, info: &TcpInfo, now: Duration) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            // A flow that came in a SYN began before its socket knew one.
            neighbour.round = info.min_rtt().or(neighbour.round);
            neighbour.path.learn(info, now);
        }
    }

    /// What the way to a peer is taken to bear, in bytes per second, 0 if there is no
    /// telling; and its round trip time, if it is known.
    pub(crate) fn next_hop(&self, peer: usize, now: Duration) -> (u32, Option<Duration>) {
        let neighbour = self.neighbours.get(peer);
        neighbour.map_or((0, None), |neighbour| {
            (neighbour.path.rate(now), neighbour.round)
        })
    }

    /// Has a flow begin on a hop to or from a peer. One with a window of more than the
    /// kernel's is paced, and at no more than the way is taken to bear; whether it was. Of a
    /// hop that was opened for the flow the round trip time is news.
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
        // A bound that is lifted leaves the kernel pacing. A flow that is not paced is
        // a flow all the same.
        let _ = sys::set_pacing(socket, Some(pace.unwrap_or(u32::MAX)));
        if pace.is_none() {
            unpace(socket);
        }
        pace.is_some()
    }

    /// Bounds a flow that has sent its first bytes over such a hop to its share of the
    /// way. For how long: [`unpace`] is to lift it then, and [`Self::unshare`] to follow,
    /// also if the flow ends before.
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

    /// A flow no longer needs its share of the way.
    pub(crate) fn unshare(&mut self, peer: usize) {
        if let Some(neighbour) = self.neighbours.get_mut(peer) {
            neighbour.path.unshare();
        }
    }

    /// How the hops to each peer are, by the index of the peer.
    pub(crate) fn states(&self, now: Duration) -> impl Iterator<Item = State<'_>> {
        self.neighbours.iter().map(move |one| one.state(now))
    }

    /// Does what the pool of a peer wants done, or a good part of it.
    fn look_after(&mut self, peer: usize, epoll: &Epoll, now: Duration) {
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
        let dial = match Dial::begin(&neighbour.peer, me, mark, now) {
            Ok(dial) => dial,
            Err(error) => return neighbour.on_dial_failed(None, error, now),
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
            return neighbour.on_dial_failed(None, error, now);
        }
        neighbour.pool.on_dial(key, now);
        if let Some(hop) = self.hops.get_mut(key) {
            hop.stage = Some(Stage::Dialing(dial));
        }
    }

    /// Takes a dial as far as it goes.
    fn go_on(&mut self, key: u64, dial: Dial, now: Duration) {
        let Some(hop) = self.hops.get_mut(key) else {
            return;
        };
        let neighbour = &mut self.neighbours[hop.peer];
        match dial.advance(now) {
            Ok(Dialed::Not(dial)) => hop.stage = Some(Stage::Dialing(dial)),
            Ok(Dialed::Ready(ready)) => {
                neighbour.on_opened(ready.min_rtt, now);
                neighbour.pool.on_ready(key, ready.rtt, now);
                hop.stage = Some(Stage::Waiting(ready, None));
            }
            Err(error) => {
                self.hops.remove(key);
                neighbour.on_dial_failed(Some(key), error, now);
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
            self.on_ready(key, now);
        }
    }

    fn ping(&mut self, key: u64, now: Duration) {
        let Some(hop) = self.hops.get_mut(key) else {
            return;
        };
        let token = u32::try_from(self.rng.next() >> 32).unwrap_or(0);
        if let Some(Stage::Waiting(ready, ping)) = &mut hop.stage {
            let bytes = hop::ping(token);
            *ping = Some(token);
            // Nothing else is in the buffer: eight bytes go in whole.
            if socket::write(&ready.socket, &bytes) == Ok(bytes.len()) {
                return;
            }
        }
        self.neighbours[hop.peer].on_lost(key, End::Broken, now);
        self.hops.remove(key);
    }

    /// Closes a hop that nobody needs in order, so that the other end does not
    /// think that something went wrong, and hears of it for certain.
    fn dismiss(&mut self, key: u64) {
        let stage = self.hops.remove(key).and_then(|hop| hop.stage);
        if let Some(Stage::Waiting(ready, _)) = stage {
            let _ = sys::set_reset_on_close(&ready.socket, false);
        }
    }
}

#[cfg(test)]
mod tests;
