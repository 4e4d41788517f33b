// SPDX-License-Identifier: Apache-2.0
//! A connection to an explicit listener, until it asks for a flow: a stranger
//! that has not spoken, a warm hop of a peer that waits, or somebody refused
//! who is to read why.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use posthaste_wire::Progress;
use posthaste_wire::convert::{Connect, Head, HeadReader, Refusal};
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Accepting, Acceptor, Challenged, FromDialer, pong};
use posthaste_wire::seal::{Key, Nonce};

use crate::sys;

use super::places::Number;
use super::prologue::{Unheard, read_whole, say};

/// How long a stranger may take to say what it wants.
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long a warm hop may be silent: its dialer asks far more often.
const HOP_SILENT: Duration = Duration::from_secs(90);
/// How long somebody refused may take to read why.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Bytes heard from somebody refused: more than a receive buffer holds by default,
/// so whoever sends more has gone on after reading why.
const HEARD_MAX: usize = 8 << 20;
/// What a warm hop begins with.
const GREETING: &[u8] = b"PHOP";

/// A connection that has not asked for a flow.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) socket: OwnedFd,
    pub(super) from: SocketAddr,
    stage: Stage,
    /// The flow that its SYN has heralded.
    pub(super) herald: Option<u64>,
    /// When it has waited for too long.
    pub(super) until: Duration,
    /// The place that it takes while it is nobody's.
    pub(super) place: Option<Number>,
}

#[derive(Debug)]
enum Stage {
    /// Its first bytes tell what it speaks.
    Silent(Vec<u8>),
    Head(HeadReader),
    /// It has asked without a seal in a SYN, which anybody can have sent.
    Unproven(Box<Head>),
    Hello(Box<Accepting>),
    Response(Box<Challenged>),
    /// A warm hop that waits for a flow.
    Hop(Box<Acceptor>),
    /// It has been told why not, and has said so many bytes since.
    Refused(usize),
}

/// What a connection turned out to want.
#[derive(Debug)]
pub(super) enum Wish {
    /// Nothing yet.
    Wait,
    /// A request of its own, with or without a seal.
    Request(Box<Head>),
    /// A peer's, over a warm hop.
    Open(NodeId, Box<Connect>),
    /// A request that cannot be granted.
    Bad(Refusal),
    /// What it says is none of ours; or it has ended.
    Close {
        /// It said something.
        wrong: bool,
    },
}

/// What a greeting must know of this node.
pub(super) struct Keys<'a> {
    /// Its number; without one it has no peers.
    pub(super) me: Option<NodeId>,
    /// The key of a peer by its number.
    pub(super) find: &'a dyn Fn(NodeId, u32) -> Option<Key>,
}

impl Greeting {
    /// A connection that was accepted at `now`.
    pub(super) fn new(socket: OwnedFd, from: SocketAddr, now: Duration) -> Self {
        Self {
            socket,
            from,
            stage: Stage::Silent(Vec::new()),
            place: None,
            herald: None,
            until: now + ASK_WITHIN,
        }
    }

    /// A connection whose client is told `why` and then let go: closing it at
    /// once would reset it, and the client might never read it.
    pub(super) fn refused(socket: OwnedFd, from: SocketAddr, why: &[u8], now: Duration) -> Self {
        let _ = say(&socket, why);
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Write);
        let _ = sys::set_reset_on_close(&socket, false);
        Self {
            socket,
            from,
            stage: Stage::Refused(0),
            place: None,
            herald: None,
            until: now + READ_WITHIN,
        }
    }

    /// Whether it is a warm hop that waits for a flow.
    pub(super) fn is_hop(&self) -> bool {
        matches!(self.stage, Stage::Hop(_))
    }

    /// The peer whose warm hop it is.
    pub(super) fn peer(&self) -> Option<NodeId> {
        match &self.stage {
            Stage::Hop(acceptor) => Some(acceptor.session().peer),
            _ => None,
        }
    }

    /// Whether it had the time to say what it wants.
    pub(super) fn is_silent(&self) -> bool {
        !matches!(self.stage, Stage::Hop(_) | Stage::Refused(_))
    }

    /// Keeps a request without a seal until the handshake is complete.
    pub(super) fn prove(&mut self, head: Box<Head>) {
        self.stage = Stage::Unproven(head);
    }

    /// Hears what it has to say by now.
    pub(super) fn hear(&mut self, keys: &Keys<'_>, now: Duration) -> Wish {
        loop {
            let next = match &mut self.stage {
                Stage::Silent(bytes) => first_stage(&self.socket, bytes, keys),
                Stage::Head(reader) => {
                    return match read_whole(&self.socket, |bytes| reader.feed(bytes)) {
                        Ok(head) => Wish::Request(Box::new(head)),
                        Err(Unheard::Wrong(refusal)) => Wish::Bad(refusal),
                        Err(unheard) => unheard.into(),
                    };
                }
                Stage::Unproven(_) if sys::is_handshaking(&self.socket) => return Wish::Wait,
                Stage::Unproven(head) => return Wish::Request(head.clone()),
                Stage::Hello(accepting) => challenge(&self.socket, accepting, keys),
                Stage::Response(challenged) => {
                    let feed = |bytes: &[u8]| challenged.feed(bytes);
                    let session = read_whole(&self.socket, feed).map_err(Wish::from);
                    session.map(|session| Stage::Hop(Box::new(Acceptor::new(session))))
                }
                Stage::Hop(acceptor) => {
                    self.until = now + HOP_SILENT;
                    return wait_for_flow(&self.socket, acceptor);
                }
                Stage::Refused(heard) => return hear_out(&self.socket, heard),
            };
            match next {
                Ok(stage) => self.stage = stage,
                Err(wish) => return wish,
            }
            if self.is_hop() {
                self.until = now + HOP_SILENT;
            }
        }
    }
}

