// SPDX-License-Identifier: Apache-2.0
//! Connections that a node carries packet by packet, without sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use socket2::SockRef;

use crate::observing::redirect;
use crate::payload::uninterrupted;
use crate::support::{
    PORT, Pair, accept, binary, counter, dial, dial_with, errno, expect_end, expect_reset,
    firewall, firewall_script, firewall_text, line, listen, network, remove_firewall, reset,
    start_relaying_in, stop_listening, target, until,
};

mod cards;
mod ends;
mod forged;
mod icmp;
mod interfaces;
mod late;
mod learning;
mod leaving;
pub(crate) mod lifetime;
mod made;
mod paced;
mod patience;
mod quiet;
mod rare;
mod reload;
mod report;
mod resend;
mod segment_sizes;
mod senders;
mod syns;
mod tuples;
mod unlike;

pub(crate) use ends::exchange_all;

const CONFIG: &str = "[defaults]\ndata_path = \"packet\"\n";
/// The same with little patience for servers.
const IMPATIENT: &str =
    "[defaults]\ndata_path = \"packet\"\n[defaults.timeouts]\nconnect = \"4s\"\n";
/// The default, which the lab's nodes have not.
const AUTO: &str = "[defaults]\ndata_path = \"auto\"\n";
/// What an operator may have on a router: new connections only from clients, nothing invalid, and
/// the router's own address for servers.
const STRICT: &str = "table inet strict {
chain forward { type filter hook forward priority 0; policy drop;
ct state invalid counter drop
ct state established,related accept
iifname \"c0\" tcp flags & (fin|syn|rst|ack) == syn ct state new accept
}
}
";

const MASQUERADE: &str = "table inet nat {
chain post { type nat hook postrouting priority 100
masquerade
}
}
";

/// Connects once, so that the node learns what the destination grants.
fn learn(network: &Network, node: &Node, family: Family, listener: &TcpListener) {
    let before = redirect(node, "packet_learning");
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    pair.close_client_first();
    assert_eq!(redirect(node, "packet_learning"), before + 1);
}

/// Waits until the programs of the packet path are attached: then the node learns from a first flow.
fn ready(network: &Network) -> (Node, TcpListener) {
    let listener = listen(network.server(), PORT);
    (ready_on(network, network.node(0), &listener), listener)
}

/// The same for a node that gives servers 4 s.
fn impatient(network: &Network) -> (Node, TcpListener) {
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(network.node(0), IMPATIENT);
    until_ready(network, &node, &listener);
    (node, listener)
}

/// The same for a node on a host of one's choice.
fn ready_on(network: &Network, host: &Namespace, listener: &TcpListener) -> Node {
    let node = start_relaying_in(host, CONFIG);
    until_ready(network, &node, listener);
    node
}

fn until_ready(network: &Network, node: &Node, listener: &TcpListener) {
    until("the packet path is attached", || {
        let pair = Pair::open(network, Family::V4, listener);
        pair.close_client_first();
        redirect(node, "packet_learning") > 0
    });
    learn(network, node, Family::V6, listener);
}

// promise: PK1
#[test]
fn flows_are_carried_without_relays() {
    let network = line();
    let (node, listener) = ready(&network);
    let relays = counter(&node, "relays_opened");
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        for _ in 0..3 {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(pair.client_address(), pair.seen_by_server());
            pair.close_client_first();
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_server_first();
        }
        assert_eq!(redirect(&node, "packet_taken"), taken + 6, "{family}");
    }
    assert_eq!(counter(&node, "relays_opened"), relays);
}

// promise: PK7
/// A split pays where an answer takes more than one round trip.
#[test]
fn long_answers_use_sockets() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(network.node(0), AUTO);
    until_ready(&network, &node, &listener);
    let [taken, relays] = [
        redirect(&node, "packet_taken"),
        counter(&node, "relays_opened"),
    ];
    for round in 1..=2 {
        let mut pair = Pair::open(&network, Family::V4, &listener);
        pair.check();
        pair.close_server_first();
        assert_eq!(redirect(&node, "packet_taken"), taken + round, "short");
    }
    for round in 0..=2 {
        fetch(&network, Family::V4, &listener);
        assert_eq!(counter(&node, "relays_opened"), relays + round);
        assert_eq!(redirect(&node, "packet_long"), round);
    }
    assert_eq!(redirect(&node, "packet_taken"), taken + 3);
}

// promise: PK7
/// The first flow, which is forwarded, shows how long answers are: the next takes the better way.
#[test]
fn forwarded_answer_shows_its_length() {
    let network = line();
    let [ready, long] = [PORT, PORT + 1].map(|port| listen(network.server(), port));
    let node = start_relaying_in(network.node(0), AUTO);
    until_ready(&network, &node, &ready);
    let relays = counter(&node, "relays_opened");
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        fetch(&network, family, &long);
        assert_eq!(redirect(&node, "packet_taken"), taken, "{family}");
        fetch(&network, family, &long);
        assert_eq!(redirect(&node, "packet_taken"), taken, "{family}");
    }
    assert_eq!(counter(&node, "relays_opened"), relays + 2);
    let list = node.relays().expect("the node answers");
    assert_eq!(list["packet_flows"].as_array().map(Vec::len), Some(0));
}

/// Receives an answer that is longer than a server's first window.
fn fetch(network: &Network, family: Family, listener: &TcpListener) {
    let answer = vec![7; 300_000];
    let mut pair = Pair::open(network, family, listener);
    let mut received = vec![0; answer.len()];
    pair.server.write_all(&answer).expect("it is sent");
    pair.client.read_exact(&mut received).expect("it arrives");
    assert_eq!(received, answer);
    pair.close_server_first();
}

