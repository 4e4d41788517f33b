// SPDX-License-Identifier: Apache-2.0
//! Flows that leave a hop which has fallen silent, and go directly: what goes with them, and which of
//! them go nowhere any more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use posthaste_lab::network::Family;

use crate::capture::Capture;
use crate::loops::set_hop_limit;
use crate::payload::uninterrupted;
use crate::requests::receive_all;
use crate::support::{
    PORT, Pair, SOON, counter, dial, dial_with, firewall, listen, relay_of, remove_firewall, reset,
    target, until, until_counter,
};

use super::cuts::{EARLY_OR_DIRECT, Fixture, cut};

/// What the client of a flow sets.
const TTL: u8 = 40;
/// How often a busy machine may have noticed the cut before the flow has begun.
const ATTEMPTS: usize = 5;

/// A fixture with a cut first hop, before the node on the path has detected that.
fn cut_fixture() -> Fixture {
    let fixture = EARLY_OR_DIRECT.start();
    cut(fixture.network.aside(0));
    fixture
}

fn rerouted(fixture: &Fixture) -> u64 {
    counter(&fixture.first, "hops_rerouted")
}

// promise: K15
#[test]
fn reroute_keeps_ttl() {
    for family in Family::ALL {
        let seen = (0..ATTEMPTS).find_map(|_| ttls_at_the_server(family));
        let seen = seen.expect("a flow leaves its hop");
        assert!(!seen.is_empty(), "{family}");
        assert!(seen.iter().all(|ttl| *ttl == TTL - 1), "{family}: {seen:?}");
    }
}

/// What the SYNs of a flow have that left its hop; none if the node chose no hop for it.
fn ttls_at_the_server(family: Family) -> Option<Vec<u8>> {
    let fixture = cut_fixture();
    let listener = listen(fixture.network.server(), PORT);
    let capture = Capture::start(fixture.network.server());
    let to = target(&fixture.network, family, &listener);
    let dialled = dial_with(fixture.network.client(), to, |socket| {
        set_hop_limit(socket, to.ip(), TTL.into())
    });
    let mut pair = Pair::of(dialled, &listener);
    pair.check();
    pair.close_client_first();
    let syns = capture.syns_to(PORT).into_iter();
    (rerouted(&fixture) == 1).then(|| syns.map(|syn| syn.ttl).collect())
}

/// Request of a client that stays.
const STAYS: u8 = b's';

/// Connects, and waits until the node has the flow. It sends nothing: a flow does not leave the hop to
/// which its bytes were sent.
fn begin(fixture: &Fixture, to: SocketAddr) -> TcpStream {
    let client = dial(fixture.network.client(), to).expect("the node accepts at once");
    let address = client.local_addr().expect("a connected socket");
    until("the flow", || relay_of(&fixture.first, address).is_some());
    client
}

/// How many flows took a hop.
fn hops_taken(fixture: &Fixture) -> u64 {
    counter(&fixture.first, "hops_warm") + counter(&fixture.first, "hops_cold")
}

/// Takes the connection of the client that stays, and has its byte. Each of the others ends by a reset:
/// its client has not closed it.
fn accept_those_who_stay(listener: &TcpListener) -> Vec<TcpStream> {
    let mut staying = Vec::new();
    while let Ok((mut server, _)) = listener.accept() {
        server.set_nonblocking(false).expect("a socket");
        server.set_read_timeout(Some(SOON)).expect("a socket");
        let mut byte = [0];
        match uninterrupted(|| server.read(&mut byte)) {
            Ok(1) if byte == [STAYS] => staying.push(server),
            Ok(1) => assert!(
                receive_all(&mut server).reset,
                "a FIN that the client did not send"
            ),
            Ok(_) => panic!("a FIN that the client did not send"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    staying
}

// promise: K15
#[test]
fn reset_before_reroute() {
    for family in Family::ALL {
        let fixture = cut_fixture();
        let listener = listen(fixture.network.server(), PORT);
        listener.set_nonblocking(true).expect("a socket");
        let to = target(&fixture.network, family, &listener);
        let resets = begin(&fixture, to);
        // Its hop is left when the other's would have been.
        let mut stays = begin(&fixture, to);
        reset(resets);
        // A busy machine may have noticed the cut before the second.
        until("another way", || {
            rerouted(&fixture) == 1 || hops_taken(&fixture) < 2
        });
        stays.write_all(&[STAYS]).expect("the node takes it");
        let mut served = Vec::new();
        until("the one that stays", || {
            served.extend(accept_those_who_stay(&listener));
            !served.is_empty()
        });
        served[0].write_all(b"!").expect("it is there");
        stays.read_exact(&mut [0]).expect("an answer");
        drop((served, stays));
        // What waits for the hop to acknowledge it ends sooner.
        remove_firewall(fixture.network.aside(0), "cut");
        until("the end of all", || {
            assert!(accept_those_who_stay(&listener).is_empty());
            counter(&fixture.first, "relays") == 0
        });
        assert!(accept_those_who_stay(&listener).is_empty());
    }
}

// promise: K15
#[test]
fn reset_during_reroute() {
    for family in Family::ALL {
        let ended = (0..ATTEMPTS).any(|_| {
            let fixture = cut_fixture();
            let listener = listen(fixture.network.server(), PORT);
            listener.set_nonblocking(true).expect("a socket");
            let deaf = format!("tcp dport {PORT} drop");
            firewall(fixture.network.server(), "deaf", &[("input", &deaf)]);
            let client = begin(&fixture, target(&fixture.network, family, &listener));
            let opening = || counter(&fixture.first, "relays_opened") == 1;
            until("another way", || rerouted(&fixture) == 1 || !opening());
            let is_rerouted = rerouted(&fixture) == 1;
            reset(client);
            remove_firewall(fixture.network.server(), "deaf");
            until_counter(&fixture.first, "relays", 0);
            assert!(accept_those_who_stay(&listener).is_empty());
            is_rerouted
        });
        assert!(ended, "{family}: no flow left its hop");
    }
}
