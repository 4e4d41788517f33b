// SPDX-License-Identifier: Apache-2.0
//! Streams whose lost bytes follow from repair symbols.

use posthaste_testkit::simulate;

use super::flows::{Flows, Outcome, run};
use super::*;

const KB: usize = 1000;

/// Both ends after some transfers, over 100 ms with so many of a thousand packets lost.
fn warm(permille: u64, seed: u64) -> Network {
    let mut coins = Rng::new(seed);
    let mut network = Network::new(move |_, _| coins.below(1000_u64) < permille);
    network.delay = ms(50);
    network.run_until("up", Network::is_up);
    let mut flows = Flows::default();
    for _ in 0..3 {
        assert!(flows.open(&mut network, 1000 * KB));
        run(&mut network, &mut flows, 300);
    }
    for end in &mut network.ends {
        end.take_repairs();
    }
    network
}

/// How long flows of so many bytes take until the acceptor has read them, one after the other.
fn times(network: &mut Network, bytes: usize, count: usize) -> Vec<Duration> {
    let mut flows = Flows::default();
    let mut times = Vec::new();
    for _ in 0..count {
        let start = network.now;
        assert!(flows.open(network, bytes));
        while !flows.ends[1].values().any(|flow| flow.received == bytes) {
            assert!(network.now < start + Duration::from_secs(20), "flows hang");
            flows.turn(network);
        }
        times.push(network.now - start);
        run(network, &mut flows, 60);
        flows = Flows::default();
        flows.seen = network.events.each_ref().map(Vec::len);
    }
    times.sort_unstable();
    times
}

// promise: K26
#[test]
fn short_flows_do_not_wait_for_lost_packets() {
    simulate(1, |mut rng: Rng| {
        let mut network = warm(50, rng.next());
        let times = times(&mut network, 100 * KB, 40);
        // 50 ms on the way; what is lost and sent again takes 150 ms at least.
        let soon = times.iter().filter(|time| **time < ms(100)).count();
        assert!(soon >= 34, "{soon} of 40: {times:?}");
        assert!(network.ends[0].take_repairs().datagrams_sent >= 40 * 7);
        assert!(network.ends[1].take_repairs().bytes_repaired > 0);
    });
}

// promise: K26
#[test]
fn nothing_is_added_without_loss() {
    let mut network = warm(0, 1);
    times(&mut network, 100 * KB, 5);
    for end in &mut network.ends {
        assert_eq!(end.take_repairs(), Repairs::default());
    }
}

/// Streams that were repaired up to their end are read to it, and blocks are complete.
// promise: K26
#[test]
fn repairs_leave_nothing_behind() {
    simulate(1, |mut rng: Rng| {
        let mut network = warm(100, rng.next());
        let mut flows = Flows::default();
        for _ in 0..100 {
            while !flows.open(&mut network, 1 + rng.below(60 * KB)) {
                flows.turn(&mut network);
            }
            flows.turn(&mut network);
        }
        run(&mut network, &mut flows, 60);
        assert_eq!(flows.count(0, Outcome::Whole), 100);
        assert!(network.ends[1].take_repairs().bytes_repaired > 0);
        let until = network.now + Duration::from_secs(5);
        network.run_until("settled", |network| network.now >= until);
        for end in &network.ends {
            let (streams, blocks, kept) = end.leftovers();
            assert_eq!((streams, blocks), (0, 0));
            assert!(kept <= 4 << 20, "{kept}");
        }
    });
}

/// Streams with more than the window takes: no repair symbol delays them.
// promise: K26
#[test]
fn repairs_wait_for_bytes_of_streams() {
    let mut network = warm(50, 7);
    let mut flows = Flows::default();
    for _ in 0..8 {
        assert!(flows.open(&mut network, 3000 * KB));
    }
    let until = network.now + ms(150);
    while network.now < until {
        flows.turn(&mut network);
    }
    assert_eq!(network.ends[0].take_repairs().datagrams_sent, 0);
    run(&mut network, &mut flows, 60);
    assert!(network.ends[0].take_repairs().datagrams_sent > 0);
}

/// A request whose sender waits for the answer: its block is complete though no FIN comes.
// promise: K26
#[test]
fn pause_completes_a_block() {
    let mut network = warm(50, 3);
    let mut lost = 0;
    // The third packet of the request is lost.
    network.loses = Box::new(move |to, _| {
        lost += usize::from(to == 1);
        lost == 3
    });
    let stream = network.ends[0].open(network.dialed, 5).unwrap();
    network.events[1].clear();
    assert_eq!(network.ends[0].write(stream, &[7; 8000]).unwrap(), 8000);
    let start = network.now;
    network.run_until("opened", |network| network.opened().is_some());
    let accepted = network.opened().unwrap();
    let mut got = 0;
    while got < 8000 {
        network.turn();
        got += network.ends[1].read(accepted, &mut [0; 8000]).unwrap_or(0);
        assert!(network.now < start + ms(110), "{got} of 8000 bytes");
    }
}
