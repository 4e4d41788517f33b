// SPDX-License-Identifier: Apache-2.0
//! Of a flow with an entry a segment leaves in the right numbers or not at all: in every state, whatever is
//! around it, wherever it comes.

use std::fmt;

use super::reference::Segment;
use super::shapes::{Shape, later};
use super::*;

/// `enum packet_state`
const LEARNING: u32 = 0;
const ANSWERED: u32 = 1;
const ACCEPTED: u32 = 2;
const HELD: u32 = 3;
const CLOSED: u32 = 6;
const ABORTED: u32 = 7;
const REMOVED: u32 = 8;
/// `TC_ACT_SHOT`, `TC_ACT_REDIRECT`: the segment itself does not leave.
const GONE: [u32; 2] = [2, 7];
/// An interface that is not the one where the programs run.
const ANOTHER: u32 = 7;
/// `OLDER_RESET`
const OLDER_RESET: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Where a segment comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the interface of its flow.
    There,
    /// At another one, to which its route was moved.
    Moved,
    /// At another one, behind a program that has translated it, as at a bridge behind its port.
    Behind,
}

/// A segment of a flow, and how it comes.
struct Case {
    entry: types::packet_flow,
    segment: Segment,
    shape: Shape,
    place: Place,
    out: bool,
    /// Behind the packet.
    padding: Vec<u8>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.out { "out" } else { "in" };
        let (state, shape, place) = (self.entry.state, &self.shape, self.place);
        write!(f, "{way} in state {state}, {shape:?} {place:?}, ")?;
        let (segment, entry) = (&self.segment, &self.entry);
        let (seq, ack, flags) = (segment.seq, segment.ack, segment.flags);
        write!(f, "seq {seq:x} ack {ack:x} flags {flags:x} of {entry:x?}")
    }
}

impl Case {
    fn random(rng: &mut Rng) -> (types::packet_key, Self) {
        let (ipv6, out) = (rng.once_in(2), rng.once_in(2));
        let mut segment = segment(rng, ipv6);
        segment.corrupted = false;
        let (key, source_is_second) = segment.key();
        let mut entry = flow(rng, source_is_second != out);
        entry.state = if rng.once_in(2) {
            OPEN
        } else {
            rng.below(REMOVED + 1)
        };
        if entry.state != OPEN && entry.state != ABORTED {
            // A relay's flow begins open.
            entry.was_relayed = 0;
            entry.client_seq_delta = 0;
            entry.client_ts_delta = 0;
            entry.node_shift = 0;
        }
        if entry.state == HELD {
            // Nothing is sent to the server in this test, and there may be no room.
            entry.older = OLDER_RESET;
            entry.held = rng.pick(&[0, 16]);
        }
        if rng.once_in(2) {
            segment.flags |= ACK;
            let isn = if out {
                entry.client_isn
            } else {
                entry.node_isn
            };
            segment.ack = isn.wrapping_add(1);
        }
        let place = [Place::There, Place::Moved, Place::Behind][rng.below(3_usize)];
        if place != Place::There {
            (entry.ifindex, entry.out_ifindex) = (ANOTHER, ANOTHER);
            segment.flags |= ACK;
            // What is in flight, as the client counts it.
            let shown = if out {
                segment.seq.wrapping_add(entry.seq_delta)
            } else {
                segment.ack
            };
            entry.down.acked = shown.wrapping_sub(rng.below(1_u32 << 20));
            entry.down.next = shown.wrapping_add(rng.below(1_u32 << 18));
        }
        let shape = Shape::random(rng, &segment);
        let is_short = matches!(shape, Shape::First(..)) && rng.once_in(2);
        let padding = (0..if is_short { 60 } else { 0 })
            .map(|_| octet(rng))
            .collect();
        let case = Self {
            entry,
            segment,
            shape,
            place,
            out,
            padding,
        };
        (key, case)
    }

    fn translated(&self) -> Segment {
        self.segment.translated(&shift(&self.entry, self.out))
    }

    fn frame_of(&self, segment: &Segment) -> Vec<u8> {
        [self.shape.frame(segment), self.padding.clone()].concat()
    }

