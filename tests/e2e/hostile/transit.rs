// SPDX-License-Identifier: Apache-2.0
//! Flows of peers that fail behind the next node: a peer must not take a chain of this node down.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use posthaste_lab::network::{Family, Network};
use posthaste_wire::convert::Request;
use posthaste_wire::header::{ChainHeader, Endpoint};
use posthaste_wire::hop::{Acceptor, Reply};

use crate::payload::uninterrupted;
use crate::requests::{ALLOWED, ExplicitNode, fixture, listener, receive_all, send_to};
use crate::support::{PORT, listen};

use super::{Draft, PEER, config};

/// Where the peer that the test plays listens.
const PEER_PORT: u16 = 4481;

/// A node with a chain to the peer, which is at the server's host, for all flows that begin at the node.
fn chained(network: &Network) -> String {
    let peer = SocketAddr::new(network.server_address(Family::V4), PEER_PORT);
    let clients = ALLOWED.replace("[access]\n", "[access]\nclients = [\"10.0.0.0/8\"]\n");
    let config = config(network).replace("192.0.2.2:4480", &peer.to_string());
    config.replace(ALLOWED, &clients)
        + "[[chain]]\nname = \"own\"\nnodes = [\"two\"]\n[[route]]\nchains = [\"own\"]\n"
}

/// Refuses the next flow as one that has come too far.
fn refuse_one(peer: &TcpListener) {
    let (mut hop, _) = peer.accept().expect("the node opens a hop");
    let mut request = [0; 512];
    assert_ne!(
        uninterrupted(|| hop.read(&mut request)).expect("a request"),
        0
    );
    let reply = Acceptor::reply(Reply::TooManyHops);
    hop.write_all(&reply).expect("the node reads");
}

/// Whether a worker takes the chain for down.
fn is_down(node: &ExplicitNode) -> bool {
    let chains = node.node.admin_json("chains").expect("the node answers");
    chains["chains"][0]["health"]["down_at"] != 0
}

// promise: Q9
#[test]
fn transit_keeps_own_chains() {
    let network = fixture();
    let peer = listen(network.server(), PEER_PORT);
    let explicit = ExplicitNode::start(&network, &chained(&network));
    let node = listener(&network, 0, Family::V4);
    let draft = Draft::to_server(&network, Family::V4);
    let transit = draft.over(&[PEER]).encode();
    let server = SocketAddr::new(network.server_address(Family::V4), PORT);
    let own = Request::connect(ChainHeader::to(Endpoint::new(server).unwrap()));
    let own = own.encode(None).unwrap();
    // The same answer counts against the chain if the flow begins at the node.
    for (request, is_own) in [(transit, false), (own, true)] {
        thread::scope(|scope| {
            scope.spawn(|| refuse_one(&peer));
            receive_all(&mut send_to(&network, node, &request));
        });
        assert_eq!(is_down(&explicit), is_own);
    }
}
