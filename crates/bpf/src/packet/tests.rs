// SPDX-License-Identifier: Apache-2.0
//! The programs of the packet path on maps of their own, and their translation of random segments
//! against a plain one.

use std::os::fd::AsFd;
use std::sync::Arc;

use posthaste_testkit::Rng;

use crate::layout::{bytes, nanoseconds};
use crate::object::{Map, Program};
use crate::objects::packet_path::{self, map};
use crate::objects::types;
use crate::sys;

use super::{CONTEXT_WORDS, Patience, program};

mod ends;
mod numbers;
mod reference;
mod shapes;

use reference::{Segment, Shift};

/// `PACKET_OPEN`
const OPEN: u32 = 4;
/// `OFFERS_WINDOW_SCALE`
const WINDOW_SCALE: u8 = 1;
/// `TC_ACT_UNSPEC`
const NEXT: u32 = u32::MAX;
/// The loopback device, where the kernel runs a program unless it is given another one.
const IFINDEX: u32 = 1;
/// `PACKET_RESET`
const RESET: u32 = 4;
/// `PACKET_PROBED_CLIENT | PACKET_PROBED_SERVER`
const PROBED: u32 = 24;
/// As in the programs.
const GAP_MAX: u32 = 1 << 18;
const SPAN: u32 = 1 << 20;
const CASES: usize = 20_000;
/// The word of `struct __sk_buff`, and the marks: all settings are 1.
const MARK: usize = 2;
const NODE_MARKS: u32 = 1;

/// Maps of a packet path with so many flows.
pub(super) fn maps(flows: u32) -> Vec<Arc<Map>> {
    let object = &packet_path::OBJECT;
    let make = |number: usize| {
        let is_table = number == map::PACKET_FLOWS;
        // Some of the redirect program have their sizes from its settings.
        let is_open = object.maps[number].entries == 0;
        object.make(
            number,
            is_table.then_some(flows).or_else(|| is_open.then_some(64)),
        )
    };
    let maps: Result<Vec<_>, _> = (0..object.maps.len()).map(make).collect();
    let maps = maps.unwrap();
    let patience = types::packet_patience {
        idle_ns: nanoseconds(Patience::default().idle),
        half_open_ns: nanoseconds(Patience::default().half_open),
    };
    maps[map::PACKET_PATIENCE]
        .update(&[0; 4], bytes(&patience))
        .unwrap();
    maps
}

/// A program on such maps.
pub(super) fn load(number: usize, maps: &[Arc<Map>]) -> Program {
    let object = &packet_path::OBJECT;
    let types = object.load_types().unwrap();
    object.load(number, &types, maps, &[1; 16]).unwrap()
}

/// Both directions of a packet path, on the loopback device.
struct Programs {
    maps: Vec<Arc<Map>>,
    programs: [Program; 2],
}

impl Programs {
    fn load() -> Self {
        let maps = maps(1024);
        let device = types::device {
            l2_bytes: 14,
            ..types::device::default()
        };
        let described = maps[map::DEVICES].update(&IFINDEX.to_ne_bytes(), bytes(&device));
        described.unwrap();
        // Behind the counters of `struct packet_control`: every port has been a client's.
        let mut control = [0; 16 + 8192];
        control[16..].fill(0xff);
        maps[map::PACKET_CONTROL].update(&[0; 4], &control).unwrap();
        let programs = [program::PACKET_IN, program::PACKET_OUT].map(|number| load(number, &maps));
        Self { maps, programs }
    }

    /// What becomes of a frame of the client (`out` is 0) or of the server, and the verdict.
    fn run(&self, out: usize, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut after = vec![0; frame.len()];
        let program = self.programs[out].as_fd();
        let mut context = [0; 256];
        let run = sys::run_frame(
            program,
            frame,
            &[0; CONTEXT_WORDS],
            &mut after,
            &mut context,
        );
        (run.unwrap().0, after)
    }

    fn flow(&self, key: &types::packet_key) -> types::packet_flow {
        let mut value = vec![0; size_of::<types::packet_flow>()];
        assert!(
            self.maps[map::PACKET_FLOWS]
                .look_up(bytes(key), &mut value)
                .unwrap()
        );
        crate::layout::whole(&value).unwrap()
    }
}

/// A number that is often at an edge: sequence numbers wrap, and their order changes at half.
fn number(rng: &mut Rng) -> u32 {
    let near = rng.below(8_u32).wrapping_sub(4);
    match rng.below(4) {
        0 => near,
        1 => near.wrapping_add(1 << 31),
        _ => u32::try_from(rng.next() >> 32).unwrap(),
    }
}

