// SPDX-License-Identifier: Apache-2.0
//! A TCP machine that behaves like Linux where a hand-over can break it.

use crate::header::{Block, Header, before, earlier, later};

pub(crate) const MSS: u32 = 100;
const RTO: u64 = 200;
const FLIGHT: u32 = 10 * MSS;

/// A segment, and the place in its sender's stream of the first byte, which stands for the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) header: Header,
    pub(crate) offset: u32,
    /// No machine sent it: what it breaks is no fault, except that of others.
    pub(crate) is_forged: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Tcp {
    pub(crate) open: bool,
    pub(crate) was_reset: bool,
    /// Payload whose place in the stream is wrong arrived.
    pub(crate) corrupt: bool,
    pub(crate) sack_discards: u32,
    pub(crate) reneged: u32,
    pub(crate) paws_drops: u32,
    pub(crate) beyond_window: u32,
    pub(crate) out: Vec<Packet>,
    first: u32,
    una: u32,
    pub(crate) nxt: u32,
    written: u32,
    closing: bool,
    peer_edge: u32,
    wl1: u32,
    sacked: Vec<Block>,
    duplicates: u32,
    backoff: u32,
    timer: Option<u64>,
    recovered: u64,
    peer_first: u32,
    rnxt: u32,
    held: Vec<Block>,
    read: u32,
    buffer: u32,
    pub(crate) clamp: u32,
    edge: u32,
    peer_fin: Option<u32>,
    clock: u32,
    recent: u32,
    ack_at: Option<u64>,
    dsack: Option<Block>,
    shift: u8,
    peer_shift: u8,
}

impl Tcp {
    /// A connection without data yet; `shifts` are the window shifts of this side and of its peer.
    pub(crate) fn new(
        first: u32,
        peer_first: u32,
        window: u32,
        clock: u32,
        shifts: (u8, u8),
    ) -> Self {
        Self {
            open: true,
            first,
            una: first,
            nxt: first,
            written: first,
            peer_edge: first.wrapping_add(window),
            wl1: peer_first,
            peer_first,
            rnxt: peer_first,
            buffer: window,
            shift: shifts.0,
            peer_shift: shifts.1,
            clamp: u32::MAX,
            edge: peer_first.wrapping_add(window),
            clock,
            ..Self::default()
        }
    }

    pub(crate) fn write(&mut self, bytes: u32) {
        self.written = self.written.wrapping_add(bytes);
    }

    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    pub(crate) fn unsent(&self) -> u32 {
        self.written.wrapping_sub(self.una)
    }

    pub(crate) fn abort(&mut self, now: u64) {
        if self.open {
            self.emit(now, self.nxt, 0, false, true);
        }
        self.open = false;
    }

    pub(crate) fn received(&self) -> u32 {
        let fin = self.peer_fin.filter(|_| self.has_eof());
        fin.unwrap_or(self.rnxt).wrapping_sub(self.peer_first)
    }

    pub(crate) fn readable(&self) -> u32 {
        self.received().wrapping_sub(self.read)
    }

    /// Reads up to `bytes`, and sends a window update where the window had been nearly closed.
    pub(crate) fn consume(&mut self, now: u64, bytes: u32) -> u32 {
        let bytes = bytes.min(self.readable());
        let left = self.edge.wrapping_sub(self.rnxt);
        self.read += bytes;
        if bytes > 0 && self.room() >= left + 2 * MSS && self.open {
            self.ack_at = Some(now);
        }
        bytes
    }

    pub(crate) fn has_eof(&self) -> bool {
        self.peer_fin.is_some_and(|fin| before(fin, self.rnxt))
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        self.closing && self.una == self.send_end()
    }

    pub(crate) fn ts(&self, now: u64) -> u32 {
        self.clock.wrapping_add(u32::try_from(now).expect("short"))
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.timer.into_iter().chain(self.ack_at).min()
    }

    fn send_end(&self) -> u32 {
        self.written.wrapping_add(u32::from(self.closing))
    }

    fn room(&self) -> u32 {
        let used = self.readable() + self.held.iter().map(|b| b.1.wrapping_sub(b.0)).sum::<u32>();
        self.buffer.saturating_sub(used).min(self.clamp)
    }

