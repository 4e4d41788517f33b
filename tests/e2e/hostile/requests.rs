// SPDX-License-Identifier: Apache-2.0
//! Requests that are repeated, or continue out of turn.

use std::io::Write;

use posthaste_wire::hop::{Acceptor, Reply};

use posthaste_lab::network::Family;

use crate::requests::{ExplicitNode, Received, fixture, listener, read, receive_all, send_to};
use crate::support::{PORT, Pair, accept, listen, until_ended};

use super::{Draft, config};

// promise: Q8
#[test]
fn request_counts_once() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &config(&network));
    let servers = listen(network.server(), PORT);
    let denied = Received::and_closed(&Acceptor::reply(Reply::Denied));
    for (round, family) in (0..).zip(Family::ALL) {
        let overheard = Draft::to_server(&network, family).encode();
        let node = listener(&network, 0, family);
        let mut client = send_to(&network, node, &overheard);
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 24), Acceptor::reply(Reply::Connected));
        // The kernel chooses the worker by the client's port: some go to either.
        for _ in 0..16 {
            let mut again = send_to(&network, node, &overheard);
            assert_eq!(receive_all(&mut again), denied, "{family}");
        }
        explicit.until_denied(&network, "replay", 16 * (round + 1));
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
        until_ended(&explicit.node, "finished", round + 1);
    }
    assert_eq!(explicit.settle(), 2);
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
        draft.0.validated = false;
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
