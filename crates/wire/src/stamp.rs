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
    fn write(&self, bytes: &mut [u8], layout: &Layout) {
        put(bytes, 0, &self.sequence.to_be_bytes());
        put(bytes, layout.sent, &self.sent.0.to_be_bytes());
        put(bytes, layout.sent + 8, &self.error.to_bits().to_be_bytes());
        put(bytes, layout.sent + 10, &self.session.to_be_bytes());
    }

    fn read(bytes: &[u8], layout: &Layout) -> Option<Self> {
        Self::read_at(bytes, 0, layout.sent)
    }

    /// The fields of a packet of either kind from its first byte on, or of the copy of a probe in a
    /// reflection.
    fn read_at(bytes: &[u8], sequence: usize, sent: usize) -> Option<Self> {
        let mut number = Bytes::new(bytes.get(sequence..)?);
        let mut rest = Bytes::new(bytes.get(sent..)?);
        Some(Self {
            sequence: number.u32()?,
            sent: Timestamp(rest.u64()?),
            // A multiplier of 0 makes the packet corrupt (RFC 4656 section 4.1.2).
            error: ErrorEstimate::from_bits(rest.u16()?)?,
            session: rest.u16()?,
        })
    }
}

impl Reflection {
    fn write(&self, bytes: &mut [u8], layout: &Layout) {
        let own = Probe {
            sequence: self.sequence,
            sent: self.sent,
            error: self.error,
            // A reflector copies the session's number (RFC 8972 section 3).
            session: self.probe.session,
        };
        own.write(bytes, layout);
        let probe = &self.probe;
        put(bytes, layout.received, &self.received.0.to_be_bytes());
        put(bytes, layout.probe_sequence, &probe.sequence.to_be_bytes());
        put(bytes, layout.probe_sent, &probe.sent.0.to_be_bytes());
        let error = probe.error.to_bits().to_be_bytes();
        put(bytes, layout.probe_sent + 8, &error);
        put(bytes, layout.ttl, &[self.ttl]);
    }

    fn read(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let own = Probe::read(bytes, layout)?;
        let probe = Probe::read_at(bytes, layout.probe_sequence, layout.probe_sent)?;
        Some(Self {
            sequence: own.sequence,
            sent: own.sent,
            received: Timestamp(Bytes::new(bytes.get(layout.received..)?).u64()?),
            error: own.error,
            // A reflection has the session once, among the reflector's own fields (RFC 8972 §3).
            probe: Probe {
                session: own.session,
                ..probe
            },
            ttl: *bytes.get(layout.ttl)?,
        })
    }
}

/// Both kinds of packets, as they are sent and received.
macro_rules! codec {
    ($packet:ident) => {
        impl $packet {
            /// The packet, without an authentication tag.
            pub fn encode(&self) -> [u8; OPEN_BYTES] {
                // What is not written must be zero (RFC 8762 section 4.2.1).
                let mut bytes = [0; OPEN_BYTES];
                self.write(&mut bytes, &OPEN);
                bytes
            }

            /// The packet, authenticated with a key that [`key`] made.
            pub fn auth(&self, key: &Key) -> [u8; AUTHENTICATED_BYTES] {
                let mut bytes = [0; AUTHENTICATED_BYTES];
                self.write(&mut bytes, &AUTHENTICATED);
                add_code(&mut bytes, key);
                bytes
            }

            /// Reads what arrived. What must be zero is not looked at (RFC 8762 section 4.2.1).
            ///
            /// # Errors
            /// It is no packet of this kind.
            pub fn parse(bytes: &[u8]) -> Result<Received<'_, Self>, StampError> {
                let (authenticated, layout) = cover(bytes)?;
                let packet = Self::read(bytes, layout).ok_or(StampError::Estimate)?;
                Ok(Received {
                    packet,
                    authenticated,
                })
            }
        }
    };
}

codec!(Probe);
codec!(Reflection);

/// Where the fields of a packet begin, in bytes from its first one. An error estimate and the
/// session follow a timestamp.
struct Layout {
    sent: usize,
    received: usize,
    probe_sequence: usize,
    probe_sent: usize,
    ttl: usize,
}

/// RFC 8762 §4.2.1, §4.3.1.
const OPEN: Layout = Layout {
    sent: 4,
    received: 16,
    probe_sequence: 24,
    probe_sent: 28,
    ttl: 40,
};

/// RFC 8762 §4.2.2, §4.3.2: each group of fields fills blocks of 16 bytes.
const AUTHENTICATED: Layout = Layout {
    sent: 16,
    received: 32,
    probe_sequence: 48,
    probe_sent: 64,
    ttl: 80,
};

type Cover<'a> = (&'a [u8; COVERED_BYTES], &'a [u8; MAC_BYTES]);

/// What the authentication tag covers, and the code, of a packet that has one; and its layout.
fn cover(bytes: &[u8]) -> Result<(Option<Cover<'_>>, &'static Layout), StampError> {
    // By length alone: packets have no field for their mode.
    match bytes.len() {
        OPEN_BYTES => Ok((None, &OPEN)),
        AUTHENTICATED_BYTES => {
            let covered = bytes.first_chunk().zip(bytes.last_chunk());
            Ok((covered, &AUTHENTICATED))
        }
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
