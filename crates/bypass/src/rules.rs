// SPDX-License-Identifier: Apache-2.0
//! What the packet path does with a segment, in each phase.

use crate::header::{Block, Header, before, earlier, later};
use crate::machine::{Pair, Phase, TS_SLACK};

/// Where a segment of an end goes. Neither: it is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// To the relay's socket of this connection, as rewritten.
    pub relay: Option<Header>,
    /// To the other end, translated.
    pub forward: Option<Header>,
    /// Back to the end it came from: a RST.
    pub reply: Option<Header>,
}

impl Pair {
    /// A segment that end `e` sent arrives.
    pub fn from_end(&mut self, e: usize, header: &Header) -> Verdict {
        if header.rst {
            return self.reset_from_end(e, header);
        }
        let is_old = before(header.end(), self.lowest(e));
        let is_foreign = self.is_beyond(e, header) || !self.is_ack_valid(e, header);
        // No receiver would read more of it, and so it shows nothing about the flow.
        if !is_old && !is_foreign {
            self.observe_end(e, header);
        }
        match self.phase {
            Phase::Relaying | Phase::Clamping => relay_only(*header),
            Phase::Overlap | Phase::Direct if is_foreign => Verdict::default(),
            // P answers it, for example a keep-alive.
            Phase::Overlap if is_old => relay_only(self.relay_copy(e, header)),
            Phase::Overlap => Verdict {
                relay: Some(self.relay_copy(e, header)),
                forward: self.forward_in_overlap(e, header),
                reply: None,
            },
            Phase::Direct => Verdict {
                forward: Some(self.forward_all(e, header)),
                ..Verdict::default()
            },
            Phase::Dead => Verdict {
                reply: Some(reset_for(header)),
                ..Verdict::default()
            },
        }
    }

    /// The relay's socket towards end `e` sends a segment. Nothing: it is dropped.
    pub fn from_relay(&mut self, e: usize, header: &Header) -> Option<Header> {
        match self.phase {
            Phase::Relaying | Phase::Clamping => {
                self.observe_relay(e, header);
                Some(*header)
            }
            // Ends of connections belong to the pair: a FIN here would cut the stream at the cut.
            Phase::Overlap if header.fin || header.rst => None,
            Phase::Overlap => {
                self.observe_relay(e, header);
                Some(self.relay_segment(e, header))
            }
            Phase::Direct | Phase::Dead => None,
        }
    }

    /// A keep-alive for end `e` of a dead pair. Its answer has the only number with which the end
    /// accepts a RST (RFC 5961, section 3); P may have missed the last ACK, so it cannot choose one.
    pub fn probe(&mut self, e: usize) -> Header {
        let data = &self.directions[1 - e];
        let last = data.end_ack.wrapping_sub(1).wrapping_add(data.delta);
        let segment = self.relay_segment(e, &Header::default());
        Header {
            seq: last,
            ..segment
        }
    }

    fn reset_from_end(&mut self, e: usize, header: &Header) -> Verdict {
        // A RST that P and Y would both refuse is none.
        if before(header.seq, self.lowest(e)) || self.is_beyond(e, header) {
            return Verdict::default();
        }
        match self.phase {
            Phase::Relaying | Phase::Clamping => {
                self.reset = true;
                relay_only(*header)
            }
            // An end that is closed for good answers retransmissions of P with RST.
            _ if self.is_finished() => Verdict::default(),
            Phase::Overlap | Phase::Direct => {
                self.reset |= self.is_expected(e, header.seq);
                Verdict {
                    forward: Some(self.forward_all(e, header)),
                    ..Verdict::default()
                }
            }
            Phase::Dead => Verdict::default(),
        }
    }

    /// Up to here both P and Y have the bytes of end `e`.
    fn lowest(&self, e: usize) -> u32 {
        let data = &self.directions[e];
        earlier(data.relay_ack, data.end_ack)
    }

    /// Whether a segment begins beyond the window of end `e`. A FIN may be behind its last byte, and
    /// an ACK behind that.
    fn is_beyond(&self, e: usize, header: &Header) -> bool {
        before(self.directions[e].promised.wrapping_add(1), header.seq)
    }

