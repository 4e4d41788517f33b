// SPDX-License-Identifier: Apache-2.0
//! The messages of nodes about a flow before its bytes.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use posthaste_wire::Progress;
use posthaste_wire::convert::{Answer, AnswerReader, BadAnswer};
use posthaste_wire::header::{ChainHeader, NodeId};
use posthaste_wire::hop::{Acceptor, HopError, Icmp, Reply, ReplyReader};

use crate::chain::{Path, Peer};
use crate::flow::Flow;
use crate::opening::{Arrival, is_of_hop};
use crate::side::{Side, Sides};
use crate::sys::{self, IcmpError, Segments};

use super::black_holes::Watch;
use super::end::{End, StreamEnd};
use super::replay::Fallback;

/// Bytes of the longest message that is read piece by piece.
const PIECE_BYTES: usize = posthaste_wire::convert::BYTES_MAX;
/// TCP options that the kernel can put into a SYN (RFC 8803 §6.2.4).
pub(super) const OPTIONS: [u8; 2] = [4, 8];

/// Which kind of sender requested a flow, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// Another node.
    Peer,
    /// A client of RFC 8803.
    Client {
        /// It requested TCP options, and so receives those of the server.
        options: bool,
        /// It requested the list of TCP options.
        extensions: bool,
    },
}

impl Requester {
    /// A client of RFC 8803 that has requested nothing beyond a connection.
    pub(super) const CLIENT: Self = Self::Client {
        options: false,
        extensions: false,
    };

    /// What `reply` is to it. `upstream` is the connection to the server.
    pub(super) fn answer(self, reply: Reply, upstream: Option<&OwnedFd>) -> Vec<u8> {
        let Self::Client {
            options,
            extensions,
        } = self
        else {
            return Acceptor::reply(reply).to_vec();
        };
        let connected = reply == Reply::Connected;
        let (options, extensions) = (options && connected, extensions && connected);
        let answer = Answer {
            error: reply.as_convert_error(),
            tcp_header: options.then(|| upstream.map(sys::peer_options).unwrap_or_default()),
            extensions: extensions.then(|| OPTIONS.to_vec()),
        };
        answer.encode().expect("it has no lists of any length")
    }
}

/// Reads the next node's reply about a flow.
#[derive(Debug)]
pub(super) enum Expecting {
    /// In reply to a request with an authentication tag.
    Reply(ReplyReader),
    /// In answer to one without (RFC 8803 §6.1), for a destination of that family.
    Answer { reader: AnswerReader, ipv6: bool },
}

impl Expecting {
    /// The reply of `peer` about `flow`.
    pub(super) fn of(peer: &Peer, flow: &Flow) -> Self {
        match peer.key {
            Some(_) => Self::Reply(ReplyReader::default()),
            None => Self::Answer {
                reader: AnswerReader::default(),
                ipv6: !flow.is_ipv4(),
            },
        }
    }

    /// Whether the node has reported that it is working, or is of another make, which does not.
    pub(super) fn works(&self) -> bool {
        match self {
            Self::Reply(reader) => reader.working(),
            Self::Answer { .. } => true,
        }
    }

    /// Takes what belongs to it from the front of `bytes`.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Progress<Reply>, NoReply> {
        match self {
            Self::Reply(reader) => Ok(reader.feed(bytes)?),
            Self::Answer { reader, ipv6 } => {
                let answer = reader.feed(bytes)?;
                answer.try_map(|answer| Ok(Reply::of_answer(&answer, *ipv6)))
            }
        }
    }
}

