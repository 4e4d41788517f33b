// SPDX-License-Identifier: Apache-2.0
//! Traces: one relay and one scenario each, in virtual time. Here: how bytes move.

use std::io::ErrorKind;

use super::fake::{PIPE_BYTES, SCRATCH_BYTES};
use super::{Held, Io, Progress, Ready, TURN_BYTES};
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
    edge_triggered: false,
};
/// A load after which a direction is spliced.
const LARGE: usize = SCRATCH_BYTES / 2;
const TURN: usize = 4 << 20;

#[test]
fn splices_after_large_load() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(PIPE_BYTES);
        for bytes in [LARGE - 1, LARGE] {
            pair.send(side, bytes);
            assert_eq!(pair.turn(), Progress::Blocked);
            assert_eq!(pair.kernel.spliced, 0);
        }
        for bytes in [LARGE / 2, LARGE / 2 - 1] {
            let before = pair.kernel.spliced;
            pair.send(side, bytes);
            assert_eq!(pair.turn(), Progress::Blocked);
            assert_eq!(pair.kernel.spliced, before + bytes);
        }
        pair.send(side, LARGE - 1);
        pair.send(!side, LARGE - 1);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.spliced, LARGE - 1, "the rest is copied");
        assert_eq!(pair.relay.moved_from(side), 4 * LARGE as u64 - 3);
        assert_eq!(pair.kernel.leased, 0, "no pipe without bytes in it");
    }
}

/// The other side takes part of a load: the next ones are smaller, and larger again once it keeps up.
#[test]
fn spliced_loads_shrink_for_a_slow_side() {
    let mut pair = Pair::splicing(PIPE_BYTES);
    let halved = |pair: &Pair| pair.relay.directions[Downstream].halved;
    assert_eq!(halved(&pair), 0);
    pair.relay.directions[Downstream].held = Some(Box::new(Held::Spliced {
        pipe: pair.kernel.lease().expect("one is free"),
        bytes: 1000,
    }));
    for expected in [1, 2, 3, 4, 4] {
        pair.relay.adapt_loads(Downstream, 999);
        assert_eq!(halved(&pair), expected);
    }
    for expected in [3, 2, 1, 0, 0] {
        pair.relay.adapt_loads(Downstream, 1000);
        assert_eq!(halved(&pair), expected);
    }
}

#[test]
fn short_read_waits() {
    // A read and a write; another read where the event does not show that the socket is empty.
    for (edge_triggered, expected) in [(true, 2), (false, 3)] {
        let mut pair = Pair::joined(1000);
        pair.send(Downstream, 10);
        let event = pair.kernel.take_event(Downstream).unwrap();
        pair.relay.ready[Downstream].edge_triggered = false;
        pair.kernel.streams[Downstream].reported.edge_triggered = edge_triggered;
        pair.relay.note(
            Downstream,
            Ready {
                edge_triggered,
                ..event
            },
        );
        let calls = pair.kernel.calls;
        pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(pair.kernel.calls - calls, expected);
        pair.send(Downstream, 10);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.relay.moved_from(Downstream), 20);
    }
}

#[test]
fn read_before_urgent_bytes() {
    let mut pair = Pair::joined(1000);
    pair.send(Upstream, 100);
    pair.send(Upstream, 1);
    pair.kernel.make_last_urgent(Upstream);
    pair.send(Upstream, 100);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), 201);
}

// promise: D7
#[test]
fn no_read_while_holding() {
    for side in Side::BOTH {
        let mut pair = Pair::holding(side, 1000, 500);
        pair.send(side, 200);
        pair.kernel.poke(side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.streams[side].unread(), 200);
        assert_eq!(pair.relay.moved_from(side), 1000);
        pair.drain(!side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.relay.moved_from(side), 1700);
    }
}

// promise: D7
#[test]
fn one_pipe_at_most() {
    for side in Side::BOTH {
        let mut pair = Pair::holding_in_a_pipe(side, 1000, 5000);
        pair.kernel.pipe_bytes = 20_000;
        pair.send(side, 60_000);
        pair.kernel.poke(side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.held(side), 5000);
        let mut left: usize = 65_000;
        while left > 0 {
            pair.drain(!side);
            assert_eq!(pair.turn(), Progress::Blocked);
            left -= left.min(1000);
            assert!(pair.kernel.held(side) <= 20_000);
        }
        assert_eq!(pair.kernel.held(side), 0);
        pair.close();
    }
}

