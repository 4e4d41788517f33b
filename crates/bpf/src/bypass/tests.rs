// SPDX-License-Identifier: Apache-2.0
//! The programs of a hand-over against their reference, `posthaste-bypass`: the same pair and the
//! same segments in, the same segments and the same pair out. Needs root.
//!
//! `POSTHASTE_SEED` sets the first seed, `POSTHASTE_SCHEDULES` how many pairs there are.

mod frame;

use std::time::Duration;

use posthaste_bypass::machine::{Direction, TS_SLACK};
use posthaste_bypass::{Block, Header, Pair, Phase, Step};
use posthaste_testkit::{Rng, schedules, seeds};

use super::*;
use frame::Frame;

const REDIRECT_MARK: u32 = 0x1000_0000;
const SOCKET_MARK: u32 = 0x2000_0000;
const NODE_MARKS: u32 = REDIRECT_MARK | SOCKET_MARK;
/// Words of `struct __sk_buff` up to `cb`, and the place of some.
const SK_BUFF_WORDS: usize = 17;
const MARK: usize = 2;
/// Of the loopback device, on which the kernel runs a program by hand.
const IFINDEX: u32 = 1;
/// `TC_ACT_UNSPEC`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`
const NEXT: u32 = u32::MAX;
const DROP: u32 = 2;
const REDIRECT: u32 = 7;
/// `CLOCK_MONOTONIC` in a test, in milliseconds; only differences count.
const START: u32 = 1000;

/// Room in the table of the packet path.
const FLOWS: u32 = 4;

struct Programs {
    inward: Program,
    outward: Program,
    pairs: Pairs,
    flows: Arc<Map>,
}

impl Programs {
    fn load() -> Self {
        let object = &bypass::OBJECT;
        let numbers = 0..object.maps.len();
        let entries = |at| (at == map::PACKET_FLOWS).then_some(FLOWS);
        let maps = numbers.map(|at| object.make(at, entries(at)).unwrap());
        let maps: Vec<_> = maps.collect();
        let settings = Settings {
            workers: 1,
            redirect_mark: REDIRECT_MARK,
            socket_mark: SOCKET_MARK,
            netns: 0,
            least_port: 0,
            half_open: 0,
            half_open_reserve: 0,
            profiles_max: 0,
            packet_flows: 0,
            windows: false,
            successions: 0,
        };
        let loaded = Bypass::load_on(&settings, &maps, None, Chains::default());
        let (attached, pairs) = loaded.unwrap_or_else(|error| panic!("{error}"));
        let [inward, outward] = attached.programs;
        let device = types::device {
            l2_bytes: u8::try_from(LINK_BYTES).unwrap().into(),
            ..types::device::default()
        };
        maps[map::DEVICES]
            .update(&IFINDEX.to_ne_bytes(), bytes(&device))
            .unwrap();
        Self {
            inward,
            outward,
            pairs,
            flows: Arc::clone(&maps[map::PACKET_FLOWS]),
        }
    }

    fn has_pair(&self, frame: &Frame) -> bool {
        self.pairs.table.read(&frame.key()).is_some()
    }

    /// Leaves no room for another flow.
    fn fill_flows(&self) {
        for number in 0..FLOWS {
            let key = types::packet_key {
                first_port: u16::try_from(number).unwrap(),
                ..types::packet_key::default()
            };
            let flow = types::packet_flow::default();
            self.flows.update(bytes(&key), bytes(&flow)).unwrap();
        }
    }

    fn read(&self, frame: &Frame) -> types::bypass_pair {
        self.pairs.table.read(&frame.key()).unwrap()
    }
}

/// A pair in both forms.
struct Both<'a> {
    programs: &'a Programs,
    frame: Frame,
    pair: Pair,
    now: u32,
    rng: Rng,
}

/// What came out: the verdict, the frame and its mark.
struct Output {
    verdict: u32,
    frame: Vec<u8>,
    mark: u32,
}

fn direction(rng: &mut Rng) -> Direction {
    let [first, delta, ts_delta] = [(); 3].map(|()| rng.below(u32::MAX));
    let shifts = [(); 2].map(|()| rng.pick(&[0, 2, 7, 14]));
    let window = 1600 * (1 + rng.below(4));
    Direction {
        ts_delta,
        ..Direction::new(first, delta, window, shifts.into())
    }
}

