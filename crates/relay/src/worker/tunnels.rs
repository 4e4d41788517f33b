// SPDX-License-Identifier: Apache-2.0
//! The QUIC connections of a worker with its peers: dials them, accepts theirs, and passes the
//! events of their streams to flows. A stream carries one flow, as a warm hop does, with the same
//! messages before its bytes; the connection takes the place of the handshake.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use posthaste_tunnel::{Credentials, Event, LostReason, Stream, Tunnels};
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Acceptor, FromDialer, Session};

use crate::chain::Peer;
use crate::intercept::Intercept;
use crate::relay::Ready;
use crate::side::Side;
use crate::slab::Slab;

use super::connect_request::ConnectRequest;
use super::end::{End, Shared, StreamEnd};
use super::pending_request::REQUEST_WITHIN;
use super::preface::{ReadError, read_message};
use super::requesters::TOKEN_PENDING_REQUEST;
use super::start::Common;
use super::{TOKEN_TUNNELS, Worker};

mod redial;

use redial::Redial;

/// Connections to each peer: what ends one leaves the other.
const CONNECTIONS: usize = 2;
/// Connections that a peer may have open with a worker: two for each of its own workers, and as many again
/// while it is replaced.
const CONNECTIONS_MAX: usize = 256;
/// Streams that wait for their request, of all peers.
const PENDING_MAX: usize = 4096;

/// The tunnels of a worker.
#[derive(Debug)]
pub(super) struct PeerTunnels {
    shared: Rc<Shared>,
    me: NodeId,
    dialed: HashMap<NodeId, Dialed>,
    /// The connections that are up.
    open: HashMap<u64, Open>,
    /// Streams that peers have opened and not requested a flow on.
    pending: Slab<PendingStream>,
    /// No more is dialed.
    is_winding_up: bool,
}

/// A connection that is up.
#[derive(Debug)]
struct Open {
    session: Session,
    /// The peer, as its handshake has proved.
    peer: Peer,
    /// One of the ends wants no more flows on it.
    is_left: bool,
}

/// The connections to a peer.
#[derive(Debug)]
struct Dialed {
    peer: Peer,
    slots: [Slot; CONNECTIONS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    connection: Option<u64>,
    redial: Redial,
}

#[derive(Debug)]
struct PendingStream {
    stream: Rc<StreamEnd>,
    acceptor: Acceptor,
    from: SocketAddr,
    until: Duration,
}

impl PeerTunnels {
    /// `clock` is the time that nodes agree on.
    fn new(
        me: NodeId,
        peers: &[&Peer],
        (index, mark): (u16, u32),
        common: &Common,
        clock: Duration,
        now: Duration,
    ) -> io::Result<Self> {
        let secret = own_secret(me, peers);
        let common = (Arc::clone(&common.paths), Arc::clone(&common.siblings));
        let shared = Shared {
            tunnels: RefCell::new(Tunnels::new(clock, (&secret, index), common, mark, now)?),
            now: Cell::new(now),
        };
        Ok(Self {
            shared: Rc::new(shared),
            me,
            dialed: HashMap::new(),
            open: HashMap::new(),
            pending: Slab::new(),
            is_winding_up: false,
        })
    }