    fn emit(&mut self, now: u64, seq: u32, len: u32, fin: bool, rst: bool) {
        // As Linux does (`tcp_acceptable_seq`): a FIN may be past the window, and the number behind
        // it would be refused together with the ACK.
        let is_pure = len == 0 && !fin && !rst;
        let seq = if is_pure && seq == self.nxt {
            earlier(seq, self.peer_edge)
        } else {
            seq
        };
        let unit = (1u32 << self.shift) - 1;
        self.edge = later(self.edge, self.rnxt.wrapping_add(self.room() & !unit));
        let window = self.edge.wrapping_sub(self.rnxt) >> self.shift;
        let mut sack = [Block::default(); 3];
        let blocks = self
            .dsack
            .take()
            .into_iter()
            .chain(self.held.iter().rev().copied());
        for (slot, block) in sack.iter_mut().zip(blocks) {
            *slot = block;
        }
        let header = Header {
            seq,
            len,
            fin,
            rst,
            ack: self.rnxt,
            sack,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            ts_val: self.ts(now),
            ts_ecr: self.recent,
        };
        let offset = seq.wrapping_sub(self.first);
        self.send(header, offset);
        self.ack_at = None;
    }

    fn send(&mut self, header: Header, offset: u32) {
        self.out.push(Packet {
            header,
            offset,
            is_forged: false,
        });
    }

    pub(crate) fn receive(&mut self, now: u64, packet: &Packet) {
        let h = &packet.header;
        if !self.open {
            if !h.rst {
                let header = Header {
                    seq: h.ack,
                    rst: true,
                    ..Header::default()
                };
                self.send(header, 0);
            }
            return;
        }
        let has_data = h.len > 0 || h.fin;
        let is_duplicate = !has_data && h.ack == self.una;
        if !h.rst && self.recent != 0 && before(h.ts_val, self.recent) && !is_duplicate {
            // Reordering on a link makes PAWS drop segments too, but by less than half a second.
            let age = self.recent.wrapping_sub(h.ts_val);
            let is_new = before(self.rnxt, h.end()) && !packet.is_forged;
            self.paws_drops += u32::from(age > 500 && is_new);
            return self.emit(now, self.nxt, 0, false, false);
        }
        if before(h.end(), self.rnxt) || before(self.edge, h.seq) {
            let is_beyond = before(self.edge, h.seq) && !h.rst && !packet.is_forged;
            self.beyond_window += u32::from(is_beyond);
            return self.refuse(now, h);
        }
        if h.rst {
            return self.take_reset(now, packet);
        }
        // RFC 5961, section 5.
        let oldest = self.una.wrapping_sub(0xffff << self.peer_shift);
        if before(self.nxt, h.ack) || before(h.ack, oldest) {
            return self.emit(now, self.nxt, 0, false, false);
        }
        if !before(self.rnxt, h.seq) {
            self.recent = h.ts_val;
        }
        self.take_ack(now, h);
        if has_data {
            self.take_data(now, packet);
        }
    }

    fn refuse(&mut self, now: u64, h: &Header) {
        if !h.rst {
            if h.len > 0 && !before(self.rnxt, h.end()) {
                self.dsack = Some((h.seq, h.end()));
            }
            self.emit(now, self.nxt, 0, false, false);
        }
    }

    fn take_reset(&mut self, now: u64, packet: &Packet) {
        // A guess that is right would end any connection.
        if packet.header.seq == self.rnxt && !packet.is_forged {
            self.open = false;
            self.was_reset = !(self.is_acknowledged() && self.has_eof());
        } else {
            self.emit(now, self.nxt, 0, false, false);
        }
    }

    fn take_ack(&mut self, now: u64, h: &Header) {
        let is_new = before(self.una, h.ack);
        let edge = h.ack.wrapping_add(u32::from(h.window) << self.peer_shift);
        if !before(h.ack, self.una) && (is_new || !before(h.seq, self.wl1)) {
            self.peer_edge = later(self.peer_edge, edge);
            self.wl1 = h.seq;
        }
        let was = self.sacked.len();
        for &block in h.sack.iter().filter(|b| b.0 != b.1) {
            self.take_block(h.ack, block);
        }
        if is_new {
            self.una = h.ack;
            self.backoff = 0;
            self.duplicates = 0;
            self.timer = None;
            self.forget();
        } else if h.len == 0 && self.sacked.len() >= was && !self.sacked.is_empty() {
            self.duplicates += 1;
        }
        self.recover(now);
    }

    fn take_block(&mut self, ack: u32, block: Block) {
        if before(self.nxt, block.1) || !before(block.0, block.1) {
            self.sack_discards += 1;
        } else if !before(block.0, later(ack, self.una)) {
            insert(&mut self.sacked, block);
        }
    }

    fn forget(&mut self) {
        let una = self.una;
        self.sacked.retain(|block| before(una, block.1));
        if self
            .sacked
            .first()
            .is_some_and(|block| !before(una, block.0))
        {
            self.reneged += 1;
            self.sacked.clear();
        }
    }