// promise: PK1
/// One client without options must not take them from the others.
#[test]
fn options_are_learned_apart() {
    let network = line();
    let options =
        ["sack", "timestamps", "window_scaling"].map(|name| format!("net.ipv4.tcp_{name}"));
    let set = |value| {
        for key in &options {
            network.client().sysctl(key, value).unwrap();
        }
    };
    set("0");
    let (node, listener) = ready(&network);
    set("1");
    learn(&network, &node, Family::V4, &listener);
    let taken = redirect(&node, "packet_taken");
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    assert_eq!(redirect(&node, "packet_taken"), taken + 1);
    let peer = pair.client_address().to_string();
    let mut ss = network.server().command("ss").unwrap();
    let listed = ss.args(["-tionO", "dst", &peer]).output().unwrap();
    let sockets = String::from_utf8_lossy(&listed.stdout);
    for option in [" ts ", " sack ", " wscale:"] {
        assert!(sockets.contains(option), "{option}: {sockets}");
    }
}

// promise: PK1
/// The client is answered before the server has its SYN, and what it sends meanwhile is held.
#[test]
fn held_data_arrives() {
    let network = network([
        Link::delay(Duration::from_millis(1)),
        Link::delay(Duration::from_millis(300)),
    ]);
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let held = redirect(&node, "packet_held");
        let to = target(&network, family, &listener);
        let mut client = dial(network.client(), to).expect("it connects");
        let question: Vec<u8> = (0..=u8::MAX).cycle().take(14_000).collect();
        client.write_all(&question).expect("it is sent");
        let (mut server, _) = accept(&listener);
        let mut received = vec![0; question.len()];
        server.read_exact(&mut received).expect("it arrives");
        assert_eq!(received, question);
        assert!(redirect(&node, "packet_held") > held, "{family}");
        Pair { client, server }.close_client_first();
    }
}

// promise: PK1
/// Held segments and SYNs that are sent again take the way of the client's own, also where it depends
/// on the traffic class or the flow label.
#[test]
fn held_data_keeps_class_and_label() {
    let network = network([
        Link::delay(Duration::from_millis(1)),
        Link::delay(Duration::from_millis(300)),
    ]);
    let (node, listener) = ready(&network);
    // The last acknowledgement of an earlier connection may still be on its way.
    let rules = ["ip dscp != cs3", "ip6 dscp != cs3", "ip6 flowlabel 0"]
        .map(|rule| format!("tcp flags & (syn | psh) != 0 {rule} counter"))
        .join("\n");
    for family in Family::ALL {
        firewall(network.server(), "classes", &[("input", &rules)]);
        let held = redirect(&node, "packet_held");
        let to = target(&network, family, &listener);
        let dialled = dial_with(network.client(), to, |socket| match family {
            Family::V4 => socket.set_tos_v4(0x60),
            Family::V6 => socket.set_tclass_v6(0x60),
        });
        let mut client = dialled.expect("the node answers");
        client.write_all(b"a question").expect("it is sent");
        let (mut server, _) = accept(&listener);
        server.read_exact(&mut [0; 10]).expect("it arrives");
        assert_eq!(redirect(&node, "packet_held"), held + 1, "{family}");
        let counted = firewall_text(network.server(), "classes");
        let none = counted.matches("counter packets 0 ").count();
        assert_eq!(none, 3, "{family}: {counted}");
        remove_firewall(network.server(), "classes");
        Pair { client, server }.close_client_first();
    }
}

// promise: PK1
/// An urgent pointer (RFC 9293 section 3.8.5) takes the byte that it means out of the stream.
#[test]
fn early_urgent_data_arrives() {
    let network = network([
        Link::delay(Duration::from_millis(1)),
        Link::delay(Duration::from_millis(300)),
    ]);
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        let to = target(&network, family, &listener);
        let mut client = dial(network.client(), to).expect("it connects");
        let urgent = SockRef::from(&client).send_out_of_band(b"ab!");
        assert_eq!(urgent.expect("it is sent"), 3);
        client.write_all(b"cd").expect("it is sent");
        let (mut server, _) = accept(&listener);
        let mut received = [0; 4];
        server.read_exact(&mut received).expect("it arrives");
        assert_eq!(&received, b"abcd", "{family}");
        assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
        Pair { client, server }.close_client_first();
    }
}

// promise: PK3
#[test]
fn refusals_reach_the_client() {
    let network = line();
    let (node, listener) = ready(&network);
    let to = target(&network, Family::V4, &listener);
    stop_listening(listener);
    let refused = dial(network.client(), to)
        .and_then(|mut client| uninterrupted(|| client.read(&mut [0])).map(drop));
    let error = refused.expect_err("nobody listens");
    assert!(
        [libc::ECONNRESET, libc::ECONNREFUSED].contains(&error.raw_os_error().unwrap_or(0)),
        "{error}"
    );
    assert_eq!(redirect(&node, "packet_refused"), 1);
    // The next one is forwarded.
    let again = dial(network.client(), to);
    assert!(errno(&again).is_some() || expect_refusal(again));
    assert_eq!(redirect(&node, "packet_bad"), 1);
}

fn expect_refusal(dialled: std::io::Result<TcpStream>) -> bool {
    dialled
        .and_then(|mut client| uninterrupted(|| client.read(&mut [0])))
        .is_err()
}
