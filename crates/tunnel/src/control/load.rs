// SPDX-License-Identifier: Apache-2.0
//! What a congestion control shows to the owner of its connection, whom quinn-proto does not let reach it
//! otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The least bytes of a packet that are not a frame's contents: flags, connection id, number, authentication
/// tag, and the head of a frame. With more, a backlog would seem to be left when all has gone.
const PACKET_OVERHEAD: u64 = 28;

/// Least bytes of a full packet: QUIC carries 1200 on any path, or does not work there (RFC 9000 section 14).
const FULL_MIN: u64 = 1_000;
/// So many that are not acknowledged show something: repair symbols that are lost are not sent again.
const FULL_UNACKED_MIN: u64 = 8;

/// Bytes of a connection on their way, as of its last packet and ACK.
#[derive(Debug, Default)]
pub(crate) struct Load {
    sent: AtomicU64,
    has_lost: AtomicBool,
    in_flight: AtomicU64,
    window: AtomicU64,
    acks: AtomicU64,
    /// Full packets acknowledged, and those sent since the last one of them.
    full_acked: AtomicU64,
    full_unacked: AtomicU64,
    is_limited: AtomicBool,
    /// Nothing but ACKs may leave now.
    is_held: AtomicBool,
    /// A packet may leave that the window has no room for.
    is_probe: AtomicBool,
    /// More wanted to.
    has_waited: AtomicBool,
}

impl Load {
    pub(super) fn on_sent(&self, bytes: u64) {
        self.sent
            .fetch_add(bytes.saturating_sub(PACKET_OVERHEAD), Relaxed);
        self.in_flight.fetch_add(bytes, Relaxed);
        if bytes >= FULL_MIN {
            self.full_unacked.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn on_acked(&self, bytes: u64) {
        if bytes >= FULL_MIN {
            self.full_acked.fetch_add(1, Relaxed);
            self.full_unacked.store(0, Relaxed);
        }
    }

    pub(super) fn on_acks(&self, in_flight: u64, is_limited: bool, window: u64) {
        self.acks.fetch_add(1, Relaxed);
        self.in_flight.store(in_flight, Relaxed);
        self.is_limited.store(is_limited, Relaxed);
        self.window.store(window, Relaxed);
    }

    pub(super) fn on_loss(&self, window: u64) {
        self.has_lost.store(true, Relaxed);
        self.window.store(window, Relaxed);
    }

    /// From now on only ACKs leave, or all.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Relaxed);
        self.has_waited.store(false, Relaxed);
    }

    /// Whether from now on packets leave that the window has no room for.
    pub(crate) fn probe(&self, is_probe: bool) {
        self.is_probe.store(is_probe, Relaxed);
    }

    /// Whether they do.
    pub(super) fn is_probe(&self) -> bool {
        self.is_probe.load(Relaxed)
    }

    /// Whether since that more than ACKs wanted to leave.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited.load(Relaxed)
    }

    /// Whether only ACKs leave: the caller has more.
    pub(super) fn is_held(&self) -> bool {
        let is_held = self.is_held.load(Relaxed);
        if is_held {
            self.has_waited.store(true, Relaxed);
        }
        is_held
    }

    /// Whether a packet was ever lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Relaxed)
    }

    /// Bytes of frames that were sent, also again.
    pub(crate) fn gone(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// ACKs so far, and whether at the last one the streams had no more to send.
    pub(crate) fn acks(&self) -> (u64, bool) {
        (self.acks.load(Relaxed), self.is_limited.load(Relaxed))
    }

    /// Full packets acknowledged so far, and whether enough were sent since the last of them to expect another.
    pub(crate) fn full_packets(&self) -> (u64, bool) {
        let unacked = self.full_unacked.load(Relaxed);
        (self.full_acked.load(Relaxed), unacked >= FULL_UNACKED_MIN)
    }

    /// Bytes that may be in flight, and that the window has room for.
    pub(crate) fn window_and_room(&self) -> (u64, u64) {
        let window = self.window.load(Relaxed);
        (window, window.saturating_sub(self.in_flight.load(Relaxed)))
    }
}
