// SPDX-License-Identifier: Apache-2.0
//! A connection to an explicit listener that has no flow yet: a sender that has sent nothing, an
//! idle warm hop of a peer, or a refused client that must read the reason.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use posthaste_wire::Progress;
use posthaste_wire::auth::{Key, Nonce};
use posthaste_wire::convert::{Connect, Head, HeadReader, Refusal};
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Accepting, Acceptor, Challenged, FromDialer, pong};

use crate::sys;

use super::places::Number;
use super::preface::{ReadError, read_message, send};

/// How long a sender may take to send its request.
pub(super) const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// How long a warm hop may be silent: its dialer pings far more often.
const HOP_SILENT: Duration = Duration::from_secs(90);
/// How long a refused client may take to read the reason, and a peer to close its end of a hop.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Bytes accepted from a refused client: more than a default receive buffer holds, so a client that
/// sends more has read the reason and continued. Nor does a peer send as much before a reply.
const DISCARDED_MAX: usize = 8 << 20;
/// The first bytes of a warm hop.
const MAGIC: &[u8] = b"PHOP";

/// A connection without a flow.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) socket: OwnedFd,
    pub(super) from: SocketAddr,
    stage: Stage,
    /// The flow that its SYN option announced.
    pub(super) syn_option: Option<u64>,
    /// When it times out.
    pub(super) until: Duration,
    /// Its place while it is not authenticated.
    pub(super) place: Option<Number>,
}

#[derive(Debug)]
enum Stage {
    /// The first bytes decide the protocol.
    Silent(Vec<u8>),
    Head(HeadReader),
    /// Its SYN carried a request without an authentication tag; the source may be spoofed.
    Unvalidated(Box<Head>),
    Hello(Box<Accepting>),
    Response(Box<Challenged>),
    /// A warm hop that waits for a flow.
    Hop(Box<Acceptor>),
    /// All that this node sends was sent, to its end; the number of bytes received since.
    Refused(usize),
}

/// The kind of request that a connection sent.
#[derive(Debug)]
pub(super) enum RequestKind {
    /// Nothing yet.
    Wait,
    /// A request on its own connection, with or without an authentication tag.
    Request(Box<Head>),
    /// A request of a peer over a warm hop.
    Open(NodeId, Box<Connect>),
    /// A request that cannot be granted.
    Bad(Refusal),
    /// An unknown protocol, or the end of the connection.
    Close {
        /// Whether it sent bytes.
        wrong: bool,
    },
}

/// What a pending request needs of this node.
pub(super) struct Keys<'a> {
    /// The node number; a node without one has no peers.
    pub(super) me: Option<NodeId>,
    /// Finds the key of a peer by its number.
    pub(super) find: &'a dyn Fn(NodeId, u32) -> Option<Key>,
}

impl PendingRequest {
    /// A connection that was accepted at `now`.
    pub(super) fn new(socket: OwnedFd, from: SocketAddr, now: Duration) -> Self {
        Self {
            socket,
            from,
            stage: Stage::Silent(Vec::new()),
            place: None,
            syn_option: None,
            until: now + REQUEST_WITHIN,
        }
    }

    /// A connection on which the reason `why` is sent before it is closed: closing it at once would
    /// reset it, and the client might never read the reason.
    pub(super) fn refused(socket: OwnedFd, from: SocketAddr, why: &[u8], now: Duration) -> Self {
        // In this order: the FIN follows the reason, and a reset at close would discard both.
        let _ = send(&(&socket).into(), why);
        let mut refused = Self::new(socket, from, now);
        refused.finish(now);
        refused
    }

