// SPDX-License-Identifier: Apache-2.0
//! Connections that open a hop in the name of a peer, and peers that send messages out of turn.

use std::io::Write;
use std::net::TcpStream;

use posthaste_lab::network::{Family, Network};
use posthaste_wire::Progress;
use posthaste_wire::auth::Key;
use posthaste_wire::hop::{CHALLENGE_BYTES as CHALLENGE, Dialer, Dialing, VALIDATED, ping, pong};

use crate::requests::{ExplicitNode, KEY, Received, fixture, listener, read, receive_all, send_to};
use crate::support::{PORT, Pair, accept, listen, until_ended};

use super::{Draft, KEY_ID, ME, PEER, config, expect, id, key, nonce, unix_ms, until_logged};

fn hello(me: u64, key_id: u32) -> Vec<u8> {
    let dialing = Dialing::new(key(), key_id, id(me), id(ME), nonce());
    dialing.hello().to_vec()
}

/// A hop as the peer opens it, with the messages sent for that.
fn dial_hop(network: &Network, family: Family) -> (TcpStream, Dialer, Vec<u8>) {
    let mut dialing = Dialing::new(key(), KEY_ID, id(PEER), id(ME), nonce());
    let mut stream = send_to(network, listener(network, 0, family), dialing.hello());
    let hello = dialing.hello().to_vec();
    let Ok(Progress::Done { value, .. }) = dialing.feed(&read(&mut stream, CHALLENGE)) else {
        panic!("the node is validated");
    };
    stream.write_all(&value.response).unwrap();
    let message = [hello, value.response.to_vec()].concat();
    (stream, Dialer::new(value.session), message)
}

/// A peer that was challenged before its key was revoked answers with that key.
// promise: F7
#[test]
fn revoked_key_at_response() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let ours = config(&network);
    let other_key = ours.replace(KEY, &format!("{:064x}", 7));
    let other_peer = ours.replace("id = 2", "id = 3");
    for (family, changed) in Family::ALL.into_iter().zip([other_key, other_peer]) {
        let mut dialing = Dialing::new(key(), KEY_ID, id(PEER), id(ME), nonce());
        let mut stream = send_to(&network, listener(&network, 0, family), dialing.hello());
        let Ok(Progress::Done { value, .. }) = dialing.feed(&read(&mut stream, CHALLENGE)) else {
            panic!("the node is validated");
        };
        explicit.node.write_config(&changed).unwrap();
        explicit.node.admin("reload").unwrap();
        // The node may have reset the connection.
        let _ = stream.write_all(&[&value.response[..], &ping(1)].concat());
        let received = receive_all(&mut stream);
        assert!(received.bytes.is_empty(), "{family}: {received:?}");
        explicit.node.write_config(&ours).unwrap();
        explicit.node.admin("reload").unwrap();
    }
    assert_eq!(explicit.settle(), 0);
}

// promise: Q10
#[test]
fn own_node_id_refused() {
    let network = fixture();
    let reset = Received::only_a_reset();
    expect(&network, "malformed", &reset, |_| hello(ME, KEY_ID));
}

// promise: Q10
#[test]
fn an_unknown_number_is_refused() {
    let network = fixture();
    let reset = Received::only_a_reset();
    expect(&network, "malformed", &reset, |_| hello(PEER + 5, KEY_ID));
}

// promise: Q10
#[test]
fn an_unknown_key_is_refused() {
    let network = fixture();
    let reset = Received::only_a_reset();
    expect(&network, "malformed", &reset, |_| hello(PEER, KEY_ID + 1));
}

/// Asserts that a node resets a connection after its challenge, and logs why.
fn refused_after_challenge(
    network: &Network,
    explicit: &ExplicitNode,
    mut stream: TcpStream,
    count: u64,
) {
    let from = stream.local_addr().unwrap();
    let received = receive_all(&mut stream);
    assert!(received.bytes.is_empty() && received.reset, "{received:?}");
    explicit.until_denied(network, "malformed", count);
    until_logged(explicit, from, "malformed");
}

