// SPDX-License-Identifier: Apache-2.0
//! Hops between nodes that are open before there is a flow for them.

use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::requests::{ALLOWED, KEY, explicit, listener, start_all};
use crate::support::{
    MODES, PORT, Pair, counter, deliver, detail, dial, expect_reset, firewall_script, listen,
    network, remove_firewall, target, until, until_ended,
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

/// However much arrives: the bound by the rate of delivery is for buffers that nobody set.
#[test]
fn configured_receive_buffer_stays() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let pool = "pool_max = 0\n[peer.socket]\nreceive_buffer = \"256KiB\"\n";
    let nodes = start(&network, "early", Family::V4, pool);
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    for _ in 0..8 {
        deliver(&mut pair.server, &mut pair.client, &vec![3; 1 << 20]);
    }
    let mut ss = network.node(0).command("ss").expect("an open namespace");
    ss.args(["-tmnH", "state", "established", "dport", "= :4480"]);
    let hop = String::from_utf8(ss.output().expect("ss runs").stdout).expect("text");
    // The kernel doubles what it is told.
    assert!(hop.contains("rb524288"), "{hop}");
    pair.close_client_first();
    until_ended(&nodes[0], "finished", 1);
}

/// What this host lacks, a port here, shows nothing against the next node.
#[test]
fn own_shortage_is_no_failure_of_the_peer() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let nodes = start(&network, "late", Family::V4, "pool_max = 0\n");
    let listener = listen(network.server(), PORT);
    let range = network
        .node(0)
        .sysctl("net.ipv4.ip_local_port_range", "40000 40000");
    range.expect("a namespace has its own ports");
    let mut first = Pair::open(&network, Family::V4, &listener);
    first.check();
    let refused = dial(network.client(), target(&network, Family::V4, &listener));
    if let Ok(mut refused) = refused {
        expect_reset(&mut refused);
    }
    assert_eq!(counter(&nodes[0], "hops_cold"), 1);
    let chains = nodes[0].admin_json("chains").expect("the node answers");
    assert_eq!(chains["peers"][0]["health"]["down_at"], 0, "{chains}");
    first.close_client_first();
}
