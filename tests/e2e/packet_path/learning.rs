// SPDX-License-Identifier: Apache-2.0
//! What a node learns of destinations, and forged SYNs.

use std::net::SocketAddr;
use std::time::Instant;

use posthaste_lab::flood::{Flood, IpNet, Plan};

use super::*;
use crate::support::kernel_counter;

/// Forged SYNs of a flood.
const FORGED: u32 = 2000;

/// Flows that learn at a time.
const LEARNING_MAX: u64 = 1024;

/// A second cable between client and server, by which the server answers: its packets do not pass
/// the node.
fn answer_past_the_node(network: &Network) {
    let client = network.client();
    client
        .ip(&format!(
            "link add past type veth peer name past netns {}",
            network.server().name()
        ))
        .expect("root makes cables");
    for host in [client, network.server()] {
        host.ip("link set past up").expect("an interface is used");
    }
    client
        .ip_batch(&[
            "address add 10.99.0.1/24 dev past".to_owned(),
            "address add fd00:99::1/64 dev past nodad".to_owned(),
        ])
        .expect("an address is added");
    let server = network.server();
    server
        .ip_batch(&[
            "address add 10.99.0.2/24 dev past".to_owned(),
            "address add fd00:99::2/64 dev past nodad".to_owned(),
        ])
        .expect("an address is added");
    for (family, via) in [(Family::V4, "10.99.0.1"), (Family::V6, "fd00:99::1")] {
        let to = network.client_address(family);
        server
            .ip(&format!("route replace {to} via {via} dev past"))
            .expect("a route is added");
    }
}

// promise: PK6
/// A destination whose packets return by another path is never taken, costs few entries, and works.
#[test]
fn one_way_destinations_are_forwarded() {
    let network = line();
    let (node, listener) = ready(&network);
    answer_past_the_node(&network);
    let listeners = [81, 82].map(|port| listen(network.server(), port));
    for listener in &listeners {
        for family in Family::ALL {
            let [learning, unlearned, taken] = counters(&node);
            for _ in 0..6 {
                let mut pair = Pair::open(&network, family, listener);
                pair.check();
                pair.close_client_first();
            }
            let now = counters(&node);
            assert_eq!(now[0] + now[1], learning + unlearned + 6, "{family}");
            assert!(now[0] - learning <= 3, "{family}");
            assert_eq!(now[2], taken, "{family}");
        }
    }
    drop(listener);
}

fn counters(node: &Node) -> [u64; 3] {
    ["packet_learning", "packet_unlearned", "packet_taken"].map(|name| redirect(node, name))
}

// promise: PK6
/// The way back changes after the node has learned the destination: one client is reset, and then
/// the destination is learned anew, which its packets do not let succeed.
#[test]
fn lost_way_back_is_noticed() {
    let network = line();
    let (node, listener) = impatient(&network);
    answer_past_the_node(&network);
    let to = target(&network, Family::V4, &listener);
    let mut client = dial(network.client(), to).expect("the node answers");
    until("the node gives up", || {
        redirect(&node, "packet_given_up") == 1
    });
    // The reset may have come before.
    let ended = client.write_all(b"a question");
    let ended = ended.and_then(|()| uninterrupted(|| client.read(&mut [0])));
    let error = ended.expect_err("it is reset");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
}

/// The sources of forged SYNs; nobody answers for them.
fn forged(family: Family) -> IpNet {
    let prefix = match family {
        Family::V4 => "10.100.0.0/16",
        Family::V6 => "fd00:100::/32",
    };
    prefix.parse().expect("a prefix")
}

fn flood(network: &Network, family: Family, target: SocketAddr) -> Flood {
    let plan = Plan {
        sources: forged(family),
        target,
        rate: FORGED,
        duration: Duration::from_secs(1),
        seed: 7,
    };
    let flood = network.client().run_in(|| Flood::start(plan));
    flood.expect("a raw socket can be opened")
}

// promise: PK4
/// Forged SYNs to a known destination complete no handshake, stay within the budget, and a client
/// that the node knows is served meanwhile.
#[test]
fn forged_syns_do_not_reach_the_server() {
    let network = line();
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let before = kernel_counter(network.server(), "Tcp", "PassiveOpens");
        let taken = redirect(&node, "packet_taken");
        let flood = flood(&network, family, target(&network, family, &listener));
        let mut served = 0;
        while flood.is_running() {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_client_first();
            served += 1;
        }
        assert!(flood.finish().expect("it sends") > 100, "{family}");
        assert!(redirect(&node, "packet_taken") > taken, "{family}");
        let opened = kernel_counter(network.server(), "Tcp", "PassiveOpens");
        assert_eq!(opened, before + served, "{family}");
    }
}

// promise: PK4
/// Forged SYNs to destinations that nobody knows do not fill the flow table.
#[test]
fn unknown_destinations_have_a_budget() {
    let network = line();
    let (node, listener) = ready(&network);
    // A refusal would end what is learned of it.
    let silent = format!("tcp flags & (syn | ack) == syn tcp dport != {PORT} drop");
    firewall(network.server(), "silent", &[("input", &silent)]);
    let before = redirect(&node, "packet_learning");
    let begun = Instant::now();
    for family in Family::ALL {
        let server = network.server_address(family);
        let port_of = |number: u32| u16::try_from(1024 + number).expect("a port");
        network.client().run_in(|| {
            for number in 0..FORGED {
                // One SYN each, without an answer.
                let to = SocketAddr::new(server, port_of(number));
                let socket = crate::support::tcp_socket(to).expect("a socket");
                socket.set_nonblocking(true).expect("a socket has options");
                let _ = socket.connect(&to.into());
            }
        });
        let taken = redirect(&node, "packet_taken");
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
    }
    // A place is free again after ten seconds.
    let turns = 1 + begun.elapsed().as_secs() / 10;
    let learning = redirect(&node, "packet_learning") - before;
    assert!(learning <= turns * LEARNING_MAX, "{learning}");
    let unlearned = redirect(&node, "packet_unlearned");
    assert_eq!(learning + unlearned, 2 * u64::from(FORGED));
}