impl<'a> Both<'a> {
    fn new(programs: &'a Programs, seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut pair = Pair::new([direction(&mut rng), direction(&mut rng)]);
        pair.start(START + 200);
        let both = Self {
            programs,
            frame: Frame::new(&mut rng),
            pair,
            now: START,
            rng,
        };
        both.store();
        both
    }

    /// Writes the reference's pair into the map.
    fn store(&self) {
        let pair = types::bypass_pair {
            lock: 0,
            phase: self.pair.phase as u32,
            deadline: self.pair.deadline,
            reset: self.pair.reset.into(),
            by: self.pair.directions.map(|from| types::bypass_direction {
                delta: from.delta,
                ts_delta: from.ts_delta,
                seen: from.seen,
                cut: from.cut,
                relay_ack: from.relay_ack,
                relay_sent: from.relay_sent,
                end_ack: from.end_ack,
                promised: from.promised,
                edge: from.edge,
                fin: from.fin,
                has_fin: from.has_fin.into(),
                end_shift: from.end_shift,
                relay_shift: from.relay_shift,
                pad: 0,
            }),
            // Every clock was read before.
            clocks: types::bypass_clocks {
                seen: 15,
                ..types::bypass_clocks::default()
            },
            ifindex: [IFINDEX; 2],
            turned: self.frame.is_turned().into(),
            known: 1,
            skew: [0; 2],
            // A dead pair resets at once.
            probed: [1; 2],
            link: [[0; LINK_BYTES]; 2],
            // Never abandoned in a test.
            looked_ns: u64::MAX / 4,
        };
        let key = self.frame.key();
        self.programs.pairs.table.write(&key, &pair).unwrap();
    }

    /// The same, for a pair at which the worker looks no more.
    fn store_abandoned(&self) {
        self.store();
        let pair = types::bypass_pair {
            looked_ns: nanoseconds(monotonic().saturating_sub(Duration::from_secs(4))),
            ..self.programs.read(&self.frame)
        };
        let key = self.frame.key();
        self.programs.pairs.table.write(&key, &pair).unwrap();
    }

    fn assert_equal(&self) {
        let pair = self.programs.read(&self.frame);
        let expected = &self.pair;
        assert_eq!(pair.lock, 0);
        assert_eq!(pair.phase, expected.phase as u32);
        assert_eq!(pair.deadline, expected.deadline);
        assert_eq!(pair.reset != 0, expected.reset);
        for (from, expected) in pair.by.iter().zip(&expected.directions) {
            let found = Direction {
                delta: from.delta,
                ts_delta: from.ts_delta,
                seen: from.seen,
                cut: from.cut,
                relay_ack: from.relay_ack,
                relay_sent: from.relay_sent,
                end_ack: from.end_ack,
                promised: from.promised,
                edge: from.edge,
                fin: from.fin,
                has_fin: from.has_fin != 0,
                end_shift: from.end_shift,
                relay_shift: from.relay_shift,
            };
            assert_eq!(found, *expected);
        }
    }

    fn run(&self, program: &Program, frame: &[u8], mark: u32) -> Output {
        let mut context = [0; SK_BUFF_WORDS];
        context[MARK] = mark;
        // The kernel refuses less than its whole structure.
        let mut after = [0; 256];
        let mut out = vec![0; frame.len()];
        let ran = sys::run_frame(program.as_fd(), frame, &context, &mut out, &mut after);
        let (verdict, bytes) = ran.unwrap();
        out.truncate(bytes);
        let mark = after.as_chunks().0[MARK];
        Output {
            verdict,
            frame: out,
            mark: u32::from_ne_bytes(mark),
        }
    }

    /// A number near one that decides something.
    fn near(&mut self, direction: usize) -> u32 {
        let of = &self.pair.directions[direction];
        let base = [
            of.seen,
            of.cut,
            of.relay_ack,
            of.relay_sent,
            of.end_ack,
            of.promised,
            of.edge,
        ];
        let base = self.rng.pick(&base);
        let near = self.rng.pick(&[0, 1, 2, 700, 1448]);
        if self.rng.once_in(2) {
            base.wrapping_add(near)
        } else {
            base.wrapping_sub(near)
        }
    }

