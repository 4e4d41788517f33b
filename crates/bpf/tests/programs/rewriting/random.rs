// SPDX-License-Identifier: Apache-2.0
//! Random segments of clients and servers.

use super::Test;
use super::options::{Offer, Opt};
use super::ports::Offload;
use super::reference::Flow;
use crate::host::client_at;
use crate::segment::{ACK, FIN, SYN, Segment};

const PSH: u8 = 0x08;
const ECN: u8 = 0xc0;

impl Test<'_> {
    pub(super) fn number(&mut self) -> u32 {
        let near = self.rng.below(8_u32).wrapping_sub(4);
        match self.rng.below(4) {
            0 => near,
            1 => near.wrapping_add(1 << 31),
            _ => self.rng.below(u32::MAX),
        }
    }

    fn mss(&mut self) -> Opt {
        let mss = [
            88,
            536,
            1220,
            1440,
            1460,
            8960,
            9000,
            88 + self.rng.below(8912_u16),
        ];
        Opt::Mss(self.rng.pick(&mss))
    }

    /// Options in any order, with any padding, as far as they fit into a header.
    pub(super) fn layout(&mut self, options: &[Opt]) -> Vec<u8> {
        let mut octets = Vec::new();
        for number in self.rng.permutation(options.len()) {
            let padding = self.rng.pick(&[0, 0, 0, 1, 2, 3]);
            let option = options[number].bytes();
            if octets.len() + padding + option.len() <= 40 {
                octets.extend(vec![1; padding]);
                octets.extend(option);
            }
        }
        let end = octets.len().next_multiple_of(4);
        if self.rng.once_in(2) {
            octets.resize(end, 1);
        } else if octets.len() < end {
            // What follows the end of the list is padding of any content (RFC 9293 section 3.2).
            octets.push(0);
            let rest = end - octets.len();
            octets.extend(self.rng.bytes(rest));
        }
        octets
    }

    /// A SYN as clients send it, and at times as none should.
    pub(super) fn syn(&mut self, port: u16) -> Segment {
        let mut options = Vec::new();
        if !self.rng.once_in(20) {
            options.push(self.mss());
        }
        if self.rng.once_in(2) {
            options.push(Opt::Shift(self.rng.below(18_u8)));
        }
        if self.rng.once_in(2) {
            options.push(Opt::SackPermitted);
        }
        if self.rng.once_in(2) {
            options.push(Opt::Times(self.number(), 0));
        }
        if self.rng.once_in(12) {
            let others = [
                self.mss(),
                Opt::Shift(self.rng.below(15_u8)),
                Opt::SackPermitted,
                Opt::Times(self.number(), 0),
                Opt::Blocks(vec![self.number(), self.number()]),
                Opt::Other(34, self.rng.bytes(8)),
                Opt::Other(254, vec![]),
                Opt::Other(2, vec![5]),
                Opt::Other(8, vec![0; 4]),
            ];
            options.push(others[self.rng.below(others.len())].clone());
        }
        let mut octets = self.layout(&options);
        if octets.len() < 40 && self.rng.once_in(30) {
            // Cut off: an option longer than the header, or shorter than itself.
            octets.extend(self.rng.pick(&[
                [8, 10, 0, 0],
                [3, 0, 7, 0],
                [1, 1, 2, 1],
                [1, 1, 1, 2],
            ]));
        }
        let flags = SYN | if self.rng.once_in(4) { ECN } else { 0 };
        Segment {
            sequence: self.number(),
            window: self.rng.pick(&[0xffff, 64_240, 1024, 1]),
            hops: self.rng.pick(&[64, 128, 255, 32, 31, 2]),
            options: octets,
            data: if self.rng.once_in(30) {
                vec![7; 9]
            } else {
                vec![]
            },
            ..Segment::new(client_at(self.family, port), self.server, flags)
        }
    }

    /// A server's answer to the SYN that it got.
    pub(super) fn syn_ack(&mut self, syn: &Segment) -> Segment {
        // Of what this test parses: others get an answer without options.
        let offer = Offer::of(syn).unwrap_or_default();
        let mut options = Vec::new();
        if !self.rng.once_in(10) {
            options.push(self.mss());
        }
        // Most servers grant everything.
        if offer.shift.is_some() && !self.rng.once_in(5) {
            options.push(Opt::Shift(self.rng.below(15_u8)));
        }
        if offer.sack && !self.rng.once_in(12) {
            options.push(Opt::SackPermitted);
        }
        if let Some((value, _)) = offer.times
            && !self.rng.once_in(12)
        {
            options.push(Opt::Times(self.number(), value));
        }
        Segment {
            sequence: self.number(),
            acknowledgment: syn.sequence.wrapping_add(1),
            window: self.rng.pick(&[0xffff, 65_160, 28_960, 1000, 1]),
            options: self.layout(&options),
            ..Segment::new(syn.to, syn.from, SYN | ACK)
        }
    }

    pub(super) fn offload(&mut self) -> Offload {
        self.rng.pick(&[Offload::None, Offload::Checksum])
    }

    /// A segment of the client, in the node's numbers.
    pub(super) fn client_segment(&mut self, flow: &Flow, sequence: u32, length: usize) -> Segment {
        let mut options = Vec::new();
        if flow.promise.times {
            let ahead = self.rng.below(5000_u32);
            options.push(Opt::Times(
                flow.offer.times.unwrap().0.wrapping_add(ahead),
                flow.time,
            ));
        }
        Segment {
            sequence,
            acknowledgment: flow.isn.wrapping_add(1),
            window: self.rng.pick(&[0xffff, 502, 1, 0]),
            hops: 64,
            options: self.layout(&options),
            data: self.rng.bytes(length),
            ..Segment::new(flow.syn.from, flow.syn.to, ACK | self.rng.pick(&[0, PSH]))
        }
    }

    /// A segment of a connection that the server still has with the addresses and ports of the flow.
    pub(super) fn older_segment(&mut self, flow: &Flow) -> Segment {
        let (far, near) = (self.number(), self.rng.below(1 << 17));
        let distance = self.rng.pick(&[far, near]);
        // The next number would be one of this flow.
        let acknowledgment = flow
            .syn
            .sequence
            .wrapping_add(2 + distance % (u32::MAX - 1));
        Segment {
            sequence: self.number(),
            acknowledgment,
            window: self.rng.pick(&[0xffff, 502, 0]),
            // What guards a server tests its client by a SYN-ACK (RFC 9293 section 3.10.7.3).
            ..Segment::new(flow.syn.to, flow.syn.from, self.rng.pick(&[ACK, SYN | ACK]))
        }
    }

    pub(super) fn server_segment(&mut self, flow: &Flow) -> Segment {
        let mut options = Vec::new();
        if flow.is_stamped() {
            options.push(Opt::Times(self.number(), self.number()));
        }
        if flow.promise.sack && self.rng.once_in(2) {
            options.push(Opt::Blocks(vec![self.number(), self.number()]));
        }
        let length = self.rng.pick(&[0, 1, 700]);
        Segment {
            sequence: self.number(),
            acknowledgment: self.number(),
            window: self.rng.pick(&[0xffff, 502, 1, 0]),
            options: self.layout(&options),
            data: self.rng.bytes(length),
            ..Segment::new(
                flow.syn.to,
                flow.syn.from,
                ACK | self.rng.pick(&[0, PSH, FIN]),
            )
        }
    }
}
