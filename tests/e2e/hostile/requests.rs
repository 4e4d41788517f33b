// SPDX-License-Identifier: Apache-2.0
//! Requests with an invalid authentication tag, or for what a peer may not request either.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};

use posthaste_wire::auth::Key;
use posthaste_wire::header::LoopGuard;
use posthaste_wire::hop::{Acceptor, Reply};
use posthaste_wire::segments::SegmentList;

use posthaste_lab::network::Family;

use crate::requests::{ExplicitNode, Received, fixture, listener, read, receive_all, send_to};
use crate::support::{PORT, Pair, accept, listen, until_counter, until_ended};

use super::{Draft, ME, PEER, config, expect, id};

/// The reply to a peer, or to a sender in its name.
fn reply(reply: Reply) -> Received {
    Received::and_closed(&Acceptor::reply(reply))
}

// promise: Q8
#[test]
fn request_counts_once() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let servers = listen(network.server(), PORT);
    for (round, family) in (0..).zip(Family::ALL) {
        let overheard = Draft::to_server(&network, family).encode();
        let node = listener(&network, 0, family);
        let mut client = send_to(&network, node, &overheard);
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 24), Acceptor::reply(Reply::Connected));
        // The kernel chooses the worker by the client's port: some go to either.
        for _ in 0..16 {
            let mut again = send_to(&network, node, &overheard);
            assert_eq!(receive_all(&mut again), reply(Reply::Denied), "{family}");
        }
        explicit.until_denied(&network, "replay", 16 * (round + 1));
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
        until_ended(&explicit.node, "finished", round + 1);
    }
    assert_eq!(explicit.settle(), 2);
}

// promise: Q8
#[test]
fn other_key_refused() {
    let network = fixture();
    expect(&network, "auth", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.key = Key::new([0x55; 32]);
        draft.encode()
    });
}

// promise: Q8
#[test]
fn key_under_wrong_id() {
    let network = fixture();
    expect(&network, "auth", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.key_id += 1;
        draft.encode()
    });
}

// promise: Q8
#[test]
fn request_for_another_node() {
    let network = fixture();
    expect(&network, "auth", &reply(Reply::Denied), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.receiver = ME + 4;
        draft.encode()
    });
}

// promise: Q8
#[test]
fn changed_destination_refused() {
    let network = fixture();
    expect(&network, "auth", &reply(Reply::Denied), |family| {
        let mut request = Draft::to_server(&network, family).encode();
        // The port in the Connect TLV.
        request[7] ^= 1;
        request
    });
}

// promise: Q8
#[test]
fn old_request_refused() {
    let network = fixture();
    expect(&network, "clock", &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.made_ms -= 40_000;
        draft.encode()
    });
}

// promise: Q8
#[test]
fn future_request_refused() {
    let network = fixture();
    expect(&network, "clock", &reply(Reply::Clock), |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.made_ms += 3_600_000;
        draft.encode()
    });
}

// promise: Q9
#[test]
fn own_flow_returning() {
    let network = fixture();
    expect(&network, "loop", &reply(Reply::TooManyHops), |family| {
        let mut draft = Draft::to_server(&network, family).over(&[PEER]);
        draft.connect.header.guard = Some(LoopGuard::new(id(ME)));
        draft.encode()
    });
}

// promise: Q9
#[test]
fn returning_route_refused() {
    let network = fixture();
    expect(&network, "loop", &reply(Reply::TooManyHops), |family| {
        let draft = Draft::to_server(&network, family);
        draft.over(&[PEER, 7, ME]).encode()
    });
}

// promise: Q9
#[test]
fn hop_limit_of_chains() {
    let network = fixture();
    expect(&network, "loop", &reply(Reply::TooManyHops), |family| {
        let mut draft = Draft::to_server(&network, family).over(&[PEER]);
        let guard = draft.connect.header.guard.as_mut().unwrap();
        guard.hop_limit = 0;
        draft.encode()
    });
}

// promise: Q9
#[test]
fn unknown_segment_named() {
    let unknown = reply(Reply::UnknownSegment);
    for nodes in [&[7][..], &[7, PEER], &[65_534]] {
        let network = fixture();
        expect(&network, "segment", &unknown, |family| {
            Draft::to_server(&network, family).over(nodes).encode()
        });
    }
    // A look-up that the peer may not request.
    let network = fixture();
    expect(&network, "segment", &unknown, |family| {
        let mut draft = Draft::to_server(&network, family);
        draft.connect.header.segments = SegmentList::RESOLVE;
        draft.encode()
    });
}

// promise: Q7
#[test]
fn denied_destination_for_peer() {
    let network = fixture();
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

// promise: Q5
#[test]
fn garbage_is_reset() {
    let network = fixture();
    let noise = [0x9e, 0x37, 0x79, 0xb9, 0x7f, 0x4a, 0x7c, 0x15];
    let reset = Received::only_a_reset();
    expect(&network, "malformed", &reset, |_| noise.repeat(200));
    // Begins like a hop, and is none.
    expect(&network, "malformed", &reset, |_| {
        b"PHOP\x02\0\0\0".to_vec()
    });
}

// promise: Q12
#[test]
fn truncated_request() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for family in Family::ALL {
        let request = Draft::to_server(&network, family).encode();
        for length in [24, 60, request.len() - 1] {
            let node = listener(&network, 0, family);
            let mut stream = send_to(&network, node, &request[..length]);
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(receive_all(&mut stream).bytes.is_empty(), "{length} bytes");
        }
    }
    until_counter(&explicit.node, "explicit_connections", 6);
    explicit.until_denied(&network, "auth", 0);
    assert_eq!(explicit.settle(), 0);
}

/// If the client of a flow is not validated, the requester has to send the validation before any
/// byte.
// promise: Q11
#[test]
fn bytes_instead_of_validation() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let _servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let mut draft = Draft::to_server(&network, family);
        draft.connect.validated = false;
        let mut stream = send_to(&network, listener(&network, 0, family), &draft.encode());
        assert_eq!(read(&mut stream, 24), Acceptor::reply(Reply::Connected));
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(
            receive_all(&mut stream),
            Received::only_a_reset(),
            "{family}"
        );
        until_ended(&explicit.node, "client_absent", count);
    }
    assert_eq!(explicit.settle(), 2);
    let opened = crate::support::kernel_counter(network.server(), "Tcp", "PassiveOpens");
    assert_eq!(opened, 0, "no handshake was completed with the server");
}
