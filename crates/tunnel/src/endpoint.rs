// SPDX-License-Identifier: Apache-2.0
//! The connections of one worker, as a state machine: datagrams and the time go in, datagrams and
//! events come out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, ConnectError, Connection, ConnectionError, ConnectionHandle, DatagramEvent,
    EcnCodepoint, EndpointConfig, ServerConfig, StreamId, Transmit, TransportConfig,
};
use rustls::pki_types::CertificateDer;

use crate::admission::{Admission, Bucket};
use crate::control::{self, Clock, ControlFactory, Limit, Load, Paths, Slot};
use crate::credentials::{self, Credentials};
use crate::ids::Ids;
use crate::stream::{Local, Ready, Stream};
use crate::transport;

mod credit;
mod fec;
mod handshakes;
mod leaving;
mod probing;
mod sending;
mod streams;

use credit::Credit;
pub(crate) use credit::Pace;
use fec::Fec;
pub use fec::Repairs;
use leaving::Leaving;
use sending::{Sending, elicited};

/// Bytes of the secret that both ends of a connection derive from it.
const SECRET_BYTES: usize = 32;
/// What that secret is for (RFC 5705).
const SECRET_LABEL: &[u8] = b"EXPERIMENTAL posthaste hop";
/// How long a connection in use may receive nothing before flows take another way.
const SILENT_MAX: Duration = Duration::from_millis(700);

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection is open, and both ends are authenticated.
    Up {
        /// Its number.
        connection: u64,
        /// The peer at its other end.
        peer: u64,
        /// Which of the secrets shared with it has authenticated both.
        key_id: u32,
    },
    /// The peer has opened a stream.
    Opened {
        /// It has no tag yet.
        stream: Stream,
        /// The peer.
        peer: u64,
    },
    /// A stream with a tag is ready.
    Ready {
        /// The stream's.
        tag: u64,
        /// For what.
        ready: Ready,
    },
    /// The peer wants no more streams on a connection, or its path carries none; those that are open go on.
    GoingAway {
        /// Its number.
        connection: u64,
    },
    /// A connection has ended, and its streams with it.
    Lost {
        /// Its number.
        connection: u64,
        /// The peer, if that was authenticated or dialed.
        peer: Option<u64>,
        /// Whether it was open.
        was_up: bool,
        /// Why.
        reason: LostReason,
    },
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// The peer closed it, or does not know it any more.
    Closed,
    /// Nothing came for too long.
    TimedOut,
    /// The peer is not the one meant, or breaks the protocol.
    Rejected,
    /// The peer's host has no such port.
    Refused,
    /// This end closed it.
    Local,
}

impl From<ConnectionError> for LostReason {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::LocallyClosed => Self::Local,
            ConnectionError::ConnectionClosed(close)
                if close.error_code != quinn_proto::TransportErrorCode::NO_ERROR =>
            {
                Self::Rejected
            }
            ConnectionError::ConnectionClosed(_)
            | ConnectionError::ApplicationClosed(_)
            | ConnectionError::Reset => Self::Closed,
            ConnectionError::VersionMismatch
            | ConnectionError::TransportError(_)
            | ConnectionError::CidsExhausted => Self::Rejected,
        }
    }
}

/// The connections of one worker.
pub struct Endpoint {
    inner: quinn_proto::Endpoint,
    ids: Ids,
    clock: Clock,
    paths: Arc<Paths>,
    /// How connections are accepted, if any.
    server: Option<ServerConfig>,
    /// An instant, and what the caller's time was then.
    epoch: (Instant, Duration),
    /// The caller's time of the last datagram.
    now: Duration,
    connections: HashMap<ConnectionHandle, Conn>,
    handles: HashMap<u64, ConnectionHandle>,
    /// The last number that was given to a connection.
    last: u64,
    /// Accepted peers, and which of their secrets it is, by their public keys.
    accepted: HashMap<Vec<u8>, (u64, u32)>,
    /// Their addresses. Only packets from there are answered with a stateless reset: another endpoint of
    /// this node may have the connection, which who knows its token can end (RFC 9000 §21.11).
    addresses: HashSet<IpAddr>,
    /// When connections want to be looked at.
    timers: BTreeSet<(Instant, ConnectionHandle)>,
    sending: Sending,
    events: VecDeque<Event>,
    handshakes: usize,
    admission: Admission,
    /// For handshakes without a proof that their sender receives at its address.
    unvalidated: Bucket,
    /// Connections of which nothing is left.
    removed: Vec<u64>,
    /// Connections whose peer has another address.
    moved: Vec<u64>,
    /// Streams whose last block waits for more bytes, and until when at most.
    incomplete: HashMap<Stream, Option<Duration>>,
    repairs: Repairs,
    /// Connections that are lost unless their peer answers in time.
    unanswered: BTreeSet<u64>,
    /// When to look whether a connection that waits for an answer is silent.
    watched: BTreeSet<(Duration, u64)>,
    /// Connections that an end leaves.
    closing: BTreeSet<u64>,
}

