// SPDX-License-Identifier: Apache-2.0
//! Connections that open a hop in the name of a peer, and peers that send messages out of turn.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use posthaste_relay::control::Denial;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::Progress;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{CHALLENGE_BYTES as CHALLENGE, Dialer, Dialing, VALIDATED, ping, pong};

use crate::denied::expect_denied;
use crate::host::{Family, Host};
use crate::node::{KEY_ID, id, key};
use crate::streams::{Pair, Received, accept, expect_end, read, receive_all, send_to};

use super::{Draft, ME, PEER, nonce, setup, unix_ms};

fn hello(me: NodeId, key_id: u32) -> Vec<u8> {
    let dialing = Dialing::new(key(), key_id, me, id(ME), nonce());
    dialing.hello().to_vec()
}

/// A hop as the peer opens it, with the messages sent for that.
fn dial_hop(family: Family) -> (TcpStream, Dialer, Vec<u8>) {
    let mut dialing = Dialing::new(key(), KEY_ID, id(PEER), id(ME), nonce());
    let hello = dialing.hello().to_vec();
    let mut stream = send_to(family.node(ME), &hello);
    let Ok(Progress::Done { value, .. }) = dialing.feed(&read(&mut stream, CHALLENGE)) else {
        panic!("the node is validated");
    };
    stream.write_all(&value.response).unwrap();
    let message = [hello, value.response.to_vec()].concat();
    (stream, Dialer::new(value.session), message)
}

fn answers_pings(hop: &mut TcpStream) {
    hop.write_all(&ping(3)).unwrap();
    assert_eq!(read(hop, 8), pong(3));
}

/// Opens a connection over each family; the node resets it after its challenge, and reports why.
fn refused_after_challenge(hostile: impl Fn(Family) -> TcpStream) {
    let host = Host::enter();
    let node = setup().start(&host);
    for (count, family) in (1..).zip(Family::ALL) {
        let mut stream = hostile(family);
        let from = stream.local_addr().unwrap();
        assert_eq!(receive_all(&mut stream), Received::only_a_reset());
        node.until_denied(Denial::Malformed, count);
        assert_eq!(node.denials().pop().unwrap().from, from);
    }
    assert_eq!(host.settle(&node), 0);
}

// promise: Q10
#[test]
fn own_node_id_refused() {
    let reset = Received::only_a_reset();
    expect_denied(&setup(), Denial::Malformed, &reset, |_| {
        hello(id(ME), KEY_ID)
    });
}

// promise: Q10
#[test]
fn an_unknown_number_is_refused() {
    let reset = Received::only_a_reset();
    expect_denied(&setup(), Denial::Malformed, &reset, |_| {
        hello(id(PEER + 5), KEY_ID)
    });
}

// promise: Q10
#[test]
fn an_unknown_key_is_refused() {
    let reset = Received::only_a_reset();
    expect_denied(&setup(), Denial::Malformed, &reset, |_| {
        hello(id(PEER), KEY_ID + 1)
    });
}

// promise: Q10
#[test]
fn wrong_key_refused() {
    refused_after_challenge(|family| {
        let mut stream = send_to(family.node(ME), &hello(id(PEER), KEY_ID));
        read(&mut stream, CHALLENGE);
        stream.write_all(&[0x55; 16]).unwrap();
        stream
    });
}

// promise: Q10
#[test]
fn replayed_handshake_fails() {
    let host = Host::enter();
    let node = setup().start(&host);
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, _, overheard) = dial_hop(family);
        answers_pings(&mut hop);
        let mut stream = send_to(family.node(ME), &overheard);
        read(&mut stream, CHALLENGE);
        assert_eq!(receive_all(&mut stream), Received::only_a_reset());
        node.until_denied(Denial::Malformed, count);
        // The authentic connection continues.
        answers_pings(&mut hop);
    }
    assert_eq!(host.settle(&node), 0);
}

// promise: Q10
#[test]
fn validation_without_flow() {
    refused_after_challenge(|family| {
        let (mut hop, ..) = dial_hop(family);
        hop.write_all(&VALIDATED).unwrap();
        hop
    });
}

// promise: Q10
#[test]
fn flow_without_hop_tag() {
    refused_after_challenge(|family| {
        // The authentication tag is the peer's, but of another hop.
        let (mut other, mut dialer, _) = dial_hop(family);
        let connect = Draft::to_server(family).connect;
        let open = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        let (mut hop, ..) = dial_hop(family);
        hop.write_all(&open).unwrap();
        answers_pings(&mut other);
        hop
    });
}

/// After the flow is open, its bytes go to the server only, even if they look like frames.
// promise: Q10
#[test]
fn frame_within_flow() {
    let host = Host::enter();
    let (node, servers) = (setup().start(&host), host.listen());
    for family in Family::ALL {
        let (mut hop, mut dialer, _) = dial_hop(family);
        let connect = Draft::to_server(family).connect;
        let mut message = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        message.extend_from_slice(&VALIDATED);
        message.extend_from_slice(&ping(1));
        hop.write_all(&message).unwrap();
        let mut server = accept(&servers);
        assert_eq!(read(&mut hop, 24)[..5], [4, 0, 0, 20, 0]);
        assert_eq!(read(&mut server, 12), [&VALIDATED[..], &ping(1)].concat());
        let mut pair = Pair {
            client: hop,
            server,
        };
        pair.check();
        pair.close_server_first();
    }
    node.until_ended(Outcome::Finished, 2);
    assert_eq!(host.settle(&node), 2);
}

/// A key that both have, used by another node.
// promise: Q10
#[test]
fn wrong_key_at_challenge() {
    refused_after_challenge(|family| {
        let wrong = Key::new([0x55; 32]);
        let mut dialing = Dialing::new(wrong, KEY_ID, id(PEER), id(ME), nonce());
        let mut stream = send_to(family.node(ME), dialing.hello());
        let challenge = read(&mut stream, CHALLENGE);
        assert!(dialing.feed(&challenge).is_err(), "it is not the key's");
        // What it sent is sent back to it.
        stream.write_all(&challenge[CHALLENGE - 16..]).unwrap();
        stream
    });
}

/// A peer may take a hop that the node closes in the same moment, as in an upgrade: a FIN without a
/// reply shows that its request was not served, and a reset would not.
// promise: F14
#[test]
fn request_meets_the_end_of_its_hop() {
    for is_removed in [true, false] {
        let host = Host::enter();
        let node = setup().start(&host);
        let (mut hop, mut dialer, _) = dial_hop(Family::V4);
        answers_pings(&mut hop);
        if is_removed {
            let mut changed = setup();
            changed.peers.clear();
            node.adopt(&changed);
        } else {
            node.replace();
        }
        expect_end(&mut hop);
        let connect = Draft::to_server(Family::V4).connect;
        let mut message = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        message.extend_from_slice(b"a question");
        hop.write_all(&message).unwrap();
        hop.write_all(b", and more").unwrap();
        // On a loopback the answer of the kernel has come by now.
        assert!(hop.take_error().unwrap().is_none(), "it was reset");
        hop.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut hop);
        assert_eq!(node.relays_opened(), 0);
    }
}