    /// Sends FIN, and discards what arrives until the other end is closed, too. Over a warm hop, a
    /// FIN without a reply shows its dialer that no flow was taken from it. A request may be under
    /// way, and a reset in answer to that would show nothing.
    pub(super) fn finish(&mut self, now: Duration) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
        let _ = sys::set_reset_on_close(&self.socket, false);
        self.stage = Stage::Refused(0);
        self.until = now + READ_WITHIN;
    }

    /// Whether it has sent its FIN, and waits for that of the other end.
    pub(super) fn is_finishing(&self) -> bool {
        matches!(self.stage, Stage::Refused(_))
    }

    /// Whether it is a warm hop that waits for a flow.
    pub(super) fn is_hop(&self) -> bool {
        matches!(self.stage, Stage::Hop(_))
    }

    /// The peer of this warm hop.
    pub(super) fn peer(&self) -> Option<NodeId> {
        match &self.stage {
            Stage::Hop(acceptor) => Some(acceptor.session().peer),
            _ => None,
        }
    }

    /// The peer of this warm hop, or the one that has yet to show that it has the key with which it
    /// was challenged; and the number of that key.
    pub(super) fn challenged_peer(&self) -> Option<(NodeId, u32)> {
        let session = match &self.stage {
            Stage::Hop(acceptor) => acceptor.session(),
            Stage::Response(challenged) => challenged.session(),
            _ => return None,
        };
        Some((session.peer, session.key_id))
    }

    /// Whether it has used up its time to send a request.
    pub(super) fn is_silent(&self) -> bool {
        !matches!(self.stage, Stage::Hop(_) | Stage::Refused(_))
    }

    /// Keeps a request without an authentication tag until the handshake is complete.
    pub(super) fn validate(&mut self, head: Box<Head>) {
        self.stage = Stage::Unvalidated(head);
    }

    /// Reads what has arrived.
    pub(super) fn receive(&mut self, keys: &Keys<'_>, now: Duration) -> RequestKind {
        loop {
            let next = match &mut self.stage {
                Stage::Silent(bytes) => first_stage(&self.socket, bytes, keys),
                Stage::Head(reader) => {
                    return match read_message(&(&self.socket).into(), |bytes| reader.feed(bytes)) {
                        Ok(head) => RequestKind::Request(Box::new(head)),
                        Err(ReadError::Wrong(refusal)) => RequestKind::Bad(refusal),
                        Err(error) => error.into(),
                    };
                }
                Stage::Unvalidated(_) if sys::is_handshaking(&self.socket) => {
                    return RequestKind::Wait;
                }
                // The handshake is complete: the request counts from now on.
                Stage::Unvalidated(head) => return RequestKind::Request(head.clone()),
                Stage::Hello(accepting) => challenge(&self.socket, accepting, keys),
                Stage::Response(challenged) => {
                    let feed = |bytes: &[u8]| challenged.feed(bytes);
                    let session =
                        read_message(&(&self.socket).into(), feed).map_err(RequestKind::from);
                    session.map(|session| Stage::Hop(Box::new(Acceptor::new(session))))
                }
                Stage::Hop(acceptor) => {
                    // Any bytes show that the dialer lives, even part of a message.
                    self.until = now + HOP_SILENT;
                    return wait_for_flow(&self.socket, acceptor);
                }
                Stage::Refused(received) => return discard(&self.socket, received),
            };
            match next {
                Ok(stage) => self.stage = stage,
                Err(kind) => return kind,
            }
            if self.is_hop() {
                self.until = now + HOP_SILENT;
            }
        }
    }
}

impl<E> From<ReadError<E>> for RequestKind {
    fn from(error: ReadError<E>) -> Self {
        match error {
            ReadError::Incomplete => Self::Wait,
            ReadError::Gone | ReadError::Reset | ReadError::Lost => Self::Close { wrong: false },
            ReadError::Wrong(_) => Self::Close { wrong: true },
        }
    }
}