struct Conn {
    number: u64,
    inner: Connection,
    /// By which of the caller's sockets.
    socket: u64,
    /// The address of its peer.
    remote: SocketAddr,
    streams: HashMap<StreamId, Local>,
    timer: Option<Instant>,
    /// It may have something to send.
    is_dirty: bool,
    load: Arc<Load>,
    /// What bounds all that is sent to the peer, once that is known, and this connection's next turn.
    limit: Option<Arc<Limit>>,
    slot: Option<Slot>,
    peer: Option<u64>,
    key_id: u32,
    is_up: bool,
    is_lost: bool,
    is_dialed: bool,
    leaving: Leaving,
    /// Its sender has shown that it receives at its address.
    is_validated: bool,
    /// ACKs that came, and when the last one did.
    acks: u64,
    acked: Duration,
    /// Frames sent that the peer acknowledges.
    elicited: u64,
    /// When one was first sent since then.
    waits_since: Option<Duration>,
    /// It is looked at when it may be silent.
    is_watched: bool,
    /// The next packet leaves whether or not there is room in the window.
    probes: bool,
    /// When a dialed connection is lost that has received nothing.
    answer_by: Option<Duration>,
    /// When something came from the peer while it had acknowledged nothing for long.
    one_way_since: Option<Duration>,
    /// Full packets acknowledged, and since when only shorter ones are.
    full_acked: u64,
    narrow_since: Option<Duration>,
    /// When its host reported that the peer is not there, if nothing has come since.
    refused: Option<Duration>,
    /// Streams of which not all was acknowledged up to the FIN.
    unfinished: HashSet<StreamId>,
    fec: Fec,
    credit: Credit,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint that accepts nothing yet. One with the same `secret` resets the connections of
    /// another that is gone (RFC 9000 §10.3), and knows by its number, `index`, which connections another has.
    /// `clock` is the time of the host's clock. Endpoints with the same `paths` share what they know of them.
    pub fn new(
        clock: Duration,
        (secret, index): (&[u8; 32], u16),
        paths: Arc<Paths>,
        now: Duration,
    ) -> Self {
        let epoch = Instant::now();
        let config = Arc::new(config_of(secret, index));
        Self {
            inner: quinn_proto::Endpoint::new(config, None, true, None),
            ids: ids_of(secret, index),
            clock: Clock {
                epoch,
                at_epoch: clock,
            },
            paths,
            server: None,
            epoch: (epoch, now),
            now,
            connections: HashMap::new(),
            handles: HashMap::new(),
            last: 0,
            accepted: HashMap::new(),
            addresses: HashSet::new(),
            timers: BTreeSet::new(),
            sending: Sending::default(),
            events: VecDeque::new(),
            handshakes: 0,
            admission: Admission::default(),
            unvalidated: Bucket::default(),
            removed: Vec::new(),
            moved: Vec::new(),
            incomplete: HashMap::new(),
            repairs: Repairs::default(),
            unanswered: BTreeSet::new(),
            watched: BTreeSet::new(),
            closing: BTreeSet::new(),
        }
    }

    /// Accepts connections of these peers from now on, and of no others.
    ///
    /// # Errors
    /// A key cannot be used.
    pub fn accept_from(&mut self, peers: &[Credentials]) -> io::Result<()> {
        let keys = peers.iter().map(|one| {
            let key = credentials::public_key(&one.theirs)?;
            Ok((key, (one.peer, one.key_id)))
        });
        let keys: Result<_, rustls::Error> = keys.collect();
        let addresses = peers.iter().flat_map(|one| &one.addresses);
        self.addresses = addresses.copied().collect();
        self.accepted = keys.map_err(io::Error::other)?;
        let crypto = credentials::server(peers).map_err(io::Error::other)?;
        let config = ServerConfig::with_crypto(Arc::new(crypto));
        self.server = (!peers.is_empty()).then_some(config);
        self.inner
            .set_server_config(self.server.clone().map(Arc::new));
        Ok(())
    }

