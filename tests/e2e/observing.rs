// SPDX-License-Identifier: Apache-2.0
//! What a node observes of destinations before it relays flows to them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{
    MODES, MODES_BY_PORT, PORT, Pair, binary, counter, dial, dial_from, each_mode, firewall,
    firewall_script, firewall_text, line, listen, network, remove_firewall, target, until,
    until_counter,
};
use crate::syn_options::raw::send_syn;

mod routes;

const MS: Duration = Duration::from_millis(1);
/// Translates whatever is forwarded.
pub(crate) const MASQUERADE: &str = "table inet nat {
chain post { type nat hook postrouting priority 100
masquerade
}
}
";

/// The same with a pool of addresses.
const POOL: &str = "table inet nat {
chain post { type nat hook postrouting priority 100
oifname s0 meta nfproto ipv4 snat ip to 10.0.1.20-10.0.1.27
oifname s0 meta nfproto ipv6 snat ip6 to fd00:0:0:1::20-fd00:0:0:1::27
}
}
";

/// A node that observes first, finds every gain worth it, and relays by sockets.
pub(crate) fn observing(host: &Namespace, mode: &str) -> Node {
    let config = format!(
        "[observe]\ngain_min = \"0s\"\n[defaults]\naccept = {mode:?}\ndata_path = \"socket\"\n"
    );
    let node = Node::builder(host, binary()).config(&config);
    node.start().expect("the node becomes ready")
}

/// The same with every accept mode, by port.
pub(crate) fn observing_in_each_mode(host: &Namespace) -> Node {
    let defaults = "[defaults]\ndata_path = \"socket\"\n";
    let config = format!("[observe]\ngain_min = \"0s\"\n{defaults}{}", each_mode());
    let node = Node::builder(host, binary()).config(&config);
    node.start().expect("the node becomes ready")
}

/// A counter of the eBPF programs.
pub(crate) fn redirect(node: &Node, name: &str) -> u64 {
    let status = node.status().expect("the node answers");
    status["redirect"][name].as_u64().expect("a counter")
}

/// Connects, exchanges some bytes and closes; returns whether the connection was relayed.
pub(crate) fn connect(
    network: &Network,
    node: &Node,
    family: Family,
    listener: &std::net::TcpListener,
) -> bool {
    let before = counter(node, "relays_opened");
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    pair.close_client_first();
    until("the relay has ended", || counter(node, "relays") == 0);
    counter(node, "relays_opened") > before
}

/// What goes to the node's host itself is not forwarded: an idle node has watched nothing.
#[test]
fn connections_to_the_host_itself_are_not_counted() {
    let network = line();
    let host = network.node(0);
    let node = observing(host, "early");
    let listener = listen(host, PORT);
    for family in Family::ALL {
        let address = SocketAddr::new(network.node_address(0, family), PORT);
        drop(dial(network.client(), address).expect("it accepts"));
    }
    assert_eq!(redirect(&node, "observed"), 0);
    drop(listener);
    let listener = listen(network.server(), PORT);
    connect(&network, &node, Family::V4, &listener);
    assert_eq!(redirect(&node, "observed"), 1);
}

// promise: X1
#[test]
fn known_destinations_are_relayed() {
    let network = line();
    let node = observing_in_each_mode(network.node(0));
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let strict = counter(&node, "strict");
            assert!(
                !connect(&network, &node, family, &listener),
                "{mode} {family}"
            );
            assert!(
                connect(&network, &node, family, &listener),
                "{mode} {family}"
            );
            assert_eq!(
                counter(&node, "strict"),
                strict + 1,
                "the second is a trial"
            );
            assert!(
                connect(&network, &node, family, &listener),
                "{mode} {family}"
            );
            let trials = if mode == "strict" {
                strict + 2
            } else {
                strict + 1
            };
            assert_eq!(counter(&node, "strict"), trials, "the third is none");
        }
    }
    assert_eq!(redirect(&node, "learned"), 6);
    assert_eq!(redirect(&node, "trials"), 6);
}

