// SPDX-License-Identifier: Apache-2.0
//! Hops over QUIC: flows as streams of the connections of two nodes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::operations::affinity;
use crate::pitfalls::{complaints, doctor_for};
use crate::requests::{ALLOWED, KEY, explicit, listener, start_all};
use crate::support::{
    PORT, Pair, SOON, accept, counter, deliver, dial, ended, expect_end, expect_reset, firewall,
    firewall_text, listen, network, remove_firewall, reset, start_relaying_in, target, until,
    until_ended,
};

mod floods;
mod rebinding;

/// Drops what is not TCP.
const NO_UDP: &[(&str, &str)] = &[
    ("input", "meta l4proto udp drop"),
    ("output", "meta l4proto udp drop"),
];

/// Client, two nodes that reach each other by this family, and server.
fn member(network: &Network, node: usize, mode: &str, family: Family) -> String {
    let other = 1 - node;
    let address = listener(network, other, family);
    let mut text = format!(
        "[node]\nid = {id}\nworkers = 1\n{ALLOWED}[defaults]\naccept = \"{mode}\"\n\
         [[peer]]\nname = \"other\"\nid = {other_id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
         transport = \"quic\"\npool_max = {pool_max}\n",
        id = node + 1,
        other_id = other + 1,
        pool_max = if node == 0 { 4 } else { 0 },
    );
    if node == 0 {
        text += "[[chain]]\nname = \"two\"\nnodes = [\"other\"]\n\
                 [[route]]\nchains = [\"two\"]\ndirect = false\n";
    } else {
        text += &explicit(network, node);
    }
    text
}

pub(crate) fn start(network: &Network, mode: &str, family: Family) -> Vec<Node> {
    start_all(
        network,
        (0..2).map(|node| member(network, node, mode, family)),
    )
}

/// All flows together, in each direction, by what a reload sets.
// promise: K25
#[test]
fn limited_rate_of_a_peer() {
    const BYTES: usize = 1_000_000;
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for family in Family::ALL {
        let nodes = start(&network, "early", family);
        until_up(&nodes);
        for (node, at) in nodes.iter().zip([0, 1]) {
            let from = network.calling_address(1 - at, family);
            let limit =
                format!("rate_limit = \"8Mbit/s\"\nsource_addresses = [\"{from}\"]\npool_max");
            let text = member(&network, at, "early", family).replace("pool_max", &limit);
            reload(node, &text, 1);
        }
        let begun = Instant::now();
        thread::scope(|scope| {
            for port in [PORT, PORT + 1] {
                let network = &network;
                scope.spawn(move || {
                    let listener = listen(network.server(), port);
                    let mut pair = Pair::open(network, Family::V4, &listener);
                    let bytes: Vec<u8> = (0..BYTES).map(|at| at.to_le_bytes()[0]).collect();
                    transfer(&mut pair.client, &mut pair.server, &bytes);
                    transfer(&mut pair.server, &mut pair.client, &bytes);
                });
            }
        });
        let lasted = begun.elapsed().as_secs_f64();
        // The two flows need not turn at once, and then both directions have their limit.
        assert!(lasted > 1.9, "{family}: {lasted} s");
        assert_eq!(counter(&nodes[0], "hops_quic"), 2, "{family}");
        assert_eq!(peer(&nodes[0])["taken"], 2, "{family}");
    }
}