#[test]
fn blocked_direction_is_alone() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    pair.send(Upstream, 900);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), 900);
}

#[test]
fn full_load_for_stuck_reader() {
    let mut pair = Pair::joined(1000);
    pair.send(Downstream, 1000);
    assert_eq!(pair.turn(), Progress::Blocked);
    pair.send(Downstream, 2 * SCRATCH_BYTES);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.kernel.held(Downstream), SCRATCH_BYTES);
}

#[test]
fn busy_direction_yields() {
    let mut pair = Pair::splicing(3 * TURN);
    pair.send(Downstream, 2 * TURN);
    pair.send(Upstream, 100);
    assert_eq!(pair.turn(), Progress::Again);
    assert_eq!(pair.relay.moved_from(Downstream), LARGE as u64 + TURN_BYTES);
    assert_eq!(
        pair.relay.moved_from(Upstream),
        LARGE as u64 + 100,
        "the other direction has its share in the same turn"
    );
    assert_eq!(pair.turn(), Progress::Again);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(
        pair.relay.moved_from(Downstream),
        LARGE as u64 + 2 * TURN_BYTES
    );
    pair.close();
}

#[test]
fn directions_share_turns() {
    let mut pair = Pair::splicing(3 * TURN);
    for side in Side::BOTH {
        pair.send(side, 2 * TURN);
    }
    assert_eq!(pair.turn(), Progress::Again);
    for side in Side::BOTH {
        assert_eq!(pair.relay.moved_from(side), LARGE as u64 + TURN_BYTES);
    }
}

#[test]
fn failure_beats_yield() {
    let mut pair = Pair::splicing(3 * TURN);
    pair.send(Downstream, 2 * TURN);
    pair.kernel.die(Downstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Progress::Again);
    pair.kernel.die(Upstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Progress::Done(Outcome::DownstreamReset));
    pair.close();
}

// promise: I7
#[test]
fn urgent_bytes_in_order() {
    for noted_late in [false, true] {
        let mut pair = Pair::splicing(1 << 20);
        pair.send(Upstream, 1000);
        if noted_late {
            assert_eq!(pair.turn(), Progress::Blocked);
        }
        pair.send(Upstream, 1);
        pair.kernel.make_last_urgent(Upstream);
        pair.send(Upstream, 1000);
        pair.kernel.arrive_fin(Upstream);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert!(pair.kernel.handed_over(Upstream));
    }
}

// promise: I7
#[test]
fn splice_stops_at_urgent() {
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
    let step = pair.relay.advance(&mut pair.kernel, pair.now);
    assert_eq!(step, Progress::Blocked);
    assert_eq!(pair.turn(), Progress::Blocked, "there was another event");
    assert!(pair.kernel.handed_over(Upstream));
}

// promise: D7
#[test]
fn without_a_pipe_it_copies() {
    let mut pair = Pair::splicing(PIPE_BYTES);
    pair.kernel.pipes_max = 0;
    pair.send(Upstream, 200_000);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.relay.moved_from(Upstream), LARGE as u64 + 200_000);
    assert_eq!(pair.kernel.spliced, 0);
    pair.kernel.pipes_max = 1;
    pair.send(Upstream, 300);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.kernel.spliced, 300);
}

// promise: D7
#[test]
fn pipes_come_back() {
    for side in Side::BOTH {
        let mut pair = Pair::splicing(1000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.leased, 0);
        pair.kernel.die(!side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Progress::Done(reset(!side)));
        assert_eq!(pair.kernel.leased, 0);
        pair.close();
    }
}

#[test]
fn killed_relay_returns_pipes() {
    let mut pair = Pair::holding_in_a_pipe(Downstream, 1000, 500);
    pair.send(Upstream, 1700);
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.kernel.leased, 2);
    pair.close();
}

#[test]
fn blocked_relay_is_silent() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    let ready = pair.relay.ready;
    let calls = pair.kernel.calls;
    for _ in 0..3 {
        let step = pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(step, Progress::Blocked);
    }
    assert_eq!(pair.kernel.calls, calls);
    assert_eq!(pair.relay.ready, ready);
}

#[test]
fn spurious_readiness_is_harmless() {
    let mut pair = Pair::joined(1000);
    for side in Side::BOTH {
        pair.kernel.expect(side, READY);
        pair.relay.note(side, READY);
    }
    let step = pair.relay.advance(&mut pair.kernel, pair.now);
    assert_eq!(step, Progress::Blocked);
}