/// Selects the protocol by the first bytes, and begins to read it.
fn first_stage(
    socket: &OwnedFd,
    received: &mut Vec<u8>,
    keys: &Keys<'_>,
) -> Result<Stage, RequestKind> {
    // Four bytes and no more: the fixed header of Convert and the name of the hop protocol are as
    // long.
    let gather = |bytes: &[u8]| -> Result<_, ()> {
        received.extend_from_slice(bytes);
        Ok(match MAGIC.len().checked_sub(received.len()) {
            None | Some(0) => Progress::Done {
                value: (),
                consumed: bytes.len(),
            },
            Some(missing) => Progress::NeedMore(missing),
        })
    };
    read_message(&socket.into(), gather).map_err(RequestKind::from)?;
    // Without a number this node has no peers: then the bytes are refused as no Convert.
    if received == MAGIC
        && let Some(me) = keys.me
    {
        let mut accepting = Accepting::new(me, Nonce(sys::random()));
        // The magic alone is no whole hello, so this neither fails nor needs a key.
        let _ = accepting.feed(received, |_, _| None);
        return Ok(Stage::Hello(Box::new(accepting)));
    }
    let mut reader = HeadReader::default();
    match reader.feed(received) {
        Ok(Progress::NeedMore(_)) => Ok(Stage::Head(reader)),
        Ok(Progress::Done { value, .. }) => Err(RequestKind::Request(Box::new(value))),
        Err(refusal) => Err(RequestKind::Bad(refusal)),
    }
}

fn challenge(
    socket: &OwnedFd,
    accepting: &mut Accepting,
    keys: &Keys<'_>,
) -> Result<Stage, RequestKind> {
    let challenged = read_message(&socket.into(), |bytes| accepting.feed(bytes, keys.find))
        .map_err(RequestKind::from)?;
    match send(&socket.into(), challenged.challenge()) {
        Ok(()) => Ok(Stage::Response(Box::new(challenged))),
        Err(_) => Err(RequestKind::Close { wrong: false }),
    }
}

/// Answers pings until a request for a flow arrives.
fn wait_for_flow(socket: &OwnedFd, acceptor: &mut Acceptor) -> RequestKind {
    loop {
        let message = match read_message(&socket.into(), |bytes| acceptor.feed(bytes)) {
            Ok(message) => message,
            Err(error) => return error.into(),
        };
        match message {
            FromDialer::Open(connect) => {
                return RequestKind::Open(acceptor.session().peer, Box::new(connect));
            }
            FromDialer::Ping(token) if send(&socket.into(), &pong(token)).is_ok() => {}
            // Either a pong that cannot be sent, or a message for a flow that does not exist.
            FromDialer::Ping(_) | FromDialer::Validated => {
                return RequestKind::Close { wrong: false };
            }
        }
    }
}