    /// Has tunnels with these peers, and with no others. Those of peers with another address or
    /// key carry the flows that they have, and no more.
    fn replace(&mut self, peers: &[&Peer], now: Duration) -> io::Result<()> {
        let same = |one: &Peer, has_key: &dyn Fn(&Peer) -> bool| {
            let mut peers = peers.iter();
            peers.any(|peer| peer.id == one.id && peer.address == one.address && has_key(peer))
        };
        let mut tunnels = self.shared.tunnels.borrow_mut();
        let mut retired: Vec<u64> = Vec::new();
        self.dialed.retain(|_, dialed| {
            let is_kept = same(&dialed.peer, &|peer| peer.has_key_of(&dialed.peer));
            if !is_kept {
                retired.extend(dialed.slots.iter().filter_map(|slot| slot.connection));
            }
            is_kept
        });
        let others = self.open.iter().filter(|(_, open)| {
            let id = open.session.key_id;
            !same(&open.peer, &|peer| peer.key(id) == open.peer.key(id))
        });
        retired.extend(others.map(|(connection, _)| *connection));
        for connection in &retired {
            tunnels.endpoint.retire(*connection, now);
        }
        let requested = self.pending.iter();
        let refused = requested.filter(|(_, one)| retired.contains(&one.stream.connection()));
        let refused: Vec<_> = refused.map(|(key, _)| key).collect();
        for peer in peers {
            self.dialed.entry(peer.id).or_insert_with(|| Dialed {
                peer: (*peer).clone(),
                slots: [Slot::default(); CONNECTIONS],
            });
        }
        let accepted = peers.iter().flat_map(|peer| {
            let keys = peer.keys();
            keys.map(|key| credentials(peer, key, peer.id, self.me))
        });
        let accepted = tunnels.endpoint.accept_from(&accepted.collect::<Vec<_>>());
        let limits = peers
            .iter()
            .filter_map(|peer| Some((peer.id.into(), peer.rate_limit?)));
        tunnels.endpoint.set_rate_limits(&limits.collect());
        drop(tunnels);
        for key in refused {
            self.pending.remove(key);
        }
        for connection in retired {
            self.leave(connection);
        }
        accepted
    }

    /// Opens a stream to a peer over the usable connection with the fewest.
    pub(super) fn open(
        &mut self,
        peer: &Peer,
        tag: u64,
        now: Duration,
    ) -> Option<(Rc<StreamEnd>, Session)> {
        let dialed = self.dialed.get(&peer.id)?;
        let endpoint = &mut self.shared.tunnels.borrow_mut().endpoint;
        let connections = dialed.slots.iter().filter_map(|slot| slot.connection);
        let usable = connections.filter(|connection| endpoint.is_usable(*connection, now));
        let connection = usable.min_by_key(|connection| endpoint.streams(*connection))?;
        let session = self.open.get(&connection)?.session.clone();
        let stream = endpoint.open(connection, tag)?;
        Some((Rc::new(StreamEnd::new(&self.shared, stream)), session))
    }

    /// Connections over which flows to a peer may begin.
    pub(super) fn usable(&self, peer: NodeId, now: Duration) -> usize {
        let endpoint = &self.shared.tunnels.borrow().endpoint;
        let slots = self
            .dialed
            .get(&peer)
            .into_iter()
            .flat_map(|dialed| &dialed.slots);
        let connections = slots.filter_map(|slot| slot.connection);
        connections
            .filter(|connection| endpoint.is_usable(*connection, now))
            .count()
    }

    /// Peers to which no dialed tunnel is open.
    fn peers_down(&self) -> u64 {
        let is_open = |slot: &Slot| {
            slot.connection
                .is_some_and(|one| self.open.contains_key(&one))
        };
        let down = self
            .dialed
            .values()
            .filter(|dialed| !dialed.slots.iter().any(is_open));
        down.count() as u64
    }

    /// Why a tunnel to a peer is not open.
    pub(super) fn failure(&self, peer: NodeId) -> Option<&'static str> {
        let slots = &self.dialed.get(&peer)?.slots;
        slots.iter().find_map(|slot| slot.redial.failure())
    }

