// SPDX-License-Identifier: Apache-2.0
//! One warm hop from `connect()` to the end of its handshake.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use posthaste_wire::Progress;
use posthaste_wire::auth::Nonce;
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{CHALLENGE_BYTES, Dialer, Dialing, FromAcceptor, HandshakeError};

use crate::chain::Peer;
use crate::sys;

use super::pool::{End, Failure};
use super::socket::{read, write};
use super::uplinks::is_of_uplink;

/// Bound on the TCP handshake.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Bound on the challenge after that.
const CHALLENGE_MAX: Duration = Duration::from_secs(5);

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The peer has no key, and so no warm hops.
    #[error("there is no key for a warm hop")]
    NoKey,
    /// The host has no socket.
    #[error("could not make a socket: {0}")]
    Socket(io::Error),
    /// The connection failed.
    #[error("could not connect: {0}")]
    Connect(io::Error),
    /// The connection ended before the handshake did.
    #[error("the connection ended during the handshake")]
    Ended,
    /// The acceptor is not the peer.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The acceptor sent more than the protocol allows.
    #[error("the other end speaks out of turn")]
    OutOfTurn,
    /// No connection within five seconds.
    #[error("no answer to connecting")]
    ConnectTimeout,
    /// A connection, but no challenge within five seconds.
    #[error("no answer to the hello")]
    HelloTimeout,
}

impl DialError {
    /// Whether its uplink may be the cause.
    pub(super) fn is_of_uplink(&self) -> bool {
        match self {
            Self::Socket(error) | Self::Connect(error) => is_of_uplink(error),
            Self::ConnectTimeout => true,
            _ => false,
        }
    }

    /// What the error shows about the peer.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Socket(_) => Failure::Means,
            // Errors of this host: no port or memory is free, or its own firewall drops the SYN.
            Self::Connect(error) => match error.raw_os_error() {
                Some(
                    libc::EADDRNOTAVAIL
                    | libc::EADDRINUSE
                    | libc::ENOMEM
                    | libc::ENOBUFS
                    | libc::EPERM
                    | libc::EACCES,
                ) => Failure::Means,
                Some(libc::ETIMEDOUT) => Failure::Silence,
                _ => Failure::Refusal,
            },
            Self::ConnectTimeout | Self::HelloTimeout => Failure::Silence,
            Self::NoKey | Self::Ended | Self::Handshake(_) | Self::OutOfTurn => Failure::Refusal,
        }
    }
}

/// A dial under way. Its owner calls [`Dial::advance`] on events of the socket and after
/// [`Dial::deadline`].
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) socket: OwnedFd,
    /// Its own address, unless the host picked one.
    source: Option<IpAddr>,
    step: Step,
    deadline: Duration,
}

#[derive(Debug)]
enum Step {
    /// `connect()` is under way, so the hello cannot be written yet.
    Connecting(Dialing),
    /// Waits for the challenge, with the bytes of the hello sent so far.
    PendingRequest(Dialing, usize),
    /// Only the rest of the response is left to send.
    Responding(Dialer, Vec<u8>),
}

/// The progress of a dial.
#[derive(Debug)]
pub(super) enum Dialed {
    /// Not ready: wait for the next event.
    Not(Dial),
    /// A hop.
    Ready(Ready),
}

/// A hop without a flow.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) socket: OwnedFd,
    pub(super) dialer: Dialer,
    pub(super) rtt: Duration,
    /// The shortest round trip since the SYN.
    pub(super) min_rtt: Option<Duration>,
}

