// SPDX-License-Identifier: Apache-2.0
//! Clients and servers that take long to answer: the node waits as long as a host would.

use super::*;
use crate::ends::carry;

// promise: PK16
/// The way to the server is interrupted while a connection begins: the node repeats the SYN as a client
/// would, and the connection is whole.
#[test]
fn interrupted_beginnings_continue() {
    let network = line();
    let (node, listener) = ready(&network);
    let resent = redirect(&node, "packet_resent");
    let syns = "tcp flags & (syn | ack) == syn drop";
    firewall(network.server(), "gone", &[("input", syns)]);
    let mut clients = Family::ALL.map(|family| {
        let dialled = dial(network.client(), target(&network, family, &listener));
        dialled.expect("the node answers")
    });
    for client in &mut clients {
        client.write_all(b"a question").expect("it is sent");
    }
    // For some seconds: those of the fifth are the next.
    until("four more SYNs of each", || {
        redirect(&node, "packet_resent") >= resent + 8
    });
    remove_firewall(network.server(), "gone");
    for _ in Family::ALL {
        let (mut server, peer) = accept(&listener);
        let mut client = clients
            .iter()
            .find(|client| client.local_addr().expect("it is bound") == peer)
            .expect("it is one of both")
            .try_clone()
            .expect("a descriptor is free");
        let mut received = [0; 10];
        server.read_exact(&mut received).expect("it arrives");
        assert_eq!(&received, b"a question");
        carry(&mut server, &mut client, 30_000, 1);
    }
    assert_eq!(redirect(&node, "packet_given_up"), 0);
}

// promise: PK16
/// A client whose acknowledgement takes longer than `half_open.expiry` reaches its server while the budget
/// has room.
#[test]
fn slow_clients_reach_their_server() {
    let network = network([(); 2].map(|()| Link::delay(Duration::from_millis(1))));
    let (node, listener) = ready(&network);
    // Longer there and back than the 5 s of the default.
    let slow = Link::delay(Duration::from_millis(2_700));
    network.change(0, slow).expect("a delay");
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
    }
}
