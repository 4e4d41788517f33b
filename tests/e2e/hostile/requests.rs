// SPDX-License-Identifier: Apache-2.0
//! Requests with a seal that are worth nothing, or ask for what a peer may not have either.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};

use posthaste_wire::header::LoopGuard;
use posthaste_wire::hop::{Acceptor, Reply};
use posthaste_wire::seal::Key;

use posthaste_lab::network::Family;

use crate::asking::{Asked, Heard, hear, listener, read, say_to, scene};
use crate::support::{PORT, Pair, accept, listen, until_counter, until_ended};

use super::{CHAIN, Draft, ME, config, expect, id};

/// What a peer, or who says it is one, is told.
fn reply(reply: Reply) -> Heard {
    Heard::and_closed(&Acceptor::reply(reply))
}

#[test]
fn a_request_counts_once_at_all_workers() {
    let network = scene();
    let asked = Asked::start(&network, &config(&network));
    let servers = listen(network.server(), PORT);
    for (round, family) in (0..).zip(Family::ALL) {
        let overheard = Draft::to_server(&network, family).encode();
        let node = listener(&network, 0, family);
        let mut client = say_to(&network, node, &overheard);
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 24), Acceptor::reply(Reply::Connected));
        // The kernel chooses the worker by the client's port: some go to either.
        for _ in 0..16 {
            let mut again = say_to(&network, node, &overheard);
            assert_eq!(hear(&mut again), reply(Reply::Denied), "{family}");
        }
        asked.until_denied(&network, "replay", 16 * (round + 1));
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
        until_ended(&asked.node, "finished", round + 1);
    }
    assert_eq!(asked.settle(), 2);
}

#[test]
fn another_key_is_no_ones() {
    let network = scene();
    expect(&network, "seal", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.key = Key::new([0x55; 32]);
        draft.encode()
    });
}

#[test]
fn a_key_under_another_number_is_not_tried() {
    let network = scene();
    expect(&network, "seal", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.key_id += 1;
        draft.encode()
    });
}

#[test]
fn a_request_for_another_node_is_not_taken() {
    let network = scene();
    expect(&network, "seal", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.receiver = ME + 4;
        draft.encode()
    });
}

#[test]
fn a_request_whose_destination_was_changed_is_not_taken() {
    let network = scene();
    expect(&network, "seal", &reply(Reply::Denied), |family| {
        let mut request = Draft::to_server(&network, family).encode();
        // The port in the Connect TLV.
        request[7] ^= 1;
        request
    });
}

#[test]
fn a_request_of_long_ago_counts_no_more() {
    let network = scene();
    expect(&network, "clock", &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.made_ms -= 40_000;
        draft.encode()
    });
}

#[test]
fn a_request_from_the_future_does_not_count() {
    let network = scene();
    expect(&network, "clock", &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.made_ms += 3_600_000;
        draft.encode()
    });
}

#[test]
fn a_flow_that_began_here_does_not_pass_again() {
    let network = scene();
    expect(&network, "loop", &reply(Reply::TooManyHops), |family| {
        let mut draft = Draft::to_server(&network, family).by(CHAIN, 1);
        draft.connect.header.guard = Some(LoopGuard::new(id(ME)));
        draft.encode()
    });
}

#[test]
fn a_flow_that_has_come_too_far_is_not_passed_on() {
    let network = scene();
    expect(&network, "loop", &reply(Reply::TooManyHops), |family| {
        let mut draft = Draft::to_server(&network, family).by(CHAIN, 1);
        let guard = draft.connect.header.guard.as_mut().unwrap();
        guard.hop_limit = 0;
        draft.encode()
    });
}

#[test]
fn a_label_that_leads_nowhere_is_named() {
    for (chain, position) in [(CHAIN + 1, 1), (CHAIN, 3), (CHAIN, 0), (CHAIN, 255)] {
        let network = scene();
        expect(&network, "label", &reply(Reply::UnknownLabel), |family| {
            let draft = Draft::to_server(&network, family);
            draft.by(chain, position).encode()
        });
    }
}

#[test]
fn a_peer_gets_no_denied_destination_either() {
    let network = scene();
    for destinations in [
        ["169.254.169.254", "64:ff9b::a9fe:a9fe"],
        ["192.168.0.1", "fe80::1"],
        ["100.64.0.1", "2002:a9fe:a9fe::1"],
    ] {
        let denied = reply(Reply::Denied);
        expect(&network, "destination", &denied, |family| {
            let index = usize::from(family == Family::V6);
            let to = SocketAddr::new(destinations[index].parse().unwrap(), PORT);
            Draft::to(to).encode()
        });
    }
}

#[test]
fn garbage_is_reset() {
    let network = scene();
    let noise = [0x9e, 0x37, 0x79, 0xb9, 0x7f, 0x4a, 0x7c, 0x15];
    let reset = Heard::only_a_reset();
    expect(&network, "malformed", &reset, |_| noise.repeat(200));
    // Begins like a hop, and is none.
    expect(&network, "malformed", &reset, |_| {
        b"PHOP\x02\0\0\0".to_vec()
    });
}

#[test]
fn half_a_request_and_an_end_is_let_go() {
    let network = scene();
    let asked = Asked::start(&network, &config(&network));
    for family in Family::ALL {
        let request = Draft::to_server(&network, family).encode();
        for length in [24, 60, request.len() - 1] {
            let node = listener(&network, 0, family);
            let mut stream = say_to(&network, node, &request[..length]);
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(hear(&mut stream).bytes.is_empty(), "{length} bytes");
        }
    }
    until_counter(&asked.node, "explicit_connections", 6);
    asked.until_denied(&network, "seal", 0);
    assert_eq!(asked.settle(), 0);
}

/// Where the client of a flow is not proved, whoever asked has to say so before any byte.
#[test]
fn bytes_in_place_of_the_proof_end_the_flow() {
    let network = scene();
    let asked = Asked::start(&network, &config(&network));
    let _servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let mut draft = Draft::to_server(&network, family);
        draft.connect.proved = false;
        let mut stream = say_to(&network, listener(&network, 0, family), &draft.encode());
        assert_eq!(read(&mut stream, 24), Acceptor::reply(Reply::Connected));
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(hear(&mut stream), Heard::only_a_reset(), "{family}");
        until_ended(&asked.node, "client_absent", count);
    }
    assert_eq!(asked.settle(), 2);
    let opened = crate::support::kernel_counter(network.server(), "Tcp", "PassiveOpens");
    assert_eq!(opened, 0, "no handshake was completed with the server");
}
