// SPDX-License-Identifier: Apache-2.0
//! What a controller adds, and what of it the configuration overrules.

use std::path::Path;
use std::time::Duration;

use posthaste_control::follower::Action;
use posthaste_control::identity::PublicKey;
use posthaste_control::message::{
    Hello, PlanVersion, Prefix as SentPrefix, RouteUpdate, Routes, ToNode, VERSION, Welcome,
};
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::SideOptions;

use super::*;
use posthaste_config::invariants::HOST;

const FILE: &str = "version = 1\n[node]\nid = 1\n[[peer]]\nname = \"filed\"\nid = 3\n\
    address = \"192.0.2.3:4480\"\nkey = \"0303030303030303030303030303030303030303030303030303030303030303\"\n\
    [[chain]]\nname = \"own\"\nnodes = [\"filed\"]\n\
    [[route]]\ndestinations = [\"203.0.113.128/25\"]\nchains = [\"own\"]\n";

fn file() -> Config {
    Config::parse(Path::new("node.toml"), FILE, &HOST).unwrap()
}

fn identity(number: u8) -> Identity {
    Identity::new(&[number; 32])
}

fn settings() -> Follow {
    Follow {
        address: "192.0.2.9:4490".parse().unwrap(),
        key: PublicKey([0; 32]),
        identity_file: "/identity".into(),
        secret: None,
        state: "/state".into(),
        transfer_bytes: 10_000,
        socket: SideOptions::default(),
    }
}

fn member(number: u8) -> Member {
    Member {
        number: number.into(),
        name: format!("node-{number}"),
        exchange: identity(number).exchange_public(),
        listeners: vec![SocketAddr::new([192, 0, 2, number].into(), 4480)],
        reflectors: Vec::new(),
    }
}

/// Chains to node 4 by 2 and by 3: large transfers use them, small ones the hop to 4.
fn update() -> RouteUpdate {
    let mut update = RouteUpdate {
        plan_version: PlanVersion {
            epoch: 1,
            version: 1,
        },
        base: None,
        sizes: vec![15_000, 450_000],
        access_us: vec![0, 20_000],
        routes: vec![Routes {
            egress: 4,
            chains: vec![vec![], vec![2], vec![3]],
            choices: vec![vec![0], vec![1, 2, 0]],
            classes: vec![0, 0, 1, 0],
        }],
        routes_removed: Vec::new(),
        checksum: 0,
    };
    update.checksum = posthaste_control::route_table::checksum_of(&update);
    update
}

fn sent(address: [u8; 4], bits: u8) -> SentPrefix {
    SentPrefix {
        address: std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets(),
        bits: 96 + bits,
    }
}

/// A node that received three others, a plan, and whose 203.0.113.0/24 is, a second ago.
fn follower() -> Follower {
    let mut follower = sent_just_now();
    let later = Duration::from_secs(2);
    assert_eq!(follower.poll_action(later), Some(Action::Renew));
    while follower.poll_action(later).is_some() {}
    follower
}

fn sent_just_now() -> Follower {
    let hello = Hello {
        version: VERSION,
        number: 1,
        software: String::new(),
        exchange: identity(1).exchange_public(),
        listeners: Vec::new(),
        reflectors: Vec::new(),
        holds: None,
    };
    let now = Duration::from_secs(1);
    let mut follower = Follower::new(hello, None, 1, now);
    assert_eq!(follower.poll_action(now), Some(Action::Dial));
    follower.on_open(now);
    while follower.poll_action(now).is_some() {}
    let egress = |prefix, node| Egress {
        prefix,
        node,
        rtt_us: None,
    };
    let messages = [
        ToNode::Welcome(Welcome {
            version: VERSION,
            ttl_s: 60,
            keepalive_s: 5,
        }),
        ToNode::Members {
            all: true,
            members: vec![member(2), member(3), member(4)],
            removed: Vec::new(),
        },
        ToNode::Egresses(vec![
            egress(sent([203, 0, 113, 0], 24), 4),
            egress(sent([203, 0, 113, 64], 26), 1),
            egress(sent([203, 0, 113, 7], 40), 4),
        ]),
        ToNode::RouteUpdate(update()),
    ];
    for message in messages {
        follower.on_message(message, now);
    }
    while follower.poll_action(now).is_some() {}
    follower
}

fn extended(follower: &Follower) -> Config {
    extended_by(follower, Observations::default()).extend(&file())
}

fn extended_by(follower: &Follower, observations: Observations) -> PlanOverlay {
    let mut keys = PairKeys::default();
    PlanOverlay::of(follower, &settings(), &identity(1), &mut keys, observations)
}

fn routes(chains: &Chains, server: [u8; 4], bytes: Option<u32>) -> Vec<String> {
    let flow = Flow::new(([192, 0, 2, 99], 4000).into(), (server, 443).into());
    let named = chains
        .next_hops(&flow, bytes)
        .into_iter()
        .map(|way| match way {
            NextHop::Direct => "direct".to_owned(),
            NextHop::Hop(path) => chains.path_name(path),
        });
    named.collect()
}

#[test]
fn plan_without_configured_route() {
    let config = extended(&follower());
    let chains = &config.policy.chains;
    let at = [203, 0, 113, 1];
    assert_eq!(routes(chains, at, None), ["to node-4", "direct"]);
    let big = ["node-2 > node-4", "filed > node-4", "to node-4", "direct"];
    assert_eq!(routes(chains, at, Some(20_000)), big);
    assert_eq!(routes(chains, at, Some(u32::MAX)), big);
    // This node is the egress; a route; nobody knows.
    assert_eq!(routes(chains, [203, 0, 113, 65], None), ["direct"]);
    assert_eq!(routes(chains, [203, 0, 113, 129], None), ["own", "direct"]);
    assert_eq!(routes(chains, [198, 51, 100, 1], None), ["direct"]);
}

