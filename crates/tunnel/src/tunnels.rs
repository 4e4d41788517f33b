// SPDX-License-Identifier: Apache-2.0
//! An [`Endpoint`] with its sockets. Each connection has a UDP socket of its own that is connected
//! to the peer: at the accepting end on the port of the listener, so that the kernel finds it by
//! both addresses whichever other sockets, workers and processes listen on that port; at the dialing
//! end on a port that the kernel picks, so that the connections of one node spread over the workers
//! of the other.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::RecvMeta;

use crate::control::Paths;
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::siblings::{Inbox, Siblings, Stray};
use crate::socket::{READ_BYTES, READS, Socket};

/// Sockets taken from one wait.
const EVENTS_MAX: usize = 64;
/// Reads from one socket before others have their turn.
const READS_MAX: usize = 16;
/// Transmissions of one turn of the event loop, each of several datagrams.
const SENDS_MAX: usize = 256;
/// How long nothing is read from a listener of whose datagrams some were too many: one wake-up takes all that have
/// come meanwhile, and beyond what its buffer holds the kernel drops them.
const PAUSE: Duration = Duration::from_millis(5);
/// Datagrams of one transmission: what arrives at once should not fill a queue.
const SEGMENTS_MAX: usize = 10;

/// In the place of a socket's number, what other endpoints hand over.
const INBOX: u64 = 0;

/// The connections of one worker, with their sockets.
pub struct Tunnels {
    /// The streams of the connections.
    pub endpoint: Endpoint,
    epoll: Epoll,
    mark: u32,
    sockets: HashMap<u64, Socket>,
    /// The number of the last socket.
    last: u64,
    listeners: Vec<u64>,
    /// The last read had datagrams that were too many.
    is_flooded: bool,
    /// Until when nothing is read from some of them.
    paused_until: Option<Duration>,
    /// Datagrams that every socket sends in one call.
    segments: usize,
    /// Sockets that the kernel has no room for.
    blocked: usize,
    /// The other endpoints of the node, and what they have for this one.
    siblings: Arc<Siblings>,
    inbox: Arc<Inbox>,
    received: Box<[u8]>,
    sending: Vec<u8>,
}

impl fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnels")
            .field("endpoint", &self.endpoint)
            .field("sockets", &self.sockets.len())
            .finish_non_exhaustive()
    }
}

impl AsFd for Tunnels {
    /// Readable while there is something to do for [`Tunnels::on_ready`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Tunnels {
    /// Without connections. `clock` is the time of the host's clock, `now` that of the caller; for
    /// `secret`, `index` and `paths` see [`Endpoint::new`]. All sockets have `mark`, which needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new(
        clock: Duration,
        (secret, index): (&[u8; 32], u16),
        (paths, siblings): (Arc<Paths>, Arc<Siblings>),
        mark: u32,
        now: Duration,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let inbox = siblings.join(index)?;
        epoll.add(&inbox, EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
        Ok(Self {
            endpoint: Endpoint::new(clock, (secret, index), paths, now),
            epoll,
            mark,
            sockets: HashMap::new(),
            last: INBOX,
            listeners: Vec::new(),
            is_flooded: false,
            paused_until: None,
            segments: SEGMENTS_MAX,
            blocked: 0,
            siblings,
            inbox,
            received: vec![0; READS * READ_BYTES].into_boxed_slice(),
            sending: Vec::new(),
        })
    }

    /// Accepts connections at these addresses, and no longer at others.
    ///
    /// # Errors
    /// A socket could not be bound.
    pub fn listen(&mut self, addresses: &[SocketAddr]) -> io::Result<()> {
        let listeners = std::mem::take(&mut self.listeners);
        let (kept, gone): (Vec<_>, Vec<_>) = listeners.into_iter().partition(|number| {
            let local = self.sockets.get(number).and_then(Socket::local);
            local.is_some_and(|local| addresses.contains(&local))
        });
        self.listeners = kept;
        for number in gone {
            self.sockets.remove(&number);
        }
        // One that had no room reports none any more.
        self.count_blocked();
        for address in addresses {
            let mut bound = self.listeners.iter();
            let bound = bound.any(|number| {
                let local = self.sockets.get(number).and_then(Socket::local);
                local == Some(*address)
            });
            if !bound {
                let number = self.add(Socket::bound(*address, self.mark)?)?;
                self.listeners.push(number);
            }
        }
        Ok(())
    }