    fn blocks(&mut self, direction: usize, delta: u32) -> [Block; 3] {
        let mut blocks = [Block::default(); 3];
        for block in &mut blocks[..self.rng.below(4)] {
            let first = self.near(direction).wrapping_add(delta);
            *block = (first, first.wrapping_add(1 + self.rng.below(3000_u32)));
        }
        blocks
    }

    /// A segment of end `e`, or of the relay toward it.
    fn segment(&mut self, e: usize, is_relay: bool) -> Header {
        let deltas = [0, 1].map(|number: usize| self.pair.directions[number].delta);
        let (sent, acked) = if is_relay { (1 - e, e) } else { (e, 1 - e) };
        let seq = self.near(sent);
        let ack = self.near(acked);
        let (seq, ack, sack) = if is_relay {
            // The relay has the other end's bytes under its own numbers, and acknowledges this
            // end's under this end's.
            (seq.wrapping_add(deltas[sent]), ack, self.blocks(acked, 0))
        } else {
            let delta = deltas[acked];
            (seq, ack.wrapping_add(delta), self.blocks(acked, delta))
        };
        Header {
            seq,
            len: self.rng.pick(&[0, 0, 1, 700, 1448, 2001, 3000]),
            fin: self.rng.once_in(20),
            rst: self.rng.once_in(40),
            ack,
            sack,
            window: u16::try_from(self.rng.below(65536_u32)).unwrap(),
            ts_val: self.rng.below(u32::MAX),
            ts_ecr: [0, self.rng.below(u32::MAX)][self.rng.below(2)],
        }
    }

    fn end_sends(&mut self) {
        let e = self.rng.below(2_usize);
        let segment = self.segment(e, false);
        let is_early = matches!(self.pair.phase, Phase::Relaying | Phase::Clamping);
        let expected = self.pair.from_end(e, &segment);
        let frame = self.frame.of(e, &segment, &mut self.rng);
        let frame = self.frame.around(frame, &mut self.rng);
        let found = self.run(&self.programs.inward, &frame, 0);
        if let Some(reply) = expected.reply {
            assert_eq!((found.verdict, found.mark), (REDIRECT, NODE_MARKS));
            return self.frame.assert_resets(&found.frame, &reply, &frame);
        }
        match (expected.relay, expected.forward) {
            (None, None) => assert_eq!(found.verdict, DROP),
            (Some(_), None) if is_early => {
                assert_eq!((found.verdict, found.mark), (NEXT, 0));
                assert_eq!(found.frame, frame);
            }
            (Some(relay), None) => {
                assert_eq!((found.verdict, found.mark), (NEXT, 0));
                self.frame.assert_shows(&found.frame, &relay, &frame);
            }
            (relay, Some(forward)) => {
                assert_eq!((found.verdict, found.mark), (REDIRECT, NODE_MARKS));
                self.frame.assert_shows(&found.frame, &forward, &frame);
                if let Some(relay) = relay {
                    let copy = self.run(&self.programs.inward, &frame, NODE_MARKS);
                    assert_eq!((copy.verdict, copy.mark), (NEXT, 0));
                    self.frame.assert_shows(&copy.frame, &relay, &frame);
                }
            }
        }
    }

    fn relay_sends(&mut self) {
        let e = self.rng.below(2_usize);
        let segment = self.segment(e, true);
        let expected = self.pair.from_relay(e, &segment);
        let frame = self.frame.of(1 - e, &segment, &mut self.rng);
        let frame = self.frame.around(frame, &mut self.rng);
        let found = self.run(&self.programs.outward, &frame, SOCKET_MARK);
        match expected {
            None => assert_eq!(found.verdict, DROP),
            Some(header) => {
                assert_eq!((found.verdict, found.mark), (NEXT, SOCKET_MARK));
                self.frame.assert_shows(&found.frame, &header, &frame);
            }
        }
    }

