// SPDX-License-Identifier: Apache-2.0
//! Which end may send what, and when: the two ends of a hop after the handshake,
//! until the flow's own bytes begin.

use super::frame::{self, Frame, FrameError};
use super::{Reply, Session};
use crate::Progress;
use crate::auth::{AuthError, AuthTag, Nonce};
use crate::convert::{Connect, Head, Problem, Request, TooLong};
use crate::gather::Gather;

/// What is sent when the client has proved that it exists, unless the request
/// [stated it](Connect::validated). The flow's bytes follow.
pub const VALIDATED: [u8; 4] = [frame::VALIDATED, 0, 0, 0];

/// What the acceptor of a connection for one flow sends before its reply, when an
/// [option](crate::syn_option) in the SYN has had it open the flow.
pub const ACCEPTED: [u8; 4] = [frame::ACCEPTED, 0, 0, 0];

/// What the acceptor sends when it has no reply yet: that it has taken the request up.
pub const WORKING: [u8; 4] = [frame::WORKING, 0, 0, 0];

/// What the dialer sends now and then while there is no flow. A dialer has no
/// more than one ping unanswered.
pub fn ping(token: u32) -> [u8; 8] {
    with_token(frame::PING, token)
}

/// What the acceptor answers.
pub fn pong(token: u32) -> [u8; 8] {
    with_token(frame::PONG, token)
}

fn with_token(kind: u8, token: u32) -> [u8; 8] {
    let [a, b, c, d] = token.to_be_bytes();
    [kind, 0, 0, 4, a, b, c, d]
}

/// Where a hop is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for a flow.
    Idle,
    /// The flow is open, and one frame about it is still to come: at the
    /// dialer's end the reply, at the acceptor's the client's proof.
    Opened,
    /// From here on bytes are the flow's.
    Flowing,
}

/// The dialer's end.
#[derive(Clone, Debug)]
pub struct Dialer {
    session: Session,
    state: State,
    gather: Gather,
}

/// What the acceptor sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromAcceptor {
    /// It is alive, and answers the ping with this number.
    Pong(u32),
    /// What became of the flow. What follows are the flow's bytes.
    Reply(Reply),
}

impl Dialer {
    /// After the handshake.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            state: State::Idle,
            gather: Gather::default(),
        }
    }

    /// What opens the one flow of this hop. `now_ms` is in milliseconds since 1970; `nonce` is fresh.
    ///
    /// # Errors
    /// There was a flow already, or `connect` does not fit.
    pub fn open(
        &mut self,
        connect: &Connect,
        now_ms: u64,
        nonce: Nonce,
    ) -> Result<Vec<u8>, OpenError> {
        if self.state != State::Idle {
            return Err(OpenError::Used);
        }
        let request = Request {
            connect: Some(connect.clone()),
            ..Request::default()
        };
        // With the key of this connection alone: a request that was recorded here is refused on
        // any other connection.
        let head = request.encode(Some(&AuthTag {
            key: &self.session.key,
            key_id: self.session.key_id,
            receiver: self.session.peer,
            now_ms,
            nonce,
        }))?;
        let length = u16::try_from(head.len()).map_err(|_| TooLong)?;
        let mut bytes = vec![frame::OPEN, 0];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&head);
        self.state = State::Opened;
        Ok(bytes)
    }

    /// Takes one frame from the front of `input`, and not a byte more.
    ///
    /// # Errors
    /// The acceptor sent what it may not send. Also after its reply: what
    /// comes then is the flow's.
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<FromAcceptor>, HopError> {
        // Bytes of the flow may look like a frame, and their sender is no peer.
        if self.state == State::Flowing {
            return Err(HopError::Flowing);
        }
        let frame = self.gather.feed(input, Frame::parse)?;
        frame.try_map(|frame| match (frame.kind, self.state) {
            // Also after the flow was opened: the acceptor may have sent it before it read that.
            (frame::PONG, _) => Ok(FromAcceptor::Pong(token(&frame))),
            // In no other state: a reply without a request would count for the next flow.
            (frame::REPLY, State::Opened) => {
                let reply = Reply::from_bytes(&frame.payload).ok_or(HopError::Reply)?;
                self.state = State::Flowing;
                Ok(FromAcceptor::Reply(reply))
            }
            (kind, _) => Err(HopError::OutOfTurn(kind)),
        })
    }

    /// Who is at the other end.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What reads the reply of the flow that was opened.
    pub fn into_reply_reader(self) -> ReplyReader {
        ReplyReader {
            gather: self.gather,
            accepted: false,
            working: false,
        }
    }
}

/// Reads the reply to a request with an authentication tag, over a hop that was open before or
/// one that was made for the flow.
#[derive(Clone, Debug, Default)]
pub struct ReplyReader {
    gather: Gather,
    accepted: bool,
    working: bool,
}

