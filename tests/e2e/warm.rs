// SPDX-License-Identifier: Apache-2.0
//! Hops between nodes that are open before there is a flow for them.

use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::requests::{ALLOWED, KEY, explicit, listener, start_all};
use crate::support::{
    MODES, PORT, Pair, counter, detail, dial, errno, firewall_script, listen, network,
    remove_firewall, start_relaying_in, stop_listening, target, until, until_ended,
};

/// Client, two nodes and server; the first node keeps `pool` hops to the second.
fn member(network: &Network, node: usize, accept: &str, family: Family, pool: &str) -> String {
    let other = 1 - node;
    let address = listener(network, other, family);
    let mut text = format!(
        "[node]\nid = {id}\nworkers = 1\n{ALLOWED}[defaults]\naccept = \"{accept}\"\n\
         [[peer]]\nname = \"other\"\nid = {other_id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n",
        id = node + 1,
        other_id = other + 1,
    );
    if node == 0 {
        text += pool;
        text += "[[chain]]\nname = \"two\"\nnodes = [\"other\"]\n\
                 [[route]]\nchains = [\"two\"]\ndirect = false\n";
    } else {
        text += "pool_max = 0\n";
        text += &explicit(network, node);
    }
    text
}

fn start(network: &Network, accept: &str, family: Family, pool: &str) -> Vec<Node> {
    start_all(
        network,
        (0..2).map(|node| member(network, node, accept, family, pool)),
    )
}

fn waiting(node: &Node) -> u64 {
    let chains = node.admin_json("chains").expect("the node answers");
    chains["peers"][0]["waiting"].as_u64().expect("a number")
}

#[test]
fn flows_take_warm_hops() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for accept in MODES {
        for hops in Family::ALL {
            let nodes = start(&network, accept, hops, "pool_min = 4\n");
            for (count, family) in (1..).zip(Family::ALL) {
                until("hops wait", || waiting(&nodes[0]) >= 4);
                let listener = listen(network.server(), PORT);
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                pair.close_client_first();
                for node in &nodes {
                    until_ended(node, "finished", count);
                }
                assert_eq!(counter(&nodes[0], "hops_warm"), count, "{accept} {hops}");
                assert_eq!(counter(&nodes[0], "hops_cold"), 0);
            }
        }
    }
}

/// Forgets the hops that a node has open: of those that it opens from now on, packets pass.
fn forget_hops(network: &Network, node: usize, port: u16) {
    let text = format!(
        "table inet forgetful {{
        set fresh {{ type inet_service; flags dynamic; }}
        chain leaving {{ type filter hook output priority 0;
        tcp dport {port} tcp flags & (syn | ack) == syn add @fresh {{ tcp sport }}
        tcp dport {port} tcp sport != @fresh drop
        }}
        chain coming {{ type filter hook input priority 0;
        tcp sport {port} tcp dport != @fresh drop
        }}
        }}\n"
    );
    firewall_script(network.node(node), &text);
}

// promise: K28
/// As a router that translates addresses does with connections that are idle for long, or when it
/// restarts.
#[test]
fn flows_leave_a_forgotten_hop() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for accept in MODES {
        for hops in Family::ALL {
            let nodes = start(&network, accept, hops, "pool_min = 2\npool_max = 2\n");
            until("hops wait", || waiting(&nodes[0]) == 2);
            forget_hops(&network, 0, listener(&network, 1, hops).port());
            let listener = listen(network.server(), PORT);
            for _ in 0..2 {
                let mut pair = Pair::open(&network, Family::V4, &listener);
                pair.check();
                pair.close_client_first();
            }
            remove_firewall(network.node(0), "forgetful");
        }
    }
}

// promise: F7
/// Idle hops have authenticated once, and could open flows for as long as the peer pings.
#[test]
fn removed_peer_loses_its_idle_hops() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let other_key = format!("{:064x}", 7);
    for is_removed in [true, false] {
        let nodes = start(&network, "early", Family::V4, "pool_min = 2\n");
        until("hops wait", || waiting(&nodes[0]) >= 2);
        let config = member(&network, 1, "early", Family::V4, "");
        let config = if is_removed {
            let (before, rest) = config.split_once("[[peer]]").expect("it has a peer");
            let (_, after) = rest.split_once("pool_max = 0\n").expect("its last key");
            format!("{before}{after}")
        } else {
            config.replace(KEY, &other_key)
        };
        nodes[1]
            .write_config(&config)
            .expect("the file can be written");
        nodes[1].admin("reload").expect("it is accepted");
        until("they are closed", || waiting(&nodes[0]) == 0);
    }
}