/// Waits for the end of a connection on which a reason was sent.
fn discard(socket: &OwnedFd, received: &mut usize) -> RequestKind {
    // Read, since Linux resets a connection that is closed with unread bytes, which discards the
    // reason.
    let mut piece = [0; 4096];
    loop {
        match recv(socket.as_raw_fd(), &mut piece, MsgFlags::empty()) {
            Err(nix::errno::Errno::EAGAIN) => return RequestKind::Wait,
            Ok(count) if count > 0 && *received < DISCARDED_MAX => *received += count,
            Ok(_) | Err(_) => return RequestKind::Close { wrong: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use posthaste_wire::convert::{Problem, Request};
    use posthaste_wire::header::{ChainHeader, Endpoint};
    use posthaste_wire::hop::{Dialer, Dialing, ping};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn node(id: u64) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn key() -> Key {
        Key::new([7; 32])
    }

    fn find(id: NodeId, key_id: u32) -> Option<Key> {
        (id == node(1) && key_id == 3).then(key)
    }

    fn receive(pending_request: &mut PendingRequest) -> RequestKind {
        let keys = Keys {
            me: Some(node(2)),
            find: &find,
        };
        pending_request.receive(&keys, NOW)
    }

    fn accepted() -> (PendingRequest, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let from = "192.0.2.1:4000".parse().unwrap();
        (PendingRequest::new(near.into(), from, NOW), far)
    }

    fn request() -> Request {
        let server = Endpoint::new("198.51.100.7:80".parse().unwrap()).unwrap();
        Request::connect(ChainHeader::to(server))
    }

    fn waits(kind: &RequestKind) -> bool {
        matches!(kind, RequestKind::Wait)
    }

    #[test]
    fn request_in_pieces() {
        let (mut pending_request, mut client) = accepted();
        for byte in request().encode(None).unwrap() {
            assert!(waits(&receive(&mut pending_request)));
            client.write_all(&[byte]).unwrap();
        }
        client.write_all(b"bytes").unwrap();
        let RequestKind::Request(head) = receive(&mut pending_request) else {
            panic!("no request");
        };
        assert_eq!(head.request, request());
        let mut bytes = [0; 5];
        UnixStream::from(pending_request.socket)
            .read_exact(&mut bytes)
            .unwrap();
        assert_eq!(&bytes, b"bytes");
    }

    /// A dialer and an acceptor after their handshake.
    fn warm() -> (PendingRequest, UnixStream, Dialer) {
        let (mut pending_request, mut client) = accepted();
        let nonce = Nonce([9; 16]);
        let mut dialing = Dialing::new(key(), 3, node(1), node(2), nonce);
        client.write_all(dialing.hello()).unwrap();
        assert!(waits(&receive(&mut pending_request)) && !pending_request.is_hop());
        let mut challenge = [0; posthaste_wire::hop::CHALLENGE_BYTES];
        client.read_exact(&mut challenge).unwrap();
        let Ok(Progress::Done { value, .. }) = dialing.feed(&challenge) else {
            panic!("no handshake");
        };
        client.write_all(&value.response).unwrap();
        assert!(waits(&receive(&mut pending_request)) && pending_request.is_hop());
        assert_eq!(pending_request.until, NOW + HOP_SILENT);
        (pending_request, client, Dialer::new(value.session))
    }

    #[test]
    fn warm_hop_answers_pings() {
        let (mut pending_request, mut client, mut dialer) = warm();
        client.write_all(&ping(5)).unwrap();
        client.write_all(&ping(6)).unwrap();
        assert!(waits(&receive(&mut pending_request)));
        let mut pongs = [0; 16];
        client.read_exact(&mut pongs).unwrap();
        assert_eq!(pongs, [pong(5), pong(6)].concat()[..]);
        let connect = request().connect.unwrap();
        let open = dialer.open(&connect, 1, Nonce([1; 16])).unwrap();
        client.write_all(&open).unwrap();
        let RequestKind::Open(peer, requested) = receive(&mut pending_request) else {
            panic!("no flow");
        };
        assert_eq!((peer, *requested), (node(1), connect));
    }

    #[test]
    fn foreign_bytes_end_connection() {
        let hello = |key_id, me, to| {
            let dialing = Dialing::new(key(), key_id, node(me), node(to), Nonce([0; 16]));
            dialing.hello().to_vec()
        };
        for sent in [hello(4, 1, 2), hello(3, 9, 2), hello(3, 2, 1)] {
            let (mut pending_request, mut client) = accepted();
            client.write_all(&sent).unwrap();
            let kind = receive(&mut pending_request);
            assert!(
                matches!(kind, RequestKind::Close { wrong: true }),
                "{kind:?}"
            );
        }
        let (mut pending_request, mut client, _) = warm();
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let kind = receive(&mut pending_request);
        assert!(
            matches!(kind, RequestKind::Close { wrong: true }),
            "{kind:?}"
        );
        let (mut pending_request, mut client) = accepted();
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let RequestKind::Bad(refusal) = receive(&mut pending_request) else {
            panic!("no refusal");
        };
        assert_eq!(
            (refusal.problem, refusal.answer),
            (Problem::NotConvert, None)
        );
    }

    #[test]
    fn silent_close_not_blamed() {
        for sent in [&b""[..], b"PH", b"\x01\x06\x22\x63"] {
            let (mut pending_request, mut client) = accepted();
            client.write_all(sent).unwrap();
            drop(client);
            let kind = receive(&mut pending_request);
            assert!(
                matches!(kind, RequestKind::Close { wrong: false }),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn refusal_then_end() {
        let (near, mut client) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let from = "192.0.2.1:4000".parse().unwrap();
        let mut pending_request = PendingRequest::refused(near.into(), from, b"no", NOW);
        client.write_all(&[0; 10_000]).unwrap();
        assert!(waits(&receive(&mut pending_request)) && !pending_request.is_silent());
        let mut why = Vec::new();
        client.read_to_end(&mut why).unwrap();
        assert_eq!(why, b"no");
        drop(client);
        assert!(matches!(
            receive(&mut pending_request),
            RequestKind::Close { wrong: false }
        ));
    }
}
