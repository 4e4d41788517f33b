// SPDX-License-Identifier: Apache-2.0
//! The fields of a TCP segment that a hand-over reads and writes.

/// Whether `a` is before `b` in the sequence space of 32 bits (RFC 9293, section 3.4).
#[must_use]
pub fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// The later of two sequence numbers.
#[must_use]
pub fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// The earlier of two sequence numbers.
#[must_use]
pub fn earlier(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// A range of selectively acknowledged bytes: the first, and the one after the last (RFC 2018).
pub type Block = (u32, u32);

/// A segment without its payload. SYN segments are no part of a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Payload, in bytes.
    pub len: u32,
    /// No more data follows.
    pub fin: bool,
    /// The connection is aborted.
    pub rst: bool,
    /// The next byte that the sender of this segment expects.
    pub ack: u32,
    /// SACK blocks, the first of which may be a D-SACK (RFC 2883). Empty ones have equal edges.
    pub sack: [Block; 3],
    /// Receive window as on the wire, to be scaled by the shift of the sender.
    pub window: u16,
    /// TSval of the timestamps option (RFC 7323).
    pub ts_val: u32,
    /// TSecr of the timestamps option. 0 is an echo of nothing.
    pub ts_ecr: u32,
}

impl Header {
    /// The sequence number after this segment; a FIN counts as one.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.seq
            .wrapping_add(self.len)
            .wrapping_add(u32::from(self.fin))
    }
}
