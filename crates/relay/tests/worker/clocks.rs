// SPDX-License-Identifier: Apache-2.0
//! A node with a wrong clock.

use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::control::Denial;
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host, until};
use crate::node::{Node, Setup, start_all};
use crate::peers::unix_ms;
use crate::streams::is_answered;

/// Two nodes, of which the first uses the wrong clock, and keeps warm hops to the second.
fn start(host: &Host, ahead_ms: i64, hops: Family, pool: PoolLimits) -> [Node; 2] {
    let first = Setup::of(0).peer_with(1, hops, |peer| peer.pool = pool);
    let first = first.chain(&[1]).or_direct();
    first
        .clock
        .set_offset(|| Duration::from_millis(unix_ms().strict_add_signed(ahead_ms)));
    start_all(host, [first, Setup::of(1).peer(0, hops)])
}

/// Flows that the second node has refused: after one, the first sends no request for a minute.
fn refused(first: &Node) -> u64 {
    let refused = first.count(|counters| counters.hops_refused_for_clock.read());
    assert!((1..=REFUSED_MAX as u64).contains(&refused), "{refused}");
    refused
}

/// How many flows of all are refused, at the most: one, and another after each minute that the
/// machine may have stood still.
const REFUSED_MAX: usize = 3;
const COLD: PoolLimits = PoolLimits { min: 0, max: 0 };

/// The client of the first flow may have sent bytes before the next node refused it: it is reset, or
/// gets what it should, and nothing else. The next ones go directly.
// promise: K14
#[test]
fn wrong_clock_early_whole() {
    for (ahead_ms, hops) in [(-3_600_000, Family::V4), (90_000, Family::V6)] {
        let host = Host::enter();
        let [first, second] = start(&host, ahead_ms, hops, COLD);
        let servers = host.listen();
        let requested = Family::ALL.repeat(6);
        let answered = requested.iter().filter(|theirs| {
            let client = first.dial(AcceptMode::EARLY, **theirs).unwrap();
            is_answered(client, **theirs, &servers)
        });
        assert!(answered.count() + REFUSED_MAX >= requested.len());
        first.until_count(0, |counters| counters.relays.read());
        assert_eq!(second.relays_opened(), 0);
        second.until_denied(Denial::Clock, refused(&first));
        let ahead = second.denials()[0].ahead_ms.unwrap();
        assert!((ahead - ahead_ms).abs() < 20_000, "{ahead}");
        let failure = first.known().peers[0].failure.clone();
        assert!(failure.is_some_and(|why| why.contains("its clock and that of this node differ")));
    }
}

/// The ends of a warm hop authenticate each other by challenges, without a clock.
// promise: K14
#[test]
fn wrong_clock_warm_hops() {
    for (ahead_ms, hops) in [(90_000, Family::V4), (-3_600_000, Family::V6)] {
        let host = Host::enter();
        let pool = PoolLimits { min: 2, max: 2 };
        let [first, second] = start(&host, ahead_ms, hops, pool);
        let servers = host.listen();
        for (count, theirs) in (1..).zip(Family::ALL) {
            first.until_waiting(2);
            let mut pair = first.open(AcceptMode::EARLY, theirs, &servers);
            pair.check();
            pair.close_client_first();
            second.until_ended(Outcome::Finished, count);
        }
        assert_eq!(first.count(|counters| counters.hops_warm.read()), 2);
        let refused = first.count(|counters| counters.hops_refused_for_clock.read());
        assert_eq!(refused, 0);
    }
}

/// The first flow finds no hop that waits, and is refused. One is opened for those that follow.
// promise: K14
#[test]
fn warm_hops_after_refusal() {
    let host = Host::enter();
    let pool = PoolLimits { min: 0, max: 4 };
    let [first, second] = start(&host, 90_000, Family::V6, pool);
    let servers = host.listen();
    for theirs in Family::ALL {
        let before = second.relays_opened();
        until("a flow over a hop that waited", || {
            let mut pair = first.open(AcceptMode::STRICT, theirs, &servers);
            pair.check();
            pair.close_client_first();
            second.relays_opened() > before
        });
    }
    refused(&first);
}
