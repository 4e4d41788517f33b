// SPDX-License-Identifier: Apache-2.0
//! Ends the pairs whose relay has ended in the middle of a hand-over, and has those become flows for which
//! there was no room.
//!
//! The programs reset an end by the number that its next segment acknowledges. An end that only
//! waits sends none, so it is probed, from outside of the programs: by the node, and after its
//! death by the guard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use posthaste_relay::frame::Frame;
use posthaste_relay::sys::monotonic;

use super::table::Table;
use super::{CONTEXT_CB, CONTEXT_WORDS};
use crate::error::Error;
use crate::layout::{nanoseconds, octets, whole};
use crate::object::Program;
use crate::objects::types;
use crate::packet::pins::Pins;
use crate::sys;

/// `BYPASS_DIRECT` of `enum bypass_phase`.
const DIRECT: u32 = 3;
/// How long a pair whose process has ended resets its ends.
const DEAD_TIME: Duration = Duration::from_mins(1);
/// An ACK without payload, from its data offset on, with timestamps (RFC 9293 section 3.1).
const TCP: [u8; 20] = [
    0x80, 0x10, 0, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0,
];
const PROTOCOL_TCP: u8 = 6;
const HOP_LIMIT: u8 = 64;

/// One end of a pair: address and port, as on the wire.
type End = ([u8; 16], [u8; 2]);

/// The pairs, and the program that probes their ends.
#[derive(Debug)]
pub(crate) struct Burial {
    table: Arc<Table>,
    program: OwnedFd,
}

impl Burial {
    pub(super) fn new(table: &Arc<Table>, program: Program) -> Self {
        Self {
            table: Arc::clone(table),
            program: program.into(),
        }
    }

    /// What an earlier process pinned.
    pub(crate) fn pinned(pins: &Pins) -> Option<Self> {
        Some(Self {
            table: Arc::new(Table::pinned(pins)?),
            program: sys::pinned(&pins.path(super::BURY)).ok()?,
        })
    }

    /// Has all pairs looked after, and removes those that have been dead for long. `ended`:
    /// the process of all pairs has certainly ended. Returns how many are left.
    ///
    /// # Errors
    /// The pairs cannot be read.
    pub(crate) fn round(&self, ended: bool) -> Result<usize, Error> {
        let now = nanoseconds(monotonic());
        let (mut left, mut old) = (0, Vec::new());
        self.table.each(|key, value| {
            let pair = whole::<types::bypass_pair>(value);
            // A process that ended between the last two steps leaves a flow that works.
            let is_old = |pair: &types::bypass_pair| {
                pair.phase != DIRECT && now.saturating_sub(pair.looked_ns) > nanoseconds(DEAD_TIME)
            };
            if pair.is_some_and(|pair| is_old(&pair)) {
                old.push(key.to_vec());
            } else {
                left += 1;
                self.look_after(key, ended);
            }
            true
        })?;
        old.iter().try_for_each(|key| self.table.remove(key))?;
        self.table.rest()?;
        Ok(left)
    }

    /// Probes both ends of a pair if it is dead; makes it a flow if its relay has left.
    fn look_after(&self, key: &[u8], ended: bool) {
        let Some(key) = whole::<types::packet_key>(key) else {
            return;
        };
        let first = (octets(key.first), key.first_port.to_ne_bytes());
        let second = (octets(key.second), key.second_port.to_ne_bytes());
        let mut context = [0; CONTEXT_WORDS];
        context[CONTEXT_CB] = ended.into();
        for frame in [segment(first, second), segment(second, first)] {
            let frame = frame.as_ref().map(Frame::as_bytes).unwrap_or_default();
            // The next round tries again.
            let _ = sys::run(self.program.as_fd(), frame, &context, None);
        }
    }
}

impl AsFd for Burial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// A segment in which the program writes the numbers.
fn segment(from: End, to: End) -> Option<Frame> {
    let mut packet = Vec::with_capacity(72);
    if [from, to].iter().all(|end| is_ipv4(&end.0)) {
        packet.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_TCP, 0, 0]);
        packet.extend_from_slice(&from.0[12..]);
        packet.extend_from_slice(&to.0[12..]);
    } else {
        packet.extend([0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, HOP_LIMIT]);
        packet.extend(from.0);
        packet.extend(to.0);
    }
    packet.extend(from.1);
    packet.extend(to.1);
    // Both numbers.
    packet.extend([0; 8]);
    packet.extend(TCP);
    Frame::captured(0, 0, &packet).completed()
}

fn is_ipv4(ip: &[u8; 16]) -> bool {
    ip[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
}
