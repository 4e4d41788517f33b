// SPDX-License-Identifier: Apache-2.0
//! Connections that end before their time, and packets that should end none.

use super::*;

/// As [`Network::with_stream`], and the request was read.
fn with_a_stream() -> (Network, Stream, Stream) {
    let (mut network, stream, accepted) = Network::with_stream();
    assert_eq!(network.ends[1].read(accepted, &mut [0; 9]).unwrap(), 7);
    (network, stream, accepted)
}

// promise: K21
#[test]
fn report_of_a_port_that_is_closed_is_verified() {
    let (mut network, ..) = with_a_stream();
    for _ in 0..3 {
        network.ends[0].on_refused(network.dialed, network.now);
        network.run_for(ms(2000));
        assert!(!network.is_lost(0), "the peer has answered");
    }
    let start = network.now;
    network.loses = Box::new(|_, _| true);
    network.ends[0].on_refused(network.dialed, network.now);
    network.run_until("lost", |network| network.is_lost(0));
    assert!(network.now < start + ms(1000), "{:?}", network.now - start);
}

// promise: F7
#[test]
fn retired_connection_ends_after_its_streams() {
    let (mut network, stream, accepted) = with_a_stream();
    let now = network.now;
    network.ends[1].retire(accepted.connection, now);
    let late = network.ends[0].open(network.dialed, 8).unwrap();
    network.ends[0].write(late, b"late").unwrap();
    network.run_for(ms(1000));
    let reset = network.ends[0].read(late, &mut [0; 9]).unwrap_err();
    assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    assert!(!network.is_lost(0), "the first one is open");
    network.ends[1].write(accepted, &[5; 50_000]).unwrap();
    network.ends[1].finish(accepted).unwrap();
    network.ends[0].finish(stream).unwrap();
    network.ends[1].close(accepted, 0);
    network.run_for(ms(1000));
    let mut bytes = vec![0; 60_000];
    let mut got = 0;
    while let Ok(count @ 1..) = network.ends[0].read(stream, &mut bytes[got..]) {
        got += count;
    }
    assert_eq!(got, 50_000);
    assert_eq!(network.ends[0].read(stream, &mut bytes).unwrap(), 0);
    network.ends[0].close(stream, 0);
    network.ends[0].close(late, 0);
    network.run_until("closed", |network| network.is_lost(0));
}

// promise: F6
#[test]
fn connection_is_left_after_both_ends_have_read_all() {
    let (mut network, stream, accepted) = with_a_stream();
    network.ends[0].write(stream, &[5; 50_000]).unwrap();
    network.ends[0].finish(stream).unwrap();
    network.ends[0].close(stream, 0);
    network.ends[0].go_away(network.dialed);
    network.run_for(ms(3000));
    assert!(!network.ends[0].is_over(), "the peer has not read it");
    let mut bytes = vec![0; 60_000];
    assert_eq!(network.ends[1].read(accepted, &mut bytes).unwrap(), 50_000);
    network.ends[1].close(accepted, 0);
    network.run_until("over", |network| network.ends[0].is_over());
    network.run_until("over", |network| network.ends[1].is_over());
}

// promise: K15
#[test]
fn reset_after_the_end_delivers_no_more() {
    let (mut network, stream, accepted) = with_a_stream();
    network.loses = Box::new(|end, _| end == 1);
    network.ends[0].write(stream, b"request").unwrap();
    network.ends[0].finish(stream).unwrap();
    network.run_for(ms(500));
    network.ends[0].reset(stream, 0);
    network.loses = Box::new(|_, _| false);
    network.run_for(ms(3000));
    let read = network.ends[1].read(accepted, &mut [0; 9]);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn unknown_packets_from_elsewhere_are_not_answered() {
    let (mut network, stream, _) = with_a_stream();
    network.ends[0].write(stream, &[5; 500]).unwrap();
    let (now, mut packet) = (network.now, Vec::new());
    let _ = network.ends[0].poll_transmit(1, &mut packet, now).unwrap();
    // Of another worker, or another process.
    let [_, acceptor] = credentials();
    let mut other = Endpoint::new(ms(0), (&[7; 32], 0), Arc::default(), now);
    other.accept_from(&[acceptor]).unwrap();
    let mut is_answered = |from: SocketAddr, now| {
        let mut answer = Vec::new();
        let (_, sent) = other.on_datagram((from, None, 0), None, &packet, &mut answer, now);
        sent.is_some()
    };
    // An endpoint sends few resets in a short time: the first is the one that it would send.
    assert!(!is_answered("198.51.100.1:4480".parse().unwrap(), now));
    assert!(is_answered(address(0), now + ms(1000)));
}