/// The tunnels of all workers together.
// promise: K25
#[test]
fn workers_share_the_limit_of_a_peer() {
    const BYTES: usize = 1_000_000;
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let limited = "rate_limit = \"8Mbit/s\"\npool_max";
    let texts = [0, 1].map(|node| {
        let text = member(&network, node, "early", Family::V4).replace("pool_max", limited);
        text.replace("workers = 1", "workers = 2")
    });
    let nodes = start_all(&network, texts.into_iter());
    until("tunnels are up", || counter(&nodes[0], "tunnels_up") == 4);
    let listener = listen(network.server(), PORT);
    let to = target(&network, Family::V4, &listener);
    let mut pairs: Vec<_> = affinity::cpus()[..2]
        .iter()
        .map(|cpu| {
            let client = affinity::dial_on(*cpu, &network, to);
            let (server, _) = accept(&listener);
            let mut pair = Pair { client, server };
            pair.check();
            pair
        })
        .collect();
    let workers = pairs.iter();
    let workers = workers.map(|pair| affinity::worker_of(&nodes[0], pair.client_address()));
    assert_eq!(workers.collect::<Vec<_>>(), [0, 1]);
    let begun = Instant::now();
    thread::scope(|scope| {
        for pair in &mut pairs {
            scope.spawn(|| transfer(&mut pair.client, &mut pair.server, &vec![7; BYTES]));
        }
    });
    let lasted = begun.elapsed().as_secs_f64();
    assert!(lasted > 1.9, "{lasted} s");
    assert_eq!(counter(&nodes[0], "hops_quic"), 2);
}

/// Firewalls and policy routing recognise a node's datagrams.
// promise: K20
#[test]
fn datagrams_have_the_mark() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let count = "meta l4proto udp meta mark & 0x20000000 == 0 counter\n\
        meta l4proto udp meta mark & 0x20000000 != 0 counter";
    for family in Family::ALL {
        for node in [0, 1] {
            firewall(network.node(node), "marks", &[("output", count)]);
        }
        let (nodes, listener) = ready(&network, "early", family);
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(counter(&nodes[0], "hops_quic"), 1, "{family}");
        for node in [0, 1] {
            let counted = firewall_text(network.node(node), "marks");
            let zeros = counted.matches("packets 0 ").count();
            assert_eq!(zeros, 1, "{family}: {counted}");
            assert!(
                counted.contains("== 0x00000000 counter packets 0 "),
                "{counted}"
            );
            remove_firewall(network.node(node), "marks");
        }
    }
}

/// A peer with many workers has at most 256 tunnels with one of another node. Flows of the others
/// take TCP.
// promise: K21
#[test]
fn tunnels_of_a_peer_are_bounded() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let many = member(&network, 0, "early", Family::V4).replace("workers = 1", "workers = 130");
    let nodes = start_all(
        &network,
        [many, member(&network, 1, "early", Family::V4)].into_iter(),
    );
    let is_up = || counter(&nodes[1], "tunnels_up");
    // Each worker has dialed two. On a busy machine some handshakes take too long.
    until("256 tunnels are up", || {
        is_up() >= 256 || is_up() + counter(&nodes[0], "tunnels_failed") >= 260
    });
    let listener = listen(network.server(), PORT);
    // The peer may be too busy with handshakes for a flow: it is reset.
    until("four flows are carried", || {
        let mut pair = Pair::open(&network, Family::V4, &listener);
        if pair.client.write_all(b"x").is_ok() && pair.server.read_exact(&mut [0]).is_ok() {
            pair.close_client_first();
        }
        ended(&nodes[0], "finished") >= 4
    });
    thread::sleep(Duration::from_secs(2));
    let late = counter(&nodes[0], "tunnels_failed");
    assert!(
        is_up() <= 256 && is_up() + late >= 256,
        "{} {late}",
        is_up()
    );
    assert_eq!(counter(&nodes[1], "tunnels_lost"), 0);
}

/// The first node has dialed two tunnels.
pub(crate) fn until_up(nodes: &[Node]) {
    for node in nodes {
        until("tunnels are up", || counter(node, "tunnels_up") == 2);
    }
}

/// Nodes with tunnels, and a listener of the server.
pub(crate) fn ready(network: &Network, mode: &str, family: Family) -> (Vec<Node>, TcpListener) {
    let nodes = start(network, mode, family);
    until_up(&nodes);
    (nodes, listen(network.server(), PORT))
}

fn far(loss: f64) -> Network {
    let far = Link::delay(Duration::from_millis(20)).loss(loss);
    network([Link::Veth, far, Link::Veth])
}

