// SPDX-License-Identifier: Apache-2.0
//! What a worker needs from whatever redirects flows to its listeners.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::flow::Flow;
use crate::frame::Frame;

/// What the redirection reports.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which flow. For [`EventKind::SynAck`]: as the upstream socket sees
    /// it, which differs from the client's when the source address does.
    pub flow: Flow,
    /// The frame that caused it.
    pub frame: Frame,
    /// How to name the half-open entry of the flow to the redirection.
    pub half_open: HalfOpen,
    /// Index of the rule in the policy of `generation`.
    pub rule: usize,
    /// The generation of the policy in force.
    pub generation: u8,
    /// It is the first flow to be relayed after one between the same two hosts was forwarded
    /// and observed. Its SYN is held.
    pub trial: bool,
    /// The way on that the observed one took.
    pub path: Option<Path>,
}

/// The way that an observed flow took on from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The interface by which it left.
    pub ifindex: u32,
    /// The segment size that the host let the two ends agree on; 0 if it is not known.
    pub mss: u16,
}

/// What was observed of forwarded handshakes between a client and a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The round trip between this host and the server.
    pub server_rtt: Duration,
    /// A SYN-ACK of the node has left for the client since.
    pub answered: bool,
    /// What was forwarded after a relay got no answer did get one.
    pub bypassed: bool,
    /// The way on.
    pub path: Option<Path>,
}

/// Which source an upstream connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address and port.
    Client,
    /// The client's address with a port of its own: the host tracks connections, and both
    /// halves of a relay would be one to it.
    ClientAddress,
    /// The address that address translation gives to the client.
    Translated(IpAddr),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A flow to relay begins. With `held`, its SYN went nowhere else.
    Syn {
        /// The client waits until the SYN is admitted or passed.
        held: bool,
    },
    /// A server answered; its SYN-ACK went nowhere else.
    SynAck,
    /// A SYN to be answered with a reset.
    Reject,
    /// A peer's SYN for this node itself announces a flow. It went to the worker's
    /// listener, and has a half-open entry; its flow is that of the hop.
    SynOption,
    /// The same from somebody who may not; it went its way.
    Unauthorized,
}

/// Names a half-open entry to the redirection. While a flow's half-open entry stands, its server's
/// SYN-ACK comes as an event instead of reaching the upstream socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfOpen {
    /// Initial sequence number of the client's SYN.
    pub isn: u32,
    /// It counts against the reserve.
    pub kept: bool,
}

/// With which window a connection starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSettings {
    /// No less than so many segments.
    pub segments: u32,
    /// As much as the way bears in a round trip at so many bytes per second, as far as
    /// the redirection can follow.
    pub rate: u32,
    /// The round trip of the last one, for connections that start before they have
    /// measured one.
    pub round: Option<Duration>,
}

/// Which way a frame is put on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As if it had just arrived there.
    In,
    /// Out of it.
    Out,
}

/// A TCP socket that the kernel has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// Its number, by which no later one with these addresses is taken for it
    /// (`SO_COOKIE`).
    pub cookie: u64,
}

/// The redirection, as one worker sees it. Belongs to the worker's thread.
pub trait Intercept {
    /// Readable when events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// The next event, if one waits.
    fn next_event(&mut self) -> Option<Event>;
    /// Has new flows redirected to the worker's listeners, or no longer.
    ///
    /// # Errors
    /// The redirection cannot be told.
    fn set_accepting(&mut self, listening: bool) -> io::Result<()>;
    /// Whom a client that was accepted has addressed, where its socket does not
    /// tell. It is asked once for each.
    fn original(&mut self, client: SocketAddr) -> Option<SocketAddr>;
    /// How long handshakes may take to complete that began before the worker
    /// took its listeners back.
    fn lag(&self) -> Duration;
    /// Removes a half-open entry whose client is validated.
    fn release_half_open(&mut self, flow: &Flow, half_open: HalfOpen);
    /// Removes a half-open entry, unless another SYN of the flow has made it anew.
    fn release_if_unchanged(&mut self, flow: &Flow, half_open: HalfOpen);
    /// Makes a half-open entry for a flow whose SYN was not seen.
    ///
    /// # Errors
    /// The half-open budget is used up.
    fn reserve_half_open(&mut self, flow: &Flow) -> io::Result<HalfOpen>;
    /// Has the repetition of a held SYN go to the listener; the half-open entry stays.
    ///
    /// # Errors
    /// The half-open entry cannot be changed.
    fn admit(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()>;
    /// Has repetitions of a held SYN forwarded; the half-open entry stays.
    ///
    /// # Errors
    /// The half-open entry cannot be changed.
    fn pass(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()>;
    /// Puts a frame on the device it names.
    ///
    /// # Errors
    /// The device is gone or does not take it.
    fn inject(&mut self, frame: &Frame, direction: Direction) -> io::Result<()>;
    /// Has a socket that is yet to connect say `option` in its first SYN.
    ///
    /// # Errors
    /// It cannot be done here.
    fn syn_option(&mut self, socket: BorrowedFd<'_>, option: &[u8]) -> io::Result<()>;
    /// Remembers that a client from this prefix completed a handshake.
    fn validate_prefix(&mut self, flow: &Flow);
    /// Says how connections with a peer at this address start that are opened from now
    /// on; with `None`, as all others do.
    fn set_initial_cwnd(&mut self, peer: IpAddr, start: Option<PathSettings>);
    /// What was observed of this flow's client and service, if anything was.
    fn observed(&mut self, flow: &Flow) -> Option<Observed>;
    /// Which source the server of an observed flow is to see. With `now`, by the host as it is
    /// now; otherwise as it was not long ago.
    fn source(&mut self, flow: &Flow, now: bool) -> Source;
    /// Has flows between this client and service forwarded, and finds out whether those get
    /// the answer that a relay did not get.
    fn record_no_answer(&mut self, flow: &Flow);
    /// Has all flows forwarded that have to be observed first: this host stands in the way of
    /// relays, until its firewall or routes change, or for a while.
    fn block(&mut self);
    /// Has flows to this destination opened strictly for a while.
    fn record_failure(&mut self, flow: &Flow, period: Duration);
    /// Takes that back.
    fn clear_failure(&mut self, flow: &Flow);
    /// Destroys what the kernel keeps of these sockets (TIME_WAIT).
    fn forget(&mut self, closed: &[Closed]);
}