#[test]
fn members_become_peers() {
    let config = extended(&follower());
    let peers = &config.policy.chains.peers;
    let names: Vec<&str> = peers.iter().map(|peer| &*peer.name).collect();
    assert_eq!(names, ["filed", "node-2", "node-4"]);
    assert_eq!(peers[0], file().policy.chains.peers[0]);
    // The other end comes to the same.
    let theirs = identity(2).pair_key(&identity(1).exchange_public());
    assert_eq!(peers[1].key, theirs);
    let ids = [[1, 2], [2, 1]].map(|[us, them]| {
        key_id(
            &identity(us).exchange_public(),
            &identity(them).exchange_public(),
        )
    });
    assert_eq!(ids, [peers[1].key_id; 2]);
    let reflectors = &config.measure.reflectors_of_peers;
    assert_eq!(
        reflectors.last(),
        Some(&Some("192.0.2.4:862".parse().unwrap()))
    );
    assert_eq!(reflectors.len(), peers.len());
    assert_eq!(config.spelling.key_files.len(), peers.len());
    let chains = &config.policy.chains;
    let named: Vec<&str> = chains.chains.iter().map(|chain| &*chain.name).collect();
    assert_eq!(
        named,
        ["own", "node-2 > node-4", "filed > node-4", "to node-4"]
    );
}

// promise: S8
#[test]
fn removed_node_stays_peer() {
    let mut follower = follower();
    let later = Duration::from_secs(3);
    let removed = |removed| ToNode::Members {
        all: false,
        members: Vec::new(),
        removed,
    };
    let at = [203, 0, 113, 1];
    follower.on_message(removed(vec![3]), later);
    let config = extended(&follower);
    let chains = &config.policy.chains;
    // The configuration has it for a peer; the others may not have it any more.
    let hop = ["node-2 > node-4", "to node-4", "direct"];
    assert_eq!(routes(chains, at, Some(20_000)), hop);
    follower.on_message(removed(vec![4]), later);
    let config = extended(&follower);
    let chains = &config.policy.chains;
    assert_eq!(routes(chains, at, Some(20_000)), ["direct"]);
    // Flows of others that are to go on over it do.
    let place = chains.peer(NodeId::new(4).unwrap());
    assert!(place.is_some());
    assert_eq!(config.measure.reflectors_of_peers[place.unwrap()], None);
    while follower.poll_action(Duration::from_secs(64)).is_some() {}
    let config = extended(&follower);
    let chains = &config.policy.chains;
    assert_eq!(chains.peer(NodeId::new(4).unwrap()), None);
    assert!(chains.peer(NodeId::new(3).unwrap()).is_some());
}

// promise: V11
#[test]
fn expired_plan_goes_direct() {
    let mut follower = follower();
    let late = Duration::from_secs(62);
    while follower.poll_action(late).is_some() {}
    let config = extended(&follower);
    assert_eq!(config.policy.chains.peers.len(), 3);
    assert_eq!(
        routes(&config.policy.chains, [203, 0, 113, 1], None),
        ["direct"]
    );
    let chains = &config.policy.chains.chains;
    assert_eq!(chains.len(), 1, "that of the configuration");
}

// promise: V11
#[test]
fn new_nodes_in_no_chain() {
    let config = extended(&sent_just_now());
    let chains = &config.policy.chains;
    assert_eq!(chains.peers.len(), 3, "flows of others may");
    let at = [203, 0, 113, 1];
    assert_eq!(routes(chains, at, Some(20_000)), ["to node-4", "direct"]);
}

// promise: E1
#[test]
fn learned_size_by_default() {
    let observations = Observations {
        sizes: vec![(sent([203, 0, 113, 0], 24), 400_000)],
        ..Observations::default()
    };
    let plan_overlay = extended_by(&follower(), observations);
    let config = plan_overlay.extend(&file());
    let chains = &config.policy.chains;
    let large = routes(chains, [203, 0, 113, 1], Some(400_000));
    assert_ne!(large, routes(chains, [203, 0, 113, 1], Some(10_000)));
    assert_eq!(routes(chains, [203, 0, 113, 1], None), large);
}

#[test]
fn nearest_node_only_if_measured() {
    let mut follower = follower();
    let near = sent([198, 51, 100, 0], 24);
    let egress = Egress {
        prefix: near,
        node: 4,
        rtt_us: Some(2000),
    };
    follower.on_message(ToNode::Egresses(vec![egress]), Duration::from_secs(1));
    let there = [198, 51, 100, 9];
    let of = |classes: Option<u64>| {
        let by_egress = classes.map(|classes| (near, classes));
        let observations = Observations {
            by_egress: by_egress.into_iter().collect(),
            ..Observations::default()
        };
        let plan_overlay = extended_by(&follower, observations);
        let chains = &plan_overlay.extend(&file()).policy.chains;
        let whose = plan_overlay.whose(IpAddr::from(there)).unwrap();
        assert_eq!(
            (whose.egress, whose.classes),
            (egress, classes.unwrap_or(0))
        );
        [10_000, 400_000].map(|bytes| routes(chains, there, Some(bytes)))
    };
    let direct = vec!["direct".to_owned()];
    assert_eq!(of(None), [direct.clone(), direct.clone()]);
    let [small, large] = of(Some(0b11));
    assert!(
        small != direct && large != direct && small != large,
        "{small:?} {large:?}"
    );
    assert_eq!(of(Some(0b10)), [direct.clone(), large]);
    assert_eq!(of(Some(0b01)), [small, direct]);
}
