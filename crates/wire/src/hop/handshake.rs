// SPDX-License-Identifier: Apache-2.0
//! Each end proves to the other that it has their key.

use super::Session;
use crate::Progress;
use crate::auth::{Key, MAC_BYTES, Nonce};
use crate::bytes::Bytes;
use crate::gather::Gather;
use crate::header::NodeId;

/// Bytes of the dialer's first message.
pub const HELLO_BYTES: usize = 28;
/// Bytes of the acceptor's message.
pub const CHALLENGE_BYTES: usize = 40;

/// What both messages begin with: the protocol, its version, and a zero.
const MAGIC: [u8; 6] = *b"PHOP\x01\0";
/// What a message of the handshake begins with: the name and version of the protocol.
const NAME_BYTES: usize = 4;
/// The challenge without its code.
const UNCODED_BYTES: usize = CHALLENGE_BYTES - MAC_BYTES;
/// What each code begins with, so that none can be taken for another.
const BY_ACCEPTOR: &[u8; 16] = b"posthaste hop ch";
const BY_DIALER: &[u8; 16] = b"posthaste hop re";
const SESSION: &[u8; 16] = b"posthaste hop se";

/// The end that opened the connection, until the acceptor is validated.
#[derive(Clone, Debug)]
pub struct Dialing {
    key: Key,
    key_id: u32,
    me: NodeId,
    peer: NodeId,
    hello: [u8; HELLO_BYTES],
    gather: Gather,
}

impl Dialing {
    /// Begins a handshake of `me` with `peer`. `nonce` is fresh.
    pub fn new(key: Key, key_id: u32, me: NodeId, peer: NodeId, nonce: Nonce) -> Self {
        let mut hello = [0; HELLO_BYTES];
        hello[..6].copy_from_slice(&MAGIC);
        hello[6..8].copy_from_slice(&me.to_bytes());
        hello[8..24].copy_from_slice(&nonce.0);
        hello[24..].copy_from_slice(&key_id.to_be_bytes());
        Self {
            key,
            key_id,
            me,
            peer,
            hello,
            gather: Gather::default(),
        }
    }

    /// What to send first.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// Takes the challenge from the front of `input`, and not a byte more.
    ///
    /// # Errors
    /// The other end is not the peer.
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<Dialed>, HandshakeError> {
        let challenge = self.gather.feed(input, message::<CHALLENGE_BYTES>)?;
        challenge.try_map(|challenge| self.dialed(&challenge))
    }

    fn dialed(&self, challenge: &[u8; CHALLENGE_BYTES]) -> Result<Dialed, HandshakeError> {
        let mut bytes = Bytes::new(&challenge[MAGIC.len()..]);
        let peer = node(&mut bytes)?;
        // Operators may use one key for several peers: the code alone does not name the peer.
        if peer != self.peer {
            return Err(HandshakeError::WrongPeer { peer });
        }
        let (uncoded, code) = challenge.split_at(UNCODED_BYTES);
        let code = code.try_into().map_err(|_| HandshakeError::WrongCode)?;
        if !self.key.matches(&[BY_ACCEPTOR, &self.hello, uncoded], code) {
            return Err(HandshakeError::WrongCode);
        }
        Ok(Dialed {
            // Over the nonces of both ends: a recorded code is of no use on another connection.
            response: self.key.mac(&[BY_DIALER, &self.hello, challenge]),
            session: Session {
                me: self.me,
                peer,
                key_id: self.key_id,
                key: self.key.derive(&[SESSION, &self.hello, challenge]),
            },
        })
    }
}

/// What the dialer has when the acceptor is validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialed {
    /// What to send. Frames may follow at once.
    pub response: [u8; MAC_BYTES],
    /// The connection.
    pub session: Session,
}

/// The end that accepted the connection, until the hello names the dialer.
#[derive(Clone, Debug)]
pub struct Accepting {
    me: NodeId,
    nonce: Nonce,
    gather: Gather,
}

impl Accepting {
    /// Begins a handshake at `me`. `nonce` is fresh.
    pub fn new(me: NodeId, nonce: Nonce) -> Self {
        Self {
            me,
            nonce,
            gather: Gather::default(),
        }
    }

    /// Takes the hello from the front of `input`, and not a byte more.
    /// `find_key` gives the key of a node by its number.
    ///
    /// # Errors
    /// The other end speaks something else, or there is no such key.
    pub fn feed(
        &mut self,
        input: &[u8],
        find_key: impl FnOnce(NodeId, u32) -> Option<Key>,
    ) -> Result<Progress<Challenged>, HandshakeError> {
        let hello = self.gather.feed(input, message::<HELLO_BYTES>)?;
        hello.try_map(|hello| self.challenged(&hello, find_key))
    }

