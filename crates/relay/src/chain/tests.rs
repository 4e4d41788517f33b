// SPDX-License-Identifier: Apache-2.0
//! Which way flows go.

use std::net::IpAddr;

use super::*;
use crate::policy::Prefix;

fn peer(id: u64) -> Peer {
    Peer {
        name: format!("node-{id}").into(),
        id: NodeId::new(id).unwrap(),
        address: SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 4480),
        key: Some(Key::new([7; 32])),
        key_id: 1,
        carrier: Carrier::Convert,
        calls_from: Vec::new(),
        pool: PoolLimits { min: 0, max: 0 },
        socket: SideOptions::default(),
    }
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn chain(number: u32, nodes: &[Option<usize>]) -> Chain {
    Chain {
        name: format!("chain-{number}").into(),
        number,
        nodes: nodes.to_vec(),
    }
}

fn prefix(text: &str) -> Prefix {
    let (ip, bits) = text.split_once('/').unwrap();
    Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap()
}

fn to(destinations: &[&str], chains: &[usize], direct: bool) -> Route {
    Route {
        matches: Match {
            destinations: destinations.iter().map(|text| prefix(text)).collect(),
            ..Match::default()
        },
        chains: chains.to_vec(),
        direct,
        transfer_bytes: None,
    }
}

fn chains(chains: Vec<Chain>, routes: Vec<Route>) -> Chains {
    Chains {
        me: NodeId::new(1),
        is_client: false,
        peers: vec![peer(2), peer(3)].into(),
        chains: chains.into(),
        routes,
        planned: None,
        look_up: None,
    }
}

fn flow(server: &str) -> Flow {
    Flow::new("192.0.2.9:4000".parse().unwrap(), server.parse().unwrap())
}

fn label(chain: u32, position: u8) -> Option<Label> {
    Label::new(chain, position)
}

#[test]
fn without_a_route_flows_go_directly() {
    let chains = chains(Vec::new(), vec![to(&["203.0.113.0/24"], &[], true)]);
    assert_eq!(chains.ways(&flow("198.51.100.7:80"), None), [Way::Direct]);
}

#[test]
fn chains_come_in_order_and_the_direct_way_last() {
    let chains = chains(
        vec![chain(258, &[Some(0), Some(1)]), chain(259, &[Some(1)])],
        vec![
            to(&["198.51.100.0/24"], &[0, 1], true),
            to(&["198.51.100.128/25"], &[1], false),
        ],
    );
    let by_two = Way::Hop {
        peer: node(2),
        chain: 258,
        label: label(258, 1),
    };
    let by_one = Way::Hop {
        peer: node(3),
        chain: 259,
        label: None,
    };
    let near = chains.ways(&flow("198.51.100.7:80"), None);
    assert_eq!(near, [by_two, by_one, Way::Direct]);
    assert_eq!(chains.ways(&flow("198.51.100.200:80"), None), [by_one]);
}

#[test]
fn a_label_leads_to_the_next_node_and_to_the_destination() {
    // This node is the second, the third and the last.
    let long = vec![
        chain(258, &[None, Some(0), Some(1)]),
        chain(259, &[Some(0), None, Some(1)]),
        chain(260, &[Some(0), Some(1), None]),
    ];
    let chains = chains(long, Vec::new());
    assert_eq!(chains.onward(None), Ok(Way::Direct));
    let hop = |peer, chain, next| {
        Ok(Way::Hop {
            peer: node(peer),
            chain,
            label: next,
        })
    };
    assert_eq!(chains.onward(label(258, 1)), hop(2, 258, label(258, 2)));
    assert_eq!(chains.onward(label(259, 2)), hop(3, 259, None));
    assert_eq!(chains.onward(label(260, 3)), Ok(Way::Direct));
}

#[test]
fn a_label_that_leads_nowhere_says_why() {
    let chains = chains(
        vec![chain(258, &[None, None]), chain(259, &[Some(0), Some(1)])],
        Vec::new(),
    );
    assert_eq!(chains.onward(label(9, 1)), Err(NoWay::UnknownChain(9)));
    let beyond = NoWay::UnknownPosition(258, 3);
    assert_eq!(chains.onward(label(258, 3)), Err(beyond));
    let stranger = NoWay::UnknownPeer(258, 1);
    assert_eq!(chains.onward(label(258, 1)), Err(stranger));
    // This node is not the one of that position.
    let elsewhere = NoWay::NotHere(259, 2);
    assert_eq!(chains.onward(label(259, 2)), Err(elsewhere));
}

#[test]
fn a_chain_that_begins_with_a_stranger_is_no_way() {
    let chains = chains(
        vec![chain(258, &[None, Some(0)])],
        vec![to(&[], &[0], false)],
    );
    assert_eq!(chains.ways(&flow("198.51.100.7:80"), None), []);
}

