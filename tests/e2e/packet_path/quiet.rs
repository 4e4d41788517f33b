// SPDX-License-Identifier: Apache-2.0
//! Flows that are quiet: their ends are probed, by the node and after its end by its guard.

use super::lifetime::{exchange, open};
use super::*;

/// Flows are quiet after a second.
const QUIET: &str = "[packet]\nidle = \"1s\"\n[defaults]\ndata_path = \"packet\"\n";
/// Acknowledgements without data from the server's port.
const ACKS: &str = "tcp sport 80 tcp flags & (fin | syn | rst | psh | ack) == ack counter";

fn testbed() -> (Network, TcpListener, Node, [Pair; 2]) {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(network.node(0), QUIET);
    until_ready(&network, &node, &listener);
    let pairs = open(&network, &node, &listener);
    (network, listener, node, pairs)
}

/// What the only counter of a table has counted.
fn counted(host: &Namespace, table: &str) -> u64 {
    let text = firewall_text(host, table);
    let (_, rest) = text.split_once("counter packets ").expect("a counter");
    let (number, _) = rest.split_once(' ').expect("a number");
    number.parse().expect("a number")
}

/// Nothing reaches a host any more, nor leaves it.
fn cut_off(host: &Namespace) {
    firewall(host, "gone", &[("input", "drop"), ("output", "drop")]);
}

// promise: PK12
/// They go on as long as both ends answer: with the node, after its death, and with the next one.
#[test]
fn quiet_flows_of_live_ends_stay() {
    let (network, _listener, mut node, mut pairs) = testbed();
    let probed = redirect(&node, "packet_probed");
    // Three times both ends of each.
    until("the ends are probed", || {
        redirect(&node, "packet_probed") >= probed + 12
    });
    assert_eq!(redirect(&node, "packet_dead"), 0);
    exchange(&mut pairs);
    node.kill().expect("it runs");
    firewall(network.client(), "probed", &[("input", ACKS)]);
    // Each client some times. A flow whose end does not answer would be gone after eight.
    until("the guard probes", || {
        counted(network.client(), "probed") >= 20
    });
    exchange(&mut pairs);
    let node = start_relaying_in(network.node(0), QUIET);
    until("the next node probes", || {
        redirect(&node, "packet_probed") >= 8
    });
    exchange(&mut pairs);
}

// promise: PK12
/// Where one end is gone, the other is reset: by the node, and by the guard.
#[test]
fn quiet_flows_of_dead_ends_are_reset() {
    for is_killed in [false, true] {
        let (network, _listener, mut node, pairs) = testbed();
        let [mut of_client, mut of_server] = pairs;
        if is_killed {
            node.kill().expect("it runs");
        }
        cut_off(network.client());
        expect_reset(&mut of_client.server);
        expect_reset(&mut of_server.server);
        if !is_killed {
            assert_eq!(redirect(&node, "packet_dead"), 2);
        }
        drop((of_client, of_server));
        let (network, _listener, mut node, pairs) = testbed();
        if is_killed {
            node.kill().expect("it runs");
        }
        cut_off(network.server());
        for mut pair in pairs {
            expect_reset(&mut pair.client);
        }
    }
}