    fn challenged(
        &self,
        hello: &[u8; HELLO_BYTES],
        find_key: impl FnOnce(NodeId, u32) -> Option<Key>,
    ) -> Result<Challenged, HandshakeError> {
        let mut bytes = Bytes::new(&hello[MAGIC.len()..]);
        let peer = node(&mut bytes)?;
        // The nonce counts as a part of `hello`, which the codes cover.
        let (_nonce, key_id) = (bytes.array::<16>(), bytes.u32().unwrap_or(0));
        // An attacker could otherwise return this node's own hello to it on a second connection,
        // and have it compute the code that the first one needs.
        if peer == self.me {
            return Err(HandshakeError::Myself);
        }
        let key = find_key(peer, key_id).ok_or(HandshakeError::NoKey { peer, key_id })?;
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge[..6].copy_from_slice(&MAGIC);
        challenge[6..8].copy_from_slice(&self.me.to_bytes());
        challenge[8..UNCODED_BYTES].copy_from_slice(&self.nonce.0);
        let code = key.mac(&[BY_ACCEPTOR, hello, &challenge[..UNCODED_BYTES]]);
        challenge[UNCODED_BYTES..].copy_from_slice(&code);
        Ok(Challenged {
            session: Session {
                me: self.me,
                peer,
                key_id,
                key: key.derive(&[SESSION, hello, &challenge]),
            },
            hello: *hello,
            challenge,
            key,
            gather: Gather::default(),
        })
    }
}

/// The acceptor, until the dialer is validated.
#[derive(Clone, Debug)]
pub struct Challenged {
    session: Session,
    hello: [u8; HELLO_BYTES],
    challenge: [u8; CHALLENGE_BYTES],
    key: Key,
    gather: Gather,
}

impl Challenged {
    /// What the handshake leaves behind, if the dialer has the key: the hello names both.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What to send.
    pub fn challenge(&self) -> &[u8; CHALLENGE_BYTES] {
        &self.challenge
    }

    /// Takes the response from the front of `input`, and not a byte more.
    ///
    /// # Errors
    /// The other end does not have the key.
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<Session>, HandshakeError> {
        let response = self.gather.feed(input, exactly::<MAC_BYTES, _>)?;
        response.try_map(|code| {
            // Another first block than the acceptor's: its own code cannot be returned to it.
            let parts: [&[u8]; 3] = [BY_DIALER, &self.hello, &self.challenge];
            let is_right = self.key.matches(&parts, &code);
            is_right
                .then(|| self.session.clone())
                .ok_or(HandshakeError::WrongCode)
        })
    }
}

/// A message of `N` bytes that begins with [`MAGIC`]. What begins in
/// another way is refused by its first bytes: an unauthorized sender may be waiting for an
/// answer and send no more.
pub(super) fn message<const N: usize>(bytes: &[u8]) -> Result<Progress<[u8; N]>, HandshakeError> {
    // Compared as it arrives: a client of another protocol may send less than a message.
    let there = bytes.len().min(NAME_BYTES);
    if bytes[..there] != MAGIC[..there] {
        return Err(HandshakeError::NotAHop);
    }
    // After the name: in another protocol this byte is no version.
    match bytes.get(NAME_BYTES) {
        Some(&version) if version != MAGIC[NAME_BYTES] => Err(HandshakeError::Version(version)),
        _ if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) => {
            Err(HandshakeError::NotAHop)
        }
        _ => exactly(bytes),
    }
}

fn exactly<const N: usize, E>(bytes: &[u8]) -> Result<Progress<[u8; N]>, E> {
    Ok(match bytes.first_chunk() {
        Some(value) => Progress::Done {
            value: *value,
            consumed: N,
        },
        None => Progress::NeedMore(N - bytes.len()),
    })
}

fn node(bytes: &mut Bytes<'_>) -> Result<NodeId, HandshakeError> {
    let id = bytes.u16().and_then(|id| NodeId::new(id.into()));
    id.ok_or(HandshakeError::NoNode)
}

/// Why there is no hop. The connection is closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other end speaks something else.
    #[error("the other end does not speak the protocol of hops")]
    NotAHop,
    /// It speaks another version.
    #[error("the other end speaks version {0} of the protocol of hops")]
    Version(u8),
    /// It is node 0, which is none.
    #[error("the other end does not report which node it is")]
    NoNode,
    /// It is not the node that was dialed.
    #[error("the other end is node {peer}, which was not dialed")]
    WrongPeer {
        /// Which node it reports to be.
        peer: NodeId,
    },
    /// It reports to be this node: a loop, or a reflection.
    #[error("the other end has the id of this node")]
    Myself,
    /// No key is shared with it under this number.
    #[error("no key {key_id} is shared with node {peer}")]
    NoKey {
        /// Which node it reports to be.
        peer: NodeId,
        /// Which key it would use.
        key_id: u32,
    },
    /// It does not have the key.
    #[error("the other end does not have the key")]
    WrongCode,
}

#[cfg(test)]
mod tests;
