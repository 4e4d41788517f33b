// SPDX-License-Identifier: Apache-2.0
//! The interface between a worker and the mechanism that redirects flows to its listeners.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::flow::Flow;
use crate::frame::Frame;

/// An event from the redirection.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The flow. For [`EventKind::SynAck`] as the upstream socket has it, which differs from the
    /// client's flow when the source address does.
    pub flow: Flow,
    /// The frame that caused it.
    pub frame: Frame,
    /// The key of the flow's half-open entry.
    pub half_open: HalfOpen,
    /// Index of the rule in the policy of `generation`.
    pub rule: usize,
    /// The generation of the policy in force.
    pub generation: u8,
    /// Whether this is the first flow to relay after one between the same two hosts was forwarded
    /// and observed. Its SYN is held.
    pub trial: bool,
    /// The path for its upstream connection.
    pub path: Option<ObservedPath>,
}

/// The path that an upstream connection must take, as an observed flow did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedPath {
    /// The interface by which it leaves; 0 if routes lead there anyway.
    pub ifindex: u32,
    /// The MSS that the host let the two ends agree on; 0 if unknown.
    pub mss: u16,
}

/// The result of observing forwarded handshakes between a client and a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The round trip between this host and the server.
    pub server_rtt: Duration,
    /// A SYN-ACK of this node has left for the client since.
    pub answered: bool,
    /// A flow forwarded after a relay got no answer did get one.
    pub bypassed: bool,
    /// The path onward.
    pub path: Option<ObservedPath>,
}

/// Which source address an upstream connection may use. In order, each keeps less of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The client's address and port.
    Client,
    /// The client's address with another port: the host tracks connections, and conntrack would
    /// take both halves of a relay for one connection.
    ClientAddress,
    /// The address to which source NAT translates the client's.
    Translated(IpAddr),
    /// The address of this host toward the server.
    Node,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A flow to relay begins. If `held`, its SYN was not delivered.
    Syn {
        /// The client waits until the SYN is admitted or passed.
        held: bool,
    },
    /// A server answered; its SYN-ACK was not delivered.
    SynAck,
    /// A SYN to be answered with a reset.
    Reject,
    /// A peer's SYN to this node announces a flow by its SYN option. The listener got the SYN, and
    /// there is a half-open entry; its flow is that of the hop.
    SynOption,
    /// The same from a sender that is not authorized; the SYN was left alone.
    Unauthorized,
    /// A SYN joins a connection of Multipath TCP, or one that may be accepted at this moment. It was
    /// not delivered.
    Join,
    /// A SYN of Multipath TCP met a socket in TIME_WAIT. It was not delivered: the kernel would give
    /// it to a listener of TCP, or to none.
    TimeWait,
}

/// The key of a half-open entry. While a flow has one, its server's SYN-ACK is reported as an event
/// and does not reach the upstream socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfOpen {
    /// Initial sequence number of the client's SYN.
    pub isn: u32,
    /// Whether it counts against the reserve.
    pub kept: bool,
}

/// The initial window of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSettings {
    /// The least initial window, in segments.
    pub segments: u32,
    /// Bandwidth of the path in bytes per second: the window is one bandwidth-delay product, within
    /// the limits of the redirection.
    pub rate: u32,
    /// Round trip time of the last connection, for connections that have not measured one yet.
    pub round: Option<Duration>,
}

/// How a frame is injected at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As if the device had received it.
    In,
    /// The same, of a SYN that the programs do not report again.
    Again,
    /// Sent by the device.
    Out,
}

/// Where a worker listens for clients of Multipath TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipathListener {
    /// The port on the loopback address for SYNs with MP_CAPABLE (RFC 8684 section 3.1).
    pub port: u16,
    /// The last 32 bits of the address for SYNs with MP_JOIN (RFC 8684 section 3.2), where it
    /// listens on the ports of their destinations.
    pub joins: u32,
}

