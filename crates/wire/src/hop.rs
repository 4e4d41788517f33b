// SPDX-License-Identifier: Apache-2.0
//! A warm hop: a TCP connection between two nodes that is open before there is
//! a flow for it.
//!
//! ```text
//! dialer                                  acceptor
//!   | Hello        who I am, my nonce ------> |
//!   | <--- Challenge       who I am, my nonce,|
//!   |                 and a code of both      |
//!   | Response     another code of both ----> |      handshake done
//!   |                                         |
//!   | Ping ---------------------------------> |      as long as nothing
//!   | <---------------------------------- Pong|      else is to be sent
//!   |                                         |
//!   | Open         the chain header --------> |
//!   | <--------------------------------- Reply|
//!   | Proved       the client exists -------> |      unless Open stated it
//!   | <========== the flow's bytes =========> |
//! ```
//!
//! Both ends prove that they have the key they share; the key itself is never
//! sent, and each code is for this connection alone. What follows is neither
//! encrypted nor authenticated, but for the chain header: a host that can write into the
//! connection can write into the flow, as with the TCP connection it carries.
//!
//! A connection carries **one** flow and is closed with it, so the end of the
//! flow, in either direction, clean or by reset, is that of the connection,
//! and no flow waits for another's lost bytes.
//!
//! The types here do no I/O: they are fed what was received and give what is
//! to be sent. On any error the connection is closed without an answer.

#[cfg(any(test, feature = "invariants"))]
mod checks;
mod frame;
mod handshake;
mod reply;
mod turn;

use crate::auth::{KEY_BYTES, Key};
use crate::header::NodeId;

#[cfg(any(test, feature = "invariants"))]
pub(crate) use checks::check;
#[cfg(test)]
pub(crate) use checks::samples;
pub use frame::FrameError;
pub use handshake::{
    Accepting, CHALLENGE_BYTES, Challenged, Dialed, Dialing, HELLO_BYTES, HandshakeError,
};
pub use reply::{Icmp, Reply};
pub use turn::{
    ACCEPTED, Acceptor, Dialer, FromAcceptor, FromDialer, HopError, OpenError, ReplyReader,
    VALIDATED, ValidationReader, WORKING, ping, pong,
};

/// What a handshake leaves behind: who the other end is, and a key for this
/// connection alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// This node.
    pub me: NodeId,
    /// The node at the other end.
    pub peer: NodeId,
    /// Which of their keys they used.
    pub key_id: u32,
    pub(crate) key: Key,
}

impl Session {
    /// That of a stream of a tunnel, whose connection has authenticated both ends: `secret` is what
    /// they derive from it (RFC 5705).
    pub fn of_stream(me: NodeId, peer: NodeId, key_id: u32, secret: [u8; KEY_BYTES]) -> Self {
        let key = Key::new(secret);
        Self {
            me,
            peer,
            key_id,
            key,
        }
    }
}
