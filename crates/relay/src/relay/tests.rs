// SPDX-License-Identifier: Apache-2.0
//! Traces: one relay, one story each, in virtual time.

use std::io::ErrorKind;
use std::time::Duration;

use super::fake::{Kernel, PIPE_BYTES, Pipe, SCRATCH_BYTES};
use super::{Bounds, Ready, Relay, TURN_BYTES, Verdict};
use crate::outcome::Outcome;
use crate::side::Side::{self, Downstream, Upstream};

const BOUNDS: Bounds = Bounds {
    idle_ms: 60_000,
    client_fin_ms: 5_000,
    server_fin_ms: 7_000,
};
const READY: Ready = Ready {
    readable: true,
    writable: true,
    failed: true,
    urgent: false,
    ending: false,
    exact: false,
};
/// A load after which a direction is spliced.
const LARGE: usize = SCRATCH_BYTES / 2;
const TURN: usize = 4 << 20;

/// A relay between two fake connections.
struct Pair {
    kernel: Kernel,
    relay: Relay<Pipe, Vec<u8>>,
    now: Duration,
}

impl Pair {
    /// Just joined; each side takes `room` bytes before its peer acknowledges.
    fn joined(room: usize) -> Self {
        let mut pair = Self {
            kernel: Kernel::new(room),
            relay: Relay::new(Duration::ZERO),
            now: Duration::ZERO,
        };
        assert_eq!(pair.turn(), Verdict::Blocked);
        pair
    }

    /// After a large load in each direction.
    fn splicing(room: usize) -> Self {
        let mut pair = Self::joined(LARGE);
        for side in Side::BOTH {
            pair.send(side, LARGE);
            assert_eq!(pair.turn(), Verdict::Blocked);
            pair.drain(!side);
        }
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.spliced, 0);
        for side in Side::BOTH {
            pair.kernel.streams[side].room = room;
        }
        pair
    }

    /// `bytes` from `side` are held, since the other took `room` and no more.
    fn holding(side: Side, room: usize, bytes: usize) -> Self {
        let mut pair = Self::joined(room);
        pair.send(side, room + bytes);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.held(side), bytes);
        pair
    }

    /// As [`Pair::holding`], but in a pipe.
    fn holding_in_a_pipe(side: Side, room: usize, bytes: usize) -> Self {
        let mut pair = Self::splicing(room);
        pair.send(side, room + bytes);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.held(side), bytes);
        assert_eq!(pair.kernel.leased, 1);
        pair
    }

    /// FIN came from `side` and was passed on.
    fn half_closed(side: Side) -> Self {
        let mut pair = Self::joined(1000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert!(pair.kernel.streams[!side].fin_sent);
        pair
    }

    fn send(&mut self, side: Side, bytes: usize) {
        self.kernel.arrive(side, bytes);
    }

    /// The peer on `side` acknowledges everything.
    fn drain(&mut self, side: Side) {
        self.kernel.acknowledge(side, usize::MAX);
    }

    /// Gives the relay every event that waits, and then one turn.
    fn turn(&mut self) -> Verdict {
        for side in Side::BOTH {
            if let Some(ready) = self.kernel.take_event(side) {
                self.relay.note(side, ready);
            }
        }
        self.relay.advance(&mut self.kernel, self.now)
    }

    fn after(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    /// Hands back what an unfinished relay holds; all pipes are back then.
    fn close(mut self) {
        for pipe in self.relay.into_pipes() {
            self.kernel.discard(pipe);
        }
        assert_eq!(self.kernel.leased, 0);
    }
}

fn reset(side: Side) -> Outcome {
    match side {
        Downstream => Outcome::DownstreamReset,
        Upstream => Outcome::UpstreamReset,
    }
}

#[test]
fn what_follows_a_large_load_is_spliced_until_a_small_one() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(PIPE_BYTES);
        for bytes in [LARGE - 1, LARGE] {
            pair.send(side, bytes);
            assert_eq!(pair.turn(), Verdict::Blocked);
            assert_eq!(pair.kernel.spliced, 0);
        }
        for bytes in [LARGE / 2, LARGE / 2 - 1] {
            let before = pair.kernel.spliced;
            pair.send(side, bytes);
            assert_eq!(pair.turn(), Verdict::Blocked);
            assert_eq!(pair.kernel.spliced, before + bytes);
        }
        pair.send(side, LARGE - 1);
        pair.send(!side, LARGE - 1);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.spliced, LARGE - 1, "the rest is copied");
        assert_eq!(pair.relay.moved_from(side), 4 * LARGE as u64 - 3);
        assert_eq!(pair.kernel.leased, 0, "no pipe without bytes in it");
    }
}