    fn given(&self) -> Vec<u8> {
        match self.place {
            Place::Behind => self.frame_of(&self.translated()),
            _ => self.frame_of(&self.segment),
        }
    }

    fn is_reset(&self) -> bool {
        self.segment.flags & RST != 0
    }

    /// Whether it acknowledges what only the flow has sent.
    fn is_of_flow(&self) -> bool {
        let isn = if self.out {
            self.entry.client_isn
        } else {
            self.entry.node_isn
        };
        self.segment.flags & ACK != 0 && self.segment.ack == isn.wrapping_add(1)
    }

    /// What may leave, and whether nothing may.
    fn right(&self) -> (Vec<Vec<u8>>, bool) {
        let is_readable = self.shape.has_header(&self.segment);
        match self.entry.state {
            LEARNING => (vec![self.given()], false),
            _ if !is_readable => (vec![], true),
            OPEN => (vec![self.frame_of(&self.translated())], false),
            ABORTED if self.is_reset() => (vec![self.frame_of(&self.translated())], false),
            ABORTED => (vec![], true),
            // The same numbers again: there is no flow yet that could have been translated.
            _ if self.place == Place::Behind => self.right_early(&self.translated()),
            _ => self.right_early(&self.segment),
        }
    }

    /// Of a flow that has not opened.
    fn right_early(&self, given: &Segment) -> (Vec<Vec<u8>>, bool) {
        let given = Self {
            segment: given.clone(),
            shape: self.shape.clone(),
            padding: self.padding.clone(),
            ..*self
        };
        let state = self.entry.state;
        // Another connection with the same addresses, which is older than the node, may be its.
        let is_unproved = [ANSWERED, ACCEPTED, CLOSED].contains(&state);
        let mut may_leave = vec![];
        let is_older = is_unproved && !given.is_of_flow();
        let is_own_reset = !self.out && given.is_reset() && (is_unproved || state == HELD);
        if is_older || is_own_reset {
            may_leave.push(given.given_as(&given.segment));
        }
        if !self.out && state == ACCEPTED && (given.is_of_flow() || given.is_reset()) {
            // It opens the flow, or ends it.
            may_leave.push(given.given_as(&given.segment.translated(&shift(&self.entry, false))));
        }
        let refusal = Segment {
            seq: self.entry.node_isn.wrapping_add(1),
            ..given.segment.clone()
        };
        if self.out && given.is_reset() {
            may_leave.push(given.given_as(&refusal));
        }
        let is_empty = given.segment.payload.is_empty();
        if self.out && is_empty && given.segment.seq == self.entry.node_isn {
            // As the node's keepalive.
            may_leave.push(given.given_as(&given.segment));
        }
        (may_leave, !is_older || given.is_reset())
    }

    /// As it is passed on by who takes its options out.
    fn given_as(&self, segment: &Segment) -> Vec<u8> {
        if self.shape.is_separable() {
            return segment.frame();
        }
        self.frame_of(segment)
    }
}

impl Programs {
    /// What becomes of a frame, also if it gets shorter.
    pub(super) fn run_whole(&self, out: bool, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut after = vec![0; frame.len()];
        let program = self.programs[usize::from(out)].as_fd();
        let mut context = [0; 256];
        let zeros = [0; CONTEXT_WORDS];
        let (verdict, bytes) =
            sys::run_frame(program, frame, &zeros, &mut after, &mut context).unwrap();
        after.truncate(bytes);
        (verdict, after)
    }
}

// promise: PK21
#[test]
fn right_numbers_or_none() {
    let programs = Programs::load();
    let mut rng = Rng::new(3);
    let mut left = 0;
    for number in 0..CASES * 3 {
        let (key, case) = Case::random(&mut rng);
        if is_ambiguous(&case.entry) {
            continue;
        }
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&case.entry)).unwrap();
        let (verdict, frame) = programs.run_whole(case.out, &case.given());
        let (may_leave, may_be_lost) = case.right();
        if GONE.contains(&verdict) {
            assert!(may_be_lost, "{number}: {case:?} is lost");
        } else {
            let is_right = may_leave.contains(&frame);
            assert!(is_right, "{number}: {case:?} leaves as {frame:?}");
            if case.out && case.entry.state == OPEN && case.place == Place::Moved {
                // The interface behind it must not translate the segment again.
                assert_eq!(programs.flow(&key).out_ifindex, IFINDEX, "{number}");
            }
            left += 1;
        }
        flows.delete(bytes(&key)).unwrap();
    }
    assert!(left > CASES, "{left}");
}