    /// Dials a peer; returns the number of the connection.
    ///
    /// # Errors
    /// There is no route, or no socket to be had.
    pub fn dial(
        &mut self,
        to: SocketAddr,
        credentials: &Credentials,
        now: Duration,
    ) -> io::Result<u64> {
        let socket = self.add(Socket::connected(None, to, self.mark)?)?;
        let dialed = self.endpoint.dial(to, credentials, socket, now);
        match (&dialed, self.sockets.get_mut(&socket)) {
            (Ok(connection), Some(socket)) => socket.connection = Some(*connection),
            _ => {
                self.sockets.remove(&socket);
            }
        }
        dialed
    }

    fn add(&mut self, socket: Socket) -> io::Result<u64> {
        self.last += 1;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, self.last);
        self.epoll.add(&socket, event)?;
        self.sockets.insert(self.last, socket);
        Ok(self.last)
    }

    /// Takes what has arrived.
    ///
    /// # Errors
    /// The descriptor of [`Tunnels::as_fd`] has failed.
    pub fn on_ready(&mut self, now: Duration) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(nix::errno::Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let number = event.data();
            if number == INBOX {
                self.take_strays(now);
                continue;
            }
            if event.events().contains(EpollFlags::EPOLLOUT) {
                self.unblock(number);
            }
            self.receive(number, now);
        }
        Ok(())
    }

    fn receive(&mut self, number: u64, now: Duration) {
        for _ in 0..READS_MAX {
            let Some(socket) = self.sockets.get(&number) else {
                return;
            };
            let mut metas = [RecvMeta::default(); READS];
            match socket.receive(&mut self.received, &mut metas) {
                Ok(count) => {
                    for (part, meta) in metas[..count].iter().enumerate() {
                        self.take(number, part, meta, now);
                    }
                    // Fewer than there is room for: nothing is left.
                    if count < READS {
                        break;
                    }
                }
                Err(error) => {
                    self.on_error(number, &error, now);
                    break;
                }
            }
        }
        if std::mem::take(&mut self.is_flooded) {
            self.watch(number, EpollFlags::empty());
            self.paused_until.get_or_insert(now + PAUSE);
        }
    }

    /// Reads from all listeners again.
    fn resume_listeners(&mut self) {
        self.paused_until = None;
        for number in &self.listeners {
            self.watch(*number, EpollFlags::EPOLLIN);
        }
    }

    /// Passes on the datagrams of one read.
    fn take(&mut self, number: u64, part: usize, meta: &RecvMeta, now: Duration) {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let start = part * READ_BYTES;
        let socket = self.sockets.get(&number);
        let is_listener = socket.is_some_and(|socket| socket.connection.is_none());
        let mut at = 0;
        while at < meta.len {
            let end = (at + meta.stride.max(1)).min(meta.len);
            let datagram = &self.received[start + at..start + end];
            at = end;
            if let Some(owner) = self.endpoint.other_owner(datagram) {
                let stray = Stray {
                    from: meta.addr,
                    to: meta.dst_ip,
                    ecn,
                    datagram: datagram.into(),
                };
                if self.siblings.hand_over(owner, stray) {
                    continue;
                }
            }
            if is_listener && !self.endpoint.admits(meta.addr.ip(), datagram, now) {
                self.is_flooded = true;
                continue;
            }
            let path = (meta.addr, meta.dst_ip, number);
            let (accepted, answer) =
                self.endpoint
                    .on_datagram(path, ecn, datagram, &mut self.sending, now);
            if let (Some(answer), Some(socket)) = (answer, self.sockets.get(&number)) {
                // A sender that gets no answer sends again.
                let _ = socket.send(&answer, &self.sending[..answer.size]);
            }
            if let Some(connection) = accepted {
                self.connect(connection, number, meta);
            }
        }
    }

    /// Takes the datagrams of connections of this endpoint that came by sockets of others.
    fn take_strays(&mut self, now: Duration) {
        for stray in self.inbox.take() {
            let path = (stray.from, stray.to, INBOX);
            let datagram = &stray.datagram;
            let (_, answer) =
                self.endpoint
                    .on_datagram(path, stray.ecn, datagram, &mut self.sending, now);
            // Of no connection any more: a listener has the port that it was sent to.
            let mut listeners = self.listeners.iter();
            let listener = listeners.find_map(|number| {
                let socket = self.sockets.get(number)?;
                let is_of_family = socket.local()?.is_ipv4() == stray.from.is_ipv4();
                is_of_family.then_some(socket)
            });
            if let (Some(answer), Some(socket)) = (answer, listener) {
                let _ = socket.send(&answer, &self.sending[..answer.size]);
            }
        }
    }

    /// Gives an accepted connection a socket of its own. Without one it stays with the listener.
    fn connect(&mut self, connection: u64, listener: u64, meta: &RecvMeta) {
        let local = self.sockets.get(&listener).and_then(Socket::local);
        let local = local.map(|mut local| {
            if let Some(to) = meta.dst_ip {
                local.set_ip(to);
            }
            local
        });
        self.attach(connection, local, meta.addr);
    }

    /// A connection has a socket of its own from now on. Returns whether there is one.
    fn attach(&mut self, connection: u64, local: Option<SocketAddr>, remote: SocketAddr) -> bool {
        let socket =
            Socket::connected(local, remote, self.mark).and_then(|socket| self.add(socket));
        let Ok(number) = socket else {
            return false;
        };
        self.endpoint.set_socket(connection, number);
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.connection = Some(connection);
        }
        true
    }

    /// Connects the sockets of connections to the addresses that their peers have now.
    fn follow_peers(&mut self) {
        for connection in self.endpoint.take_moved() {
            let mut sockets = self.sockets.iter();
            let former = sockets.find(|(_, socket)| socket.connection == Some(connection));
            let former = former.map(|(number, socket)| (*number, socket.local()));
            let remote = self.endpoint.remote(connection);
            let (Some((former, local)), Some(remote)) = (former, remote) else {
                continue;
            };
            // Without another one, the former sends there too, and a listener receives.
            if self.attach(connection, local, remote) {
                self.sockets.remove(&former);
                self.count_blocked();
            }
        }
    }

    /// A call on a socket has failed: `WouldBlock`, or an ICMP error for its connection.
    fn on_error(&mut self, number: u64, error: &io::Error, now: Duration) {
        let connection = self
            .sockets
            .get(&number)
            .and_then(|socket| socket.connection);
        // Only the error for a port without a process: others may pass, and are found by silence.
        if let (io::ErrorKind::ConnectionRefused, Some(connection)) = (error.kind(), connection) {
            self.endpoint.on_refused(connection, now);
        }
    }

    /// Does what is due, and sends what may be sent. Call it at the end of each turn.
    pub fn on_time(&mut self, now: Duration) {
        self.endpoint.on_time(now);
        self.follow_peers();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.resume_listeners();
        }
        for _ in 0..SENDS_MAX {
            if self.blocked > 0 {
                break;
            }
            let transmit = self
                .endpoint
                .poll_transmit(self.segments, &mut self.sending, now);
            let Some((number, transmit)) = transmit else {
                break;
            };
            self.send(number, transmit, now);
        }
        self.forget_sockets();
    }

    fn send(&mut self, number: u64, transmit: Transmit, now: Duration) {
        let Some(socket) = self.sockets.get_mut(&number) else {
            return;
        };
        let contents = &self.sending[..transmit.size];
        match socket.send(&transmit, contents) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.blocked = Some((contents.to_vec(), transmit));
                self.blocked += 1;
                self.watch(number, EpollFlags::EPOLLIN);
            }
            Err(error) => {
                // A device without the offload: from now on each datagram is sent alone.
                self.segments = self.segments.min(socket.segments_max());
                self.on_error(number, &error, now);
            }
            Ok(()) => {}
        }
    }

    /// The kernel has room again.
    fn unblock(&mut self, number: u64) {
        let blocked = self
            .sockets
            .get_mut(&number)
            .and_then(|socket| socket.blocked.take());
        if let (Some((contents, transmit)), Some(socket)) = (blocked, self.sockets.get(&number)) {
            // What is lost here is sent again as after any loss.
            let _ = socket.send(&transmit, &contents);
            self.blocked -= 1;
        }
        self.watch(number, EpollFlags::EPOLLIN);
    }

    fn watch(&self, number: u64, mut interest: EpollFlags) {
        if let Some(socket) = self.sockets.get(&number) {
            interest.set(EpollFlags::EPOLLOUT, socket.blocked.is_some());
            let _ = self
                .epoll
                .modify(socket, &mut EpollEvent::new(interest, number));
        }
    }

    /// Closes the sockets of connections that are over.
    fn forget_sockets(&mut self) {
        for connection in self.endpoint.take_removed() {
            self.sockets
                .retain(|_, socket| socket.connection != Some(connection));
            self.count_blocked();
        }
    }

    fn count_blocked(&mut self) {
        let sockets = self.sockets.values();
        self.blocked = sockets.filter(|socket| socket.blocked.is_some()).count();
    }

    /// When to call [`Self::on_time`] at the latest.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        if self.endpoint.has_transmits() && self.blocked == 0 || self.endpoint.has_events() {
            return Some(now);
        }
        let due = self.endpoint.deadline();
        due.into_iter().chain(self.paused_until).min()
    }
}