impl<E> From<Unheard<E>> for Wish {
    fn from(unheard: Unheard<E>) -> Self {
        match unheard {
            Unheard::Incomplete => Self::Wait,
            Unheard::Gone | Unheard::Reset | Unheard::Lost => Self::Close { wrong: false },
            Unheard::Wrong(_) => Self::Close { wrong: true },
        }
    }
}

/// Tells by the first bytes what is spoken, and begins to read it.
fn first_stage(socket: &OwnedFd, said: &mut Vec<u8>, keys: &Keys<'_>) -> Result<Stage, Wish> {
    let gather = |bytes: &[u8]| -> Result<_, ()> {
        said.extend_from_slice(bytes);
        Ok(match GREETING.len().checked_sub(said.len()) {
            None | Some(0) => Progress::Done {
                value: (),
                consumed: bytes.len(),
            },
            Some(missing) => Progress::NeedMore(missing),
        })
    };
    read_whole(socket, gather).map_err(Wish::from)?;
    if said == GREETING
        && let Some(me) = keys.me
    {
        let mut accepting = Accepting::new(me, Nonce(sys::random()));
        let _ = accepting.feed(said, |_, _| None);
        return Ok(Stage::Hello(Box::new(accepting)));
    }
    let mut reader = HeadReader::default();
    match reader.feed(said) {
        Ok(Progress::NeedMore(_)) => Ok(Stage::Head(reader)),
        Ok(Progress::Done { value, .. }) => Err(Wish::Request(Box::new(value))),
        Err(refusal) => Err(Wish::Bad(refusal)),
    }
}

fn challenge(socket: &OwnedFd, accepting: &mut Accepting, keys: &Keys<'_>) -> Result<Stage, Wish> {
    let challenged =
        read_whole(socket, |bytes| accepting.feed(bytes, keys.find)).map_err(Wish::from)?;
    match say(socket, challenged.challenge()) {
        Ok(()) => Ok(Stage::Response(Box::new(challenged))),
        Err(_) => Err(Wish::Close { wrong: false }),
    }
}

/// Answers pings until a flow is asked for.
fn wait_for_flow(socket: &OwnedFd, acceptor: &mut Acceptor) -> Wish {
    loop {
        let said = match read_whole(socket, |bytes| acceptor.feed(bytes)) {
            Ok(said) => said,
            Err(unheard) => return unheard.into(),
        };
        match said {
            FromDialer::Open(connect) => {
                return Wish::Open(acceptor.session().peer, Box::new(connect));
            }
            FromDialer::Ping(token) if say(socket, &pong(token)).is_ok() => {}
            FromDialer::Ping(_) | FromDialer::Proved => return Wish::Close { wrong: false },
        }
    }
}