// promise: Q10
#[test]
fn wrong_key_refused() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        let mut stream = send_to(
            &network,
            listener(&network, 0, family),
            &hello(PEER, KEY_ID),
        );
        assert_eq!(read(&mut stream, CHALLENGE).len(), CHALLENGE);
        stream.write_all(&[0x55; 16]).unwrap();
        refused_after_challenge(&network, &explicit, stream, count);
    }
    assert_eq!(explicit.settle(), 0);
}

// promise: Q10
#[test]
fn replayed_handshake_fails() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, _, overheard) = dial_hop(&network, family);
        hop.write_all(&ping(3)).unwrap();
        assert_eq!(read(&mut hop, 8), pong(3));
        let mut stream = send_to(&network, listener(&network, 0, family), &overheard);
        assert_eq!(read(&mut stream, CHALLENGE).len(), CHALLENGE);
        refused_after_challenge(&network, &explicit, stream, count);
        // The authentic connection continues.
        hop.write_all(&ping(4)).unwrap();
        assert_eq!(read(&mut hop, 8), pong(4));
    }
    assert_eq!(explicit.settle(), 0);
}

// promise: Q10
#[test]
fn validation_without_flow() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, ..) = dial_hop(&network, family);
        hop.write_all(&VALIDATED).unwrap();
        refused_after_challenge(&network, &explicit, hop, count);
    }
    assert_eq!(explicit.settle(), 0);
}

// promise: Q10
#[test]
fn flow_without_hop_tag() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        // The authentication tag is the peer's, but of another hop.
        let (mut other, mut dialer, _) = dial_hop(&network, family);
        let connect = Draft::to_server(&network, family).connect;
        let open = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        let (mut hop, ..) = dial_hop(&network, family);
        hop.write_all(&open).unwrap();
        refused_after_challenge(&network, &explicit, hop, count);
        other.write_all(&ping(1)).unwrap();
        assert_eq!(read(&mut other, 8), pong(1));
    }
    assert_eq!(explicit.settle(), 0);
}

// promise: Q10
#[test]
fn ping_instead_of_validation() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let _servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, mut dialer, _) = dial_hop(&network, family);
        let mut connect = Draft::to_server(&network, family).connect;
        connect.validated = false;
        let open = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        hop.write_all(&open).unwrap();
        assert_eq!(read(&mut hop, 24)[..5], [4, 0, 0, 20, 0]);
        hop.write_all(&ping(1)).unwrap();
        assert_eq!(receive_all(&mut hop), Received::only_a_reset(), "{family}");
        until_ended(&explicit.node, "client_absent", count);
    }
    assert_eq!(explicit.settle(), 2);
}

/// After the flow is open, its bytes go to the server only, even if they look like frames.
// promise: Q10
#[test]
fn frame_within_flow() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, mut dialer, _) = dial_hop(&network, family);
        let connect = Draft::to_server(&network, family).connect;
        let mut message = dialer.open(&connect, unix_ms(), nonce()).unwrap();
        message.extend_from_slice(&VALIDATED);
        message.extend_from_slice(&ping(1));
        hop.write_all(&message).unwrap();
        let (mut server, _) = accept(&servers);
        assert_eq!(read(&mut hop, 24)[..5], [4, 0, 0, 20, 0]);
        assert_eq!(read(&mut server, 12), [&VALIDATED[..], &ping(1)].concat());
        let mut pair = Pair {
            client: hop,
            server,
        };
        pair.check();
        pair.close_server_first();
        until_ended(&explicit.node, "finished", count);
    }
    assert_eq!(explicit.settle(), 2);
}

/// A key that both have, used by another node.
// promise: Q10
#[test]
fn wrong_key_at_challenge() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        let wrong = Key::new([0x55; 32]);
        let mut dialing = Dialing::new(wrong, KEY_ID, id(PEER), id(ME), nonce());
        let mut stream = send_to(&network, listener(&network, 0, family), dialing.hello());
        let challenge = read(&mut stream, CHALLENGE);
        assert!(dialing.feed(&challenge).is_err(), "it is not the key's");
        // What it sent is sent back to it.
        stream.write_all(&challenge[CHALLENGE - 16..]).unwrap();
        refused_after_challenge(&network, &explicit, stream, count);
    }
    assert_eq!(explicit.settle(), 0);
}