#[test]
fn no_hop_left_goes_cold() {
    // A hop takes two round trips to replace, and flows come sooner.
    let far = Link::delay(Duration::from_millis(250));
    let network = network([Link::Veth, far, Link::Veth]);
    let nodes = start(
        &network,
        "early",
        Family::V4,
        "pool_min = 1\npool_max = 1\n",
    );
    until("a hop waits", || waiting(&nodes[0]) == 1);
    let listener = listen(network.server(), PORT);
    let mut pairs: Vec<Pair> = (0..3)
        .map(|_| Pair::open(&network, Family::V4, &listener))
        .collect();
    pairs.iter_mut().for_each(Pair::check);
    let (warm, cold) = (
        counter(&nodes[0], "hops_warm"),
        counter(&nodes[0], "hops_cold"),
    );
    assert_eq!(warm + cold, 3);
    assert!(warm >= 1 && cold >= 1, "{warm} {cold}");
    pairs.into_iter().for_each(Pair::close_client_first);
    until_ended(&nodes[0], "finished", 3);
    until_ended(&nodes[1], "finished", 3);
}

#[test]
fn refusals_over_warm_hops() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let nodes = start(&network, "strict", Family::V6, "pool_min = 4\n");
    until("hops wait", || waiting(&nodes[0]) >= 4);
    for family in Family::ALL {
        let listener = listen(network.server(), 81);
        let target = target(&network, family, &listener);
        stop_listening(listener);
        let dialled = dial(network.client(), target);
        assert_eq!(errno(&dialled), Some(libc::ECONNREFUSED), "{family}");
    }
    until_ended(&nodes[0], "upstream_refused", 2);
    until_ended(&nodes[1], "upstream_refused", 2);
    assert_eq!(counter(&nodes[0], "hops_warm"), 2);
}

#[test]
fn returning_node_dialed() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let mut nodes = start(&network, "early", Family::V4, "pool_min = 4\n");
    until("hops wait", || waiting(&nodes[0]) >= 4);
    nodes[1].kill().expect("it can be killed");
    until("none waits", || waiting(&nodes[0]) == 0);
    nodes[1] = start_relaying_in(
        network.node(1),
        &member(&network, 1, "early", Family::V4, ""),
    );
    until("hops wait again", || waiting(&nodes[0]) >= 4);
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    pair.close_server_first();
    until_ended(&nodes[0], "finished", 1);
}

/// The second node has another address for the first than the one it connects from, so only the
/// key identifies it.
// promise: B16
#[test]
fn initial_bandwidth_window() {
    let delay = Duration::from_millis(20);
    let network = network([Link::Veth, Link::delay(delay), Link::Veth]);
    // 100 Mbit/s for 40 ms.
    let window = 12_500 * 40 / 1448;
    for hops in Family::ALL {
        let pools = ["pool_min = 1\n", "pool_max = 0\n", "pool_max = 0\n"];
        // At last the second node accepts with the SYN, when no round trip is known.
        for (pool, fast_open) in pools.into_iter().zip(["1", "1", "3"]) {
            for node in network.nodes() {
                let set = node.sysctl("net.ipv4.tcp_fastopen", fast_open);
                set.expect("a namespace has its own setting");
            }
            let nodes = start(&network, "early", hops, pool);
            let listener = listen(network.server(), PORT);
            // The first hop to the second node came before that knew from where.
            until("a wide hop", || {
                let mut pair = Pair::open(&network, Family::V4, &listener);
                pair.check();
                let sides = [(0, "upstream"), (1, "downstream")];
                let windows = sides.map(|(node, side)| {
                    let detail = detail(&nodes[node], &pair);
                    detail[side]["cwnd_segments"].as_u64().expect("a number")
                });
                pair.close_client_first();
                windows.iter().all(|segments| *segments >= window)
            });
        }
    }
}

// promise: B16
#[test]
fn configured_window_first() {
    let delay = Duration::from_millis(20);
    let network = network([Link::Veth, Link::delay(delay), Link::Veth]);
    let pool = "pool_max = 0\n[peer.socket]\ninitial_window = 25\n";
    let nodes = start(&network, "early", Family::V4, pool);
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    let segments = &detail(&nodes[0], &pair)["upstream"]["cwnd_segments"];
    // Flows since then may have raised it.
    let segments = segments.as_u64().expect("a number");
    assert!((25..35).contains(&segments), "{segments}");
    pair.close_client_first();
}

#[test]
fn accepted_hops_congestion_control() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for pool in ["pool_min = 2\n", "pool_max = 0\n"] {
        let mut requested = member(&network, 1, "early", Family::V6, "");
        // The default is that of the host, or BBR.
        let at = requested.find("pool_max = 0\n").expect("it keeps no hops") + 13;
        requested.insert_str(at, "[peer.socket]\ncongestion = \"reno\"\n");
        let requester = member(&network, 0, "early", Family::V6, pool);
        let nodes = start_all(&network, [requester, requested].into_iter());
        let listener = listen(network.server(), PORT);
        let mut pair = Pair::open(&network, Family::V4, &listener);
        pair.check();
        let detail = detail(&nodes[1], &pair);
        assert_eq!(detail["downstream"]["congestion"], "reno", "{pool}");
        assert_ne!(detail["upstream"]["congestion"], "reno", "{pool}");
        pair.close_client_first();
    }
}