    /// Looks after the pair as the node does, or as the guard when the process has `ended`.
    fn bury(&mut self) {
        let e = self.rng.below(2_usize);
        let ended = self.rng.once_in(4);
        if ended {
            self.pair.process_ended();
        }
        let frame = self.frame.of(1 - e, &Header::default(), &mut self.rng);
        let mut context = [0; SK_BUFF_WORDS];
        context[CONTEXT_CB] = ended.into();
        let mut out = vec![0; frame.len()];
        let program = self.programs.pairs.burial.as_fd();
        let ran = sys::run_frame(program, &frame, &context, &mut out, &mut [0; 256]);
        let is_dead = ran.unwrap().0 != 0;
        assert_eq!(is_dead, self.pair.phase == Phase::Dead);
        if is_dead {
            let clocks = self.programs.read(&self.frame).clocks;
            let probe = Header {
                ts_val: self.newest_ts(e, &clocks),
                ts_ecr: clocks.end[e],
                ..self.pair.probe(e)
            };
            // The link layer header is the other way round.
            self.frame.assert_shows(&out, &probe, &frame);
        }
    }

    /// The newest TSval that end `e` may have: of the relay, or of direct segments.
    fn newest_ts(&self, e: usize, clocks: &types::bypass_clocks) -> u32 {
        let relay = clocks.relay[e].wrapping_add(TS_SLACK);
        let delta = self.pair.directions[1 - e].ts_delta;
        let direct = clocks.end[1 - e].wrapping_add(delta);
        let is_newer = direct.wrapping_sub(relay).cast_signed() > 0;
        if delta != 0 && is_newer {
            direct
        } else {
            relay
        }
    }

    fn step(&mut self) {
        self.now += self.rng.below(100_u32);
        let before = self.pair.phase;
        let expected = self.pair.step(self.now);
        let step = self.programs.pairs.step(&self.frame.flow(), self.now);
        assert_eq!(step, step_of(expected));
        if before == Phase::Clamping && self.pair.phase == Phase::Overlap {
            // The reference is given these from outside.
            let pair = self.programs.read(&self.frame);
            for (direction, from) in self.pair.directions.iter_mut().zip(&pair.by) {
                direction.ts_delta = from.ts_delta;
            }
        }
    }

    /// Moves to another phase: chance alone rarely drains an overlap.
    fn jump(&mut self) {
        let phases = [
            Phase::Clamping,
            Phase::Overlap,
            Phase::Overlap,
            Phase::Overlap,
            Phase::Direct,
            Phase::Dead,
        ];
        self.pair.phase = self.rng.pick(&phases);
        self.pair.deadline = self.now + 1 + self.rng.below(1000_u32);
        self.pair.reset = self.rng.once_in(8);
        for number in 0..2 {
            let cut = self.near(number);
            let edge = self.near(number);
            let direction = &mut self.pair.directions[number];
            direction.cut = cut;
            direction.edge = edge;
            direction.has_fin = self.rng.once_in(8);
        }
        self.store();
    }
}

fn step_of(step: Step) -> BypassStep {
    match step {
        Step::Relay | Step::GiveUp => BypassStep::GiveUp,
        Step::Clamp => BypassStep::Clamp,
        Step::Drain => BypassStep::Drain,
        Step::CloseSilently => BypassStep::Close,
        Step::ProbeEnds => BypassStep::Reset,
    }
}

/// Gives this thread a network of its own, so that copies reach nobody.
fn leave_network() {
    // SAFETY: no pointer is passed; only this thread leaves the network of the others.
    let left = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(left, 0, "{}", io::Error::last_os_error());
}

#[test]
fn same_segments_as_the_reference() {
    leave_network();
    let programs = Programs::load();
    seeds(schedules(60), |seed| {
        let mut both = Both::new(&programs, seed);
        for _ in 0..60 {
            match both.rng.below(11_u32) {
                0..5 => both.end_sends(),
                5..8 => both.relay_sends(),
                8 => both.step(),
                9 => both.bury(),
                _ => both.jump(),
            }
            both.assert_equal();
        }
        programs.pairs.table.remove(&both.frame.key()).unwrap();
    });
}

/// Without the dead pair its ends would read each other in the wrong numbers.
#[test]
fn no_syn_removes_a_dead_pair() {
    leave_network();
    let programs = Programs::load();
    let mut both = Both::new(&programs, 1);
    for (phase, verdict) in [(Phase::Overlap, NEXT), (Phase::Dead, DROP)] {
        both.pair.phase = phase;
        both.store();
        let frame = both.frame.syn(&mut both.rng);
        assert_eq!(both.run(&programs.inward, &frame, 0).verdict, verdict);
        both.assert_equal();
    }
}

