// SPDX-License-Identifier: Apache-2.0
//! Flows of peers that fail behind the next node: a peer must not take a chain of this node down.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use posthaste_relay::control::Denial;
use posthaste_wire::hop::{Acceptor, Reply};

use crate::convert::good;
use crate::host::{Family, Host};
use crate::node::id;
use crate::streams::{accept, receive_all, send_to};

use super::{Draft, ME, PEER, setup};

/// Refuses the next flow as one that has come too far.
fn refuse_one(peer: &TcpListener) {
    let mut hop = accept(peer);
    assert_ne!(hop.read(&mut [0; 512]).expect("a request"), 0);
    let reply = Acceptor::reply(Reply::TooManyHops);
    hop.write_all(&reply).expect("the node reads");
}

/// Only the node that connects to a destination needs permission for it.
// promise: Q7
#[test]
fn transit_needs_no_permission() {
    let host = Host::enter();
    let peer = host.listen_at(Family::V4.node(PEER), 16);
    let node = setup().start(&host);
    let private = SocketAddr::from(([192, 168, 0, 1], 80));
    let request = Draft::to(private).over(&[id(PEER)]).encode();
    thread::scope(|scope| {
        scope.spawn(|| refuse_one(&peer));
        let mut requester = send_to(Family::V4.node(ME), &request);
        let answer = receive_all(&mut requester).bytes;
        assert!(answer.starts_with(&Acceptor::reply(Reply::TooManyHops)));
    });
    node.until_denied(Denial::Destination, 0);
    host.settle(&node);
}

// promise: Q9
#[test]
fn transit_keeps_own_chains() {
    let host = Host::enter();
    let peer = host.listen_at(Family::V4.node(PEER), 16);
    let mut setup = setup().chain(&[PEER]);
    setup.workers = 1;
    let node = setup.start(&host);
    let transit = Draft::to_server(Family::V4).over(&[id(PEER)]).encode();
    let own = good(Family::V4);
    // The same answer counts against the chain if the flow begins at the node.
    for (request, is_own) in [(transit, false), (own, true)] {
        thread::scope(|scope| {
            scope.spawn(|| refuse_one(&peer));
            receive_all(&mut send_to(Family::V4.node(ME), &request));
        });
        let chain = &node.known().chains[0];
        assert_eq!(chain.down_for.is_some(), is_own);
    }
    host.settle(&node);
}
