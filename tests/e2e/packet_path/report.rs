// SPDX-License-Identifier: Apache-2.0
//! What the node reports: its flows, the data path that a flow would take and why, and the counts of
//! both.

use serde_json::Value;

use super::*;
use crate::ends::carry;

fn listed(node: &Node, limit: usize) -> Value {
    node.admin_json(&format!("relays list --limit {limit}"))
        .expect("the node answers")
}

/// The flow of a pair in a list.
fn flow_of(list: &Value, pair: &Pair) -> Option<Value> {
    let client = pair.client_address().to_string();
    let flows = list["packet_flows"].as_array().expect("a list");
    let mut of_pair = flows.iter().filter(|flow| flow["client"] == client);
    of_pair.next().cloned()
}

// promise: PK10
#[test]
fn open_flows_are_listed() {
    let network = line();
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        carry(&mut pair.client, &mut pair.server, 3_000, 1);
        carry(&mut pair.server, &mut pair.client, 70_000, 2);
        carry(&mut pair.client, &mut pair.server, 1, 3);
        // The last acknowledgements may be delayed.
        until("all is acknowledged", || {
            flow_of(&listed(&node, 1000), &pair)
                .is_some_and(|flow| flow["bytes_up"] == 3_001 && flow["bytes_down"] == 70_000)
        });
        let flow = flow_of(&listed(&node, 1000), &pair).expect("it is listed");
        assert_eq!(flow["phase"], "open", "{flow}");
        let server = pair.client.peer_addr().expect("it is connected");
        assert_eq!(flow["server"], server.to_string());
        let text = node.admin("relays list").expect("the node answers");
        assert!(text.contains(&server.to_string()), "{text}");
        let none = listed(&node, 0);
        assert_eq!(none["packet_flows"].as_array().map(Vec::len), Some(0));
        assert_eq!(none["incomplete"], true);
        pair.close_client_first();
        until("its phase changes", || {
            let client = flow["client"].clone();
            let list = listed(&node, 1000);
            let flows = list["packet_flows"].as_array().expect("a list");
            let mut of_pair = flows.iter().filter(|flow| flow["client"] == client);
            of_pair.all(|flow| flow["phase"] == "closing")
        });
    }
}

/// The data path and the reason for a flow of the client with the server.
fn explained(network: &Network, node: &Node, family: Family, listener: &TcpListener) -> String {
    let to = target(network, family, listener);
    let from = network.client_address(family);
    let answer = node.admin_json(&format!("chains explain {to} --from {from}"));
    let answer = answer.expect("the node answers");
    let part = |name: &str| answer["data_path"][name].as_str().unwrap_or("-").to_owned();
    format!("{} {}", part("path"), part("reason"))
}

// promise: PK10
#[test]
fn choices_are_explained() {
    let network = line();
    let (node, listener) = ready(&network);
    let explained = |family| explained(&network, &node, family, &listener);
    for family in Family::ALL {
        assert_eq!(explained(family), "packet known", "{family}");
    }
    reload::switch(&node, "auto");
    for family in Family::ALL {
        assert_eq!(explained(family), "packet short", "{family}");
        let mut pair = Pair::open(&network, family, &listener);
        carry(&mut pair.server, &mut pair.client, 300_000, 1);
        pair.close_client_first();
        assert_eq!(explained(family), "socket long", "{family}");
    }
    reload::switch(&node, "socket");
    assert_eq!(explained(Family::V4), "socket rule");
}

// promise: PK10
#[test]
fn destinations_that_fail_are_explained() {
    let network = line();
    let (node, listener) = ready(&network);
    let other = listen(network.server(), PORT + 1);
    assert_eq!(
        explained(&network, &node, Family::V6, &other),
        "forward unknown"
    );
    let to = target(&network, Family::V6, &listener);
    let closed = listener.try_clone().expect("a descriptor");
    // Shut down, a listener refuses and keeps its address.
    let shut = SockRef::from(&closed).shutdown(Shutdown::Read);
    shut.expect("it listens");
    drop(dial(network.client(), to).and_then(|mut client| client.read(&mut [0])));
    until("the destination is bad", || {
        redirect(&node, "packet_refused") == 1
    });
    let answer = explained(&network, &node, Family::V6, &listener);
    assert_eq!(answer, "forward bad");
    let text = node
        .admin(&format!("chains explain {to}"))
        .expect("the node answers");
    assert!(
        text.contains("the destination failed, and is not tried for"),
        "{text}"
    );
}

// promise: PK10
/// Under a rule that observes, answers must have come to the client's network this way.
#[test]
fn unobserved_clients_are_explained() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = Node::builder(network.node(0), binary()).config(CONFIG);
    let node = node.start().expect("the node starts");
    until("the packet path is attached", || {
        let pair = Pair::open(&network, Family::V4, &listener);
        pair.close_client_first();
        redirect(&node, "packet_learning") > 0
    });
    let to = target(&network, Family::V4, &listener);
    let ask = |from: &str| {
        let answer = node.admin_json(&format!("chains explain {to} --from {from}"));
        let answer = answer.expect("the node answers");
        format!(
            "{} {}",
            answer["data_path"]["path"], answer["data_path"]["reason"]
        )
    };
    let client = network.client_address(Family::V4).to_string();
    assert_eq!(ask(&client), "\"packet\" \"known\"");
    assert_eq!(ask("192.0.2.77"), "\"forward\" \"return\"");
}

#[test]
fn counts_are_logged_at_the_end() {
    let network = line();
    let (mut node, listener) = ready(&network);
    Pair::open(&network, Family::V4, &listener).close_client_first();
    node.stop(Duration::from_secs(5)).expect("it stops");
    let log = node.log();
    let mut lines = log
        .iter()
        .filter(|line| line.contains("msg=\"packet path\""));
    let line = lines.next().expect("a line");
    for count in ["taken=1 ", "learning=2"] {
        assert!(line.contains(count), "{count}: {line}");
    }
}
