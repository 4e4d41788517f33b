// SPDX-License-Identifier: Apache-2.0
//! The interface of other threads to a worker: commands in, answers out.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use posthaste_wire::header::NodeId;

use posthaste_wire::hop::Reply;
use posthaste_wire::segments::Segment;

use crate::accept_mode::AcceptMode;
use crate::chain::{Chains, Encapsulation, Path};
use crate::flow::Flow;
use crate::named::named;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::sys::{TcpInfo, Waker};

/// Names one relay of this process for as long as it lives, and no other.
///
/// Bits 63..48 the worker, 47..24 the generation, 23..0 the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayId(pub u64);

impl RelayId {
    /// The worker that owns the relay.
    pub fn worker(self) -> usize {
        usize::from((self.0 >> 48) as u16)
    }
}

impl fmt::Display for RelayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for RelayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A request to a worker. Answers come through the given channel.
#[derive(Debug)]
pub enum Command {
    /// Describe up to `limit` relays.
    List {
        /// How many at the most.
        limit: usize,
        /// Receives the descriptions, once.
        answer: Sender<Vec<RelayInfo>>,
    },
    /// Describe one relay with both halves' TCP_INFO; `None` when it is gone.
    Show {
        /// Which.
        id: RelayId,
        /// Receives the description, once.
        answer: Sender<Option<RelayDetail>>,
    },
    /// Reset both sides of a relay; the answer is whether it existed.
    Kill {
        /// Which.
        id: RelayId,
        /// Receives the result, once.
        answer: Sender<bool>,
    },
    /// Describe what is known of other nodes.
    Peers {
        /// Receives the description, once.
        answer: Sender<Known>,
    },
    /// Use this policy for relays from now on.
    Policy {
        /// The policy.
        policy: Arc<Policy>,
        /// Its generation, as the redirect program stamps it on events.
        generation: u8,
    },
    /// Use these chains for flows that begin or arrive from now on; rules stay.
    Chains(Arc<Chains>),
    /// Accept nothing new; end when the last relay ended or, with
    /// [`Outcome::Drained`], when the deadline passes.
    Drain {
        /// From now.
        deadline: Duration,
    },
    /// Give away duplicates of the listeners that others can find by their address.
    Listeners {
        /// Receives them, once.
        answer: Sender<io::Result<Vec<Shared>>>,
    },
    /// A successor takes the flows that begin from now on, and has those listeners. Bring to their
    /// end all that has begun; end as with [`Command::Drain`].
    Replace {
        /// From now.
        deadline: Duration,
    },
}

/// A listener that a successor goes on with.
#[derive(Debug)]
pub struct Shared {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its connections all go to one destination; else they name theirs.
    pub fixed: bool,
    /// A duplicate.
    pub socket: OwnedFd,
}

/// Where a relay is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the client's handshake or the server's.
    Opening,
    /// Both sides open.
    Open,
    /// At least one side sent FIN.
    Closing,
}

/// One relay as `relays list` shows it.
#[derive(Clone, Debug)]
pub struct RelayInfo {
    /// Its name.
    pub id: RelayId,
    /// The flow it carries.
    pub flow: Flow,
    /// The rule it came under.
    pub rule: String,
    /// How it was opened.
    pub accept: AcceptMode,
    /// Where it is in its life.
    pub phase: Phase,
    /// Since its SYN or its accept.
    pub age: Duration,
    /// Since the last byte moved.
    pub idle: Duration,
    /// Bytes from the client to the server.
    pub bytes_up: u64,
    /// Bytes from the server to the client.
    pub bytes_down: u64,
}

/// One relay as `relays show` shows it.
#[derive(Clone, Debug)]
pub struct RelayDetail {
    /// The summary.
    pub info: RelayInfo,
    /// The connection to the client, once accepted.
    pub downstream: Option<SideInfo>,
    /// The connection to the server, once begun.
    pub upstream: Option<SideInfo>,
}

/// What one side of a relay is.
#[derive(Clone, Debug)]
pub enum SideInfo {
    /// A socket.
    Tcp(TcpInfo),
    /// A stream of a connection with another node.
    Stream(StreamInfo),
}