// promise: X2
#[test]
fn near_destinations_forwarded() {
    let network = network([Link::delay(50 * MS), Link::Veth]);
    let listener = listen(network.server(), PORT);
    // Also for a server that answers late on a busy machine.
    let config = "[observe]\ngain_min = \"90ms\"\n[defaults]\ndata_path = \"socket\"\n";
    let node = Node::builder(network.node(0), binary()).config(config);
    let node = node.start().expect("the node becomes ready");
    for family in Family::ALL {
        for _ in 0..3 {
            assert!(!connect(&network, &node, family, &listener), "{family}");
        }
    }
    assert_eq!(redirect(&node, "no_gain"), 4);
}

// promise: X3
#[test]
fn firewall_changes_are_noticed() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = observing(network.node(0), "early");
    for family in Family::ALL {
        connect(&network, &node, family, &listener);
        assert!(connect(&network, &node, family, &listener));
    }
    firewall(
        network.node(0),
        "other",
        &[("forward", "tcp dport 81 drop")],
    );
    until("what was learned is forgotten", || {
        !connect(&network, &node, Family::V4, &listener)
    });
    assert!(!connect(&network, &node, Family::V6, &listener));
    remove_firewall(network.node(0), "other");
}

// promise: X5
#[test]
fn masqueraded_clients_are_relayed() {
    let network = line();
    firewall_script(network.node(0), MASQUERADE);
    let node = observing_in_each_mode(network.node(0));
    for (relays, (mode, port)) in [6, 12, 18].into_iter().zip(MODES_BY_PORT) {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let direct = Pair::open(&network, family, &listener);
            let seen = direct.seen_by_server().ip();
            direct.close_client_first();
            assert_ne!(seen, network.client_address(family), "it is translated");
            for _ in 0..3 {
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                assert_eq!(pair.seen_by_server().ip(), seen, "{mode} {family}");
                pair.close_client_first();
            }
        }
        until_counter(&node, "relays_opened", relays);
    }
}

/// Gives a router a pool of addresses for what it forwards.
pub(crate) fn share_a_pool(router: &Namespace) {
    for last in 20..28 {
        for address in [
            format!("10.0.1.{last}/24"),
            format!("fd00:0:0:1::{last}/64"),
        ] {
            let added = router.ip(&format!("address add {address} dev s0 nodad"));
            added.expect("an address");
        }
    }
    firewall_script(router, POOL);
}

/// Where another connection has the address and port that a relay's socket picked, NAT gives the relay
/// another address of the pool, as it would give the client.
// promise: X5
#[test]
fn relays_share_a_pool_of_addresses() {
    const PORTS: [u16; 2] = [40_000, 40_001];
    let network = line();
    let router = network.node(0);
    share_a_pool(router);
    let listeners = MODES_BY_PORT.map(|(mode, port)| (mode, listen(network.server(), port)));
    let each = || {
        listeners
            .iter()
            .flat_map(|mode| Family::ALL.map(|family| (mode, family)))
    };
    let held = each().flat_map(|((_, listener), family)| {
        let to = target(&network, family, listener);
        PORTS.map(|port| {
            let from = SocketAddr::new(network.client_address(family), port);
            Pair::of(dial_from(network.client(), from, to), listener)
        })
    });
    let held: Vec<_> = held.collect();
    let node = observing_in_each_mode(router);
    for (turn, ((mode, listener), family)) in (1..).zip(each()) {
        connect(&network, &node, family, listener);
        assert!(
            connect(&network, &node, family, listener),
            "{mode} {family}"
        );
        let range = router.sysctl("net.ipv4.ip_local_port_range", "40000 40001");
        range.expect("a range");
        let mut pair = Pair::open(&network, family, listener);
        pair.check();
        pair.close_client_first();
        until_counter(&node, "relays_opened", 2 * turn);
        let range = router.sysctl("net.ipv4.ip_local_port_range", "32768 60999");
        range.expect("a range");
    }
    held.into_iter().for_each(Pair::close_client_first);
}

// promise: X7
#[test]
fn input_drop_forwards() {
    hosts_that_refuse_forward("");
}

// promise: X8
#[test]
fn input_reject_forwards() {
    hosts_that_refuse_forward("reject");
}

