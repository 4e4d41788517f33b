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
mod rules;
mod socket_io;
mod syn_option;
mod tally;
mod time_wait;
mod trial;
mod tunnels;
mod upstream;
mod user_timeout;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use posthaste_tunnel::Paths;
use socket2::Socket;

use crate::accept_mode::AcceptMode;
use crate::black_holes::BlackHoles;
use crate::control::{Command, Ended, Handle, Journal, RelayId};
use crate::counters::Counters;
use crate::flow::Flow;
use crate::intercept::{Closed, HalfOpen, Intercept};
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::relay::Ready;
use crate::side::Side;
use crate::slab::{KEY_BITS, Slab};
use crate::syn_options::SynOptions;
use crate::sys::{self, SocketSettings, Waker};
use crate::warm::{self, WarmHops};

pub use authentication::ReplayGuard;
use bypass::Leaving;
use entry::Entry;
use fresh::Fresh;
use health::Health;
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
use tunnels::PeerTunnels;

/// Events taken from one `epoll_wait`. With few of these and of [`ACCEPTS_MAX`], answers of servers do not
/// wait behind many new clients, so their segments stay large (`docs/design/0017-cost.md`).
const EVENTS_MAX: usize = 32;
/// Interval of the checks for quiet relays. Four ticks cover all relays.
const TICK: Duration = Duration::from_millis(250);
/// Lower bound on the relays checked in one tick.
const SWEEP_MIN: usize = 1024;
/// Handshakes accepted from one listener before relays have their turn.
const ACCEPTS_MAX: usize = 8;
/// Slots reserved for flows that were redirected before the worker stopped accepting.
const SLOTS_RESERVE: usize = 64;
/// How long handshakes that began before a successor took over may take: the time in which a kernel
/// retransmits a SYN-ACK twice, one and three seconds after the first.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Descriptors that must be free before a worker that ran out resumes.
const DESCRIPTORS_SPARE: usize = 16;

/// Tokens of everything but relays. A relay's is `key << 1 | side`.
const TOKEN_EVENTS: u64 = u64::MAX;
const TOKEN_WAKER: u64 = u64::MAX - 1;
const TOKEN_TUNNELS: u64 = u64::MAX - 2;
const TOKEN_LISTENER: u64 = 1 << 61;
const TOKEN_WARM: u64 = 1 << 59;

/// What the workers of a node share.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// Replay protection of requests.
    pub replay_guard: Arc<ReplayGuard>,
    /// What tunnels know of paths.
    pub paths: Arc<Paths>,
}

/// The settings of a worker.
#[derive(Debug)]
pub struct Settings {
    /// Its number, from 0.
    pub index: u16,
    /// Its transparent listeners, at most one per family.
    pub listeners: Vec<Socket>,
    /// Of the listeners that it opens itself, and the mark of its upstream sockets.
    pub sockets: SocketSettings,
    /// Its listeners for clients that name the destination themselves.
    pub explicit: Vec<Socket>,
    /// Its listeners with a fixed destination, and that destination.
    pub fixed: Vec<(Socket, SocketAddr)>,
    /// Shared with the node's other workers.
    pub common: Common,
    /// The policy to start with.
    pub policy: Arc<Policy>,
}

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

/// A worker whose thread is starting.
#[derive(Debug)]
pub struct Starting {
    handle: Handle,
    thread: JoinHandle<()>,
    result: Receiver<io::Result<()>>,
}

impl Starting {
    /// The handle of the worker. Commands sent before it is set up are carried out afterwards.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the worker takes flows.
    ///
    /// # Errors
    /// It could not be set up.
    pub fn wait(self) -> io::Result<JoinHandle<()>> {
        let ended = |_| io::Error::other("the worker's thread ended");
        self.result.recv().map_err(ended)??;
        Ok(self.thread)
    }
}

