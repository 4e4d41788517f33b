// SPDX-License-Identifier: Apache-2.0
//! One thread, one epoll, its own listeners and relays.
//!
//! A turn of the loop: wait; take the redirection's events (a SYN's event always precedes its
//! `accept()`); accept; let ready relays move bytes; give another turn to relays that used up
//! theirs; once per tick check for relays that were quiet for too long; report ended relays.
//!
//! The worker owns every descriptor and all state of its relays. Other threads read its counters
//! and send it [`Command`]s.

mod admit;
mod authentication;
mod black_holes;
mod bypass;
mod connect_request;
mod denial;
mod end;
mod entry;
mod fresh;
mod health;
mod inspect;
mod linger;
mod listeners;
mod multipath;
mod next_hops;
mod opening;
mod pace;
mod pending_request;
mod places;
mod preface;
mod prefixes;
mod relaying;
mod replay;
mod requesters;
mod reroute;
mod room;
mod rules;
mod socket_io;
mod start;
mod syn_option;
mod tally;
mod time_wait;
mod trial;
mod tunnels;
mod unread;
mod upstream;
mod user_timeout;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use crate::black_holes::BlackHoles;
use crate::control::{Command, Ended, Journal, RelayId};
use crate::counters::Counters;
use crate::flow::Flow;
use crate::intercept::{Closed, HalfOpen, Intercept};
use crate::outcome::Outcome;
use crate::relay::Ready;
use crate::side::Side;
use crate::slab::{KEY_BITS, Slab};
use crate::syn_options::SynOptions;
use crate::sys::{self, Waker};
use crate::warm::WarmHops;

pub use authentication::ReplayGuard;
use bypass::Leaving;
use entry::Entry;
use fresh::Fresh;
use health::Health;
pub use health::SharedHealth;
use linger::Lingering;
use listeners::Listeners;
use multipath::Multipath;
use pace::Paces;
use pending_request::PendingRequest;
use places::Places;
use prefixes::Prefixes;
use replay::Held;
use requesters::TOKEN_PENDING_REQUEST;
use rules::Rules;
use socket_io::Buffers;
pub use start::{Common, Settings, Starting, spawn};
use tunnels::PeerTunnels;
use unread::Unread;

/// Events taken from one `epoll_wait`. With few of these and of [`ACCEPTS_MAX`], answers of servers do not
/// wait behind many new clients, so their segments stay large (`docs/design/0017-cost.md`).
const EVENTS_MAX: usize = 32;
/// Interval of the checks for quiet relays. Four ticks cover all relays.
const TICK: Duration = Duration::from_millis(250);
/// Lower bound on the relays checked in one tick.
const SWEEP_MIN: usize = 1024;
/// Handshakes accepted from one listener before relays have their turn.
const ACCEPTS_MAX: usize = 8;

/// Tokens of everything but relays. A relay's is `key << 1 | side`.
const TOKEN_EVENTS: u64 = u64::MAX;
const TOKEN_WAKER: u64 = u64::MAX - 1;
const TOKEN_TUNNELS: u64 = u64::MAX - 2;
const TOKEN_LISTENER: u64 = 1 << 61;
const TOKEN_WARM: u64 = 1 << 59;

/// A worker, in its thread.
pub(crate) struct Worker<I> {
    index: u16,
    epoll: Epoll,
    listeners: Listeners,
    common: Common,
    socket_mark: u32,
    intercept: I,
    commands: Receiver<Command>,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
    journal: Box<dyn Journal>,
    rules: Rules,
    entries: Slab<Entry>,
    /// Flows that wait for `accept()` or for a SYN-ACK, by either tuple.
    opening: HashMap<Flow, u64>,
    /// Half-open upstream connections by client prefix.
    half_open: HashMap<[u8; 8], u32>,
    /// Client prefixes that were reported as validated.
    prefixes: Prefixes,
    /// Flows and hops begun at accept while events were pending, until none is: that of their SYN may
    /// be among them, behind one that another CPU is still writing.
    missing_syn_event: HashSet<Flow>,
    /// Connections to explicit listeners without a flow yet.
    pending_requests: Slab<PendingRequest>,
    /// Those of them that no peer or client has authenticated.
    places: Places,
    /// Idle hops to peers; `None` if this node has no node number.
    warm: Option<WarmHops>,
    /// QUIC connections with peers; `None` if no peer has any.
    tunnels: Option<PeerTunnels>,
    /// The initial windows and pacing of hops.
    paces: Paces,
    /// Results of SYN options by peer.
    syn_options: SynOptions,
    /// Connections of clients with Multipath TCP, and what may join them.
    multipath: Multipath,
    /// What has failed recently.
    health: Health,
    /// Flows that wait for the replies of other nodes, or owe one to them, and when to check them.
    looks: BinaryHeap<Reverse<(Duration, u64)>>,
    /// Bytes kept of flows that may have to take another route.
    held: Held,
    black_holes: BlackHoles,
    /// Half-open entries of forwarded SYNs, in the order of their expiry.
    passed: VecDeque<(Duration, Flow, HalfOpen)>,
    buffers: Buffers,
    /// Flows that began in this turn and whose upstream SYN is not sent yet.
    to_connect: Vec<u64>,
    /// Failed trials in a row.
    failed_trials: u32,
    /// Time of the last trial that worked.
    trial_worked: Option<Duration>,
    /// The last trial whose server did not answer; the cause is not known yet.
    silent_trial: Option<Flow>,
    fresh: Fresh,
    /// Relays that need another turn.
    again: Vec<u64>,
    /// Relays that need another turn after a delay.
    lingering: Lingering,
    /// Relays that leave their flows.
    leaving: Leaving,
    unread: Unread,
    ended: Vec<Ended>,
    /// Sockets of relays that ended in this turn and that the kernel may keep in TIME_WAIT.
    closed: Vec<Closed>,
    /// The redirection may have more events.
    events_wait: bool,
    now: Duration,
    /// The worker takes no new flows: full, out of descriptors or draining.
    not_accepting: bool,
    /// Out of descriptors or memory: completed handshakes stay in the accept queues.
    out_of_files: bool,
    swept: Duration,
    cursor: usize,
    /// Number of complete sweeps over all relays.
    sweeps: u64,
    drain_from: Duration,
    drain_until: Option<Duration>,
    /// A successor takes new flows; flows that have begun end here.
    replaced: bool,
}

