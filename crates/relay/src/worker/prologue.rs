// SPDX-License-Identifier: Apache-2.0
//! What nodes tell each other about a flow before its bytes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use posthaste_wire::Progress;
use posthaste_wire::convert::Answer;
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Acceptor, Reply, ReplyReader};

use crate::outcome::Outcome;
use crate::sys;

/// Bytes of the longest message that is read piece by piece.
const PIECE_BYTES: usize = posthaste_wire::convert::BYTES_MAX;

/// Who asked for a flow, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Another node.
    Peer,
    /// A client of RFC 8803.
    Client {
        /// It asked for TCP options, and so is told those of the server.
        options: bool,
    },
}

impl Asker {
    /// What `reply` is to it. `upstream` is the connection to the server.
    pub(super) fn answer(self, reply: Reply, upstream: Option<&OwnedFd>) -> Vec<u8> {
        let options = match self {
            Self::Peer => return Acceptor::reply(reply).to_vec(),
            Self::Client { options } => options && reply == Reply::Connected,
        };
        let answer = Answer {
            error: reply.as_convert_error(),
            tcp_header: options.then(|| upstream.map(sys::peer_options).unwrap_or_default()),
            extensions: None,
        };
        answer.encode().expect("it has no lists of any length")
    }
}

/// The way by which a flow left this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Via {
    pub(super) peer: NodeId,
    /// Number of the chain.
    pub(super) chain: u32,
}

/// What is still to be said and heard.
#[derive(Debug, Default)]
pub(super) struct Prologue {
    /// The flow was asked for at an explicit listener.
    pub(super) asked: bool,
    /// Who waits for an answer.
    pub(super) asker: Option<Asker>,
    /// The next node's reply is still to come.
    pub(super) expecting: Option<ReplyReader>,
    /// The next node, if there is one.
    pub(super) via: Option<Via>,
    /// Why the next node did not connect.
    pub(super) failed: Option<Reply>,
}

impl Prologue {
    /// Reads the reply from `upstream`, and passes it on to who asked. Afterwards
    /// what comes are the flow's bytes.
    pub(super) fn hear(&mut self, upstream: &OwnedFd, downstream: &OwnedFd) -> io::Result<()> {
        let Some(expecting) = &mut self.expecting else {
            return Ok(());
        };
        self.failed = match read_whole(upstream, |bytes| expecting.feed(bytes)) {
            Ok(Reply::Connected) => None,
            Ok(reply) => Some(reply),
            Err(Unheard::Incomplete) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(Unheard::Gone | Unheard::Wrong(_)) => Some(Reply::Failed),
        };
        if self.failed.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.expecting = None;
        match self.asker.take() {
            Some(asker) => say(downstream, &asker.answer(Reply::Connected, None)),
            None => Ok(()),
        }
    }
}

/// Why a message was not read.
#[derive(Debug)]
pub(super) enum Unheard<E> {
    /// It is not whole yet.
    Incomplete,
    /// The connection has ended.
    Gone,
    /// It is not what it should be.
    Wrong(E),
}

/// Reads a message and not a byte more.
pub(super) fn read_whole<T, E>(
    from: &OwnedFd,
    mut feed: impl FnMut(&[u8]) -> Result<Progress<T>, E>,
) -> Result<T, Unheard<E>> {
    let mut piece = [0; PIECE_BYTES];
    let mut count = 0;
    loop {
        let missing = match feed(&piece[..count]).map_err(Unheard::Wrong)? {
            Progress::NeedMore(missing) => missing.min(PIECE_BYTES),
            Progress::Done { value, .. } => return Ok(value),
        };
        count = match recv(from.as_raw_fd(), &mut piece[..missing], MsgFlags::empty()) {
            Ok(0) => return Err(Unheard::Gone),
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(Errno::EAGAIN) => return Err(Unheard::Incomplete),
            Err(_) => return Err(Unheard::Gone),
        };
    }
}

/// Sends a message whole. It is the first on its connection, or follows others as
/// short: there is room.
pub(super) fn say(to: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let sent = socket2::SockRef::from(to).send(message)?;
    if sent == message.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// What a flow that failed with `reply` ends with.
pub(super) fn outcome_of(reply: Reply) -> Outcome {
    match reply {
        Reply::Refused => Outcome::UpstreamRefused,
        Reply::Unreachable(_) => Outcome::UpstreamUnreachable,
        Reply::TimedOut => Outcome::ConnectTimeout,
        _ => Outcome::HopFailed,
    }
}

/// What the one who asked is told of a flow that ended without being open.
pub(super) fn reply_of(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::UpstreamRefused | Outcome::UpstreamReset => Reply::Refused,
        Outcome::ConnectTimeout => Reply::TimedOut,
        Outcome::Internal | Outcome::Drained => Reply::Overloaded,
        _ => Reply::Failed,
    }
}

/// Whether another way may succeed where a node said this: it speaks of itself,
/// and not of the server.
pub(super) fn is_of_hop(reply: Reply) -> bool {
    outcome_of(reply) == Outcome::HopFailed
}
