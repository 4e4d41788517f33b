// SPDX-License-Identifier: Apache-2.0
//! Services that receive much: their clients must not take the time until the node answers for the round
//! trip.

use posthaste_lab::link::split;

use super::*;
use crate::ends::carry;

/// More than shows that a client sends much.
const MUCH: usize = 30_001;

/// Whether the node answers the next client.
fn is_answered(network: &Network, node: &Node, family: Family, listener: &TcpListener) -> bool {
    let taken = redirect(node, "packet_taken");
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    pair.close_client_first();
    redirect(node, "packet_taken") > taken
}

fn send(network: &Network, family: Family, listener: &TcpListener, bytes: usize) {
    let mut pair = Pair::open(network, family, listener);
    carry(&mut pair.client, &mut pair.server, bytes, 1);
    // The last segments may have come as one.
    pair.check();
    pair.close_client_first();
}

// promise: PK17
#[test]
fn services_that_receive_much_are_not_answered() {
    let network = line();
    let (node, first) = ready(&network);
    let listener = listen(network.server(), PORT + 1);
    for family in Family::ALL {
        learn(&network, &node, family, &listener);
        send(&network, family, &listener, MUCH - 1000);
        assert!(is_answered(&network, &node, family, &listener), "{family}");
        send(&network, family, &listener, MUCH);
        let long = redirect(&node, "packet_long");
        assert!(!is_answered(&network, &node, family, &listener), "{family}");
        assert_eq!(redirect(&node, "packet_long"), long + 1, "{family}");
    }
    drop(first);
}

// promise: PK17
/// The first flow, which is forwarded, shows it too. By default the next ones are relays.
#[test]
fn forwarded_uploads_show_it() {
    let network = line();
    let (node, first) = ready(&network);
    let listener = listen(network.server(), PORT + 1);
    for family in Family::ALL {
        send(&network, family, &listener, MUCH);
        assert!(!is_answered(&network, &node, family, &listener), "{family}");
    }
    reload::switch(&node, "auto");
    let relays = counter(&node, "relays_opened");
    for family in Family::ALL {
        assert!(!is_answered(&network, &node, family, &listener), "{family}");
    }
    assert_eq!(counter(&node, "relays_opened"), relays + 2);
    drop(first);
}

// promise: PK17
/// A first fragment does not show how long its segment is, and 64 KB at the most are expected after it.
#[test]
fn fragments_are_not_much() {
    let small = Link::Veth.rewrites(split::split);
    let network = network([small.clone(), small]);
    let (node, first) = ready(&network);
    let listener = listen(network.server(), PORT + 1);
    for family in Family::ALL {
        learn(&network, &node, family, &listener);
        send(&network, family, &listener, MUCH - 1000);
        assert!(is_answered(&network, &node, family, &listener), "{family}");
        send(&network, family, &listener, MUCH);
        assert!(!is_answered(&network, &node, family, &listener), "{family}");
    }
    drop(first);
}