/// Gives a node another configuration, for the so-manieth time.
fn reload(node: &Node, config: &str, count: u64) {
    node.write_config(config).expect("the file can be written");
    node.admin("reload").expect("it is accepted");
    until("the reload", || {
        node.status().expect("it answers")["reloads"]["succeeded"] == count
    });
}

/// As [`deliver`], for more than buffers hold.
fn transfer(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(bytes).expect("the bytes are sent"));
        let mut received = vec![0; bytes.len()];
        to.read_exact(&mut received).expect("the bytes arrive");
        assert!(received == bytes, "other bytes");
    });
}

// promise: K20
#[test]
fn bytes_cross_a_lossy_hop() {
    let network = far(0.05);
    for family in Family::ALL {
        let (nodes, listener) = ready(&network, "early", family);
        let mut pair = Pair::open(&network, Family::V4, &listener);
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        transfer(&mut pair.client, &mut pair.server, &bytes);
        transfer(&mut pair.server, &mut pair.client, &bytes);
        pair.check();
        pair.close_client_first();
        until_ended(&nodes[0], "finished", 1);
        until_ended(&nodes[1], "finished", 1);
        assert_eq!(counter(&nodes[0], "hops_quic"), 1);
    }
}

// promise: K26
#[test]
fn lost_bytes_follow_from_repair_symbols() {
    let network = far(0.05);
    for family in Family::ALL {
        let (nodes, listener) = ready(&network, "early", family);
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        // The first ones show how much the path loses.
        for length in [bytes.len(); 3].into_iter().chain([100_000; 12]) {
            let mut pair = Pair::open(&network, Family::V4, &listener);
            transfer(&mut pair.server, &mut pair.client, &bytes[..length]);
            pair.close_server_first();
        }
        until_ended(&nodes[0], "finished", 15);
        assert!(counter(&nodes[1], "tunnel_repairs_sent") > 0);
        assert!(counter(&nodes[0], "tunnel_bytes_repaired") > 0);
    }
}

// promise: K20
#[test]
fn resets_pass_both_ways() {
    let network = far(0.02);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    reset(pair.client);
    expect_reset(&mut pair.server);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    reset(pair.server);
    expect_reset(&mut pair.client);
    for node in &nodes {
        until_ended(node, "downstream_reset", 1);
        until_ended(node, "upstream_reset", 1);
    }
}

/// What the first node reports of the second.
fn peer(node: &Node) -> serde_json::Value {
    node.admin_json("chains").expect("it answers")["peers"][0].clone()
}

/// Loses every 20th packet of hops over TCP that arrives at a node.
fn lose_tcp(network: &Network, node: usize) {
    let rule = "meta l4proto tcp numgen inc mod 20 == 0 counter drop";
    firewall(network.node(node), "lossy", &[("input", rule)]);
}

/// Two nodes that choose by losses.
fn choosing(network: &Network, family: Family) -> Vec<Node> {
    let config = |node| {
        let text = member(network, node, "early", family);
        text.replace("\"quic\"", "\"auto\"")
    };
    let nodes = start_all(network, (0..2).map(config));
    until_up(&nodes);
    nodes
}

/// Nodes 5 ms apart.
fn near() -> Network {
    network([
        Link::Veth,
        Link::delay(Duration::from_millis(5)),
        Link::Veth,
    ])
}

fn content() -> Vec<u8> {
    (0..400_000_u32).map(|at| at.to_le_bytes()[0]).collect()
}

/// A flow that lasts shows what its hop loses before it ends.
// promise: K27
#[test]
fn open_hop_that_loses_gives_way_to_tunnels() {
    let network = near();
    let bytes = content();
    for (family, losing) in Family::ALL.into_iter().zip([0, 1]) {
        let nodes = choosing(&network, family);
        let listener = listen(network.server(), PORT);
        let mut pair = Pair::open(&network, Family::V4, &listener);
        lose_tcp(&network, losing);
        let given_up = Instant::now() + Duration::from_secs(120);
        while peer(&nodes[0])["carried_by"]["transport"] != "quic" {
            assert!(Instant::now() < given_up, "{}", peer(&nodes[0]));
            transfer(&mut pair.client, &mut pair.server, &bytes);
            transfer(&mut pair.server, &mut pair.client, &bytes);
        }
        let mut other = Pair::open(&network, Family::V4, &listener);
        other.check();
        assert_eq!(counter(&nodes[0], "hops_quic_for_loss"), 1, "{family}");
        pair.check();
        remove_firewall(network.node(losing), "lossy");
    }
}