/// Starts a worker. `intercept` is called in the worker's thread, since its result may belong to a
/// thread, and may block. It also returns the generation of the first policy, as events carry it.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn<I, F>(
    settings: Settings,
    journal: Box<dyn Journal>,
    intercept: F,
) -> io::Result<Starting>
where
    I: Intercept,
    F: FnOnce() -> io::Result<(I, u8)> + Send + 'static,
{
    let (sender, commands) = mpsc::channel();
    let handle = Handle {
        commands: sender,
        waker: Arc::new(Waker::new()?),
        counters: Arc::default(),
    };
    let (waker, counters) = (Arc::clone(&handle.waker), Arc::clone(&handle.counters));
    let (started, result) = mpsc::channel();
    let name = format!("worker-{}", settings.index);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let worker = intercept().and_then(|intercept| {
            Worker::new(settings, intercept, commands, waker, counters, journal)
        });
        // The receiver is gone if the node has given up starting.
        match worker {
            Ok(mut worker) => {
                let _ = started.send(Ok(()));
                worker.run();
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    Ok(Starting {
        handle,
        thread,
        result,
    })
}

impl<I: Intercept> Worker<I> {
    fn new(
        mut settings: Settings,
        (mut intercept, generation): (I, u8),
        commands: Receiver<Command>,
        waker: Arc<Waker>,
        counters: Arc<Counters>,
        journal: Box<dyn Journal>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let input = EpollFlags::EPOLLIN;
        epoll.add(waker.as_fd(), EpollEvent::new(input, TOKEN_WAKER))?;
        epoll.add(intercept.event_fd(), EpollEvent::new(input, TOKEN_EVENTS))?;
        let listeners = Listeners::new(
            std::mem::take(&mut settings.listeners),
            std::mem::take(&mut settings.explicit),
            std::mem::take(&mut settings.fixed),
        )?;
        let rules = Rules::new(&settings.policy, generation, &counters.rules);
        for (number, listener) in listeners.sockets() {
            epoll.add(listener, EpollEvent::new(input, TOKEN_LISTENER | number))?;
            // Accepted sockets inherit the options, which saves system calls per flow.
            sys::apply(listener, rules.inherited())?;
        }
        intercept.set_accepting(true)?;
        let now = sys::monotonic();
        let warm = warm_hops(&settings, now);
        let mut worker = Self {
            index: settings.index,
            epoll,
            listeners,
            common: settings.common,
            socket_mark: settings.sockets.mark,
            intercept,
            commands,
            waker,
            counters,
            journal,
            rules,
            entries: Slab::new(),
            opening: HashMap::new(),
            half_open: HashMap::new(),
            prefixes: Prefixes::default(),
            missing_syn_event: HashSet::new(),
            pending_requests: Slab::new(),
            places: Places::default(),
            warm,
            tunnels: None,
            paces: Paces::default(),
            syn_options: SynOptions::default(),
            multipath: Multipath::new(settings.sockets),
            health: Health::default(),
            looks: BinaryHeap::new(),
            held: Held::default(),
            black_holes: BlackHoles::default(),
            passed: VecDeque::new(),
            buffers: Buffers::new(),
            to_connect: Vec::new(),
            failed_trials: 0,
            trial_worked: None,
            silent_trial: None,
            fresh: Fresh::default(),
            again: Vec::new(),
            lingering: Lingering::default(),
            leaving: Leaving::default(),
            ended: Vec::new(),
            closed: Vec::new(),
            events_wait: false,
            now,
            not_accepting: false,
            out_of_files: false,
            swept: Duration::ZERO,
            cursor: 0,
            sweeps: 0,
            drain_from: Duration::ZERO,
            drain_until: None,
            replaced: false,
        };
        worker.offer_multipath(&settings.policy)?;
        Ok(worker)
    }

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

    /// Whether a drain is complete. A client in late mode is in no table before its handshake is
    /// complete, so the drain waits for such clients.
    fn drained(&self) -> bool {
        let Some(until) = self.drain_until else {
            return false;
        };
        // Whatever the rules, flows open late when the half-open budget is used up.
        let late = self.counters.flows(AcceptMode::LATE).read() > 0 || self.rules.any_late();
        let grace = match (self.replaced, late) {
            (true, _) => HANDSHAKE_TIME_MAX,
            (false, true) => self.intercept.lag(),
            (false, false) => Duration::ZERO,
        };
        let requesting = self.replaced && self.pending_requests.len() > 0 && self.now < until;
        let sends = self.tunnels.as_ref().is_some_and(|one| !one.is_over());
        let waits = requesting || sends && self.now < until;
        self.entries.len() == 0 && !waits && self.now >= until.min(self.drain_from + grace)
    }

    /// Whether new flows are refused: the worker drains, and has no successor.
    fn begins_nothing(&self) -> bool {
        self.drain_until.is_some() && !self.replaced
    }

    fn turn(&mut self, events: &[EpollEvent]) {
        self.fresh.begin_turn();
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
            entry.may_leave() && !self.leaving.contains(key)
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

    /// Ends a drain that takes too long, or accepts flows again when there is room.
    fn drain_or_return(&mut self) {
        match self.drain_until {
            Some(until) if self.now >= until => {
                let left: Vec<u64> = self.entries.iter().map(|(key, _)| key).collect();
                for key in left {
                    self.end(key, Outcome::Drained);
                }
            }
            None if self.not_accepting && !self.out_of_files && self.roomy() => {
                self.set_draining(false)
            }
            _ => {}
        }
    }

    /// Whether the table has only the room left that flows in transit may need.
    fn full(&self) -> bool {
        let most = self.rules.relays_max();
        self.entries.len() + reserve(most) >= most
    }

    /// Whether the table is well below full, so that accepting does not flap.
    fn roomy(&self) -> bool {
        let most = self.rules.relays_max();
        self.entries.len() + 2 * reserve(most) < most
    }

    /// Stops or resumes taking new flows; while stopped they are forwarded.
    fn set_draining(&mut self, not_accepting: bool) {
        if self.not_accepting != not_accepting
            && self.intercept.set_accepting(!not_accepting).is_ok()
        {
            self.not_accepting = not_accepting;
        }
    }

    /// Out of descriptors or memory: new flows are forwarded, and completed handshakes stay in the
    /// accept queues.
    fn starve(&mut self) {
        self.set_draining(true);
        self.out_of_files = true;
        // Listeners are level-triggered: a queue that is not emptied would wake the worker at once.
        self.listen_for(EpollFlags::empty());
    }

    /// Resumes accepting, once there are descriptors to spare.
    fn recover(&mut self) {
        // The kernel does not report how many are free, so some are opened and closed again.
        let probe = || self.waker.as_fd().try_clone_to_owned();
        let spare: io::Result<Vec<OwnedFd>> = (0..DESCRIPTORS_SPARE).map(|_| probe()).collect();
        if spare.is_ok() {
            self.out_of_files = false;
            self.listen_for(EpollFlags::EPOLLIN);
        }
    }

    fn listen_for(&self, interest: EpollFlags) {
        for (number, listener) in self.listeners.sockets() {
            let mut event = EpollEvent::new(interest, TOKEN_LISTENER | number);
            let _ = self.epoll.modify(listener, &mut event);
        }
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

/// The idle hops of a node that has a number.
fn warm_hops(settings: &Settings, now: Duration) -> Option<WarmHops> {
    let chains = &settings.policy.chains;
    let common = warm::Common {
        me: chains.me?,
        mark: settings.sockets.mark,
        token_base: TOKEN_WARM,
        seed: u64::from_ne_bytes(sys::random()),
    };
    Some(WarmHops::new(common, &chains.peers, now))
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

/// Slots kept free in a table of `most`.
fn reserve(most: usize) -> usize {
    SLOTS_RESERVE.min(most / 4)
}