fn octet(rng: &mut Rng) -> u8 {
    rng.below(256_u32).try_into().unwrap()
}

/// Options as senders arrange them, and as none should: repeated, unknown, cut off, too short.
fn options(rng: &mut Rng) -> Vec<u8> {
    let mut options = Vec::new();
    match rng.below(6_usize) {
        0 => return options,
        // As RFC 7323 appendix A recommends, and without the padding before.
        padded @ 1..=2 => {
            options.resize(4 - 2 * padded, 1);
            timestamps(rng, &mut options);
        }
        _ => {
            for _ in 0..rng.below(7) {
                push_option(rng, &mut options);
            }
        }
    }
    options.truncate(40);
    while !options.len().is_multiple_of(4) {
        options.push(if rng.once_in(2) { 0 } else { 1 });
    }
    options
}

fn timestamps(rng: &mut Rng, to: &mut Vec<u8>) {
    to.extend([8, 10]);
    to.extend(number(rng).to_be_bytes());
    let echo = if rng.once_in(4) { 0 } else { number(rng) };
    to.extend(echo.to_be_bytes());
}

fn push_option(rng: &mut Rng, to: &mut Vec<u8>) {
    match rng.below(12) {
        0..=2 => to.push(1),
        3 => to.extend([1, 1]),
        4 | 5 => timestamps(rng, to),
        6..=8 => {
            let edges = 2 * (1 + rng.below(4_usize));
            to.extend([5, u8::try_from(2 + 4 * edges).unwrap()]);
            to.extend((0..edges).flat_map(|_| number(rng).to_be_bytes()));
        }
        9 => {
            // Unknown, or one of a SYN.
            let length = 2 + rng.below(7_usize);
            let kind = [2, 3, 4, 8, 19, 30, 34, 253][rng.below(8_usize)];
            to.extend([kind, u8::try_from(length).unwrap()]);
            to.extend((2..length).map(|_| octet(rng)));
        }
        // Any length, also less than two, or more than there is.
        10 => to.extend([octet(rng), octet(rng)]),
        _ => to.push(0),
    }
}

/// A segment of either end of a flow of the family.
fn segment(rng: &mut Rng, ipv6: bool) -> Segment {
    let words = if ipv6 { 4 } else { 1 };
    let mut address = || (0..4 * words).map(|_| octet(rng)).collect::<Vec<u8>>();
    // Not v4-mapped.
    let (mut source, mut destination) = (address(), address());
    source[0] |= 0x20;
    destination[0] |= 0x20;
    let ports = [rng.below(65_536_u32), rng.below(65_536_u32)];
    Segment {
        source,
        destination,
        ports: ports.map(|port| u16::try_from(port).unwrap()),
        seq: number(rng),
        ack: number(rng),
        // No SYN, which has paths of its own.
        flags: octet(rng) & !2,
        window: [0, 1, 0xffff, u16::from(octet(rng)) << 8 | 7][rng.below(4_usize)],
        urgent: u16::from(octet(rng)),
        options: options(rng),
        payload: {
            let length = [0, 0, 1, 3, 536, 1448][rng.below(6_usize)];
            (0..length).map(|_| octet(rng)).collect()
        },
        corrupted: rng.once_in(8),
    }
}

fn way(rng: &mut Rng) -> types::packet_way {
    types::packet_way {
        acked: number(rng),
        next: number(rng),
        edge: number(rng),
        ..types::packet_way::default()
    }
}

/// An open flow, whose client is the segment's source or its destination.
fn flow(rng: &mut Rng, turned: bool) -> types::packet_flow {
    let shift = |rng: &mut Rng| rng.below(15_u32).try_into().unwrap();
    // A relay had other numbers on both sides.
    let was_relayed = rng.once_in(3);
    let of_relay = |number: u32| if was_relayed { number } else { 0 };
    types::packet_flow {
        was_relayed: was_relayed.into(),
        client_seq_delta: of_relay(number(rng)),
        client_ts_delta: of_relay(number(rng)),
        node_shift: if was_relayed { shift(rng) } else { 0 },
        state: OPEN,
        ifindex: IFINDEX,
        seq_delta: number(rng),
        ts_delta: number(rng),
        client_isn: number(rng),
        node_isn: number(rng),
        up: way(rng),
        down: way(rng),
        out_ifindex: IFINDEX,
        granted: [0, WINDOW_SCALE][rng.below(2_usize)],
        client_shift: shift(rng),
        server_shift: shift(rng),
        promised_shift: shift(rng),
        turned: turned.into(),
        is_long: 1,
        ..types::packet_flow::default()
    }
}