/// The connection of a stream, which others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The address of the other node.
    pub remote: SocketAddr,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Packets that were sent, and those of them that were lost.
    pub packets_sent: u64,
    /// See `packets_sent`.
    pub packets_lost: u64,
    /// Streams that are open on it.
    pub streams: usize,
}

/// A worker's information about other nodes. It has none about those that are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Peers, in any order.
    pub peers: Vec<PeerState>,
    /// Chains, in any order.
    pub chains: Vec<ChainState>,
}

/// What became of warm hops to a peer, since it became a peer of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopTotals {
    /// Flows that were given a hop.
    pub taken: u64,
    /// Flows that found none.
    pub missed: u64,
    /// Dials that became a hop.
    pub dialed: u64,
    /// Dials that did not.
    pub failed: u64,
    /// Hops that ended while they waited.
    pub lost: u64,
}

/// The state of a peer at one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Which. Not by index: a reload may be on its way.
    pub peer: NodeId,
    /// Warm hops to it that wait for a flow.
    pub waiting: u32,
    /// Warm hops to it that are being opened.
    pub dialing: u32,
    /// How many are to wait.
    pub wanted: u32,
    /// The round trip time to it.
    pub rtt: Option<Duration>,
    /// The shortest round trip time (`min_rtt` of TCP_INFO) of the hops that were
    /// opened of late, and how long ago that was.
    pub opened: Option<(Duration, Duration)>,
    /// Of a million segments of hops over TCP, how many are lost of late, if known; and whether
    /// tunnels carry most flows for that.
    pub lost_in_million: Option<u32>,
    pub is_lossy: bool,
    /// Tunnels to it over which flows may begin.
    pub tunnels: u32,
    /// Why one of them is not open.
    pub tunnel_failure: Option<&'static str>,
    /// What became of hops to it.
    pub totals: HopTotals,
    /// Why the last dial that failed did, or why the peer refuses requests.
    pub failure: Option<String>,
    /// For how much longer its hops have no option in their SYN, since it did not accept
    /// those that had; `None` while they have, if they are to.
    pub option_paused_for: Option<Duration>,
    /// For how much longer no flow is sent to it, since it failed; `None` while
    /// flows are.
    pub down_for: Option<Duration>,
}

/// The state of a chain at one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Its nodes.
    pub path: Path,
    /// For how much longer no flow takes it, since a node beyond the first hop
    /// failed; `None` while flows do.
    pub down_for: Option<Duration>,
}

/// What is known of a relay when it ended: one log line.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its name.
    pub id: RelayId,
    /// The flow it carried.
    pub flow: Flow,
    /// The rule it came under.
    pub rule: Arc<str>,
    /// How it was opened.
    pub accept: AcceptMode,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes from the client to the server.
    pub bytes_up: u64,
    /// Bytes from the server to the client.
    pub bytes_down: u64,
    /// From the start to the end of the client's handshake, in microseconds.
    pub accept_us: Option<u32>,
    /// From the upstream SYN to its SYN-ACK being let in, in microseconds.
    pub connect_us: Option<u32>,
    /// From the start to the first byte from the server, in microseconds.
    pub first_byte_us: Option<u32>,
    /// The node that requested it; nothing of one that began here.
    pub by: Option<NodeId>,
    /// The node that it was sent to; nothing of one that went to its server from here.
    pub via: Option<NodeId>,
    /// From the SYN to the server to its SYN-ACK, let in or not, in microseconds. Nothing of
    /// one that was sent to a node.
    pub handshake_us: Option<u32>,
    /// From the start to the end.
    pub total: Duration,
    /// Its course, if that of its connection without this node follows from it.
    pub course: Option<Course>,
}

/// The course of a relay that finished, between a client and a server that do not see this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// From the start to the first byte of the client that was passed on, in microseconds.
    pub request_us: Option<u32>,
    /// That byte was waiting when the server's side was open.
    pub prompt: bool,
    /// The server's FIN came first.
    pub server_closed_first: bool,
    /// The connection to the client.
    pub downstream: Leg,
    /// The connection to the server.
    pub upstream: Leg,
}

