// SPDX-License-Identifier: Apache-2.0
//! STAMP, the Simple Two-Way Active Measurement Protocol (RFC 8762): how nodes
//! measure the links between them.
//!
//! ```text
//! sender                              reflector
//!   | Probe        number, T1 ----------> |  T2, by its kernel
//!   | <------- Reflection  of the probe,  |
//!   |                      T2, T3         |  T3, as it is sent
//!   T4
//! ```
//!
//! The round trip is `(T4 - T1) - (T3 - T2)`: each difference is of one clock.
//! A reflection is as long as its probe. The reflector remembers nothing.
//!
//! Packets are *authenticated* (112 bytes, what the RFC calls authenticated) or *open*
//! (44 bytes). The session's number names the peer that authenticated one (RFC 8972 §3).

mod clock;

use crate::auth::{Key, MAC_BYTES};
use crate::bytes::Bytes;
use crate::header::NodeId;

pub use clock::{ErrorEstimate, Format, Timestamp};

/// The port of reflectors (RFC 8762 §4.1).
pub const PORT: u16 = 862;
/// Bytes of a packet without an authentication tag (RFC 8762 §4.2.1, §4.3.1).
pub const OPEN_BYTES: usize = 44;
/// Bytes of a packet with one (RFC 8762 §4.2.2, §4.3.2).
pub const AUTHENTICATED_BYTES: usize = 112;

/// What of an authenticated packet is authenticated: its first six blocks (RFC 8762 §4.4).
const COVERED_BYTES: usize = AUTHENTICATED_BYTES - MAC_BYTES;
/// Keeps codes over STAMP's packets, whose form others decide on, from being
/// codes over ours.
const PURPOSE: &[u8] = b"posthaste stamp 1";

/// The key of STAMP between two nodes, which follows from what they share.
pub fn key(shared: &Key) -> Key {
    shared.derive(&[PURPOSE])
}

/// The number of the sessions that a node begins: its own, so it is never 0.
pub fn session(sender: NodeId) -> u16 {
    sender.to_bits()
}

/// What a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Counts the probes of one sender's port to one reflector, from 0.
    pub sequence: u32,
    /// T1, by the sender's clock.
    pub sent: Timestamp,
    /// How good T1 is.
    pub error: ErrorEstimate,
    /// The session's number (RFC 8972 §3); 0 is none.
    pub session: u16,
}

/// What a reflector answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// The reflector's own number of it: that of the probe, where the
    /// reflector remembers nothing.
    pub sequence: u32,
    /// T3, by the reflector's clock.
    pub sent: Timestamp,
    /// T2, by the same.
    pub received: Timestamp,
    /// How good T2 and T3 are.
    pub error: ErrorEstimate,
    /// The probe, with its session.
    pub probe: Probe,
    /// TTL or hop limit that the probe had left when it came.
    pub ttl: u8,
}

/// A packet that was read, and what is to be checked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a, T> {
    /// Its content.
    pub packet: T,
    /// What its authentication tag covers, and its code, if it has an authentication tag.
    authenticated: Option<(&'a [u8; COVERED_BYTES], &'a [u8; MAC_BYTES])>,
}

impl<T> Received<'_, T> {
    /// Whether the packet has an authentication tag, right or wrong.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated.is_some()
    }

    /// Whether the authentication tag is of this key, which [`key`] made. Takes the same time
    /// wherever it differs.
    pub fn is_of(&self, key: &Key) -> bool {
        self.authenticated
            .is_some_and(|(covered, code)| key.matches(&[covered], code))
    }
}

/// Why a packet cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampError {
    /// It is as long as no packet of ours. Extensions (RFC 8972 §4) are not
    /// spoken.
    #[error("a packet of {0} bytes is none of STAMP without extensions")]
    Length(usize),
    /// An error estimate has the multiplier 0.
    #[error("the packet is corrupt: its error estimate is zero")]
    Estimate,
}

impl Probe {
    /// The packet, without an authentication tag.
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        put(&mut bytes, 0, &self.sequence.to_be_bytes());
        put(&mut bytes, 4, &self.sent.0.to_be_bytes());
        put(&mut bytes, 12, &self.error.to_bits().to_be_bytes());
        put(&mut bytes, 14, &self.session.to_be_bytes());
        bytes
    }

    /// The packet, authenticated with a key that [`key`] made.
    pub fn auth(&self, key: &Key) -> [u8; AUTHENTICATED_BYTES] {
        let mut bytes = [0; AUTHENTICATED_BYTES];
        put(&mut bytes, 0, &self.sequence.to_be_bytes());
        put(&mut bytes, 16, &self.sent.0.to_be_bytes());
        put(&mut bytes, 24, &self.error.to_bits().to_be_bytes());
        put(&mut bytes, 26, &self.session.to_be_bytes());
        add_code(&mut bytes, key);
        bytes
    }

    /// Reads what a reflector received. What must be zero is not looked at
    /// (RFC 8762 §4.2.1).
    ///
    /// # Errors
    /// It is no probe.
    pub fn parse(bytes: &[u8]) -> Result<Received<'_, Self>, StampError> {
        let authenticated = cover(bytes)?;
        let mut rest = Bytes::new(bytes);
        let packet = read_probe(&mut rest, authenticated.is_some());
        let packet = packet.ok_or(StampError::Estimate)?;
        Ok(Received {
            packet,
            authenticated,
        })
    }
}