/// A TCP socket that the kernel has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// The index of the interface that it is bound to, 0 for none.
    pub ifindex: u32,
    /// Its `SO_COOKIE`, which distinguishes it from later sockets with the same addresses.
    pub cookie: u64,
}

/// What a hand-over needs from the two sockets of a relay, that of the client first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BypassEnds {
    /// The window shifts (RFC 7323 section 2) of the end, and of the socket toward it.
    pub shifts: [(u8, u8); 2],
    /// What the kernel counts as acknowledged beyond the bytes that were written.
    pub skew: [u32; 2],
}

/// What a worker does next about a flow that is handed over to the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassStep {
    /// Relay without clamps: nothing has changed.
    GiveUp,
    /// Keep the receive windows of both sockets small, and relay.
    Clamp,
    /// Relay what is below the cuts, and wait.
    Drain,
    /// Close both sockets without FIN and RST.
    Close,
    /// End the relay: the programs reset both ends.
    Reset,
}

/// The redirection, as one worker sees it. Belongs to the worker's thread.
///
/// The methods with a body are for what a redirection may lack: nothing is held back, observed or
/// handed over, and requests for that fail.
pub trait Intercept {
    /// Readable when events are pending.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// The next pending event.
    fn next_event(&mut self) -> Option<Event>;
    /// Whether an event is pending, also one that is still being written, which
    /// [`Self::next_event`] does not return yet.
    fn has_events(&self) -> bool;
    /// Starts or stops redirecting new flows to the worker's listeners.
    ///
    /// # Errors
    /// The redirection cannot be changed.
    fn set_accepting(&mut self, listening: bool) -> io::Result<()>;
    /// The original destination of an accepted client, where its socket does not show it. Called
    /// once per client.
    fn original(&mut self, client: SocketAddr) -> Option<SocketAddr>;
    /// How long handshakes that began before the worker closed its listeners may take to complete.
    fn lag(&self) -> Duration;
    /// Removes a half-open entry whose client is validated.
    fn release_half_open(&mut self, _flow: &Flow, _half_open: HalfOpen) {}
    /// Removes a half-open entry, unless another SYN of the flow has made it anew.
    fn release_if_unchanged(&mut self, _flow: &Flow, _half_open: HalfOpen) {}
    /// Makes a half-open entry for a flow whose SYN was not captured.
    ///
    /// # Errors
    /// The half-open budget is used up.
    fn reserve_half_open(&mut self, _flow: &Flow) -> io::Result<HalfOpen> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Lets the retransmission of a held SYN reach the listener; the half-open entry stays.
    ///
    /// # Errors
    /// The half-open entry cannot be changed.
    fn admit(&mut self, _flow: &Flow, _half_open: HalfOpen) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Forwards retransmissions of a held SYN; the half-open entry stays.
    ///
    /// # Errors
    /// The half-open entry cannot be changed.
    fn pass(&mut self, _flow: &Flow, _half_open: HalfOpen) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Injects a frame at the device it names.
    ///
    /// # Errors
    /// The device is gone or rejects the frame.
    fn inject(&mut self, _frame: &Frame, _direction: Direction) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Adds `option` to the first SYN of a socket that has not connected yet.
    ///
    /// # Errors
    /// The host does not support it.
    fn syn_option(&mut self, _socket: BorrowedFd<'_>, _option: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Drops the SYN of a socket that has not connected yet if NAT gives it another source.
    ///
    /// # Errors
    /// The host does not support it.
    fn keep_source(&mut self, _socket: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Remembers that a client from this prefix completed a handshake, and whether its clients are
    /// near: then early mode gains nothing, and their flows open late.
    fn validate_prefix(&mut self, _flow: &Flow, _near: bool) {}
    /// Sets the initial window of connections with this peer address from now on; `None` restores
    /// the default.
    fn set_initial_cwnd(&mut self, _peer: IpAddr, _start: Option<PathSettings>) {}
    /// Whether this host tracks a connection that keeps a socket bound to `source` from having these
    /// addresses and ports: an open one, whose packets would reach the socket too, or one, open or
    /// ended, from which NAT would distinguish it by another address or port.
    fn is_tracked(&mut self, _flow: &Flow, _source: Source) -> bool {
        false
    }
    /// Has this host forget a relayed connection that was reset, if NAT translates its client. Another one
    /// with its addresses and ports would else be translated as the relay's was for the node: not at all.
    fn untrack(&mut self, _flow: &Flow) {}
    /// The observations of this flow's client and service, if there are any.
    fn observed(&mut self, _flow: &Flow) -> Option<Observed> {
        None
    }
    /// The source address that the server of an observed flow should see. With `now` the host's
    /// state is read anew; otherwise a recent reading may serve.
    fn source(&mut self, _flow: &Flow, _now: bool) -> Source {
        Source::Client
    }
    /// Forwards flows between this client and service, and observes whether they get the answer
    /// that a relay did not get.
    fn record_no_answer(&mut self, _flow: &Flow) {}
    /// Forwards all flows that must be observed first: this host blocks relays, until its firewall
    /// or routes change, or for a limited time.
    fn block(&mut self) {}
    /// Opens flows to this destination strictly for `period`.
    fn record_failure(&mut self, _flow: &Flow, _period: Duration) {}
    /// Reverts [`Intercept::record_failure`].
    fn clear_failure(&mut self, _flow: &Flow) {}
    /// Begins to hand a relayed flow over to the packet path, and gives up at `deadline`.
    ///
    /// # Errors
    /// The packet path is not available, or the table is full.
    fn begin_bypass(
        &mut self,
        _flow: &Flow,
        _ends: &BypassEnds,
        _deadline: Duration,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Reads the sequence numbers of both sockets, whose receive windows are given in bytes. Called
    /// until the hand-over has its cuts. False if they change too fast.
    fn learn_bypass(&mut self, _flow: &Flow, _windows: [u32; 2]) -> bool {
        false
    }
    /// Advances a hand-over.
    fn step_bypass(&mut self, _flow: &Flow, _now: Duration) -> BypassStep {
        BypassStep::GiveUp
    }
    /// Makes a flow whose sockets are closed one of the packet path.
    fn settle_bypass(&mut self, _flow: &Flow) {}
    /// Ends a hand-over before its cuts: what its ends send reaches the sockets again.
    fn end_bypass(&mut self, _flow: &Flow) {}
    /// Redirects SYNs of Multipath TCP of one family, under rules that convert, to this listener.
    ///
    /// # Errors
    /// The redirection cannot be changed.
    fn set_multipath(&mut self, _ipv6: bool, _to: MultipathListener) -> io::Result<()> {
        Ok(())
    }
    /// Lets further paths to `server` join the connection with this token (RFC 8684 section 3.2);
    /// `None` lets none join any more.
    ///
    /// # Errors
    /// There is no room for another connection, or there was none with this token.
    fn set_token(&mut self, _token: u32, _server: Option<SocketAddr>) -> io::Result<()> {
        Ok(())
    }
    /// This host's addresses from which connections of Multipath TCP open further paths; `None` if they cannot be
    /// read now.
    fn path_addresses(&mut self) -> Option<Vec<IpAddr>> {
        Some(Vec::new())
    }
    /// Whether a worker has set this token.
    fn has_token(&mut self, _token: u32) -> bool {
        false
    }
    /// Forwards SYNs with this token, until a worker sets or removes it.
    fn forward_joins(&mut self, _token: u32) {}
    /// Destroys the socket with these addresses that is in TIME_WAIT. Returns whether there was one.
    fn end_time_wait(&mut self, _local: SocketAddr, _remote: SocketAddr) -> bool {
        false
    }
    /// Destroys what the kernel keeps of these sockets (TIME_WAIT).
    fn forget(&mut self, _closed: &[Closed]) {}
}