/// Whether the numbers of both ends are too near to distinguish.
fn is_ambiguous(entry: &types::packet_flow) -> bool {
    let distance = entry.seq_delta.cast_signed().unsigned_abs();
    entry.ifindex == ANOTHER && distance < 1 << 23
}

/// Where the numbers of both ends are near, and it is not known whether they were translated, nothing
/// leaves.
// promise: PK21
#[test]
fn no_numbers_that_may_be_wrong() {
    let programs = Programs::load();
    let mut rng = Rng::new(4);
    for number in 0..CASES / 4 {
        let (key, mut case) = Case::random(&mut rng);
        if case.place == Place::There || !case.shape.has_header(&case.segment) {
            continue;
        }
        case.entry.state = OPEN;
        case.entry.seq_delta = rng.below(1_u32 << 17).wrapping_sub(1 << 16);
        let shown = if case.out {
            case.segment.seq
        } else {
            case.segment.ack
        };
        case.entry.down.acked = shown.wrapping_sub(1 << 17);
        case.entry.down.next = shown.wrapping_add(1 << 17);
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&case.entry)).unwrap();
        let (verdict, _) = programs.run_whole(case.out, &case.given());
        assert_eq!(verdict, GONE[0], "{number}: {case:?}");
        flows.delete(bytes(&key)).unwrap();
    }
}

/// Later fragments have no numbers: they pass as they are, and as other packets of their hosts do.
// promise: PK21
#[test]
fn later_fragments_pass() {
    let programs = Programs::load();
    let mut rng = Rng::new(5);
    for number in 0..CASES / 20 {
        let (key, case) = Case::random(&mut rng);
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&case.entry)).unwrap();
        let frame = later(&case.segment, 8 * (1 + rng.below(20_usize)));
        let after = programs.run_whole(case.out, &frame);
        assert_eq!(after, (NEXT, frame), "{number}: {case:?}");
        flows.delete(bytes(&key)).unwrap();
    }
}

/// Who acknowledges a fragmented segment acknowledges more than its first fragment shows.
#[test]
fn fragments_count_as_sent() {
    let programs = Programs::load();
    let mut rng = Rng::new(6);
    for number in 0..CASES / 20 {
        let (key, mut case) = Case::random(&mut rng);
        (case.entry.state, case.place) = (OPEN, Place::There);
        case.segment.payload = vec![7; 1400];
        case.shape = Shape::First(600, false);
        case.segment.flags = ACK;
        let seq = case
            .segment
            .seq
            .wrapping_add(shift(&case.entry, case.out).seq);
        (case.entry.ifindex, case.entry.out_ifindex) = (IFINDEX, IFINDEX);
        // All is acknowledged, and the receiver grants 64 KB.
        let (ack, edge) = (case.segment.ack, seq.wrapping_add(1 << 16));
        let entry = &mut case.entry;
        if case.out {
            (entry.down.acked, entry.down.next, entry.down.edge) = (seq, seq, edge);
            (entry.up.acked, entry.up.next) = (ack, ack);
        } else {
            (entry.up.acked, entry.up.next, entry.up.edge) = (seq, seq, edge);
            (entry.down.acked, entry.down.next) = (ack, ack);
        }
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&case.entry)).unwrap();
        programs.run_whole(case.out, &case.given());
        let after = programs.flow(&key);
        let next = if case.out {
            after.down.next
        } else {
            after.up.next
        };
        let counted = next.wrapping_sub(seq);
        assert!((1400..=1 << 16).contains(&counted), "{number}: {case:?}");
        flows.delete(bytes(&key)).unwrap();
    }
}