/// Flows that carry most bytes up.
// promise: K27
#[test]
fn hops_that_lose_uploads_give_way_to_tunnels() {
    hops_that_lose_give_way_to_tunnels(Family::V4, true);
}

/// The same down.
// promise: K27
#[test]
fn hops_that_lose_downloads_give_way_to_tunnels() {
    hops_that_lose_give_way_to_tunnels(Family::V6, false);
}

fn hops_that_lose_give_way_to_tunnels(family: Family, is_up: bool) {
    let network = near();
    let bytes = content();
    let nodes = choosing(&network, family);
    let listener = listen(network.server(), PORT);
    let flow = || {
        let mut pair = Pair::open(&network, Family::V4, &listener);
        let (from, to) = if is_up {
            (&mut pair.client, &mut pair.server)
        } else {
            (&mut pair.server, &mut pair.client)
        };
        transfer(from, to, &bytes);
        pair.close_client_first();
    };
    let flows_until = |transport: &str| {
        let given_up = Instant::now() + Duration::from_secs(120);
        while peer(&nodes[0])["carried_by"]["transport"] != transport {
            assert!(Instant::now() < given_up, "{}", peer(&nodes[0]));
            flow();
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(11) {
        flow();
    }
    assert_eq!(counter(&nodes[0], "hops_quic"), 0, "{}", peer(&nodes[0]));
    let losing = usize::from(is_up);
    lose_tcp(&network, losing);
    flows_until("quic");
    flow();
    let taken = ["hops_quic", "hops_quic_for_loss"].map(|name| counter(&nodes[0], name));
    assert_eq!(taken, [1, 1]);
    remove_firewall(network.node(losing), "lossy");
    flows_until("tcp");
}

// promise: K21
#[test]
fn killed_peer_resets_its_flows() {
    let network = far(0.0);
    let (mut nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    nodes[1].kill().expect("it can be killed");
    // Its host answers what the flow sends, or the keep-alive of the tunnel.
    expect_reset(&mut pair.client);
    until("none is up", || counter(&nodes[0], "tunnels_up") == 0);
    nodes[1] = start_relaying_in(network.node(1), &member(&network, 1, "early", Family::V4));
    until_up(&nodes);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    pair.close_server_first();
    until_ended(&nodes[0], "finished", 1);
    assert_eq!(counter(&nodes[0], "hops_quic"), 2);
}

/// Nobody notices otherwise that a firewall drops UDP: hops use TCP.
// promise: H8
#[test]
fn doctor_finds_peers_that_udp_does_not_reach() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for family in Family::ALL {
        let nodes = start(&network, "early", family);
        until_up(&nodes);
        let config = member(&network, 0, "early", family);
        let found = || {
            let (_, answer) = doctor_for(network.node(0), &config);
            complaints(&answer, "tunnels")
        };
        assert_eq!(found(), [], "{family}");
        firewall(network.node(1), "no-udp", NO_UDP);
        let [(level, words)] = &found()[..] else {
            panic!("{family}: one finding, not {:?}", found());
        };
        let address = listener(&network, 1, family).to_string();
        assert!(level == "warn" && words.contains(&address), "{words}");
        remove_firewall(network.node(1), "no-udp");
    }
}

// promise: K21
#[test]
fn blocked_udp_leaves_tcp() {
    let network = far(0.0);
    for family in Family::ALL {
        firewall(network.node(1), "blocked", NO_UDP);
        let nodes = start(&network, "early", family);
        let listener = listen(network.server(), PORT);
        let begun = Instant::now();
        let mut pair = Pair::open(&network, Family::V4, &listener);
        pair.check();
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        pair.close_client_first();
        until_ended(&nodes[0], "finished", 1);
        assert_eq!(counter(&nodes[0], "hops_quic"), 0);
        remove_firewall(network.node(1), "blocked");
    }
}

/// Without encryption no longer than UDP is away, and not unnoticed.
// promise: K21
#[test]
fn tunnels_return_soon_after_udp_does() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let count = |name| counter(&nodes[0], name);
    assert_eq!(count("tunnel_peers_down"), 0);
    firewall(network.node(1), "blocked", NO_UDP);
    until("both are lost", || count("tunnels_lost") == 2);
    until("others do not open", || count("tunnels_failed") >= 2);
    assert_eq!(count("tunnel_peers_down"), 1);
    let flow = || {
        let mut pair = Pair::open(&network, Family::V4, &listener);
        pair.check();
        pair.close_client_first();
    };
    flow();
    assert_eq!(["hops_quic", "hops_quic_to_tcp"].map(count), [0, 1]);
    let text = nodes[0].admin("status").expect("it answers");
    assert!(
        text.contains("TROUBLE: no tunnel to a peer is up"),
        "{text}"
    );
    remove_firewall(network.node(1), "blocked");
    until_up(&nodes);
    flow();
    assert_eq!(["hops_quic", "hops_quic_to_tcp"].map(count), [1, 1]);
    assert_eq!(count("tunnel_peers_down"), 0);
    let text = nodes[0].admin("status").expect("it answers");
    assert!(!text.contains("TROUBLE: no tunnel"), "{text}");
    assert!(text.contains("1 took TCP without encryption"), "{text}");
}

/// Nothing leaves in clear, whether the tunnel is closed or silent.
// promise: K29
#[test]
fn flows_that_need_a_tunnel_take_no_other_hop() {
    let network = far(0.0);
    // With contents: handshakes alone measure the link.
    let in_clear = "tcp dport 4480 tcp flags & psh == psh counter";
    firewall(network.node(1), "clear", &[("input", in_clear)]);
    let text =
        |node| member(&network, node, "early", Family::V4).replace("\"quic\"", "\"quic-only\"");
    let nodes = start_all(&network, (0..2).map(text));
    until_up(&nodes);
    let listener = listen(network.server(), PORT);
    let count = |name| counter(&nodes[0], name);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    firewall(network.node(1), "blocked", NO_UDP);
    let to = target(&network, Family::V4, &listener);
    // Its request goes into a silent tunnel, or it finds none.
    let refused = || {
        let mut client = dial(network.client(), to).expect("the node accepts");
        // The reset may be the first to arrive.
        if client.write_all(b"request").is_ok() {
            expect_reset(&mut client);
        }
    };
    refused();
    until("they are lost", || count("tunnels_lost") == 2);
    expect_reset(&mut pair.client);
    refused();
    assert!(count("hops_quic_refused") > 0);
    let found = peer(&nodes[0])["carried_by"]["transport"].clone();
    assert_eq!(found, "none");
    remove_firewall(network.node(1), "blocked");
    until_up(&nodes);
    Pair::open(&network, Family::V4, &listener).check();
    let counted = firewall_text(network.node(1), "clear");
    assert!(counted.contains("packets 0 "), "{counted}");
}

// promise: K21
#[test]
fn udp_blocked_in_mid_run() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    firewall(network.node(1), "blocked", NO_UDP);
    // The first of these may be the one that finds out.
    let begun = Instant::now();
    let target = target(&network, Family::V4, &listener);
    let mut client = dial(network.client(), target).expect("the node accepts");
    let (mut server, _) = accept(&listener);
    deliver(&mut client, &mut server, b"request");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    let mut next = Pair::open(&network, Family::V4, &listener);
    next.check();
    next.close_client_first();
    // The flow of the tunnel ends with it.
    let _ = pair.client.read(&mut [0; 16]);
    until("none is up", || counter(&nodes[0], "tunnels_up") == 0);
    assert_eq!(counter(&nodes[0], "tunnels_lost"), 2);
}