    /// When to call [`Worker::drive_tunnels`] at the latest.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        let slots = self.dialed.values().flat_map(|dialed| &dialed.slots);
        let idle = slots.filter(|slot| slot.connection.is_none() && !self.is_winding_up);
        let dials = idle.map(|slot| slot.redial.due());
        let tunnels = self.shared.tunnels.borrow();
        dials.chain(tunnels.deadline(now)).min()
    }

    /// Whether no connection is up, and so none has bytes that the peer has not read.
    pub(super) fn is_over(&self) -> bool {
        self.shared.tunnels.borrow().endpoint.is_over()
    }

    /// Dials what is due.
    fn dial(&mut self, now: Duration) {
        if self.is_winding_up {
            return;
        }
        for dialed in self.dialed.values_mut() {
            let peer = &dialed.peer;
            let Some(key) = &peer.key else { continue };
            let credentials = credentials(peer, (key, peer.key_id), self.me, peer.id);
            let idle = dialed.slots.iter_mut();
            for slot in idle.filter(|slot| slot.connection.is_none() && slot.redial.due() <= now) {
                let mut tunnels = self.shared.tunnels.borrow_mut();
                match tunnels.dial(dialed.peer.address, &credentials, now) {
                    Ok(connection) => slot.connection = Some(connection),
                    Err(_) => slot.redial.on_lost(LostReason::Refused, now),
                }
            }
        }
    }

    fn slot(&mut self, connection: u64) -> Option<&mut Slot> {
        let mut slots = self
            .dialed
            .values_mut()
            .flat_map(|dialed| &mut dialed.slots);
        slots.find(|slot| slot.connection == Some(connection))
    }

    /// A connection is open. Returns whether it is with a peer.
    fn on_up(&mut self, connection: u64, peer: Option<&Peer>, key_id: u32) -> bool {
        let secret = self.shared.tunnels.borrow().endpoint.secret(connection);
        let (Some(peer), Some(secret)) = (peer, secret) else {
            return false;
        };
        let of_peer = self.open.values().filter(|open| open.peer.id == peer.id);
        if of_peer.count() >= CONNECTIONS_MAX {
            let mut tunnels = self.shared.tunnels.borrow_mut();
            tunnels
                .endpoint
                .disconnect(connection, self.shared.now.get());
            return false;
        }
        let session = Session::of_stream(self.me, peer.id, key_id, secret);
        let peer = peer.clone();
        let open = Open {
            session,
            peer,
            is_left: false,
        };
        self.open.insert(connection, open);
        if let Some(slot) = self.slot(connection) {
            slot.redial.on_up();
        }
        if self.is_winding_up {
            let mut tunnels = self.shared.tunnels.borrow_mut();
            tunnels.endpoint.go_away(connection);
        }
        true
    }

    fn on_lost(&mut self, connection: u64, reason: LostReason, now: Duration) {
        self.open.remove(&connection);
        if let Some(slot) = self.slot(connection) {
            slot.connection = None;
            slot.redial.on_lost(reason, now);
        }
    }

    /// A peer opens no more streams on a connection: another is dialed in its place.
    fn on_going_away(&mut self, connection: u64, now: Duration) {
        self.leave(connection);
        if let Some(slot) = self.slot(connection) {
            slot.connection = None;
            slot.redial.on_lost(LostReason::Closed, now);
        }
    }

    fn leave(&mut self, connection: u64) {
        if let Some(open) = self.open.get_mut(&connection) {
            open.is_left = true;
        }
    }

    /// Takes a stream that a peer has opened; returns its key.
    fn take(&mut self, stream: Stream, now: Duration) -> Option<u64> {
        // Dropped, it is reset.
        let end = Rc::new(StreamEnd::new(&self.shared, stream));
        let session = self.open.get(&stream.connection)?.session.clone();
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        let remote = self
            .shared
            .tunnels
            .borrow()
            .endpoint
            .remote(stream.connection);
        let key = self.pending.insert(PendingStream {
            stream: Rc::clone(&end),
            acceptor: Acceptor::new(session),
            from: remote?,
            until: now + REQUEST_WITHIN,
        });
        end.set_tag(TOKEN_PENDING_REQUEST | key);
        Some(key)
    }

    /// Reads the request on a stream; returns it when it is complete.
    fn read(&mut self, key: u64) -> Option<(Rc<StreamEnd>, ConnectRequest)> {
        let pending = self.pending.get_mut(key)?;
        let end = End::from(&pending.stream);
        match read_message(&end, |bytes| pending.acceptor.feed(bytes)) {
            Err(ReadError::Incomplete) => None,
            Ok(FromDialer::Open(connect)) => {
                let pending = self.pending.remove(key)?;
                let peer = pending.acceptor.session().peer;
                let request = ConnectRequest::of_peer(peer, connect, pending.from);
                Some((pending.stream, request))
            }
            // Nothing else is sent before a flow: the stream is reset.
            Ok(FromDialer::Ping(_) | FromDialer::Validated) | Err(_) => {
                self.pending.remove(key);
                None
            }
        }
    }

    /// Resets streams on which no request has come in time.
    fn sweep(&mut self, now: Duration) {
        let late = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.until <= now);
        for key in late.map(|(key, _)| key).collect::<Vec<_>>() {
            self.pending.remove(key);
        }
    }

    /// No flow will need a tunnel any more, and peers should open none on those that are up.
    fn wind_up(&mut self) {
        self.is_winding_up = true;
        let mut tunnels = self.shared.tunnels.borrow_mut();
        // Closes sockets only, so it does not fail.
        let _ = tunnels.listen(&[]);
        for connection in self.open.keys() {
            tunnels.endpoint.go_away(*connection);
        }
    }
}