/// What the packet path has to change in a direction.
fn shift(flow: &types::packet_flow, out: bool) -> Shift {
    let scales = flow.granted & WINDOW_SCALE != 0;
    if out {
        Shift {
            seq: flow.seq_delta,
            ack: flow.client_seq_delta.wrapping_neg(),
            ts_value: flow.ts_delta,
            ts_echo: flow.client_ts_delta.wrapping_neg(),
            widen: if scales { flow.server_shift } else { 0 },
            narrow: flow.promised_shift,
        }
    } else {
        Shift {
            seq: flow.client_seq_delta,
            ack: flow.seq_delta.wrapping_neg(),
            ts_value: flow.client_ts_delta,
            ts_echo: flow.ts_delta.wrapping_neg(),
            widen: if scales && flow.was_relayed == 0 {
                0
            } else {
                flow.client_shift
            },
            narrow: flow.node_shift,
        }
    }
}

/// Both programs change of random segments what the plain translation changes, and nothing else: also
/// with numbers near their wrap, in any layout of options, whole or malformed. A segment that arrives
/// with a wrong checksum leaves with a wrong one.
#[test]
fn random_segments_are_translated_as_by_the_reference() {
    let programs = Programs::load();
    let mut rng = Rng::new(7);
    for case in 0..CASES {
        let (ipv6, out) = (rng.once_in(2), rng.once_in(2));
        let segment = segment(&mut rng, ipv6);
        let (key, source_is_second) = segment.key();
        let mut entry = flow(&mut rng, source_is_second != out);
        if rng.once_in(2) {
            // What is in flight is near, and what the segment acknowledges.
            let mut near = || {
                let away = rng.below(1_u32 << 28) >> rng.below(29_u32);
                if rng.once_in(2) {
                    away
                } else {
                    away.wrapping_neg()
                }
            };
            let seq = segment.seq.wrapping_add(shift(&entry, out).seq);
            let sent = [seq, seq, seq, segment.ack, segment.ack, segment.ack]
                .map(|number| number.wrapping_add(near()));
            let types::packet_flow { up, down, .. } = &mut entry;
            let [way, back] = if out { [down, up] } else { [up, down] };
            let of_way = [&mut way.acked, &mut way.next, &mut way.edge];
            let of_back = [&mut back.acked, &mut back.next, &mut back.edge];
            let numbers = of_way.into_iter().chain(of_back);
            for (number, sent) in numbers.zip(sent) {
                *number = sent;
            }
        }
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&entry)).unwrap();
        let (verdict, frame) = programs.run(out.into(), &segment.frame());
        assert_eq!(verdict, NEXT, "{case}: {segment:?}");
        let expected = segment.translated(&shift(&entry, out));
        assert_eq!(frame, expected.frame(), "{case}: {segment:?}, {entry:?}");
        assert_counted(&programs.flow(&key), &entry, &segment, out);
        flows.delete(bytes(&key)).unwrap();
    }
}

/// A segment that was translated for a hand-over has the node's marks: the flow that its pair has become
/// meanwhile does not translate it once more.
#[test]
fn marked_segments_are_translated() {
    let programs = Programs::load();
    let mut rng = Rng::new(5);
    let segment = segment(&mut rng, false);
    let (key, source_is_second) = segment.key();
    let entry = flow(&mut rng, !source_is_second);
    let flows = &programs.maps[map::PACKET_FLOWS];
    flows.update(bytes(&key), bytes(&entry)).unwrap();
    let mut context = [0; CONTEXT_WORDS];
    context[MARK] = NODE_MARKS;
    let (frame, mut after) = (segment.frame(), vec![0; segment.frame().len()]);
    let mut context_after = [0; 256];
    let program = programs.programs[1].as_fd();
    let run = sys::run_frame(program, &frame, &context, &mut after, &mut context_after);
    assert_eq!((run.unwrap().0, after), (NEXT, frame));
    assert_eq!(context_after.as_chunks::<4>().0[MARK], [0; 4]);
}

/// An ICMP error quotes a segment of the client as the server's connection has it. The client of a
/// flow that was relayed gets the number that it sent; else the two are the same.
#[test]
fn errors_quote_the_clients_numbers() {
    let programs = Programs::load();
    let mut rng = Rng::new(11);
    for case in 0..CASES / 10 {
        let ipv6 = rng.once_in(2);
        let mut segment = segment(&mut rng, ipv6);
        segment.corrupted = false;
        segment.payload.truncate(536);
        let (key, source_is_second) = segment.key();
        let entry = flow(&mut rng, source_is_second);
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&entry)).unwrap();
        let (verdict, frame) = programs.run(1, &segment.too_big());
        assert_eq!(verdict, NEXT, "{case}: {segment:?}");
        let back = Shift {
            seq: entry.client_seq_delta.wrapping_neg(),
            ..Shift::default()
        };
        let expected = segment.translated(&back);
        assert_eq!(frame, expected.too_big(), "{case}: {segment:?}, {entry:?}");
        flows.delete(bytes(&key)).unwrap();
    }
}