impl<I: Intercept> Worker<I> {
    fn run(&mut self) {
        self.adopt_tunnels();
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        loop {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => panic!("epoll_wait on a valid descriptor: {error}"),
            };
            self.now = sys::monotonic();
            self.turn(&events[..count]);
            if self.drained() {
                self.report();
                return;
            }
        }
    }

    fn turn(&mut self, events: &[EpollEvent]) {
        self.fresh.begin_turn();
        self.renew_health();
        // SYN events first: an accepted socket looks up the entries that they make.
        self.take_events();
        for event in events.iter().filter(|event| is_listener(event.data())) {
            let number = usize::try_from(event.data() & !TOKEN_LISTENER);
            self.accept(number.unwrap_or(usize::MAX));
        }
        self.connect_servers();
        self.take_tunnel_events(events);
        for event in events {
            match event.data() {
                TOKEN_EVENTS | TOKEN_TUNNELS => {}
                TOKEN_WAKER => self.obey(),
                token if is_listener(token) => {}
                token if token & TOKEN_WARM != 0 => self.on_warm(token & !TOKEN_WARM),
                token if token & TOKEN_PENDING_REQUEST != 0 => {
                    self.on_request_bytes(token & !TOKEN_PENDING_REQUEST)
                }
                token => self.on_socket(token, event.events()),
            }
        }
        for key in std::mem::take(&mut self.again) {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.queued = false;
                self.advance_with(key, &[]);
            }
        }
        self.look_at_lingering();
        self.look_at_leaving();
        if self.now >= self.swept + TICK {
            self.swept = self.now;
            self.sweep();
        }
        self.look_at_joins();
        self.look_at_hops();
        self.unpace();
        if let Some(warm) = &mut self.warm {
            warm.on_time(&self.epoll, self.now);
        }
        self.drive_tunnels();
        self.forget_closed();
        self.report();
    }

    fn on_warm(&mut self, key: u64) {
        if let Some(warm) = &mut self.warm {
            warm.on_ready(key, self.now);
        }
    }

    /// How long to wait: not at all with work left over, until the next tick while anything can
    /// time out, else without limit.
    fn patience(&self) -> EpollTimeout {
        if !self.again.is_empty() || self.events_wait {
            return EpollTimeout::ZERO;
        }
        let waiting = self.entries.len() > 0
            || self.pending_requests.len() > 0
            || !self.passed.is_empty()
            || self.multipath.is_listening()
            || self.not_accepting;
        let tick = waiting.then_some(self.swept + TICK);
        let warm = self.warm.as_ref().and_then(WarmHops::deadline);
        let paces = self.paces.deadline();
        let look = self.looks.peek().map(|Reverse((due, _))| *due);
        let lingering = self.lingering.deadline();
        let joins = self.multipath.deadline();
        let leaving = self.leaving.deadline();
        let tunnels = self.tunnels.as_ref();
        let tunnels = tunnels.and_then(|tunnels| tunnels.deadline(self.now));
        let deadlines = [tick, warm, paces, look, lingering, joins, leaving, tunnels];
        let Some(next) = deadlines.into_iter().flatten().min() else {
            return EpollTimeout::NONE;
        };
        let left = next.saturating_sub(self.now);
        // Rounded up: epoll_wait(2) counts milliseconds, and waking early would loop without work.
        EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::ZERO)
    }

    fn on_socket(&mut self, token: u64, flags: EpollFlags) {
        let side = if token & 1 == 0 {
            Side::Downstream
        } else {
            Side::Upstream
        };
        let failed = flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        let ready = Ready {
            // A failed socket counts as ready for both, since only a call on it returns the error.
            readable: failed || flags.intersects(input),
            writable: failed || flags.contains(EpollFlags::EPOLLOUT),
            failed,
            urgent: flags.contains(EpollFlags::EPOLLPRI),
            ending: flags.contains(EpollFlags::EPOLLRDHUP),
            edge_triggered: true,
        };
        self.on_side_ready(token >> 1, side, ready);
    }

    /// A side of a flow is ready.
    fn on_side_ready(&mut self, key: u64, side: Side, ready: Ready) {
        // The flow has replaced its socket in this turn: the event is that of the closed one.
        if side == Side::Upstream && self.fresh.outdates_events_of(key) {
            return;
        }
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if entry.is_open() {
            self.advance_with(key, &[(side, ready)]);
        } else if side == Side::Downstream && ready.failed {
            // The requester has reset the flow, which must not begin any more.
            self.end(key, Outcome::ClientAbsent);
        } else if side == Side::Downstream {
            self.on_requester_ready(key);
        } else if entry
            .pending()
            .is_some_and(|pending| pending.opening.is_hopping())
        {
            self.on_hop_ready(key, ready);
        } else if ready.writable {
            self.on_upstream_answer(key, ready);
        }
    }

    /// Checks part of the relays for timeouts and other work that time triggers.
    fn sweep(&mut self) {
        let share = (self.entries.capacity() / 4).max(SWEEP_MIN);
        let due = self.in_window(share, |_, entry| entry.deadline() <= self.now);
        let watched = self.in_window(share, |key, entry| self.is_watched(key, entry));
        let lingering = self.in_window(share, |_, entry| entry.lingers());
        let leaving = self.in_window(share, |key, entry| {
            entry.may_leave() && self.leaving.may_begin(key, self.now)
        });
        let losing = self.in_window(share, |_, entry| self.may_learn(entry));
        self.cursor += share;
        if self.cursor >= self.entries.capacity() {
            self.cursor = 0;
            self.sweeps += 1;
        }
        for key in watched {
            self.watch_sending(key);
        }
        self.note_progress(&lingering);
        for key in losing {
            self.learn_open(key);
        }
        for key in leaving {
            self.begin_bypass(key);
        }
        for key in due {
            self.on_time(key);
        }
        while let Some((_, flow, half_open)) =
            self.passed.pop_front_if(|(due, ..)| *due <= self.now)
        {
            self.intercept.release_if_unchanged(&flow, half_open);
        }
        if self.out_of_files {
            self.recover();
        }
        self.sweep_requests();
        self.renew_uplinks();
        self.multipath.sweep(self.now);
        self.set_initial_cwnd();
        self.drain_or_return();
    }

    /// The keys in the current window that a sweep selects.
    fn in_window(&self, share: usize, is_wanted: impl Fn(u64, &Entry) -> bool) -> Vec<u64> {
        let window = self.entries.window(self.cursor, share);
        let wanted = window.filter(|(key, entry)| is_wanted(*key, entry));
        wanted.map(|(key, _)| key).collect()
    }

    fn report(&mut self) {
        if !self.ended.is_empty() {
            let dropped = self.journal.record(&mut self.ended);
            self.counters.log_drops.add(dropped);
        }
        self.counters.missed_relays.add(self.entries.take_missed());
    }

    /// Watches an upstream socket. The flow may have had another one before.
    fn watch_upstream(&mut self, key: u64, fd: &OwnedFd) -> io::Result<()> {
        self.watch(key, Side::Upstream, fd)?;
        self.fresh.note(key);
        Ok(())
    }

    /// Watches a side of a relay until its socket is closed.
    fn watch(&self, key: u64, side: Side, fd: &OwnedFd) -> io::Result<()> {
        Ok(self.epoll.add(fd, interest_of(key, side))?)
    }

    /// Watches a socket that is in the epoll with another token.
    fn rewatch(&self, key: u64, side: Side, fd: &OwnedFd) -> io::Result<()> {
        Ok(self.epoll.modify(fd, &mut interest_of(key, side))?)
    }

    fn id(&self, key: u64) -> RelayId {
        RelayId(u64::from(self.index) << KEY_BITS | key)
    }
}

fn is_listener(token: u64) -> bool {
    token & TOKEN_LISTENER != 0 && token < TOKEN_TUNNELS
}

fn interest_of(key: u64, side: Side) -> EpollEvent {
    // All events at once, edge-triggered: no epoll_ctl(2) when the relay's interest changes.
    let flags = EpollFlags::EPOLLIN
        | EpollFlags::EPOLLOUT
        | EpollFlags::EPOLLRDHUP
        | EpollFlags::EPOLLPRI
        | EpollFlags::EPOLLET;
    EpollEvent::new(flags, key << 1 | side as u64)
}