/// The next node sent something else.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoReply {
    #[error(transparent)]
    Reply(#[from] HopError),
    #[error(transparent)]
    Answer(#[from] BadAnswer),
}

/// What is still to be sent and received.
#[derive(Debug, Default)]
pub(super) struct Preface {
    /// The flow was requested at an explicit listener.
    pub(super) requested: bool,
    /// The header in the SYN option that announced it, while the request for it has not come.
    pub(super) requested_in_syn: Option<Box<ChainHeader>>,
    /// By this peer, if by one.
    pub(super) by: Option<NodeId>,
    /// Who waits for an answer.
    pub(super) requester: Option<Requester>,
    /// The sides that are streams of tunnels, in the place of sockets.
    pub(super) streams: Sides<Option<Rc<StreamEnd>>>,
    /// The next node's reply is still to come.
    pub(super) expecting: Option<Expecting>,
    /// The next node, if there is one.
    pub(super) via: Option<Path>,
    /// The hop to it was open before.
    pub(super) is_warm: bool,
    /// Its address, unless this host picked one.
    pub(super) source: Option<IpAddr>,
    /// How many uplinks have turned out to be silent.
    pub(super) uplinks_tried: usize,
    /// Since when the next node has had the request, as far as its kernel accepts connections.
    pub(super) waits_since: Option<Duration>,
    /// Another hop to that node has brought something since then, and this one was open before: how
    /// often the kernel had sent again in vain by then.
    pub(super) alive: Option<u8>,
    /// How the flow goes on without that node.
    pub(super) fallback: Option<Box<Fallback>>,
    /// The client's bytes wait in its socket: the flow may keep no more until the next node replies.
    pub(super) is_paused: bool,
    /// When to report to the requester that this node is working on it.
    pub(super) progress_due: Option<Duration>,
    /// Why the next node did not connect.
    pub(super) failed: Option<Reply>,
    /// That node reported so, and so has delivered nothing of the flow.
    pub(super) undelivered: bool,
    /// It has closed the hop without a reply.
    pub(super) is_closed: bool,
    /// The peers of hops whose flow has not sent its first bytes.
    pub(super) starting: Sides<Option<NodeId>>,
    /// The SYN of the hop to the next node had an option.
    pub(super) syn_options: bool,
    /// Whether the next node has accepted that: to be noted.
    pub(super) accepted: Option<bool>,
    /// Whether the first byte is waited for.
    pub(super) watch: Watch,
    pub(super) learned: Learned,
}

/// What of a flow's hops over TCP has been counted as their losses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    pub(super) at: Option<Duration>,
    pub(super) segments: Sides<Segments>,
}

impl Preface {
    /// Whether the client's bytes are to wait from now on.
    pub(super) fn pause(&mut self) -> bool {
        self.is_paused = self.fallback.as_deref().is_some_and(Fallback::is_full);
        self.is_paused
    }

    /// Whether the client's bytes have waited and need not any longer.
    pub(super) fn resume(&mut self) -> bool {
        std::mem::take(&mut self.is_paused) && !self.pause()
    }