    /// Whether end `e` acknowledges what it was sent, and no less than a delayed segment may
    /// (RFC 5961, section 5). Its receiver could not check that: it reads the pair's numbers.
    fn is_ack_valid(&self, e: usize, header: &Header) -> bool {
        let acked = &self.directions[1 - e];
        let ack = header.ack.wrapping_sub(acked.delta);
        let most = later(acked.seen, acked.relay_sent);
        let window = 0xffff << self.directions[e].end_shift;
        !before(most, ack) && !before(ack, acked.end_ack.wrapping_sub(window))
    }

    /// Whether a RST has a number that an end which aborts uses, or one with which it answers an
    /// ACK. Any other in the window may be a guess: its receiver challenges the end (RFC 5961,
    /// section 3), which if it has aborted answers with such a number.
    fn is_expected(&self, e: usize, seq: u32) -> bool {
        let data = &self.directions[e];
        [data.seen, data.relay_ack, data.end_ack].contains(&seq)
    }

    fn observe_end(&mut self, e: usize, header: &Header) {
        let data = &mut self.directions[e];
        // The number of a pure ACK may be past a FIN that was lost: a cut there would make the FIN P's.
        if header.end() != header.seq {
            data.seen = later(data.seen, header.end());
        }
        if header.fin {
            data.has_fin = true;
            data.fin = header.end().wrapping_sub(1);
        }
        let window = u32::from(header.window) << data.end_shift;
        let acked = &mut self.directions[1 - e];
        let ack = header.ack.wrapping_sub(acked.delta);
        acked.end_ack = later(acked.end_ack, ack);
        acked.edge = later(acked.edge, ack.wrapping_add(window));
        if self.phase == Phase::Direct {
            // A cut left 2 GiB behind would seem to be ahead.
            acked.cut = later(acked.cut, acked.end_ack.wrapping_sub(1 << 30));
            let data = &mut self.directions[e];
            data.cut = later(data.cut, data.end_ack.wrapping_sub(1 << 30));
        }
    }

    fn observe_relay(&mut self, e: usize, header: &Header) {
        let sent = &mut self.directions[1 - e];
        let end = header.end().wrapping_sub(sent.delta);
        sent.relay_sent = later(sent.relay_sent, end);
        let acked = &mut self.directions[e];
        acked.relay_ack = later(acked.relay_ack, header.ack);
        if self.phase != Phase::Overlap {
            let window = u32::from(header.window) << acked.relay_shift;
            acked.promised = later(acked.promised, header.ack.wrapping_add(window));
        }
    }

    /// P's copy: its payload ends at the cut, and it acknowledges only what P has sent.
    fn relay_copy(&self, e: usize, header: &Header) -> Header {
        let cut = self.directions[e].cut;
        let sent = self.relay_sent_to(e);
        let mut copy = *header;
        // Beyond P's frozen receive window the ACK would be dropped with the segment.
        copy.seq = earlier(header.seq, cut);
        copy.len = earlier(header.seq.wrapping_add(header.len), cut).wrapping_sub(copy.seq);
        copy.fin = false;
        copy.ack = earlier(header.ack, sent);
        copy.sack = header.sack.map(|block| below(block, sent));
        let shift = self.directions[e].end_shift;
        let edge = header.ack.wrapping_add(u32::from(header.window) << shift);
        copy.window = window(edge, copy.ack, shift);
        copy
    }

    fn relay_sent_to(&self, e: usize) -> u32 {
        let sent = &self.directions[1 - e];
        sent.relay_sent.wrapping_add(sent.delta)
    }

    /// The direct part. A segment below the cut is P's alone; its ACK goes on without payload.
    fn forward_in_overlap(&mut self, e: usize, header: &Header) -> Option<Header> {
        let mut direct = *header;
        let cut = self.directions[e].cut;
        if !before(cut, header.end()) {
            direct.seq = cut;
            direct.len = 0;
        }
        if direct.len == 0 && !direct.fin && !self.is_news(e, header) {
            return None;
        }
        let mut direct = self.translate(e, &direct);
        self.acknowledge(1 - e, &header.sack, &mut direct);
        Some(direct)
    }

    /// Whether an ACK of end `e` has something for the sender of the data above the cut.
    fn is_news(&self, e: usize, header: &Header) -> bool {
        let acked = &self.directions[1 - e];
        let has_block = |&block: &Block| !is_empty(above(self.own(1 - e, block), acked.cut));
        acked.is_drained()
            || before(acked.promised, acked.edge)
            || header.sack.iter().any(has_block)
    }