/// A flow for which the packet path has no room stays a pair until there is room, or it is over: then
/// its addresses are free for another connection.
#[test]
fn pairs_without_room_do_not_last() {
    leave_network();
    let programs = Programs::load();
    programs.fill_flows();
    let mut both = Both::new(&programs, 1);
    both.pair.phase = Phase::Direct;
    both.store_abandoned();
    programs.pairs.settle(&both.frame.flow());
    let look_after = || programs.pairs.burial.round(false).unwrap();
    assert_eq!((look_after(), look_after()), (1, 1), "no room");
    for is_over in [false, true] {
        for direction in &mut both.pair.directions {
            (direction.has_fin, direction.fin) = (true, direction.end_ack);
            direction.end_ack += u32::from(is_over);
        }
        both.store_abandoned();
        let syn = both.frame.syn(&mut both.rng);
        assert_eq!(both.run(&programs.inward, &syn, 0).verdict, NEXT);
        assert_eq!(programs.has_pair(&both.frame), !is_over, "after a SYN");
        both.store_abandoned();
        look_after();
        assert_eq!(programs.has_pair(&both.frame), !is_over);
    }
    both.pair.directions[0].has_fin = false;
    both.store_abandoned();
    let other = types::packet_key::default();
    programs.flows.delete(bytes(&other)).unwrap();
    look_after();
    assert!(!programs.has_pair(&both.frame), "there is room");
    let mut flow = vec![0; size_of::<types::packet_flow>()];
    assert!(
        programs
            .flows
            .look_up(&both.frame.key(), &mut flow)
            .unwrap()
    );
}

/// The pair may be gone when the copy for the relay is received: its marks would take it to a socket
/// that is closed, and the kernel would reset the end.
#[test]
fn copies_without_a_pair_are_dropped() {
    leave_network();
    let programs = Programs::load();
    let mut both = Both::new(&programs, 1);
    programs.pairs.table.remove(&both.frame.key()).unwrap();
    let header = Header::default();
    for (mark, verdict) in [(NODE_MARKS, DROP), (0, NEXT)] {
        let frame = both.frame.of(0, &header, &mut both.rng);
        assert_eq!(both.run(&programs.inward, &frame, mark).verdict, verdict);
    }
}

/// While there is no pair, segments pass without a look-up.
#[test]
fn pairs_are_seen_after_a_rest() {
    leave_network();
    let programs = Programs::load();
    let mut both = Both::new(&programs, 1);
    both.pair.phase = Phase::Dead;
    let look_after = || programs.pairs.burial.round(false).unwrap();
    for _ in 0..2 {
        programs.pairs.table.remove(&both.frame.key()).unwrap();
        look_after();
        assert!(programs.pairs.table.is_at_rest());
        both.store();
        look_after();
        assert!(!programs.pairs.table.is_at_rest());
        let syn = both.frame.syn(&mut both.rng);
        assert_eq!(both.run(&programs.inward, &syn, 0).verdict, DROP);
    }
}

/// A relay whose flow is fragmented stays. Once it leaves, fragments are dropped: they do not show what of
/// them is below the cut.
// promise: PK21
#[test]
fn relays_of_fragmented_flows_stay() {
    let programs = Programs::load();
    for seed in 0..200 {
        let mut both = Both::new(&programs, seed);
        let phases = [Phase::Clamping, Phase::Overlap, Phase::Direct, Phase::Dead];
        both.pair.phase = both.rng.pick(&phases);
        let leaves = both.pair.phase != Phase::Clamping;
        for (program, mark) in [(&programs.inward, 0), (&programs.outward, SOCKET_MARK)] {
            both.store();
            let segment = both.segment(0, mark != 0);
            let frame = both.frame.of(0, &segment, &mut both.rng);
            let frame = both.frame.as_fragment(frame);
            let found = both.run(program, &frame, mark);
            let verdict = if leaves { DROP } else { NEXT };
            assert_eq!(found.verdict, verdict, "{seed}: {:?}", both.pair.phase);
            assert!(leaves || found.frame == frame, "{seed}");
            let pair = programs.read(&both.frame);
            assert_eq!((pair.lock, pair.reset != 0), (0, !leaves), "{seed}");
        }
        if !leaves {
            let step = programs.pairs.step(&both.frame.flow(), both.now);
            assert_eq!(step, BypassStep::GiveUp, "{seed}");
        }
        programs.pairs.remove(&both.frame.flow());
    }
}