/// What `dialer` and its peer authenticate each other with by one of their keys, at the end that has
/// this `peer`.
fn credentials(
    peer: &Peer,
    (key, key_id): (&Key, u32),
    dialer: NodeId,
    acceptor: NodeId,
) -> Credentials {
    let me = if peer.id == dialer { acceptor } else { dialer };
    let callers = peer.source_addresses.iter().copied();
    Credentials {
        peer: peer.id.into(),
        key_id,
        addresses: callers.chain([peer.address.ip()]).collect(),
        name: format!("node-{}-key-{key_id}.posthaste.invalid", u64::from(dialer)),
        mine: key.tunnel_seed(me, peer.id),
        theirs: key.tunnel_seed(peer.id, me),
    }
}

/// What only this node knows, and still knows after a restart, if it has more than one peer.
fn own_secret(me: NodeId, peers: &[&Peer]) -> [u8; 32] {
    let keys = peers.iter().filter_map(|peer| peer.key.as_ref());
    keys.fold([0; 32], |secret, key| key.reset_secret(me, &secret))
}

impl<I: Intercept> Worker<I> {
    /// Adopts the peers of the policy that have tunnels. Without one, nothing is made.
    pub(super) fn adopt_tunnels(&mut self) {
        let chains = self.rules.chains();
        let peers = chains.peers.iter();
        let peers: Vec<&Peer> = peers.filter(|peer| peer.transport.has_tunnels()).collect();
        let Some(me) = chains
            .me
            .filter(|_| !peers.is_empty() || self.tunnels.is_some())
        else {
            return;
        };
        if self.drain_until.is_some() {
            return;
        }
        if self.tunnels.is_none() {
            let clock = Duration::from_millis(self.common.replay_guard.clock.now_ms());
            let own = (self.index, self.socket_mark);
            let made = PeerTunnels::new(me, &peers, own, &self.common, clock, self.now);
            self.tunnels = made.ok().filter(|made| {
                let tunnels = made.shared.tunnels.borrow();
                let event = EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_TUNNELS);
                self.epoll.add(tunnels.as_fd(), event).is_ok()
            });
        }
        // Best effort: flows take TCP hops while there are none.
        if let Some(tunnels) = &mut self.tunnels {
            let _ = tunnels.replace(&peers, self.now);
            let addresses = if peers.is_empty() {
                Vec::new()
            } else {
                self.listeners.requested_at()
            };
            let _ = tunnels.shared.tunnels.borrow_mut().listen(&addresses);
            self.counters.tunnel_peers_down.set(tunnels.peers_down());
        }
    }

    /// No new flows: see [`PeerTunnels::wind_up`].
    pub(super) fn wind_up_tunnels(&mut self) {
        if let Some(tunnels) = &mut self.tunnels {
            tunnels.wind_up();
        }
    }

    /// Takes what has arrived, and what became of it.
    pub(super) fn take_tunnel_events(&mut self, events: &[EpollEvent]) {
        let Some(tunnels) = &self.tunnels else {
            return;
        };
        let shared = Rc::clone(&tunnels.shared);
        shared.now.set(self.now);
        if events.iter().any(|event| event.data() == TOKEN_TUNNELS) {
            // It fails for no valid descriptor.
            let _ = shared.tunnels.borrow_mut().on_ready(self.now);
        }
        loop {
            let event = shared.tunnels.borrow_mut().endpoint.poll_event();
            match event {
                Some(event) => self.on_tunnel_event(event),
                None => return,
            }
        }
    }

    fn on_tunnel_event(&mut self, event: Event) {
        let Some(tunnels) = &mut self.tunnels else {
            return;
        };
        match event {
            Event::Up {
                connection,
                peer,
                key_id,
            } => {
                let peer = NodeId::new(peer);
                let peer = peer.and_then(|peer| self.rules.chains().find_peer(peer));
                if tunnels.on_up(connection, peer, key_id) {
                    self.counters.tunnels_up.add(1);
                }
                self.counters.tunnel_peers_down.set(tunnels.peers_down());
            }
            Event::Lost {
                connection,
                was_up,
                reason,
                ..
            } => {
                if let Some(open) = tunnels.open.get(&connection) {
                    self.counters.tunnels_up.sub(1);
                    self.counters.tunnels_lost.add((!open.is_left).into());
                } else if !was_up && tunnels.slot(connection).is_some() {
                    self.counters.tunnels_failed.add(1);
                }
                tunnels.on_lost(connection, reason, self.now);
                self.counters.tunnel_peers_down.set(tunnels.peers_down());
            }
            Event::GoingAway { connection } => {
                tunnels.on_going_away(connection, self.now);
                self.counters.tunnel_peers_down.set(tunnels.peers_down());
            }
            Event::Opened { stream, .. } => {
                if let Some(key) = tunnels.take(stream, self.now) {
                    self.on_stream_bytes(key);
                }
            }
            Event::Ready { tag, ready } => self.on_stream_ready(tag, ready),
        }
    }

    fn on_stream_ready(&mut self, tag: u64, ready: posthaste_tunnel::Ready) {
        if tag & TOKEN_PENDING_REQUEST != 0 {
            return self.on_stream_bytes(tag & !TOKEN_PENDING_REQUEST);
        }
        let side = if tag & 1 == 0 {
            Side::Downstream
        } else {
            Side::Upstream
        };
        let ready = Ready {
            readable: ready.readable,
            writable: ready.writable,
            failed: ready.failed,
            // A short read may end at a gap.
            ..Ready::default()
        };
        self.on_side_ready(tag >> 1, side, ready);
    }

    /// Bytes have arrived on a stream without a flow.
    fn on_stream_bytes(&mut self, key: u64) {
        let request = self.tunnels.as_mut().and_then(|tunnels| tunnels.read(key));
        if let Some((stream, request)) = request {
            self.on_stream_request(stream, &request);
        }
    }

    /// Does what is due, and sends what may be sent, at the end of a turn.
    pub(super) fn drive_tunnels(&mut self) {
        let Some(tunnels) = &mut self.tunnels else {
            return;
        };
        tunnels.dial(self.now);
        tunnels.sweep(self.now);
        let mut tunnels = tunnels.shared.tunnels.borrow_mut();
        tunnels.on_time(self.now);
        let dropped = tunnels.endpoint.take_dropped();
        self.counters.tunnel_initials_dropped.add(dropped);
        let repairs = tunnels.endpoint.take_repairs();
        self.counters
            .tunnel_repairs_sent
            .add(repairs.datagrams_sent);
        self.counters
            .tunnel_bytes_repaired
            .add(repairs.bytes_repaired);
    }
}
