// SPDX-License-Identifier: Apache-2.0
//! Checks that the segments for one end are those that one legal peer could have sent.

use crate::header::{Block, Header, before, later};

/// What one end was sent so far, in the order in which P sent it.
#[derive(Debug)]
pub(super) struct Oracle {
    edge: u32,
    ack: u32,
    sacked: Vec<Block>,
    /// A window that the shift rounds down may retract less than this (RFC 7323, section 2.4).
    unit: u32,
    shift: u8,
}

impl Oracle {
    pub(super) fn new(first: u32, window: u32, shift: u8) -> Self {
        Self {
            edge: first.wrapping_add(window),
            ack: first,
            sacked: Vec::new(),
            unit: 1 << shift,
            shift,
        }
    }

    /// Checks a segment for an end that has sent up to `sent`.
    pub(super) fn check(&mut self, h: &Header, sent: u32) -> Result<(), String> {
        if h.rst {
            return Ok(());
        }
        if before(h.ack, self.ack) || before(sent, h.ack) {
            return Err(format!("ack {} after {} of {sent}", h.ack, self.ack));
        }
        self.ack = h.ack;
        self.check_blocks(h, sent)?;
        let edge = h.ack.wrapping_add(u32::from(h.window) << self.shift);
        if before(edge.wrapping_add(self.unit - 1), self.edge) {
            return Err(format!("window edge {edge} after {}", self.edge));
        }
        self.edge = later(self.edge, edge);
        Ok(())
    }

    fn check_blocks(&mut self, h: &Header, sent: u32) -> Result<(), String> {
        for block in h.sack.iter().copied().filter(|b| b.0 != b.1) {
            if before(sent, block.1) || before(block.1, block.0) {
                return Err(format!("SACK beyond snd_nxt: {block:?} of {sent}"));
            }
            if before(h.ack, block.1) && !before(block.0, h.ack) {
                self.sacked.push(block);
            }
        }
        self.sacked.retain(|b| before(h.ack, b.1));
        if self.sacked.iter().any(|b| !before(h.ack, b.0)) {
            return Err(format!(
                "reneging: ack {} points at {:?}",
                h.ack, self.sacked
            ));
        }
        Ok(())
    }
}