    fn forward_all(&mut self, e: usize, header: &Header) -> Header {
        let mut direct = self.translate(e, header);
        if !header.rst && !self.reset {
            self.acknowledge(1 - e, &header.sack, &mut direct);
        }
        direct
    }

    fn relay_segment(&mut self, e: usize, header: &Header) -> Header {
        let mut segment = *header;
        let data = &self.directions[1 - e];
        let is_probe = before(header.seq, self.relay_sent_to(e));
        if header.len == 0 && !is_probe {
            // The end drops an ACK whose number is below what it received directly, or beyond its
            // window, as that behind a FIN may be, or whose TSval is older.
            let number = earlier(data.seen, data.edge).wrapping_add(data.delta);
            segment.seq = later(header.seq, number);
            segment.ts_val = header.ts_val.wrapping_add(TS_SLACK);
        }
        let acked = &self.directions[e];
        if acked.is_drained() {
            segment.ack = acked.end_ack;
            segment.sack = [Block::default(); 3];
        } else {
            segment.ack = acked.relay_ack;
        }
        self.promise(e, &mut segment);
        segment
    }

    /// Writes what X, the sender of direction `d`, is to read about its bytes; `sack` are Y's blocks.
    fn acknowledge(&mut self, d: usize, sack: &[Block; 3], segment: &mut Header) {
        let acked = self.directions[d];
        let own = sack.map(|block| self.own(d, block));
        segment.ack = acked.end_ack;
        segment.sack = own.map(|block| above(block, acked.cut));
        if !acked.is_drained() {
            segment.ack = acked.relay_ack;
        }
        self.promise(d, segment);
    }

    /// The window that X reads: up to Y's edge, whichever of P and Y acknowledges.
    fn promise(&mut self, d: usize, segment: &mut Header) {
        let acked = &mut self.directions[d];
        segment.window = window(acked.edge, segment.ack, acked.relay_shift);
        let edge = u32::from(segment.window) << acked.relay_shift;
        acked.promised = later(acked.promised, segment.ack.wrapping_add(edge));
    }

    /// A block of Y in the numbering of X, the sender of direction `d`.
    fn own(&self, d: usize, block: Block) -> Block {
        let delta = self.directions[d].delta;
        (block.0.wrapping_sub(delta), block.1.wrapping_sub(delta))
    }

    fn translate(&self, e: usize, header: &Header) -> Header {
        let (data, acked) = (&self.directions[e], &self.directions[1 - e]);
        let ecr = header.ts_ecr.wrapping_sub(acked.ts_delta);
        Header {
            seq: header.seq.wrapping_add(data.delta),
            ack: header.ack.wrapping_sub(acked.delta),
            ts_val: header.ts_val.wrapping_add(data.ts_delta),
            ts_ecr: if header.ts_ecr == 0 { 0 } else { ecr },
            ..*header
        }
    }
}

fn relay_only(header: Header) -> Verdict {
    Verdict {
        relay: Some(header),
        ..Verdict::default()
    }
}

/// The answer of a host without a socket (RFC 9293, section 3.10.7.1).
fn reset_for(header: &Header) -> Header {
    Header {
        seq: header.ack,
        rst: true,
        ..Header::default()
    }
}

fn is_empty(block: Block) -> bool {
    block.0 == block.1
}

/// The part of a block that P has sent: Linux refuses a whole block that ends beyond `snd_nxt`.
fn below(block: Block, sent: u32) -> Block {
    if before(block.0, sent) {
        (block.0, earlier(block.1, sent))
    } else {
        Block::default()
    }
}

/// The part of a block after the byte at the cut. That byte stays out: P's ACK reaches the cut
/// before Y's does, and an ACK that points at a selectively acknowledged byte is reneging.
fn above(block: Block, cut: u32) -> Block {
    let first = later(block.0, cut.wrapping_add(1));
    if before(first, block.1) && before(block.0, block.1) {
        (first, block.1)
    } else {
        Block::default()
    }
}

fn window(edge: u32, ack: u32, shift: u8) -> u16 {
    let bytes = if before(ack, edge) {
        edge.wrapping_sub(ack)
    } else {
        0
    };
    u16::try_from(bytes >> shift).unwrap_or(u16::MAX)
}