#[test]
fn after_a_short_read_it_waits_for_an_event() {
    // A read and a write; another read where nobody says that there is no more.
    for (exact, expected) in [(true, 2), (false, 3)] {
        let mut pair = Pair::joined(1000);
        pair.send(Downstream, 10);
        let event = pair.kernel.take_event(Downstream).unwrap();
        pair.relay.ready[Downstream].exact = false;
        pair.kernel.streams[Downstream].told.exact = exact;
        pair.relay.note(Downstream, Ready { exact, ..event });
        let calls = pair.kernel.calls;
        pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(pair.kernel.calls - calls, expected);
        pair.send(Downstream, 10);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.relay.moved_from(Downstream), 20);
    }
}

#[test]
fn a_read_that_stops_before_urgent_bytes_is_not_the_last() {
    let mut pair = Pair::joined(1000);
    pair.send(Upstream, 100);
    pair.send(Upstream, 1);
    pair.kernel.make_last_urgent(Upstream);
    pair.send(Upstream, 100);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), 201);
}

#[test]
fn nothing_is_read_while_copied_bytes_are_held() {
    for side in Side::BOTH {
        let mut pair = Pair::holding(side, 1000, 500);
        pair.send(side, 200);
        pair.kernel.poke(side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.streams[side].unread(), 200);
        assert_eq!(pair.relay.moved_from(side), 1000);
        pair.drain(!side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.relay.moved_from(side), 1700);
    }
}

#[test]
fn one_pipe_is_held_and_no_more() {
    for side in Side::BOTH {
        let mut pair = Pair::holding_in_a_pipe(side, 1000, 5000);
        pair.kernel.pipe_bytes = 20_000;
        pair.send(side, 60_000);
        pair.kernel.poke(side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.held(side), 5000);
        let mut left: usize = 65_000;
        while left > 0 {
            pair.drain(!side);
            assert_eq!(pair.turn(), Verdict::Blocked);
            left -= left.min(1000);
            assert!(pair.kernel.held(side) <= 20_000);
        }
        assert_eq!(pair.kernel.held(side), 0);
        pair.close();
    }
}

#[test]
fn a_blocked_direction_does_not_block_the_other() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    pair.send(Upstream, 900);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), 900);
}

#[test]
fn a_whole_load_is_read_for_a_side_that_takes_nothing() {
    let mut pair = Pair::joined(1000);
    pair.send(Downstream, 1000);
    assert_eq!(pair.turn(), Verdict::Blocked);
    pair.send(Downstream, 2 * SCRATCH_BYTES);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.kernel.held(Downstream), SCRATCH_BYTES);
}

#[test]
fn each_side_may_close_first() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        assert!(pair.relay.closing());
        pair.send(!side, 700);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.relay.moved_from(!side), 700, "half-closed, not closed");
        assert!(!pair.kernel.streams[side].fin_sent);
        pair.kernel.arrive_fin(!side);
        assert_eq!(pair.turn(), Verdict::Done(Outcome::Finished));
        assert!(pair.kernel.handed_over(Downstream) && pair.kernel.handed_over(Upstream));
    }
}

#[test]
fn both_sides_may_close_at_once() {
    let mut pair = Pair::joined(1000);
    for side in Side::BOTH {
        pair.send(side, 10);
        pair.kernel.arrive_fin(side);
    }
    assert_eq!(pair.turn(), Verdict::Done(Outcome::Finished));
    assert!(pair.kernel.handed_over(Downstream) && pair.kernel.handed_over(Upstream));
}

#[test]
fn fin_waits_for_held_bytes() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 1500),
            Pair::holding_in_a_pipe(side, 1000, 1500),
        ] {
            pair.kernel.arrive_fin(side);
            for _ in 0..2 {
                assert_eq!(pair.turn(), Verdict::Blocked);
                assert!(!pair.kernel.streams[!side].fin_sent);
                pair.drain(!side);
            }
            assert_eq!(pair.turn(), Verdict::Blocked);
            assert!(pair.kernel.handed_over(side));
            pair.close();
        }
    }
}

#[test]
fn a_reset_is_the_fault_of_its_sender() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Verdict::Done(reset(side)));
    }
}

#[test]
fn a_silent_peer_is_at_fault() {
    let outcomes = [Outcome::DownstreamTimeout, Outcome::UpstreamTimeout];
    for (side, outcome) in Side::BOTH.into_iter().zip(outcomes) {
        let silences = [
            ErrorKind::TimedOut,
            ErrorKind::HostUnreachable,
            ErrorKind::NetworkUnreachable,
        ];
        for silence in silences {
            let mut pair = Pair::joined(1000);
            pair.kernel.die(side, silence);
            assert_eq!(pair.turn(), Verdict::Done(outcome));
        }
    }
}

