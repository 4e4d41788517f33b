// SPDX-License-Identifier: Apache-2.0
//! Traces: one relay, one story each, in virtual time. Here: how bytes move.

use std::io::ErrorKind;

use super::fake::{PIPE_BYTES, SCRATCH_BYTES};
use super::{Ready, TURN_BYTES, Verdict};
use crate::outcome::Outcome;
use crate::side::Side::{self, Downstream, Upstream};

mod ends;
mod pair;

use pair::{Pair, reset};

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
    assert_eq!(pair.turn(), Verdict::Done(Outcome::DownstreamReset));
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