    /// Bounds what all endpoints with these paths send to these peers, in bytes of UDP payload per second.
    pub fn set_rate_limits(&self, limits: &HashMap<u64, u32>) {
        self.paths.set_limits(limits);
    }

    /// The settings of a connection with an address.
    fn transport(&self, to: IpAddr) -> Arc<TransportConfig> {
        let control = ControlFactory {
            clock: self.clock,
            path: self.paths.to(to),
        };
        Arc::new(transport::config(control))
    }

    /// Dials a peer by one of the caller's sockets; returns the number of the connection.
    ///
    /// # Errors
    /// A key or the address cannot be used.
    pub fn dial(
        &mut self,
        to: SocketAddr,
        credentials: &Credentials,
        socket: u64,
        now: Duration,
    ) -> io::Result<u64> {
        let crypto = credentials::client(credentials).map_err(io::Error::other)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.transport(to.ip()));
        let at = self.instant(now);
        let dialed = self.inner.connect(at, config, to, &credentials.name);
        let (handle, inner) = dialed.map_err(|error: ConnectError| io::Error::other(error))?;
        let number = self.add(handle, inner, socket, now);
        if let Some(conn) = self.connections.get_mut(&handle) {
            (conn.peer, conn.is_dialed) = (Some(credentials.peer), true);
            conn.key_id = credentials.key_id;
            conn.limit = Some(self.paths.limit(credentials.peer));
        }
        self.expect_answer(handle, now);
        self.drain(handle);
        Ok(number)
    }

    /// Takes a datagram that came by a socket from `from` to `to`. Returns the number of the
    /// connection that it has begun, if any; the answer to one without a connection is left in
    /// `answer`.
    pub fn on_datagram(
        &mut self,
        (from, to, socket): (SocketAddr, Option<IpAddr>, u64),
        ecn: Option<EcnCodepoint>,
        datagram: &[u8],
        answer: &mut Vec<u8>,
        now: Duration,
    ) -> (Option<u64>, Option<Transmit>) {
        answer.clear();
        self.now = now;
        let at = self.instant(now);
        let data = BytesMut::from(datagram);
        match self.inner.handle(at, from, to, ecn, data, answer) {
            None => (None, None),
            Some(DatagramEvent::Response(transmit)) => {
                let is_answered = has_long_header(datagram) || self.addresses.contains(&from.ip());
                (None, is_answered.then_some(transmit))
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.on_incoming(incoming, socket, answer, now)
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(conn) = self.connections.get_mut(&handle) {
                    conn.inner.handle_event(event);
                    conn.refused = None;
                    self.on_received(handle, now);
                    self.touch(handle);
                    self.drain(handle);
                }
                (None, None)
            }
        }
    }

    fn add(
        &mut self,
        handle: ConnectionHandle,
        inner: Connection,
        socket: u64,
        now: Duration,
    ) -> u64 {
        self.last += 1;
        let number = self.last;
        let load = control::load_of(inner.congestion_state());
        let fec = Fec::new(Arc::clone(&load));
        let conn = Conn {
            number,
            remote: inner.remote_address(),
            inner,
            socket,
            streams: HashMap::new(),
            timer: None,
            is_dirty: false,
            load,
            limit: None,
            slot: None,
            peer: None,
            key_id: 0,
            is_up: false,
            is_lost: false,
            is_dialed: false,
            leaving: Leaving::default(),
            is_validated: false,
            refused: None,
            unfinished: HashSet::new(),
            acks: 0,
            acked: now,
            elicited: 0,
            waits_since: None,
            is_watched: false,
            probes: false,
            answer_by: None,
            one_way_since: None,
            full_acked: 0,
            narrow_since: None,
            fec,
            credit: Credit::new(self.paths.unread()),
        };
        self.connections.insert(handle, conn);
        self.handles.insert(number, handle);
        self.touch(handle);
        number
    }

    /// The remote address of a connection.
    pub fn remote(&self, connection: u64) -> Option<SocketAddr> {
        Some(self.conn(connection)?.inner.remote_address())
    }

    /// From now on a connection sends by another socket.
    pub fn set_socket(&mut self, connection: u64, socket: u64) {
        if let Some(conn) = self.conn_mut(connection) {
            conn.socket = socket;
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The connections of which nothing is left since the last call.
    pub(crate) fn take_removed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removed)
    }

    /// The connections whose peer has another address since the last call.
    pub(crate) fn take_moved(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.moved)
    }

    /// The number of the other endpoint of this node that has the connection of a datagram.
    pub(crate) fn other_owner(&self, datagram: &[u8]) -> Option<u16> {
        let owner = self.ids.owner(datagram)?;
        (owner != self.ids.index()).then_some(owner)
    }

    /// Whether an event waits.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Duration) {
        self.complete_paused(now);
        self.probe_silent(now);
        self.end_unanswered(now);
        self.close_left(now);
        let at = self.instant(now);
        self.sending.resume(at);
        while let Some((due, handle)) = self.timers.first().copied()
            && due <= at
        {
            self.timers.pop_first();
            if let Some(conn) = self.connections.get_mut(&handle) {
                conn.timer = None;
                conn.inner.handle_timeout(at);
                self.touch(handle);
                self.drain(handle);
            }
        }
    }

    /// When to call [`Self::on_time`] at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        let (epoch, base) = self.epoch;
        let timer = self.timers.first().map(|(due, _)| *due);
        let timer = timer.into_iter().chain(self.sending.deadline()).min();
        let timer = timer.map(|due| base + due.saturating_duration_since(epoch));
        let pauses = self.incomplete.values().map(|due| due.unwrap_or_default());
        let watched = self.watched.first().map(|(due, _)| *due);
        let others = watched.into_iter().chain(self.unanswered_until());
        pauses.chain(timer).chain(others).min()
    }

    /// Whether a connection carries new flows: open, and not silent about what was
    /// sent.
    pub fn is_usable(&self, connection: u64, now: Duration) -> bool {
        self.conn(connection).is_some_and(|conn| {
            conn.is_up && !conn.is_lost && !conn.leaving.has_begun() && !conn.is_silent(now)
        })
    }

    /// When the peer last acknowledged something new of a connection.
    pub fn acked(&self, connection: u64) -> Option<Duration> {
        Some(self.conn(connection)?.acked)
    }

    /// The smoothed round-trip time of a connection.
    pub fn round_trip(&self, connection: u64) -> Option<Duration> {
        Some(self.conn(connection)?.inner.rtt())
    }

    /// Packets that a connection has sent, and those of them that were lost.
    pub fn sent_and_lost(&self, connection: u64) -> Option<(u64, u64)> {
        let path = self.conn(connection)?.inner.stats().path;
        Some((path.sent_packets, path.lost_packets))
    }

    /// A secret of both ends of a connection that is up (RFC 5705).
    pub fn secret(&self, connection: u64) -> Option<[u8; SECRET_BYTES]> {
        let mut secret = [0; SECRET_BYTES];
        let session = self.conn(connection)?.inner.crypto_session();
        let exported = session.export_keying_material(&mut secret, SECRET_LABEL, &[]);
        exported.is_ok().then_some(secret)
    }

    /// Passes on what follows from a call of a connection.
    fn drain(&mut self, handle: ConnectionHandle) {
        while let Some(conn) = self.connections.get_mut(&handle) {
            // First: the last of them has the reason.
            if let Some(event) = conn.inner.poll() {
                self.on_event(handle, event);
            } else if let Some(event) = conn.inner.poll_endpoint_events() {
                let is_drained = event.is_drained();
                if let Some(event) = self.inner.handle_event(handle, event) {
                    conn.inner.handle_event(event);
                }
                if is_drained {
                    return self.remove(handle);
                }
            } else {
                break;
            }
            self.touch(handle);
        }
        self.note_address(handle);
        self.set_timer(handle);
    }

    /// A NAT may have given the peer another address: quinn-proto follows, and returns if the peer does not show
    /// that it receives there (RFC 9000 §9.3). The congestion control may be a new one.
    fn note_address(&mut self, handle: ConnectionHandle) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        let remote = conn.inner.remote_address();
        if std::mem::replace(&mut conn.remote, remote) != remote {
            conn.load = control::load_of(conn.inner.congestion_state());
            conn.fec.set_load(Arc::clone(&conn.load));
            self.moved.push(conn.number);
        }
    }

    fn set_timer(&mut self, handle: ConnectionHandle) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        let due = conn.inner.poll_timeout();
        if due == conn.timer {
            return;
        }
        if let Some(former) = std::mem::replace(&mut conn.timer, due) {
            self.timers.remove(&(former, handle));
        }
        self.timers.extend(due.map(|due| (due, handle)));
    }

    fn on_event(&mut self, handle: ConnectionHandle, event: quinn_proto::Event) {
        use quinn_proto::Event as Proto;
        match event {
            Proto::Connected => self.on_connected(handle),
            Proto::ConnectionLost { reason } => self.on_lost(handle, reason.into()),
            Proto::Stream(event) => self.on_stream(handle, event),
            Proto::DatagramReceived => self.on_repairs(handle),
            Proto::HandshakeDataReady | Proto::DatagramsUnblocked => {}
        }
    }

    fn on_connected(&mut self, handle: ConnectionHandle) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        if !conn.is_dialed {
            self.handshakes = self.handshakes.saturating_sub(1);
            let known = public_key(&conn.inner).and_then(|key| self.accepted.get(&key));
            conn.peer = known.map(|(peer, _)| *peer);
            conn.key_id = known.map_or(0, |(_, key_id)| *key_id);
            conn.limit = conn.peer.map(|peer| self.paths.limit(peer));
        }
        conn.is_up = true;
        conn.open_own_streams();
        if let Some(peer) = conn.peer {
            self.events.push_back(Event::Up {
                connection: conn.number,
                peer,
                key_id: conn.key_id,
            });
        }
    }

    fn on_lost(&mut self, handle: ConnectionHandle, reason: LostReason) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        if std::mem::replace(&mut conn.is_lost, true) {
            return;
        }
        if !(conn.is_dialed || conn.is_up) {
            self.handshakes = self.handshakes.saturating_sub(1);
        }
        let ready = Ready {
            readable: true,
            writable: true,
            failed: true,
        };
        self.incomplete
            .retain(|stream, _| stream.connection != conn.number);
        let tags = conn.streams.drain().filter_map(|(_, local)| local.tag);
        self.events
            .extend(tags.map(|tag| Event::Ready { tag, ready }));
        self.events.push_back(Event::Lost {
            connection: conn.number,
            peer: conn.peer,
            was_up: std::mem::take(&mut conn.is_up),
            reason,
        });
    }

    fn remove(&mut self, handle: ConnectionHandle) {
        self.on_lost(handle, LostReason::Closed);
        if let Some(conn) = self.connections.remove(&handle) {
            self.handles.remove(&conn.number);
            self.removed.push(conn.number);
            if let Some(due) = conn.timer {
                self.timers.remove(&(due, handle));
            }
            if let (Some(slot), Some(limit)) = (conn.slot, conn.limit) {
                limit.settle(slot.bytes, 0);
            }
        }
        self.sending.remove(handle);
    }

    fn conn(&self, connection: u64) -> Option<&Conn> {
        self.connections.get(self.handles.get(&connection)?)
    }

    fn conn_mut(&mut self, connection: u64) -> Option<&mut Conn> {
        self.connections.get_mut(self.handles.get(&connection)?)
    }

    fn instant(&self, now: Duration) -> Instant {
        let (epoch, base) = self.epoch;
        epoch + now.saturating_sub(base)
    }
}

/// Whether a datagram belongs to no connection that is open, by its first bit (RFC 9000 §17.2).
fn has_long_header(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0)
}

/// The public key of the peer, which its handshake has proved.
fn public_key(connection: &Connection) -> Option<Vec<u8>> {
    let identity = connection.crypto_session().peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Some(chain.first()?.as_ref().to_vec())
}

/// Bytes of an endpoint's secret by which it recognises connection ids.
const IDS_BYTES: usize = 8;

/// The settings of the endpoint with this number of those with this secret, which know each other's connection ids.
fn config_of(secret: &[u8; 32], index: u16) -> EndpointConfig {
    let resets = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret[IDS_BYTES..]);
    let mut config = EndpointConfig::new(Arc::new(resets));
    let secret = *secret;
    config.cid_generator(move || Box::new(ids_of(&secret, index)));
    config
}

/// Its connection ids.
fn ids_of(secret: &[u8; 32], index: u16) -> Ids {
    let key = secret[..IDS_BYTES].iter();
    Ids::new(key.fold(0, |key, byte| key << 8 | u64::from(*byte)), index)
}