#[test]
fn bytes_that_came_before_a_reset_are_passed_on() {
    let mut pair = Pair::joined(1000);
    pair.send(Upstream, 300);
    pair.kernel.die(Upstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Verdict::Done(Outcome::UpstreamReset));
    assert_eq!(pair.relay.moved_from(Upstream), 300);
}

#[test]
fn whoever_does_not_take_held_bytes_is_at_fault() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 1500),
            Pair::holding_in_a_pipe(side, 1000, 1500),
        ] {
            pair.kernel.die(!side, ErrorKind::ConnectionReset);
            assert_eq!(pair.turn(), Verdict::Done(reset(!side)));
            pair.close();
        }
    }
}

#[test]
fn held_bytes_go_out_although_their_sender_has_reset() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 500),
            Pair::holding_in_a_pipe(side, 1000, 500),
        ] {
            pair.kernel.die(side, ErrorKind::ConnectionReset);
            assert_eq!(pair.turn(), Verdict::Blocked);
            pair.drain(!side);
            assert_eq!(pair.turn(), Verdict::Done(reset(side)));
            assert_eq!(pair.kernel.held(side), 0);
            pair.close();
        }
    }
}

#[test]
fn bytes_taken_before_a_fault_are_counted() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.kernel.die_after(!side, 600);
        pair.send(side, 900);
        assert_eq!(pair.turn(), Verdict::Done(reset(!side)));
        assert_eq!(pair.relay.moved_from(side), 600);
    }
}

#[test]
fn a_reset_behind_a_fin_ends_the_relay_at_once() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Verdict::Done(reset(side)));
    }
}

#[test]
fn a_reset_that_comes_with_a_fin_ends_the_relay_at_once() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.send(side, 400);
        pair.kernel.arrive_fin(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Verdict::Done(reset(side)));
        assert_eq!(pair.relay.moved_from(side), 400);
    }
}

#[test]
fn a_fin_that_cannot_be_passed_on_is_no_clean_end() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        pair.kernel.arrive_fin(!side);
        // The FIN is seen before the reset is.
        let ready = pair.kernel.take_event(!side).unwrap();
        pair.relay.note(!side, ready);
        let verdict = pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(verdict, Verdict::Done(reset(side)));
    }
}

#[test]
fn the_answer_of_a_side_that_cannot_take_the_fin_is_passed_on_first() {
    for side in Side::BOTH {
        let mut pair = Pair::holding(side, 1000, 500);
        pair.kernel.arrive_fin(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        pair.kernel.arrive_fin(!side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        pair.drain(!side);
        assert_eq!(pair.turn(), Verdict::Done(reset(side)));
        assert!(pair.kernel.handed_over(side));
    }
}

#[test]
fn a_quiet_relay_times_out() {
    let mut pair = Pair::joined(1000);
    pair.after(59_999);
    assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
    pair.after(1);
    assert_eq!(
        pair.relay.on_time(pair.now, &BOUNDS),
        Some(Outcome::IdleTimeout)
    );
    pair.send(Upstream, 1);
    pair.turn();
    assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
    assert_eq!(pair.relay.active(), pair.now);
    pair.after(60_000);
    assert_eq!(
        pair.relay.on_time(pair.now, &BOUNDS),
        Some(Outcome::IdleTimeout)
    );
}

#[test]
fn bytes_that_only_come_in_do_not_count_as_activity() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    pair.after(30_000);
    pair.send(Downstream, 500);
    pair.turn();
    assert_eq!(pair.relay.deadline(&BOUNDS), Duration::from_mins(1));
}

#[test]
fn the_side_that_did_not_close_gets_its_own_time() {
    let cases = [
        (Downstream, 5_000, Outcome::ClientFinTimeout),
        (Upstream, 7_000, Outcome::ServerFinTimeout),
    ];
    for (side, bound, outcome) in cases {
        let mut pair = Pair::half_closed(side);
        pair.after(bound - 1);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
        pair.send(!side, 1);
        pair.turn();
        pair.after(bound - 1);
        assert_eq!(
            pair.relay.on_time(pair.now, &BOUNDS),
            None,
            "it still sends"
        );
        pair.after(1);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), Some(outcome));
    }
}

