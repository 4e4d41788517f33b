// SPDX-License-Identifier: Apache-2.0
//! How a relay ends: FIN of either side, resets, silence, time.

use std::io::ErrorKind;
use std::time::Duration;

use super::super::{Bounds, Progress};
use super::pair::{Pair, reset};
use crate::outcome::Outcome;
use crate::side::Side::{self, Downstream, Upstream};

const BOUNDS: Bounds = Bounds {
    idle_ms: 60_000,
    client_fin_ms: 5_000,
    server_fin_ms: 7_000,
};

#[test]
fn each_side_may_close_first() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        assert!(pair.relay.closing());
        pair.send(!side, 700);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.relay.moved_from(!side), 700, "half-closed, not closed");
        assert!(!pair.kernel.streams[side].fin_sent);
        pair.kernel.arrive_fin(!side);
        assert_eq!(pair.turn(), Progress::Done(Outcome::Finished));
        assert!(pair.kernel.handed_over(Downstream) && pair.kernel.handed_over(Upstream));
    }
}

#[test]
fn both_close_at_once() {
    let mut pair = Pair::joined(1000);
    for side in Side::BOTH {
        pair.send(side, 10);
        pair.kernel.arrive_fin(side);
    }
    assert_eq!(pair.turn(), Progress::Done(Outcome::Finished));
    assert!(pair.kernel.handed_over(Downstream) && pair.kernel.handed_over(Upstream));
}

#[test]
fn bytes_with_fin_at_once() {
    let mut pair = Pair::joined(1000);
    assert_eq!(pair.turn(), Progress::Blocked);
    pair.send(Upstream, 10);
    pair.kernel.arrive_fin(Upstream);
    let before = pair.kernel.calls;
    assert_eq!(pair.turn(), Progress::Blocked);
    assert_eq!(pair.kernel.calls - before, 3, "a read, a write, a FIN");
    assert!(pair.kernel.handed_over(Upstream));
    pair.close();
}

// promise: I2
#[test]
fn fin_waits_for_held_bytes() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 1500),
            Pair::holding_in_a_pipe(side, 1000, 1500),
        ] {
            pair.kernel.arrive_fin(side);
            for _ in 0..2 {
                assert_eq!(pair.turn(), Progress::Blocked);
                assert!(!pair.kernel.streams[!side].fin_sent);
                pair.drain(!side);
            }
            assert_eq!(pair.turn(), Progress::Blocked);
            assert!(pair.kernel.handed_over(side));
            pair.close();
        }
    }
}

#[test]
fn reset_blames_sender() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Progress::Done(reset(side)));
    }
}

#[test]
fn timeout_blames_peer() {
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
            assert_eq!(pair.turn(), Progress::Done(outcome));
        }
    }
}

#[test]
fn bytes_before_reset_delivered() {
    let mut pair = Pair::joined(1000);
    pair.send(Upstream, 300);
    pair.kernel.die(Upstream, ErrorKind::ConnectionReset);
    assert_eq!(pair.turn(), Progress::Linger);
    assert_eq!(pair.relay.moved_from(Upstream), 300);
    pair.drain(Downstream);
    assert_eq!(pair.turn(), Progress::Done(Outcome::UpstreamReset));
}

#[test]
fn answer_before_writer_reset() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(!side, 1000, 1500),
            Pair::holding_in_a_pipe(!side, 1000, 1500),
        ] {
            pair.send(side, 1600);
            pair.kernel.die(side, ErrorKind::ConnectionReset);
            pair.send(!side, 100);
            // The other side takes 1000 bytes at a time.
            for (taken, step) in [(1000, Progress::Blocked), (600, Progress::Linger)] {
                assert_eq!(pair.turns(), step);
                assert_eq!(pair.kernel.streams[!side].unacknowledged(), taken);
                pair.drain(!side);
            }
            assert_eq!(pair.turn(), Progress::Done(reset(side)));
            assert_eq!(pair.kernel.streams[!side].unread(), 100, "for a dead side");
            assert!(!pair.kernel.streams[!side].fin_sent, "it was cut off");
            pair.close();
        }
    }
}

#[test]
fn fin_before_reset_delivered() {
    for side in Side::BOTH {
        let mut pair = Pair::holding(!side, 1000, 1500);
        pair.send(side, 100);
        pair.kernel.arrive_fin(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        pair.drain(side);
        assert_eq!(pair.turns(), Progress::Linger);
        assert!(pair.kernel.handed_over(side));
        pair.drain(!side);
        assert_eq!(pair.turn(), Progress::Done(reset(side)));
    }
}

// promise: I8
#[test]
fn delivery_before_reset_is_bounded() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.send(side, 700);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Progress::Linger);
        pair.after(29_999);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
        pair.after(1);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), Some(reset(side)));
    }
}

// promise: I8
#[test]
fn slow_acknowledgement_is_awaited() {
    for side in Side::BOTH {
        // Everything is written, or a part is held until there is room.
        for pair in [Pair::joined(1000), Pair::holding(side, 1000, 500)] {
            acknowledges_slowly(pair, side);
        }
    }
}