// promise: X8
#[test]
fn input_reset_forwards() {
    hosts_that_refuse_forward("meta l4proto tcp reject with tcp reset");
}

/// The word of the host's own firewall to a trial's socket is not the server's.
// promise: X8
#[test]
fn output_reject_forwards() {
    for how in ["reject", "meta l4proto tcp reject with tcp reset"] {
        let network = line();
        let listener = listen(network.server(), PORT);
        let output = format!("ct state established,related accept\ntcp dport {PORT} {how}");
        firewall(network.node(0), "strict", &[("output", &output)]);
        let node = observing(network.node(0), "early");
        for family in Family::ALL {
            for _ in 0..4 {
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                pair.close_client_first();
            }
        }
        assert_eq!(redirect(&node, "trials"), 2, "{how}: each is tried once");
    }
}

/// A node on a host whose input chain ends with a rule, and drops the rest.
fn hosts_that_refuse_forward(last: &str) {
    let network = line();
    let listener = listen(network.server(), PORT);
    let input = format!(
        "policy drop;\nct state established,related accept\nip6 nexthdr icmpv6 accept\n{last}"
    );
    firewall(network.node(0), "strict", &[("input", &input)]);
    for mode in MODES {
        let node = observing(network.node(0), mode);
        for family in Family::ALL {
            for _ in 0..4 {
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                pair.close_client_first();
            }
        }
        assert_eq!(counter(&node, "undelivered"), 2, "{mode}");
        assert_eq!(redirect(&node, "bypasses"), 2, "{mode}");
    }
}

// promise: X7
#[test]
fn blocking_host_detected() {
    let network = line();
    firewall(
        network.node(0),
        "strict",
        &[("input", "policy drop;\nip6 nexthdr icmpv6 accept")],
    );
    let node = Node::builder(network.node(0), binary());
    let config =
        "[node]\nworkers = 1\n[observe]\ngain_min = \"0s\"\n[defaults]\ndata_path = \"socket\"\n";
    let node = node.config(config);
    let node = node.start().expect("the node becomes ready");
    for port in 80..90 {
        let listener = listen(network.server(), port);
        for _ in 0..3 {
            let mut pair = Pair::open(&network, Family::V4, &listener);
            pair.check();
            pair.close_client_first();
        }
    }
    assert_eq!(counter(&node, "undelivered"), 3, "then it tries no more");
    assert!(redirect(&node, "blocked") >= 20);
    remove_firewall(network.node(0), "strict");
    let listener = listen(network.server(), PORT);
    until("it relays", || {
        connect(&network, &node, Family::V4, &listener)
    });
}

#[test]
fn limiting_firewall_stops_relays() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let router = network.node(0);
    let harmless = [
        ("input", "icmp type echo-request limit rate 5/second accept"),
        (
            "forward",
            "tcp dport 81 limit rate 1/second log prefix \"new \"",
        ),
    ];
    firewall(router, "harmless", &harmless);
    let node = observing(router, "early");
    let relays = || {
        connect(&network, &node, Family::V4, &listener);
        connect(&network, &node, Family::V4, &listener)
    };
    assert!(relays(), "neither limits what is forwarded");
    firewall(
        router,
        "limits",
        &[("forward", "tcp flags syn limit rate over 1000/second drop")],
    );
    until("it relays no more", || !relays());
    assert!(!relays() && redirect(&node, "blocked") > 0);
    remove_firewall(router, "limits");
    until("it relays again", relays);
}

