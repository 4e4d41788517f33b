// SPDX-License-Identifier: Apache-2.0
//! Connections that open a hop in the name of a peer, and peers that send messages out of turn.

use std::io::Write;
use std::net::TcpStream;

use posthaste_lab::network::{Family, Network};
use posthaste_wire::Progress;
use posthaste_wire::hop::{CHALLENGE_BYTES as CHALLENGE, Dialer, Dialing, ping, pong};

use crate::requests::{ExplicitNode, KEY, Received, fixture, listener, read, receive_all, send_to};
use crate::support::{PORT, listen, until_ended};

use super::{Draft, KEY_ID, ME, PEER, config, id, key, nonce, unix_ms, until_logged};

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
fn replayed_handshake_fails() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    for (count, family) in (1..).zip(Family::ALL) {
        let (mut hop, _, overheard) = dial_hop(&network, family);
        hop.write_all(&ping(3)).unwrap();
        assert_eq!(read(&mut hop, 8), pong(3));
        let mut stream = send_to(&network, listener(&network, 0, family), &overheard);
        assert_eq!(read(&mut stream, CHALLENGE).len(), CHALLENGE);
        let from = stream.local_addr().unwrap();
        assert_eq!(receive_all(&mut stream), Received::only_a_reset());
        explicit.until_denied(&network, "malformed", count);
        until_logged(&explicit, from, "malformed");
        // The authentic connection continues.
        hop.write_all(&ping(4)).unwrap();
        assert_eq!(read(&mut hop, 8), pong(4));
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
        let mut connect = Draft::to_server(&network, family).0;
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