// promise: K21
/// The path becomes narrower than QUIC needs: the flow that has more to send is reset, and the next
/// take TCP.
#[test]
fn narrow_path_leaves_tcp() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    assert_eq!(counter(&nodes[0], "hops_quic"), 1);
    for (node, interface) in [(0, "s0"), (1, "c0")] {
        let set = network
            .node(node)
            .ip(&format!("link set {interface} mtu 1000"));
        set.expect("a link can be changed");
    }
    pair.client
        .write_all(&[7; 100_000])
        .expect("the node takes it");
    expect_reset(&mut pair.client);
    until("no tunnel is up", || counter(&nodes[0], "tunnels_up") == 0);
    let mut next = Pair::open(&network, Family::V4, &listener);
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    transfer(&mut next.client, &mut next.server, &bytes);
    next.close_client_first();
    assert_eq!(counter(&nodes[0], "hops_quic"), 1);
}

// promise: K21
/// The peer still sends, and does not receive.
#[test]
fn udp_in_one_direction_leaves_tcp() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    let blocked = [("input", "meta l4proto udp drop")];
    firewall(network.node(1), "blocked", &blocked);
    // It is sent again and again.
    pair.server
        .write_all(&[0; 100_000])
        .expect("the node takes it");
    for _ in 0..20 {
        let mut next = Pair::open(&network, Family::V4, &listener);
        next.check();
        next.close_client_first();
        thread::sleep(Duration::from_millis(200));
    }
    let quic = counter(&nodes[0], "hops_quic");
    assert!(quic < 10, "{quic} of 21 flows took a tunnel");
}