/// A client delays its last ACK until the firewall forbids what it allowed at the SYN. That
/// handshake is no evidence about the present rules.
#[test]
fn late_acks_permit_nothing() {
    let network = line();
    let listener = listen(network.server(), PORT);
    // A repeated SYN-ACK of the server would show a lost packet.
    let repeats = network.server().sysctl("net.ipv4.tcp_synack_retries", "0");
    repeats.expect("a namespace has its own settings");
    let node = observing(network.node(0), "early");
    let silence = "tcp flags & (syn | ack | rst) == ack drop";
    firewall(network.client(), "late", &[("output", silence)]);
    let late = Family::ALL.map(|family| {
        let target = target(&network, family, &listener);
        let stream = dial(network.client(), target).expect("the client connects");
        (family, target, stream)
    });
    let forbidden = "tcp flags & (syn | ack) == syn drop";
    firewall(network.node(0), "forbidding", &[("forward", forbidden)]);
    until("the change is noticed", || {
        let log = node.log();
        log.iter().any(|line| line.contains("observed again"))
    });
    remove_firewall(network.client(), "late");
    for (family, target, mut stream) in late {
        stream.write_all(b"late").expect("the bytes are sent");
        // The server has given up the handshake, or receives the rest of it.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = stream.read(&mut [0]);
        let again = network
            .client()
            .run_in(|| TcpStream::connect_timeout(&target, Duration::from_secs(3)).map(drop));
        assert!(again.is_err(), "{family}: what is forbidden is relayed");
        assert_eq!(counter(&node, "relays_opened"), 0, "{family}");
    }
}

/// Servers fall silent for a moment. That is no evidence about this host.
#[test]
fn silent_servers_not_blamed() {
    let network = line();
    let node = Node::builder(network.node(0), binary());
    let config =
        "[node]\nworkers = 1\n[observe]\ngain_min = \"0s\"\n[defaults]\ndata_path = \"socket\"\n";
    let node = node.config(config);
    let node = node.start().expect("the node becomes ready");
    let listeners: Vec<_> = (80..86)
        .map(|port| listen(network.server(), port))
        .collect();
    for listener in &listeners {
        assert!(!connect(&network, &node, Family::V4, listener));
    }
    let outage = "tcp flags & (syn | ack) == syn drop";
    firewall(network.server(), "outage", &[("input", outage)]);
    for (listener, passed) in listeners.iter().zip(1..) {
        let target = target(&network, Family::V4, listener);
        network.client().run_in(|| {
            let connected = TcpStream::connect_timeout(&target, Duration::from_millis(500));
            assert!(connected.is_err(), "the server is silent");
        });
        until_counter(&node, "syns_forwarded", passed);
    }
    remove_firewall(network.server(), "outage");
    let listener = listen(network.server(), 90);
    until("it relays", || {
        connect(&network, &node, Family::V4, &listener)
    });
    assert_eq!(redirect(&node, "blocked"), 0, "the host is not in the way");
}

/// A neighbour of the client forges a SYN of its open connection, which was forwarded. The server answers
/// such a SYN with a challenge (RFC 5961 section 4), and a node must do no more harm.
#[test]
fn forged_syns_end_nothing() {
    for translates in [false, true] {
        let network = line();
        let listener = listen(network.server(), PORT);
        if translates {
            firewall_script(network.node(0), MASQUERADE);
        }
        let node = observing(network.node(0), "early");
        let mut open = Pair::open(&network, Family::V4, &listener);
        open.check();
        for _ in 0..2 {
            assert!(connect(&network, &node, Family::V4, &listener));
        }
        let ends = (
            open.client_address(),
            target(&network, Family::V4, &listener),
        );
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = ends else {
            panic!("{ends:?} are of IPv4");
        };
        send_syn(network.client(), from, to, &[]);
        // When another is relayed, the forged SYN has been seen.
        assert!(connect(&network, &node, Family::V4, &listener));
        open.check();
        open.close_client_first();
        assert_eq!(counter(&node, "relays_opened"), 3);
    }
}

/// The ACK that completes a handshake by SYN cookie meets no socket, and is no late segment of a relay that
/// has ended.
#[test]
fn masqueraded_clients_with_cookies() {
    let network = line();
    firewall_script(network.node(0), MASQUERADE);
    let always = network.node(0).sysctl("net.ipv4.tcp_syncookies", "2");
    always.expect("a namespace has its own settings");
    let node = observing_in_each_mode(network.node(0));
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            for relayed in [false, true, true] {
                assert_eq!(
                    connect(&network, &node, family, &listener),
                    relayed,
                    "{mode} {family}"
                );
            }
        }
    }
    assert!(redirect(&node, "cookies") >= 12);
}