/// The kernel's figures at its end of one of a relay's two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The lowest round-trip time, if one was measured, in microseconds.
    pub min_rtt_us: Option<u32>,
    /// The smoothed round-trip time of late, in microseconds.
    pub rtt_us: u32,
    /// Its mean deviation, in microseconds.
    pub rttvar_us: u32,
    /// The largest segment that is sent, in bytes.
    pub segment_bytes: u32,
    /// Segments that were sent again.
    pub retransmitted_segments: u32,
    /// Bytes that were acknowledged; a SYN and a FIN may count as one.
    pub acked_bytes: u64,
    /// Since bytes were last sent, in milliseconds, as the kernel counts them.
    pub last_sent_ms: u32,
}

/// What a relay saved its client, against the same connection without this node. Negative where
/// it was slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// To the first byte from the server, in microseconds.
    pub first_byte_us: i64,
    /// To the end, in microseconds.
    pub end_us: i64,
}

named! {
    /// Why a request at an explicit listener was not granted.
    pub enum Denial: &'static str {
        /// It has no key, and its address is not listed.
        Unauthorized = "unauthorized",
        /// The authentication tag is none of a peer's.
        AuthTag = "auth",
        /// The request counts no more: it is a repetition.
        Replay = "replay",
        /// The request is too old, or from the future: it is a repetition of long ago, or the clocks
        /// of the two nodes differ.
        Clock = "clock",
        /// The cookie is not the client's.
        Cookie = "cookie",
        /// The destination may not be connected to.
        Destination = "destination",
        /// A rule rejects the flow, or none is for it.
        Rule = "rule",
        /// The next segment of the route is no peer.
        Segment = "segment",
        /// The flow has been here before, or has come too far.
        Loop = "loop",
        /// The bytes are none of our protocols.
        Malformed = "malformed",
        /// Nothing was sent in time.
        Slow = "slow",
        /// There is no room, or the node drains.
        Overload = "overload",
    }
}

impl Denial {
    /// The metric label, `snake_case`.
    pub fn label(self) -> &'static str {
        self.names()
    }

    /// The reply to the requester.
    pub(crate) fn reply(self) -> Reply {
        match self {
            Self::Clock => Reply::Clock,
            Self::Segment => Reply::UnknownSegment,
            Self::Loop => Reply::TooManyHops,
            Self::Overload => Reply::Overloaded,
            _ => Reply::Denied,
        }
    }
}

/// A request that was not granted.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// The address of its sender.
    pub from: SocketAddr,
    /// The requested flow, if that was read.
    pub flow: Option<Flow>,
    /// What carried it.
    pub encapsulation: Option<Encapsulation>,
    /// Why not.
    pub denial: Denial,
    /// How far the sender's clock is ahead of this node's, in milliseconds, if it is for the time
    /// and the request is not of long ago.
    pub ahead_ms: Option<i64>,
    /// The segment that is no peer, if it is for that.
    pub segment: Option<Segment>,
}

/// Where a worker reports. Must not block.
pub trait Journal: Send {
    /// Takes the records of ended relays out of `ended`. Called with a batch once
    /// a turn; returns how many it had to drop.
    fn record(&mut self, ended: &mut Vec<Ended>) -> u64;
    /// Takes note of a request that was not granted.
    fn deny(&mut self, denied: &Denied);
    /// What a relay saved, if that is known; it is counted by rule.
    fn saved(&self, _ended: &Ended) -> Option<Saved> {
        None
    }
}

/// The other threads' hold on a running worker.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) commands: Sender<Command>,
    pub(crate) waker: Arc<Waker>,
    /// The worker's counters.
    pub counters: Arc<crate::counters::Counters>,
}

impl Handle {
    /// Sends a command. A worker that has ended ignores it: its answer channel
    /// is dropped, which the receiver sees.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            // After the command is in the channel: a worker that woke before would wait again.
            self.waker.wake();
        }
    }
}
