// SPDX-License-Identifier: Apache-2.0
//! Requests with an invalid authentication tag, or for what a peer may not request either.

use std::net::{Shutdown, SocketAddr};

use posthaste_relay::control::Denial;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::auth::Key;
use posthaste_wire::header::{LoopGuard, NodeId};
use posthaste_wire::hop::{Acceptor, Reply};
use posthaste_wire::segments::SegmentList;

use crate::denied::expect_denied;
use crate::host::{Family, Host, PORT};
use crate::node::id;
use crate::streams::{Pair, Received, accept, read, receive_all, send_to};

use super::{Draft, ME, PEER, reply, setup};

fn expect(denial: Denial, answer: &Received, hostile: impl Fn(Family) -> Vec<u8>) {
    expect_denied(&setup(), denial, answer, hostile);
}

/// A request that the peer has not made as it arrives.
fn not_authentic(hostile: impl Fn(Family) -> Vec<u8>) {
    expect(Denial::AuthTag, &reply(Reply::Denied), hostile);
}

fn looping(hostile: impl Fn(Draft) -> Draft) {
    let answer = reply(Reply::TooManyHops);
    expect(Denial::Loop, &answer, |family| {
        hostile(Draft::to_server(family)).encode()
    });
}

// promise: Q8
#[test]
fn request_counts_once() {
    let host = Host::enter();
    let (node, servers) = (setup().start(&host), host.listen());
    for (round, family) in (0..).zip(Family::ALL) {
        let overheard = Draft::to_server(family).encode();
        let mut client = send_to(family.node(ME), &overheard);
        let server = accept(&servers);
        assert_eq!(read(&mut client, 24), Acceptor::reply(Reply::Connected));
        // The kernel chooses the worker by the client's port: some go to either.
        for _ in 0..16 {
            let mut again = send_to(family.node(ME), &overheard);
            assert_eq!(receive_all(&mut again), reply(Reply::Denied), "{family}");
        }
        node.until_denied(Denial::Replay, 16 * (round + 1));
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
        node.until_ended(Outcome::Finished, round + 1);
    }
    assert_eq!(host.settle(&node), 2);
}

// promise: Q8
#[test]
fn other_key_refused() {
    not_authentic(|family| {
        let mut draft = Draft::to_server(family);
        draft.key = Key::new([0x55; 32]);
        draft.encode()
    });
}

// promise: Q8
#[test]
fn key_under_wrong_id() {
    not_authentic(|family| {
        let mut draft = Draft::to_server(family);
        draft.key_id += 1;
        draft.encode()
    });
}

// promise: Q8
#[test]
fn request_for_another_node() {
    not_authentic(|family| {
        let mut draft = Draft::to_server(family);
        draft.receiver = id(ME + 4);
        draft.encode()
    });
}

// promise: Q8
#[test]
fn changed_destination_refused() {
    not_authentic(|family| {
        let mut request = Draft::to_server(family).encode();
        // The port in the Connect TLV.
        request[7] ^= 1;
        request
    });
}

// promise: Q8
#[test]
fn old_request_refused() {
    expect(Denial::Clock, &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(family);
        draft.made_ms -= 40_000;
        draft.encode()
    });
}

// promise: Q8
#[test]
fn future_request_refused() {
    expect(Denial::Clock, &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(family);
        draft.made_ms += 3_600_000;
        draft.encode()
    });
}

// promise: Q9
#[test]
fn own_flow_returning() {
    looping(|draft| {
        let mut draft = draft.over(&[id(PEER)]);
        draft.connect.header.guard = Some(LoopGuard::new(id(ME)));
        draft
    });
}

// promise: Q9
#[test]
fn returning_route_refused() {
    looping(|draft| draft.over(&[id(PEER), id(6), id(ME)]));
}

// promise: Q9
#[test]
fn hop_limit_of_chains() {
    looping(|draft| {
        let mut draft = draft.over(&[id(PEER)]);
        draft.connect.header.guard.as_mut().unwrap().hop_limit = 0;
        draft
    });
}

// promise: Q9
#[test]
fn unknown_segment_named() {
    let unknown = reply(Reply::UnknownSegment);
    for nodes in [&[id(6)][..], &[id(6), id(PEER)], &[NodeId::MAX]] {
        expect(Denial::Segment, &unknown, |family| {
            Draft::to_server(family).over(nodes).encode()
        });
    }
    // A look-up that the peer may not request.
    expect(Denial::Segment, &unknown, |family| {
        let mut draft = Draft::to_server(family);
        draft.connect.header.segments = SegmentList::RESOLVE;
        draft.encode()
    });
}

// promise: Q7
#[test]
fn denied_destination_for_peer() {
    for destinations in [
        ["169.254.169.254", "64:ff9b::a9fe:a9fe"],
        ["192.168.0.1", "fe80::1"],
        ["100.64.0.1", "2002:a9fe:a9fe::1"],
    ] {
        expect(Denial::Destination, &reply(Reply::Denied), |family| {
            let ip = destinations[usize::from(family == Family::V6)];
            Draft::to(SocketAddr::new(ip.parse().unwrap(), PORT)).encode()
        });
    }
}

// promise: Q5
#[test]
fn garbage_is_reset() {
    let noise = [0x9e, 0x37, 0x79, 0xb9, 0x7f, 0x4a, 0x7c, 0x15];
    // The other begins like a hop, and is none.
    for garbage in [noise.repeat(200), b"PHOP\x02\0\0\0".to_vec()] {
        let reset = Received::only_a_reset();
        expect(Denial::Malformed, &reset, |_| garbage.clone());
    }
}

// promise: Q12
#[test]
fn truncated_request() {
    let host = Host::enter();
    let node = setup().start(&host);
    for family in Family::ALL {
        let request = Draft::to_server(family).encode();
        for length in [24, 60, request.len() - 1] {
            let mut stream = send_to(family.node(ME), &request[..length]);
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(receive_all(&mut stream).bytes.is_empty(), "{length} bytes");
        }
    }
    node.until_count(6, |counters| counters.explicit_connections.read());
    node.until_denied(Denial::AuthTag, 0);
    assert_eq!(host.settle(&node), 0);
}