    fn recover(&mut self, now: u64) {
        let Some(&(_, highest)) = self.sacked.last() else {
            return;
        };
        if now < self.recovered || highest.wrapping_sub(self.una) < 3 * MSS && self.duplicates < 3 {
            return;
        }
        self.recovered = now + 60;
        let mut seq = self.una;
        for (start, end) in self.sacked.clone() {
            if before(seq, start) {
                self.resend(now, seq, start);
            }
            seq = end;
        }
    }

    fn resend(&mut self, now: u64, seq: u32, limit: u32) {
        let end = earlier(self.written, limit);
        let len = end.wrapping_sub(seq).min(MSS);
        let len = if before(self.written, seq) { 0 } else { len };
        let next = seq.wrapping_add(len);
        let fin = self.closing && next == self.written && before(next, self.nxt);
        self.emit(now, seq, len, fin, false);
    }

    fn take_data(&mut self, now: u64, packet: &Packet) {
        let h = &packet.header;
        self.corrupt |= h.seq.wrapping_sub(self.peer_first) != packet.offset && h.len > 0;
        if h.fin {
            self.peer_fin.get_or_insert_with(|| h.end().wrapping_sub(1));
        }
        if !before(self.rnxt, h.end()) {
            self.dsack = Some((h.seq, h.end()));
            return self.emit(now, self.nxt, 0, false, false);
        }
        let end = if h.fin {
            h.end()
        } else {
            earlier(h.end(), self.edge)
        };
        if before(self.rnxt, h.seq) {
            if before(h.seq, end) {
                insert(&mut self.held, (h.seq, end));
            }
            return self.emit(now, self.nxt, 0, false, false);
        }
        let had_hole = !self.held.is_empty();
        self.rnxt = later(self.rnxt, end);
        while self.held.first().is_some_and(|b| !before(self.rnxt, b.0)) {
            self.rnxt = later(self.rnxt, self.held.remove(0).1);
        }
        if had_hole || h.fin || self.ack_at.is_some() {
            self.emit(now, self.nxt, 0, false, false);
        } else {
            self.ack_at = Some(now + 40);
        }
    }

    /// Sends what may be sent, and runs timers.
    pub(crate) fn poll(&mut self, now: u64) {
        if !self.open {
            return;
        }
        self.send_new(now);
        if self.ack_at.is_some_and(|at| at <= now) {
            self.emit(now, self.nxt, 0, false, false);
        }
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
            self.backoff += 1;
            if self.una == self.nxt {
                self.emit(now, self.una.wrapping_sub(1), 0, false, false);
            } else {
                let limit = self.sacked.first().map_or(self.nxt, |b| b.0);
                self.resend(now, self.una, limit);
            }
        }
        if self.timer.is_none() && self.una != self.send_end() {
            self.timer = Some(now + (RTO << self.backoff.min(4)));
        }
    }

    fn send_new(&mut self, now: u64) {
        while self.nxt != self.send_end() && self.nxt.wrapping_sub(self.una) < FLIGHT {
            let room = if before(self.nxt, self.peer_edge) {
                self.peer_edge.wrapping_sub(self.nxt)
            } else {
                0
            };
            let left = if before(self.nxt, self.written) {
                self.written.wrapping_sub(self.nxt)
            } else {
                0
            };
            let len = left.min(MSS).min(room);
            let fin = self.closing && len == left;
            if len == 0 && !fin {
                return;
            }
            let seq = self.nxt;
            self.nxt = seq.wrapping_add(len).wrapping_add(u32::from(fin));
            self.emit(now, seq, len, fin, false);
        }
    }
}

/// Adds a block to disjoint ones in order.
fn insert(blocks: &mut Vec<Block>, mut block: Block) {
    blocks.retain(|old| {
        let apart = before(old.1, block.0) || before(block.1, old.0);
        if !apart {
            block = (earlier(old.0, block.0), later(old.1, block.1));
        }
        apart
    });
    let at = blocks
        .iter()
        .take_while(|old| before(old.0, block.0))
        .count();
    blocks.insert(at, block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_counts_with_a_valid_ack_only() {
        let mut tcp = Tcp::new(1000, 5000, 6400, 0, (0, 0));
        let packet = |ack| Packet {
            header: Header {
                seq: 5000,
                len: MSS,
                ack,
                ..Header::default()
            },
            offset: 0,
            is_forged: false,
        };
        for ack in [1001, 1000_u32.wrapping_sub(0x10000)] {
            tcp.receive(0, &packet(ack));
            assert_eq!(tcp.received(), 0, "{ack}");
        }
        tcp.receive(0, &packet(1000));
        assert_eq!(tcp.received(), MSS);
    }
}