#[test]
fn a_peer_shows_everything_but_its_key() {
    let text = format!("{:?}", peer(2));
    assert!(text.contains("node-2") && !text.contains('7'), "{text}");
}

/// Two size classes, up to 15 kB and above; 203.0.113.0/24 is at node 3.
fn planned(chains: &Chains) -> Planned {
    let way = |number, place| {
        let chain = chains.chain(number).unwrap();
        chains.hop(chain, place).unwrap()
    };
    let between = Chain::between_two(&chains.peers[1], 1);
    let short = [chains.hop(&between, 0).unwrap()];
    let long = [way(258, 0), short[0]];
    let transfers = [("203.0.113.64/26", 90_000)];
    Planned {
        egresses: Prefixes::new([(prefix("203.0.113.0/24"), 0)]),
        toward: vec![Toward {
            classes: [0, 1].into(),
            choices: [short[..].into(), long[..].into()].into(),
        }],
        sizes: [15_000, 45_000].into(),
        learned: Prefixes::new(transfers.map(|(text, bytes)| (prefix(text), bytes))),
        usual_bytes: 10_000,
    }
}

fn with_plan(routes: Vec<Route>) -> Chains {
    let mut chains = chains(vec![chain(258, &[Some(0), Some(1)])], routes);
    chains.planned = Some(planned(&chains));
    chains
}

fn first_chain(ways: &[Way]) -> Option<u32> {
    ways.iter().find_map(|way| match way {
        Way::Hop { chain, .. } => Some(*chain),
        Way::Direct => None,
    })
}

#[test]
fn a_plan_is_asked_by_destination_and_size() {
    let chains = with_plan(Vec::new());
    let between = Chain::between_two(&chains.peers[1], 1).number;
    let ways = |server, bytes| chains.ways(&flow(server), bytes);
    assert_eq!(ways("198.51.100.7:80", None), [Way::Direct]);
    // What is usual, what was learned, what is said.
    assert_eq!(first_chain(&ways("203.0.113.7:80", None)), Some(between));
    assert_eq!(first_chain(&ways("203.0.113.70:80", None)), Some(258));
    assert_eq!(
        first_chain(&ways("203.0.113.70:80", Some(15_000))),
        Some(between)
    );
    assert_eq!(
        first_chain(&ways("203.0.113.7:80", Some(u32::MAX))),
        Some(258)
    );
    let all = ways("203.0.113.70:80", None);
    assert_eq!((all.len(), all.last()), (3, Some(&Way::Direct)));
}

#[test]
fn a_hop_to_the_last_node_bears_no_label_and_is_no_chain_of_others() {
    let chains = with_plan(Vec::new());
    let between = Chain::between_two(&chains.peers[0], 0);
    assert!(Label::new(between.number, 0).is_none());
    let way = Way::Hop {
        peer: node(2),
        chain: between.number,
        label: None,
    };
    assert_eq!(chains.hop(&between, 0), Some(way));
}

#[test]
fn a_route_comes_before_the_plan_or_says_a_size_for_it() {
    let mut sized = to(&["203.0.113.0/25"], &[], true);
    sized.transfer_bytes = Some(40_000);
    let chains = with_plan(vec![to(&["203.0.113.0/24"], &[], true), sized]);
    assert_eq!(
        chains.ways(&flow("203.0.113.200:80"), Some(40_000)),
        [Way::Direct]
    );
    let ways = chains.ways(&flow("203.0.113.7:80"), Some(1));
    assert_eq!(first_chain(&ways), Some(258));
}

#[test]
fn what_nothing_is_known_of_is_looked_up_elsewhere() {
    let mut chains = with_plan(vec![to(&["192.0.2.0/24"], &[], true)]);
    let look_up = Chain::by_look_up(&chains.peers[1], 1);
    chains.chains = vec![chain(258, &[Some(0), Some(1)]), look_up].into();
    chains.planned = Some(planned(&chains));
    chains.look_up = chains.chains.place(LOOK_UP.into());
    let hop = Way::Hop {
        peer: node(3),
        chain: LOOK_UP,
        label: label(LOOK_UP, 1),
    };
    let ways = |server| chains.ways(&flow(server), None);
    assert_eq!(ways("198.51.100.7:80"), [hop, Way::Direct]);
    assert_eq!(ways("192.0.2.7:80"), [Way::Direct]);
    let planned = ways("203.0.113.70:80");
    assert_eq!(first_chain(&planned), Some(258));
    assert_eq!(planned[planned.len() - 2..], [hop, Way::Direct]);
    // Who asks for others is no chain that leads on here.
    let asked = chains.onward(label(LOOK_UP, 1));
    assert_eq!(asked, Err(NoWay::NotHere(LOOK_UP, 1)));
}