// promise: K21
#[test]
fn rejected_packets_end_no_flow() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    firewall(
        network.node(1),
        "rejected",
        &[("input", "meta l4proto udp counter reject")],
    );
    pair.client
        .write_all(b"meanwhile")
        .expect("the node takes it");
    until("one is rejected", || {
        !firewall_text(network.node(1), "rejected").contains("packets 0")
    });
    remove_firewall(network.node(1), "rejected");
    pair.server.read_exact(&mut [0; 9]).expect("it arrives");
    pair.check();
    assert_eq!(counter(&nodes[0], "tunnels_lost"), 0);
    pair.close_client_first();
}

// promise: F7
#[test]
fn removed_peer_keeps_the_flows_that_it_has() {
    let network = far(0.0);
    let (nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    let whole = member(&network, 1, "early", Family::V4);
    let other_key = whole.replace(KEY, &KEY.replace("00", "ff"));
    for (other, reloads) in [(whole.replace("quic", "tcp"), 1), (other_key, 3)] {
        reload(&nodes[1], &other, reloads);
        until("only the flow's is left", || {
            counter(&nodes[0], "tunnels_up") == 1
        });
        pair.check();
        reload(&nodes[1], &whole, reloads + 1);
        until("others are up", || counter(&nodes[0], "tunnels_up") == 3);
        pair.check();
        Pair::open(&network, Family::V4, &listener).check();
    }
    pair.close_server_first();
    until("it is left too", || counter(&nodes[0], "tunnels_up") == 2);
}

// promise: F6
#[test]
fn drained_node_delivers_what_flows_have_sent() {
    let slow = Link::delay(Duration::from_millis(20)).rate(8_000_000);
    let network = network([Link::Veth, slow, Link::Veth]);
    let (mut nodes, listener) = ready(&network, "early", Family::V4);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    pair.server
        .shutdown(Shutdown::Write)
        .expect("it is connected");
    expect_end(&mut pair.client);
    let bytes: Vec<u8> = (0..800_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    pair.client.write_all(&bytes).expect("the node takes them");
    drop(pair.client);
    until_ended(&nodes[0], "finished", 1);
    let received = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut received = Vec::new();
            pair.server.read_to_end(&mut received).map(|_| received)
        });
        let ended = nodes[0].stop(SOON).expect("it ends");
        assert!(ended.success(), "{ended}");
        receiving.join().expect("it received")
    });
    let received = received.expect("all of them arrive");
    assert!(received == bytes, "{} bytes", received.len());
}
