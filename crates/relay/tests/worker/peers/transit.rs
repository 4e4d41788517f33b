// SPDX-License-Identifier: Apache-2.0
//! Flows of peers that fail behind the next node: a peer must not take a chain of this node down.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

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