fn acknowledges_slowly(mut pair: Pair, side: Side) {
    if pair.kernel.held(side) == 0 {
        pair.send(side, 700);
    }
    pair.kernel.die(side, ErrorKind::ConnectionReset);
    pair.turns();
    assert_eq!(pair.relay.lingers_for(), Some(!side));
    let look = |pair: &mut Pair| {
        let left = pair.kernel.streams[!side].unacknowledged();
        pair.relay.note_unacknowledged(left as u64, pair.now);
        pair.relay.on_time(pair.now, &BOUNDS)
    };
    assert_eq!(look(&mut pair), None);
    for _ in 0..10 {
        pair.after(29_999);
        pair.kernel.acknowledge(!side, 10);
        assert_eq!(look(&mut pair), None);
    }
    pair.after(29_999);
    assert_eq!(look(&mut pair), None);
    pair.after(1);
    assert_eq!(look(&mut pair), Some(reset(side)), "it has stopped");
}

#[test]
fn second_failure_ends_waiting() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 1500),
            Pair::holding_in_a_pipe(side, 1000, 1500),
        ] {
            pair.kernel.die(side, ErrorKind::ConnectionReset);
            assert_eq!(pair.turn(), Progress::Again);
            pair.kernel.die(!side, ErrorKind::TimedOut);
            assert_eq!(pair.turn(), Progress::Done(reset(side)));
            pair.close();
        }
    }
}

#[test]
fn stuck_reader_is_blamed() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 1500),
            Pair::holding_in_a_pipe(side, 1000, 1500),
        ] {
            pair.kernel.die(!side, ErrorKind::ConnectionReset);
            assert_eq!(pair.turn(), Progress::Done(reset(!side)));
            pair.close();
        }
    }
}

#[test]
fn held_bytes_survive_reset() {
    for side in Side::BOTH {
        for mut pair in [
            Pair::holding(side, 1000, 500),
            Pair::holding_in_a_pipe(side, 1000, 500),
        ] {
            pair.kernel.die(side, ErrorKind::ConnectionReset);
            assert_eq!(pair.turns(), Progress::Blocked);
            pair.drain(!side);
            assert_eq!(pair.turns(), Progress::Linger);
            assert_eq!(pair.kernel.held(side), 0);
            pair.drain(!side);
            assert_eq!(pair.turn(), Progress::Done(reset(side)));
            pair.close();
        }
    }
}

#[test]
fn bytes_before_failure_counted() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.kernel.die_after(!side, 600);
        pair.send(side, 900);
        assert_eq!(pair.turns(), Progress::Done(reset(!side)));
        assert_eq!(pair.relay.moved_from(side), 600);
    }
}

#[test]
fn reset_behind_fin_ends() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turn(), Progress::Done(reset(side)));
    }
}

#[test]
fn reset_with_fin_ends() {
    for side in Side::BOTH {
        let mut pair = Pair::joined(1000);
        pair.send(side, 400);
        pair.kernel.arrive_fin(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        assert_eq!(pair.turns(), Progress::Linger);
        assert!(pair.kernel.handed_over(side));
        pair.drain(!side);
        assert_eq!(pair.turn(), Progress::Done(reset(side)));
    }
}

#[test]
fn undeliverable_fin_not_clean() {
    for side in Side::BOTH {
        let mut pair = Pair::half_closed(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        pair.kernel.arrive_fin(!side);
        // The relay reads the FIN before the reset.
        let ready = pair.kernel.take_event(!side).unwrap();
        pair.relay.note(!side, ready);
        let step = pair.relay.advance(&mut pair.kernel, pair.now);
        assert_eq!(step, Progress::Done(reset(side)));
    }
}

#[test]
fn answer_despite_undeliverable_fin() {
    for side in Side::BOTH {
        let mut pair = Pair::holding(side, 1000, 500);
        pair.kernel.arrive_fin(side);
        pair.kernel.die(side, ErrorKind::ConnectionReset);
        pair.kernel.arrive_fin(!side);
        assert_eq!(pair.turns(), Progress::Blocked);
        pair.drain(!side);
        assert_eq!(pair.turns(), Progress::Linger);
        assert!(pair.kernel.handed_over(side));
        pair.drain(!side);
        assert_eq!(pair.turn(), Progress::Done(reset(side)));
    }
}

// promise: D8
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
fn inbound_bytes_alone_idle() {
    let mut pair = Pair::holding(Downstream, 1000, 500);
    pair.after(30_000);
    pair.send(Downstream, 500);
    pair.turn();
    assert_eq!(pair.relay.deadline(&BOUNDS), Duration::from_mins(1));
}

// promise: D8
#[test]
fn unclosed_side_own_timeout() {
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
fn late_fin_restarts_timeout() {
    for (side, bound) in [(Downstream, 5_000), (Upstream, 7_000)] {
        let mut pair = Pair::joined(1000);
        pair.after(50_000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.relay.on_time(pair.now, &BOUNDS), None);
        let deadline = pair.now + Duration::from_millis(bound);
        assert_eq!(pair.relay.deadline(&BOUNDS), deadline);
    }
}