    /// Reads the reply from `upstream`, and passes it on to the requester. Afterwards
    /// what comes are the flow's bytes.
    pub(super) fn receive(&mut self, upstream: &End<'_>, downstream: &End<'_>) -> io::Result<()> {
        let Some(expecting) = &mut self.expecting else {
            return Ok(());
        };
        let reply = match read_message(upstream, |bytes| expecting.feed(bytes)) {
            // The kernel reports a reset once, and a write has received it.
            Err(ReadError::Gone) if upstream.is_gone() => Err(ReadError::Reset),
            reply => reply,
        };
        if let Ok(reply) = &reply {
            self.on_reply(*reply);
        }
        // A reset leaves open whether the node has delivered bytes of the flow before it.
        self.is_closed = matches!(reply, Err(ReadError::Gone));
        self.undelivered = reply.is_ok() || self.is_closed;
        self.failed = match reply {
            Ok(Reply::Connected) => None,
            Ok(reply) => Some(reply),
            Err(ReadError::Incomplete) => return Err(io::ErrorKind::WouldBlock.into()),
            // It may have answered: a reset does not wait for lost segments.
            Err(ReadError::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(ReadError::Gone | ReadError::Lost | ReadError::Wrong(_)) => Some(Reply::Failed),
        };
        if self.failed.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // From here on the server gets the bytes, and another route would repeat them.
        (self.expecting, self.fallback) = (None, None);
        self.answer(downstream, None)
    }

    /// Replies to the requester, if there is one, that the server has answered.
    ///
    /// # Errors
    /// As [`send_before_bytes`].
    pub(super) fn answer(
        &mut self,
        downstream: &End<'_>,
        upstream: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let Some(requester) = self.requester.take() else {
            return Ok(());
        };
        let answer = requester.answer(Reply::Connected, upstream);
        send_before_bytes(downstream, &answer)
    }

    /// Whether another node has requested or announced the flow, and so may have another next hop for it.
    pub(super) fn is_for_peer(&self) -> bool {
        self.by.is_some() || self.requested_in_syn.is_some()
    }

    /// The peer to which a side is a hop.
    pub(super) fn peer(&self, side: Side) -> Option<NodeId> {
        match side {
            Side::Downstream => self.by,
            Side::Upstream => self.via.map(|via| via.peer),
        }
    }

    /// Another hop to the next node than that of `socket` has last brought something at `alive_at`.
    pub(super) fn note_alive(&mut self, alive_at: Duration, socket: Option<&OwnedFd>) {
        // Where a firewall has forgotten an idle hop, only that one is dead.
        let is_later = self.waits_since.is_some_and(|since| alive_at > since);
        if self.is_warm && is_later && self.alive.is_none() {
            self.alive = socket.map(sys::sent_in_vain);
        }
    }

    /// How it arrived at this node.
    pub(super) fn arrival(&self) -> Arrival {
        match (&self.requested_in_syn, self.by) {
            (Some(_), _) => Arrival::SynOption,
            (None, Some(_)) => Arrival::Peer,
            (None, None) if self.requested => Arrival::Convert,
            (None, None) => Arrival::Plain,
        }
    }

    /// Forgets the hop to the next node.
    pub(super) fn forget_hop(&mut self) {
        (self.expecting, self.via) = (None, None);
        self.streams[Side::Upstream] = None;
        (self.waits_since, self.alive, self.syn_options) = (None, None, false);
        (self.failed, self.undelivered, self.is_closed) = (None, false, false);
        self.watch = Watch::default();
        self.starting[Side::Upstream] = None;
    }

    /// Takes note of what came with the reply. A node that refuses for reasons of its
    /// own does not show what became of the option.
    pub(super) fn on_reply(&mut self, reply: Reply) {
        let Some(Expecting::Reply(reader)) = &self.expecting else {
            return;
        };
        let served = reply == Reply::Connected || !is_of_hop(reply);
        if self.syn_options && (reader.accepted() || served) {
            self.syn_options = false;
            self.accepted = Some(reader.accepted());
        }
    }
}

/// Why a message was not read.
#[derive(Debug)]
pub(super) enum ReadError<E> {
    /// It is not whole yet.
    Incomplete,
    /// The connection has ended.
    Gone,
    /// It was reset.
    Reset,
    /// It has failed in another way.
    Lost,
    /// It is not what it should be.
    Wrong(E),
}

/// Reads a message and not a byte more.
pub(super) fn read_message<T, E>(
    from: &End<'_>,
    mut feed: impl FnMut(&[u8]) -> Result<Progress<T>, E>,
) -> Result<T, ReadError<E>> {
    let mut piece = [0; PIECE_BYTES];
    let mut count = 0;
    loop {
        // As many as the parser misses: what follows is the flow's, and must stay in the socket for
        // splice(2).
        let missing = match feed(&piece[..count]).map_err(ReadError::Wrong)? {
            Progress::NeedMore(missing) => missing.min(PIECE_BYTES),
            Progress::Done { value, .. } => return Ok(value),
        };
        let into = &mut piece[..missing];
        count = match from.read(into) {
            Ok(0) => return Err(ReadError::Gone),
            Ok(count) => count,
            Err(error) => {
                return Err(match error.kind() {
                    io::ErrorKind::WouldBlock => ReadError::Incomplete,
                    io::ErrorKind::ConnectionReset => ReadError::Reset,
                    _ => ReadError::Lost,
                });
            }
        };
    }
}

/// Sends a message whole. It is the first on its connection, or follows others as
/// short: there is room.
pub(super) fn send(to: &End<'_>, message: &[u8]) -> io::Result<()> {
    let sent = to.write_message(message)?;
    if sent == message.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Sends a message that its receiver must have before the flow's bytes.
///
/// # Errors
/// `ConnectionAborted` if the connection is open and did not take the whole message: the receiver
/// would read the flow's bytes in place of the rest, so the flow must end. A connection that is
/// gone is no error here: the relay detects it, and which side is to blame.
pub(super) fn send_before_bytes(to: &End<'_>, message: &[u8]) -> io::Result<()> {
    use io::ErrorKind::{ConnectionAborted, WouldBlock, WriteZero};
    match send(to, message) {
        // Not `WouldBlock`, which would make the relay wait and then go on without the message.
        Err(error) if matches!(error.kind(), WouldBlock | WriteZero) => {
            Err(ConnectionAborted.into())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The reply to the requester of a flow that an ICMP error ended.
pub(super) fn reply_of_icmp(error: IcmpError) -> Reply {
    Reply::Unreachable(icmp_of(error))
}

/// The error as the nodes of a chain send it.
pub(super) fn icmp_of(error: IcmpError) -> Icmp {
    Icmp {
        kind: error.kind,
        code: error.code,
        offender: Some(error.offender),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{MsgFlags, recv};
    use posthaste_wire::hop::pong;

    use super::*;

    /// The near end as the worker holds it, and the far one.
    fn connection() -> (OwnedFd, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near.into(), far)
    }

    fn expecting(requester: Option<Requester>) -> Preface {
        Preface {
            requester,
            expecting: Some(Expecting::Reply(ReplyReader::default())),
            ..Preface::default()
        }
    }

    fn kind(result: &io::Result<()>) -> Option<io::ErrorKind> {
        result.as_ref().err().map(io::Error::kind)
    }

    #[test]
    fn reply_forwarded_alone() {
        let (upstream, mut next) = connection();
        let (downstream, mut former) = connection();
        let mut preface = expecting(Some(Requester::Peer));
        let reply = Acceptor::reply(Reply::Connected);
        let sent = [&pong(1)[..], &reply, b"bytes"].concat();
        for (at, byte) in sent.iter().enumerate() {
            next.write_all(&[*byte]).unwrap();
            let received = preface.receive(&(&upstream).into(), &(&downstream).into());
            let is_whole = at + 1 >= 8 + reply.len();
            let waits = (!is_whole).then_some(io::ErrorKind::WouldBlock);
            assert_eq!(kind(&received), waits, "{at}");
        }
        let mut passed_on = [0; 24];
        former.read_exact(&mut passed_on).unwrap();
        assert_eq!(passed_on, reply);
        let mut bytes = [0; 5];
        UnixStream::from(upstream).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        assert!(preface.requester.is_none() && preface.failed.is_none());
    }

    #[test]
    fn reply_without_room_ends_flow() {
        let (upstream, mut next) = connection();
        let (downstream, _former) = connection();
        while send(&(&downstream).into(), &[0; 1 << 10]).is_ok() {}
        while send(&(&downstream).into(), &[0]).is_ok() {}
        let mut preface = expecting(Some(Requester::Peer));
        let reply = Acceptor::reply(Reply::Connected);
        next.write_all(&[&reply[..], b"bytes"].concat()).unwrap();
        let received = preface.receive(&(&upstream).into(), &(&downstream).into());
        assert_eq!(kind(&received), Some(io::ErrorKind::ConnectionAborted));
    }

    #[test]
    fn requester_that_left_is_the_relays() {
        let (upstream, mut next) = connection();
        let (downstream, former) = connection();
        drop(former);
        let mut preface = expecting(Some(Requester::Peer));
        next.write_all(&Acceptor::reply(Reply::Connected)).unwrap();
        assert_eq!(
            kind(&preface.receive(&(&upstream).into(), &(&downstream).into())),
            None
        );
        assert_eq!(preface.answer(&(&downstream).into(), None).ok(), Some(()));
    }

    #[test]
    fn reply_reports_option() {
        use posthaste_wire::hop::ACCEPTED;
        for (accepted, reply, noted) in [
            (&ACCEPTED[..], Reply::Connected, Some(true)),
            (&ACCEPTED, Reply::Denied, Some(true)),
            (&[], Reply::Connected, Some(false)),
            (&[], Reply::Refused, Some(false)),
            (&[], Reply::Denied, None),
        ] {
            let (upstream, mut next) = connection();
            let (downstream, _former) = connection();
            let mut preface = expecting(None);
            preface.syn_options = true;
            next.write_all(accepted).unwrap();
            next.write_all(&Acceptor::reply(reply)).unwrap();
            let _ = preface.receive(&(&upstream).into(), &(&downstream).into());
            assert_eq!(preface.accepted, noted, "{accepted:?} {reply:?}");
        }
    }

    #[test]
    fn failure_reply_not_success() {
        let icmp = Icmp {
            kind: 3,
            code: 13,
            offender: None,
        };
        for reply in [Reply::Refused, Reply::Unreachable(icmp), Reply::Overloaded] {
            let (upstream, mut next) = connection();
            let (downstream, former) = connection();
            former.set_nonblocking(true).unwrap();
            let mut preface = expecting(Some(Requester::Peer));
            next.write_all(&Acceptor::reply(reply)).unwrap();
            let received = preface.receive(&(&upstream).into(), &(&downstream).into());
            assert_eq!(kind(&received), Some(io::ErrorKind::ConnectionReset));
            assert_eq!(preface.failed, Some(reply));
            assert_eq!(
                preface.requester,
                Some(Requester::Peer),
                "it gets its reply later"
            );
            let silent = (&former).read(&mut [0]).unwrap_err();
            assert_eq!(silent.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn closed_or_invalid_next_node() {
        for sent in [&b""[..], b"\x04\0\0", b"HTTP/1.1 400"] {
            let (upstream, mut next) = connection();
            let (downstream, _former) = connection();
            next.write_all(sent).unwrap();
            drop(next);
            let mut preface = expecting(None);
            let received = preface.receive(&(&upstream).into(), &(&downstream).into());
            assert_eq!(kind(&received), Some(io::ErrorKind::ConnectionReset));
            assert_eq!(preface.failed, Some(Reply::Failed), "{sent:?}");
        }
    }

    // promise: K9
    #[test]
    fn reset_may_hide_reply() {
        let (upstream, next) = connection();
        let (downstream, _former) = connection();
        // What is closed before everything was read is reset.
        send(&(&upstream).into(), b"request").unwrap();
        drop(next);
        let mut preface = expecting(Some(Requester::Peer));
        let received = preface.receive(&(&upstream).into(), &(&downstream).into());
        assert_eq!(kind(&received), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(
            (preface.failed, preface.requester),
            (None, Some(Requester::Peer))
        );
        assert!(preface.expecting.is_some());
    }

    // promise: P10
    #[test]
    fn converter_answer_fully_read() {
        let (upstream, mut converter) = connection();
        let (downstream, mut client) = connection();
        client.set_nonblocking(true).unwrap();
        let mut preface = Preface {
            expecting: Some(Expecting::Answer {
                reader: AnswerReader::default(),
                ipv6: false,
            }),
            ..Preface::default()
        };
        converter.write_all(&[1, 1, 0x22]).unwrap();
        let received = preface.receive(&(&upstream).into(), &(&downstream).into());
        assert_eq!(kind(&received), Some(io::ErrorKind::WouldBlock));
        converter.write_all(b"\x63bytes").unwrap();
        preface
            .receive(&(&upstream).into(), &(&downstream).into())
            .unwrap();
        let mut rest = [0; 6];
        assert_eq!(
            recv(upstream.as_raw_fd(), &mut rest, MsgFlags::empty()),
            Ok(5)
        );
        assert_eq!(&rest[..5], b"bytes");
        let silent = client.read(&mut [0]).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::WouldBlock);
    }

    // promise: P10
    #[test]
    fn converter_error_ends_flow() {
        let (upstream, mut converter) = connection();
        let (downstream, _client) = connection();
        let mut preface = Preface {
            expecting: Some(Expecting::Answer {
                reader: AnswerReader::default(),
                ipv6: true,
            }),
            ..Preface::default()
        };
        converter
            .write_all(&[1, 2, 0x22, 0x63, 30, 1, 96, 0])
            .unwrap();
        let received = preface.receive(&(&upstream).into(), &(&downstream).into());
        assert_eq!(kind(&received), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(preface.failed, Some(Reply::Refused));
    }

    #[test]
    fn answers_by_requester_kind() {
        let client = Requester::CLIENT;
        let connected = client.answer(Reply::Connected, None);
        assert_eq!(connected, [1, 1, 0x22, 0x63]);
        let refused = client.answer(Reply::Refused, None);
        assert_eq!(refused, [1, 2, 0x22, 0x63, 30, 1, 96, 0]);
        let options = Requester::Client {
            options: true,
            extensions: false,
        };
        let connected = options.answer(Reply::Connected, None);
        assert_eq!(connected, [1, 2, 0x22, 0x63, 20, 1, 0, 0]);
        let extensions = Requester::Client {
            options: false,
            extensions: true,
        };
        let connected = extensions.answer(Reply::Connected, None);
        assert_eq!(connected, [1, 3, 0x22, 0x63, 21, 2, 0, 0, 4, 8, 0, 0]);
        let peer = Requester::Peer.answer(Reply::Refused, None);
        assert_eq!(peer, Acceptor::reply(Reply::Refused));
    }
}