impl ReplyReader {
    /// Takes the reply from the front of `input`, and not a byte more. A pong
    /// that was under way when the flow was opened is passed over, and [`ACCEPTED`]
    /// and [`WORKING`] are taken note of.
    ///
    /// # Errors
    /// Something else came.
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<Reply>, HopError> {
        // Pong, acceptance and reply may come in one segment, and so be in one input.
        let mut before = 0;
        loop {
            let (frame, consumed) = match self.gather.feed(&input[before..], Frame::parse)? {
                Progress::NeedMore(missing) => return Ok(Progress::NeedMore(missing)),
                Progress::Done { value, consumed } => (value, before + consumed),
            };
            before = consumed;
            match frame.kind {
                frame::PONG => {}
                frame::ACCEPTED => self.accepted = true,
                frame::WORKING => self.working = true,
                frame::REPLY => {
                    let value = Reply::from_bytes(&frame.payload).ok_or(HopError::Reply)?;
                    return Ok(Progress::Done { value, consumed });
                }
                kind => return Err(HopError::OutOfTurn(kind)),
            }
        }
    }

    /// Whether [`ACCEPTED`] came before the reply.
    pub fn accepted(&self) -> bool {
        self.accepted
    }

    /// Whether [`WORKING`] has come.
    pub fn working(&self) -> bool {
        self.working
    }
}

/// Reads that the client of a request is validated, when the request stated that it is
/// not.
#[derive(Clone, Debug, Default)]
pub struct ValidationReader(Gather);

impl ValidationReader {
    /// Takes [`VALIDATED`] from the front of `input`, and not a byte more.
    ///
    /// # Errors
    /// Something else came.
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<()>, HopError> {
        let frame = self.0.feed(input, Frame::parse)?;
        frame.try_map(|frame| match frame.kind {
            frame::VALIDATED => Ok(()),
            kind => Err(HopError::OutOfTurn(kind)),
        })
    }
}

/// The acceptor's end.
#[derive(Clone, Debug)]
pub struct Acceptor {
    session: Session,
    state: State,
    gather: Gather,
}

/// What the dialer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromDialer {
    /// [`pong`] with this number is to be sent.
    Ping(u32),
    /// A flow is to be opened, and one [`Acceptor::reply`] to be sent.
    /// If the client is not [validated](Connect::validated), [`FromDialer::Validated`]
    /// comes before the flow's bytes.
    Open(Connect),
    /// The client exists. What follows are the flow's bytes.
    Validated,
}

impl Acceptor {
    /// After the handshake.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            state: State::Idle,
            gather: Gather::default(),
        }
    }

    /// The frame that reports to the dialer what became of its flow.
    pub fn reply(reply: Reply) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&[frame::REPLY, 0, 0, 20]);
        bytes[4..].copy_from_slice(&reply.to_bytes());
        bytes
    }

    /// Takes one frame from the front of `input`, and not a byte more.
    ///
    /// # Errors
    /// The dialer sent what it may not send. Also once the flow's bytes have
    /// begun: see [`FromDialer`].
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<FromDialer>, HopError> {
        if self.state == State::Flowing {
            return Err(HopError::Flowing);
        }
        let frame = self.gather.feed(input, Frame::parse)?;
        frame.try_map(|frame| match (frame.kind, self.state) {
            (frame::PING, State::Idle) => Ok(FromDialer::Ping(token(&frame))),
            // Once: the end of the connection is that of its flow.
            (frame::OPEN, State::Idle) => self.open(&frame),
            (frame::VALIDATED, State::Opened) => {
                self.state = State::Flowing;
                Ok(FromDialer::Validated)
            }
            (kind, _) => Err(HopError::OutOfTurn(kind)),
        })
    }

    /// Who is at the other end.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The authentication tag's nonce and time are of no use here: the key is this
    /// connection's own, and a second flow is refused.
    fn open(&mut self, frame: &Frame) -> Result<FromDialer, HopError> {
        // The request fills its frame: bytes behind it would be neither the flow's nor covered by
        // the code.
        let head = match Head::parse(&frame.payload) {
            Ok(Progress::Done { value, consumed }) if consumed == frame.payload.len() => value,
            Ok(_) => return Err(HopError::HeadLength),
            Err(refusal) => return Err(HopError::Head(refusal.problem)),
        };
        let _once = head.verify(&self.session.key, self.session.me)?;
        let connect = head
            .request
            .connect
            .ok_or(HopError::Head(Problem::NothingRequested))?;
        self.state = if connect.validated {
            State::Flowing
        } else {
            State::Opened
        };
        Ok(FromDialer::Open(connect))
    }
}

fn token(frame: &Frame) -> u32 {
    let token = frame.payload.first_chunk().copied();
    u32::from_be_bytes(token.unwrap_or_default())
}

/// Why a flow cannot be opened over a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It has carried one.
    #[error("the hop has carried a flow already")]
    Used,
    /// The request is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// What the other end of a hop may not send. The connection is closed without
/// an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopError {
    /// No frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that does not belong here.
    #[error("a frame of type {0} out of turn")]
    OutOfTurn(u8),
    /// The flow has begun: its bytes are no frames.
    #[error("the flow has begun")]
    Flowing,
    /// The chain header cannot be read.
    #[error(transparent)]
    Head(Problem),
    /// The chain header is shorter or longer than its frame.
    #[error("a chain header and a frame of different lengths")]
    HeadLength,
    /// The chain header is not the peer's.
    #[error(transparent)]
    AuthTag(#[from] AuthError),
    /// A reply that cannot be read.
    #[error("an unreadable reply")]
    Reply,
}

#[cfg(test)]
mod tests;