/// What a flow knows of what one end sends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Direction {
    acked: u32,
    next: u32,
    edge: u32,
    fin: u32,
}

impl Direction {
    fn of(way: &types::packet_way) -> Self {
        let &types::packet_way {
            acked,
            next,
            edge,
            fin,
            ..
        } = way;
        Self {
            acked,
            next,
            edge,
            fin,
        }
    }

    /// Whether a number is at most as far as what was sent, and not long before what was acknowledged.
    fn has_sent(&self, number: u32) -> bool {
        let from = self.acked.wrapping_sub(SPAN);
        number.wrapping_sub(from) <= self.next.wrapping_sub(from)
    }

    /// What a reset does to the flow: only its receiver knows whether it believes one in what is in flight.
    fn after_reset(&self, seq: u32) -> u32 {
        if seq == self.acked || seq == self.next {
            RESET
        } else if seq.wrapping_sub(self.acked) < self.next.wrapping_sub(self.acked) {
            PROBED
        } else {
            0
        }
    }

    /// Whether bytes before `end` fit into the window.
    fn admits(&self, end: u32) -> bool {
        let window = self.edge.wrapping_sub(self.acked);
        end.wrapping_sub(self.acked) <= window.wrapping_add(GAP_MAX)
    }

    /// After its receiver has acknowledged `ack` and granted a window.
    fn acknowledged(self, ack: u32, window: u32) -> Self {
        Self {
            acked: ack,
            edge: later(self.edge, ack.wrapping_add(window)),
            ..self
        }
    }
}

/// The later of two numbers.
fn later(one: u32, other: u32) -> u32 {
    if other.wrapping_sub(one).cast_signed() > 0 {
        other
    } else {
        one
    }
}

/// What the other end has acknowledged is counted, and ends are noted, if the numbers fit what is in
/// flight.
fn assert_counted(
    after: &types::packet_flow,
    before: &types::packet_flow,
    segment: &Segment,
    out: bool,
) {
    let client = |flow: &types::packet_flow| Direction::of(&flow.up);
    let server = |flow: &types::packet_flow| Direction::of(&flow.down);
    // The sender's own direction, and the one that it acknowledges.
    let (sent, other, wraps, window_shift, end) = if out {
        (
            [server(before), server(after)],
            [client(before), client(after)],
            [before.client_isn, after.up.wraps],
            shift(before, out).widen,
            2,
        )
    } else {
        (
            [client(before), client(after)],
            [server(before), server(after)],
            [before.node_isn, after.down.wraps],
            before.client_shift,
            1,
        )
    };
    let [fin, reset, acknowledges] = [1, 4, 16].map(|flag| segment.flags & flag != 0);
    // A reset has no other contents, and who sees the flow acknowledges what its other end has sent.
    let is_noted = acknowledges && !reset && other[0].has_sent(segment.ack);
    let is_later = segment.ack.wrapping_sub(other[0].acked).cast_signed() >= 0;
    let expected = if is_noted && is_later {
        other[0].acknowledged(segment.ack, u32::from(segment.window) << window_shift)
    } else {
        other[0]
    };
    assert_eq!(other[1], expected, "{segment:?}");
    let [isn, wraps] = wraps;
    let from_first = |number: u32| number.wrapping_sub(isn).wrapping_sub(1);
    let wrapped = from_first(expected.acked) < from_first(other[0].acked);
    assert_eq!(wraps, u32::from(wrapped), "{segment:?}");

    let seq = segment.seq.wrapping_add(shift(before, out).seq);
    let length = u32::try_from(segment.payload.len()).unwrap() + u32::from(fin);
    let behind = seq.wrapping_add(length);
    let mut expected = sent[0];
    let is_noted = is_noted && length > 0 && expected.admits(behind);
    if is_noted {
        expected.next = later(expected.next, behind);
    }
    if is_noted && fin {
        expected.fin = behind;
    }
    assert_eq!(sent[1], expected, "{segment:?}");
    let expected = if reset {
        sent[0].after_reset(seq)
    } else if is_noted && fin {
        end
    } else {
        0
    };
    assert_eq!(after.ended, expected, "{segment:?}");
}