/// Waits for the end of a connection that has been told why not.
fn hear_out(socket: &OwnedFd, heard: &mut usize) -> Wish {
    let mut piece = [0; 4096];
    loop {
        match recv(socket.as_raw_fd(), &mut piece, MsgFlags::empty()) {
            Err(nix::errno::Errno::EAGAIN) => return Wish::Wait,
            Ok(count) if count > 0 && *heard < HEARD_MAX => *heard += count,
            Ok(_) | Err(_) => return Wish::Close { wrong: false },
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

    fn hear(greeting: &mut Greeting) -> Wish {
        let keys = Keys {
            me: Some(node(2)),
            find: &find,
        };
        greeting.hear(&keys, NOW)
    }

    fn accepted() -> (Greeting, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let from = "192.0.2.1:4000".parse().unwrap();
        (Greeting::new(near.into(), from, NOW), far)
    }

    fn request() -> Request {
        let server = Endpoint::new("198.51.100.7:80".parse().unwrap()).unwrap();
        Request::connect(ChainHeader::to(server))
    }

    fn waits(wish: &Wish) -> bool {
        matches!(wish, Wish::Wait)
    }

    #[test]
    fn a_request_is_read_as_it_comes_and_what_follows_is_left() {
        let (mut greeting, mut client) = accepted();
        for byte in request().encode(None).unwrap() {
            assert!(waits(&hear(&mut greeting)));
            client.write_all(&[byte]).unwrap();
        }
        client.write_all(b"bytes").unwrap();
        let Wish::Request(head) = hear(&mut greeting) else {
            panic!("no request");
        };
        assert_eq!(head.request, request());
        let mut bytes = [0; 5];
        UnixStream::from(greeting.socket)
            .read_exact(&mut bytes)
            .unwrap();
        assert_eq!(&bytes, b"bytes");
    }

    /// A dialer and an acceptor that have shaken hands.
    fn warm() -> (Greeting, UnixStream, Dialer) {
        let (mut greeting, mut client) = accepted();
        let nonce = Nonce([9; 16]);
        let mut dialing = Dialing::new(key(), 3, node(1), node(2), nonce);
        client.write_all(dialing.hello()).unwrap();
        assert!(waits(&hear(&mut greeting)) && !greeting.is_hop());
        let mut challenge = [0; 48];
        client.read_exact(&mut challenge).unwrap();
        let Ok(Progress::Done { value, .. }) = dialing.feed(&challenge) else {
            panic!("no handshake");
        };
        client.write_all(&value.response).unwrap();
        assert!(waits(&hear(&mut greeting)) && greeting.is_hop());
        assert_eq!(greeting.until, NOW + HOP_SILENT);
        (greeting, client, Dialer::new(value.session))
    }

    #[test]
    fn a_warm_hop_answers_pings_until_it_is_asked_for_a_flow() {
        let (mut greeting, mut client, mut dialer) = warm();
        client.write_all(&ping(5)).unwrap();
        client.write_all(&ping(6)).unwrap();
        assert!(waits(&hear(&mut greeting)));
        let mut pongs = [0; 16];
        client.read_exact(&mut pongs).unwrap();
        assert_eq!(pongs, [pong(5), pong(6)].concat()[..]);
        let connect = request().connect.unwrap();
        let open = dialer.open(&connect, 1, Nonce([1; 16])).unwrap();
        client.write_all(&open).unwrap();
        let Wish::Open(peer, asked) = hear(&mut greeting) else {
            panic!("no flow");
        };
        assert_eq!((peer, *asked), (node(1), connect));
    }

    #[test]
    fn what_is_none_of_ours_ends_the_connection() {
        let hello = |key_id, me, to| {
            let dialing = Dialing::new(key(), key_id, node(me), node(to), Nonce([0; 16]));
            dialing.hello().to_vec()
        };
        for said in [hello(4, 1, 2), hello(3, 9, 2), hello(3, 2, 1)] {
            let (mut greeting, mut client) = accepted();
            client.write_all(&said).unwrap();
            let wish = hear(&mut greeting);
            assert!(matches!(wish, Wish::Close { wrong: true }), "{wish:?}");
        }
        let (mut greeting, mut client, _) = warm();
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let wish = hear(&mut greeting);
        assert!(matches!(wish, Wish::Close { wrong: true }), "{wish:?}");
        let (mut greeting, mut client) = accepted();
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let Wish::Bad(refusal) = hear(&mut greeting) else {
            panic!("no refusal");
        };
        assert_eq!(
            (refusal.problem, refusal.answer),
            (Problem::NotConvert, None)
        );
    }

    #[test]
    fn who_goes_without_a_word_is_not_blamed() {
        for said in [&b""[..], b"PH", b"\x01\x06\x22\x63"] {
            let (mut greeting, mut client) = accepted();
            client.write_all(said).unwrap();
            drop(client);
            let wish = hear(&mut greeting);
            assert!(matches!(wish, Wish::Close { wrong: false }), "{wish:?}");
        }
    }

    #[test]
    fn the_refused_read_why_and_then_the_end() {
        let (near, mut client) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let from = "192.0.2.1:4000".parse().unwrap();
        let mut greeting = Greeting::refused(near.into(), from, b"no", NOW);
        client.write_all(&[0; 10_000]).unwrap();
        assert!(waits(&hear(&mut greeting)) && !greeting.is_silent());
        let mut why = Vec::new();
        client.read_to_end(&mut why).unwrap();
        assert_eq!(why, b"no");
        drop(client);
        assert!(matches!(hear(&mut greeting), Wish::Close { wrong: false }));
    }
}
