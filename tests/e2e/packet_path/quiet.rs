// SPDX-License-Identifier: Apache-2.0
//! Flows that are quiet: their ends are asked whether they live, by the node and after its end by its guard.

use super::lifetime::{exchange, open};
use super::*;
use crate::ends::pattern;

/// Flows are quiet after a second.
const QUIET: &str = "[packet]\nidle = \"1s\"\n[defaults]\ndata_path = \"packet\"\n";
/// Acknowledgements without data from the server's port.
const ACKS: &str = "tcp sport 80 tcp flags & (fin | syn | rst | psh | ack) == ack counter";
/// Longer than an entry stays whose ends have both closed.
const CLOSED_MS: u64 = 16_000;

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
    let asked = redirect(&node, "packet_asked");
    // Three times both ends of each.
    until("the ends are asked", || {
        redirect(&node, "packet_asked") >= asked + 12
    });
    assert_eq!(redirect(&node, "packet_dead"), 0);
    exchange(&mut pairs);
    node.kill().expect("it runs");
    firewall(network.client(), "asked", &[("input", ACKS)]);
    // Each client some times. A flow whose end does not answer would be gone after eight.
    until("the guard asks", || {
        counted(network.client(), "asked") >= 20
    });
    exchange(&mut pairs);
    let node = start_relaying_in(network.node(0), QUIET);
    until("the next node asks", || {
        redirect(&node, "packet_asked") >= 8
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

// promise: PK12
/// Both ends have sent a FIN when the client's link fails for longer than closed flows stay, and nothing passes
/// meanwhile: what is missing arrives when the link is back.
#[test]
fn answers_outlast_an_outage_after_both_fins() {
    let network = line();
    let (node, listener) = ready(&network);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    pair.client.shutdown(Shutdown::Write).expect("it is open");
    expect_end(&mut pair.server);
    // The node sees data and FIN once, and then nothing.
    firewall(network.client(), "gone", &[("input", "tcp sport 80 drop")]);
    let answer = pattern(9_000, 1);
    pair.server.write_all(&answer).expect("it is open");
    pair.server.shutdown(Shutdown::Write).expect("it is open");
    let client = pair.client_address().to_string();
    let flow = || {
        let list = node.relays().expect("the node answers");
        let flows = list["packet_flows"].as_array().expect("a list");
        let mut of_pair = flows.iter().filter(|flow| flow["client"] == client);
        of_pair.next().expect("it is listed").clone()
    };
    until("both FINs", || flow()["phase"] == "closing");
    firewall(network.server(), "gone", &[("output", "tcp sport 80 drop")]);
    until("it is quiet for long", || {
        flow()["idle_ms"].as_u64().expect("a number") > CLOSED_MS
    });
    for host in [network.client(), network.server()] {
        remove_firewall(host, "gone");
    }
    let mut received = Vec::new();
    pair.client.read_to_end(&mut received).expect("it arrives");
    assert!(received == answer, "{} bytes", received.len());
}