impl Dial {
    /// Sends a SYN to the peer, from `source` or the address that the host picks, at `me` by a socket with
    /// `mark`.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(super) fn begin(
        peer: &Peer,
        source: Option<IpAddr>,
        (me, mark): (NodeId, u32),
        now: Duration,
    ) -> Result<Self, DialError> {
        let nonce = Nonce(sys::random());
        let key = peer.key.clone().ok_or(DialError::NoKey)?;
        let socket = sys::hop_socket(peer, source, mark).map_err(DialError::Socket)?;
        sys::connect(&socket, peer.address).map_err(DialError::Connect)?;
        let dialing = Dialing::new(key, peer.key_id, me, peer.id, nonce);
        Ok(Self {
            socket: socket.into(),
            source,
            step: Step::Connecting(dialing),
            deadline: now + CONNECT_MAX,
        })
    }

    /// Its own address, unless the host picked one.
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// When the dial times out.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Advances as far as possible.
    ///
    /// # Errors
    /// The dial failed.
    pub(super) fn advance(mut self, now: Duration) -> Result<Dialed, DialError> {
        if let Step::Connecting(dialing) = self.step {
            let sent = write(&self.socket, dialing.hello());
            self.step = match sent {
                Ok(sent) => {
                    self.deadline = now + CHALLENGE_MAX;
                    Step::PendingRequest(dialing, sent)
                }
                // A socket that is still connecting returns EAGAIN too.
                Err(Errno::EAGAIN) => Step::Connecting(dialing),
                Err(error) => return Err(DialError::Connect(error.into())),
            };
        }
        if let Step::PendingRequest(dialing, sent) = self.step {
            self.step = receive_challenge(&self.socket, dialing, sent)?;
        }
        if let Step::Responding(dialer, mut rest) = self.step {
            rest.drain(..written(write(&self.socket, &rest))?);
            if rest.is_empty() {
                return Ok(Dialed::Ready(Ready::new(self.socket, dialer)));
            }
            self.step = Step::Responding(dialer, rest);
        }
        match self.step {
            _ if now < self.deadline => Ok(Dialed::Not(self)),
            Step::Connecting(_) => Err(DialError::ConnectTimeout),
            Step::PendingRequest(..) | Step::Responding(..) => Err(DialError::HelloTimeout),
        }
    }
}

/// Sends the rest of the hello and reads the challenge.
fn receive_challenge(
    socket: &OwnedFd,
    mut dialing: Dialing,
    mut sent: usize,
) -> Result<Step, DialError> {
    let rest = &dialing.hello()[sent..];
    if !rest.is_empty() {
        sent += written(write(socket, rest))?;
    }
    let mut challenge = [0; CHALLENGE_BYTES];
    let count = match read(socket, &mut challenge) {
        Ok(0) => return Err(DialError::Ended),
        read => written(read)?,
    };
    match dialing.feed(&challenge[..count])? {
        Progress::Done { value, consumed } if consumed == count => {
            let dialer = Dialer::new(value.session);
            Ok(Step::Responding(dialer, value.response.to_vec()))
        }
        // The acceptor may send nothing before it has the response.
        Progress::Done { .. } => Err(DialError::OutOfTurn),
        Progress::NeedMore(_) => Ok(Step::PendingRequest(dialing, sent)),
    }
}

/// The bytes that a call has moved.
fn written(result: Result<usize, Errno>) -> Result<usize, DialError> {
    match result {
        Ok(count) => Ok(count),
        Err(Errno::EAGAIN) => Ok(0),
        Err(_) => Err(DialError::Ended),
    }
}

impl Ready {
    /// The hop after the response, which frames may follow at once.
    fn new(socket: OwnedFd, dialer: Dialer) -> Self {
        let info = sys::tcp_info(&socket).unwrap_or_default();
        Self {
            socket,
            dialer,
            rtt: Duration::from_micros(info.rtt_us.into()),
            min_rtt: info.min_rtt(),
        }
    }

    /// Reads what the peer sent while the hop is idle: only the pong of `ping` is valid. Returns
    /// the ping that is still unanswered.
    pub(super) fn listen(&mut self, mut ping: Option<u32>) -> Result<Option<u32>, End> {
        let mut bytes = [0; 64];
        loop {
            let rest = match read(&self.socket, &mut bytes) {
                Ok(0) => return Err(End::Closed),
                Ok(count) => &bytes[..count],
                Err(Errno::EAGAIN) => return Ok(ping),
                Err(_) => return Err(End::Broken),
            };
            self.receive(rest, &mut ping).ok_or(End::Broken)?;
        }
    }

    /// `None` when the peer sent an invalid message.
    fn receive(&mut self, mut bytes: &[u8], ping: &mut Option<u32>) -> Option<()> {
        while !bytes.is_empty() {
            match self.dialer.feed(bytes).ok()? {
                Progress::NeedMore(_) => break,
                Progress::Done { value, consumed } => {
                    let answered = ping.take().map(FromAcceptor::Pong);
                    if answered != Some(value) {
                        return None;
                    }
                    bytes = &bytes[consumed..];
                }
            }
        }
        Some(())
    }
}