#[test]
fn a_fin_after_a_long_silence_leaves_the_other_side_its_time() {
    for (side, bound) in [(Downstream, 5_000), (Upstream, 7_000)] {
        let mut pair = Pair::joined(1000);
        pair.after(50_000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
        let deadline = pair.now + Duration::from_millis(bound);
        assert_eq!(pair.relay.deadline(&BOUNDS), deadline);
    }
}

#[test]
fn a_busy_direction_gives_way_after_its_turn() {
    let mut pair = Pair::splicing(3 * TURN);
    pair.send(Downstream, 2 * TURN);
    pair.send(Upstream, 100);
    assert_eq!(pair.turn(), Verdict::Again);
    assert_eq!(pair.relay.moved_from(Downstream), LARGE as u64 + TURN_BYTES);
    assert_eq!(
        pair.relay.moved_from(Upstream),
        LARGE as u64 + 100,
        "the other direction has its share in the same turn"
    );
    assert_eq!(pair.turn(), Verdict::Again);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(
        pair.relay.moved_from(Downstream),
        LARGE as u64 + 2 * TURN_BYTES
    );
    pair.close();
}

#[test]
fn both_directions_have_the_same_share() {
    let mut pair = Pair::splicing(3 * TURN);
    for side in Side::BOTH {
        pair.send(side, 2 * TURN);
    }
    assert_eq!(pair.turn(), Verdict::Again);
    for side in Side::BOTH {
        assert_eq!(pair.relay.moved_from(side), LARGE as u64 + TURN_BYTES);
    }
}

#[test]
fn a_fault_counts_more_than_a_used_up_turn() {
    let mut pair = Pair::splicing(3 * TURN);
    pair.send(Downstream, 2 * TURN);
    pair.kernel.die(Downstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Verdict::Again);
    pair.kernel.die(Upstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Verdict::Done(Outcome::UpstreamReset));
    pair.close();
}

#[test]
fn urgent_bytes_are_passed_on_with_the_others() {
    for noted_late in [false, true] {
        let mut pair = Pair::splicing(1 << 20);
        pair.send(Upstream, 1000);
        if noted_late {
            assert_eq!(pair.turn(), Verdict::Blocked);
        }
        pair.send(Upstream, 1);
        pair.kernel.make_last_urgent(Upstream);
        pair.send(Upstream, 1000);
        pair.kernel.arrive_fin(Upstream);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert!(pair.kernel.handed_over(Upstream));
    }
}

#[test]
fn splicing_that_stops_at_urgent_bytes_is_not_the_end() {
    let mut pair = Pair::splicing(1 << 20);
    let ready = pair.kernel.take_event(Upstream);
    assert_eq!(ready, None);
    pair.send(Upstream, 1);
    pair.relay
        .note(Upstream, pair.kernel.take_event(Upstream).unwrap());
    // These come after the event was taken.
    pair.kernel.make_last_urgent(Upstream);
    pair.send(Upstream, 1000);
    pair.kernel.arrive_fin(Upstream);
    let verdict = pair.relay.advance(&mut pair.kernel, pair.now);
    assert_eq!(verdict, Verdict::Blocked);
    assert_eq!(pair.turn(), Verdict::Blocked, "there was another event");
    assert!(pair.kernel.handed_over(Upstream));
}

#[test]
fn without_a_pipe_it_copies() {
    let mut pair = Pair::splicing(PIPE_BYTES);
    pair.kernel.pipes_max = 0;
    pair.send(Upstream, 200_000);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), LARGE as u64 + 200_000);
    assert_eq!(pair.kernel.spliced, 0);
    pair.kernel.pipes_max = 1;
    pair.send(Upstream, 300);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.kernel.spliced, 300);
}

#[test]
fn pipes_come_back_at_the_end_of_the_stream_and_at_a_fault() {
    for side in Side::BOTH {
        let mut pair = Pair::splicing(1000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Verdict::Blocked);
        assert_eq!(pair.kernel.leased, 0);
        pair.kernel.die(!side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Verdict::Done(reset(!side)));
        assert_eq!(pair.kernel.leased, 0);
        pair.close();
    }
}

#[test]
fn a_killed_relay_gives_up_the_pipes_it_holds() {
    let mut pair = Pair::holding_in_a_pipe(Downstream, 1000, 500);
    pair.send(Upstream, 1700);
    assert_eq!(pair.turn(), Verdict::Blocked);
    assert_eq!(pair.kernel.leased, 2);
    pair.close();
}

#[test]
fn a_blocked_relay_makes_no_calls() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    let ready = pair.relay.ready;
    let calls = pair.kernel.calls;
    for _ in 0..3 {
        let verdict = pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(verdict, Verdict::Blocked);
    }
    assert_eq!(pair.kernel.calls, calls);
    assert_eq!(pair.relay.ready, ready);
}

#[test]
fn readiness_that_is_not_true_does_no_harm() {
    let mut pair = Pair::joined(1000);
    for side in Side::BOTH {
        pair.kernel.expect(side, READY);
        pair.relay.note(side, READY);
    }
    let verdict = pair.relay.advance(&mut pair.kernel, pair.now);
    assert_eq!(verdict, Verdict::Blocked);
}