impl Reflection {
    /// The packet, without an authentication tag.
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        put(&mut bytes, 0, &self.sequence.to_be_bytes());
        put(&mut bytes, 4, &self.sent.0.to_be_bytes());
        put(&mut bytes, 12, &self.error.to_bits().to_be_bytes());
        put(&mut bytes, 14, &self.probe.session.to_be_bytes());
        put(&mut bytes, 16, &self.received.0.to_be_bytes());
        put(&mut bytes, 24, &self.probe.sequence.to_be_bytes());
        put(&mut bytes, 28, &self.probe.sent.0.to_be_bytes());
        put(&mut bytes, 36, &self.probe.error.to_bits().to_be_bytes());
        put(&mut bytes, 40, &[self.ttl]);
        bytes
    }

    /// The packet, authenticated with a key that [`key`] made.
    pub fn auth(&self, key: &Key) -> [u8; AUTHENTICATED_BYTES] {
        let mut bytes = [0; AUTHENTICATED_BYTES];
        put(&mut bytes, 0, &self.sequence.to_be_bytes());
        put(&mut bytes, 16, &self.sent.0.to_be_bytes());
        put(&mut bytes, 24, &self.error.to_bits().to_be_bytes());
        put(&mut bytes, 26, &self.probe.session.to_be_bytes());
        put(&mut bytes, 32, &self.received.0.to_be_bytes());
        put(&mut bytes, 48, &self.probe.sequence.to_be_bytes());
        put(&mut bytes, 64, &self.probe.sent.0.to_be_bytes());
        put(&mut bytes, 72, &self.probe.error.to_bits().to_be_bytes());
        put(&mut bytes, 80, &[self.ttl]);
        add_code(&mut bytes, key);
        bytes
    }

    /// Reads what a sender received.
    ///
    /// # Errors
    /// It is no reflection.
    pub fn parse(bytes: &[u8]) -> Result<Received<'_, Self>, StampError> {
        let authenticated = cover(bytes)?;
        let packet = if authenticated.is_some() {
            read_authenticated(bytes)
        } else {
            read_open(bytes)
        };
        let packet = packet.ok_or(StampError::Estimate)?;
        Ok(Received {
            packet,
            authenticated,
        })
    }
}

/// What both packets begin with.
fn read_probe(rest: &mut Bytes<'_>, authenticated: bool) -> Option<Probe> {
    let sequence = rest.u32()?;
    if authenticated {
        rest.array::<12>()?;
    }
    Some(Probe {
        sequence,
        sent: Timestamp(rest.u64()?),
        error: ErrorEstimate::from_bits(rest.u16()?)?,
        session: rest.u16()?,
    })
}

fn read_open(bytes: &[u8]) -> Option<Reflection> {
    let mut rest = Bytes::new(bytes);
    let own = read_probe(&mut rest, false)?;
    let received = Timestamp(rest.u64()?);
    let probe = Probe {
        sequence: rest.u32()?,
        sent: Timestamp(rest.u64()?),
        error: ErrorEstimate::from_bits(rest.u16()?)?,
        session: own.session,
    };
    rest.u16()?;
    Some(of_parts(own, received, probe, rest.array::<1>()?[0]))
}

fn read_authenticated(bytes: &[u8]) -> Option<Reflection> {
    let mut rest = Bytes::new(bytes);
    let own = read_probe(&mut rest, true)?;
    rest.u32()?;
    let received = Timestamp(rest.u64()?);
    rest.u64()?;
    let sequence = rest.u32()?;
    rest.array::<12>()?;
    let probe = Probe {
        sequence,
        sent: Timestamp(rest.u64()?),
        error: ErrorEstimate::from_bits(rest.u16()?)?,
        session: own.session,
    };
    rest.array::<6>()?;
    Some(of_parts(own, received, probe, rest.array::<1>()?[0]))
}

fn of_parts(own: Probe, received: Timestamp, probe: Probe, ttl: u8) -> Reflection {
    Reflection {
        sequence: own.sequence,
        sent: own.sent,
        received,
        error: own.error,
        probe,
        ttl,
    }
}

type Cover<'a> = (&'a [u8; COVERED_BYTES], &'a [u8; MAC_BYTES]);

/// What the authentication tag covers, and the code, of a packet that has one.
fn cover(bytes: &[u8]) -> Result<Option<Cover<'_>>, StampError> {
    match bytes.len() {
        OPEN_BYTES => Ok(None),
        AUTHENTICATED_BYTES => Ok(bytes.first_chunk().zip(bytes.last_chunk())),
        length => Err(StampError::Length(length)),
    }
}

fn add_code(bytes: &mut [u8; AUTHENTICATED_BYTES], key: &Key) {
    let code = key.mac(&[&bytes[..COVERED_BYTES]]);
    bytes[COVERED_BYTES..].copy_from_slice(&code);
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

#[cfg(test)]
mod tests;
