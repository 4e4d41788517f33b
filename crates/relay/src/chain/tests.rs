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

fn chain(number: u32, nodes: &[Option<usize>]) -> Chain {
    Chain {
        name: format!("chain-{number}").into(),
        number,
        nodes: nodes.to_vec(),
    }
}

fn to(destinations: &[&str], chains: &[usize], direct: bool) -> Route {
    let prefix = |text: &&str| {
        let (ip, bits) = text.split_once('/').unwrap();
        Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap()
    };
    Route {
        matches: Match {
            destinations: destinations.iter().map(prefix).collect(),
            ..Match::default()
        },
        chains: chains.to_vec(),
        direct,
    }
}

fn chains(chains: Vec<Chain>, routes: Vec<Route>) -> Chains {
    Chains {
        me: NodeId::new(1),
        is_client: false,
        peers: vec![peer(2), peer(3)],
        chains,
        routes,
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
    assert_eq!(chains.ways(&flow("198.51.100.7:80")), [Way::Direct]);
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
        peer: 0,
        chain: 0,
        label: label(258, 1),
    };
    let by_one = Way::Hop {
        peer: 1,
        chain: 1,
        label: None,
    };
    let near = chains.ways(&flow("198.51.100.7:80"));
    assert_eq!(near, [by_two, by_one, Way::Direct]);
    assert_eq!(chains.ways(&flow("198.51.100.200:80")), [by_one]);
}

#[test]
fn a_label_leads_to_the_next_node_and_to_the_destination() {
    let long = chain(258, &[None, Some(0), Some(1)]);
    let chains = chains(vec![long], Vec::new());
    assert_eq!(chains.onward(None), Ok(Way::Direct));
    let hop = |peer, next| {
        Ok(Way::Hop {
            peer,
            chain: 0,
            label: next,
        })
    };
    assert_eq!(chains.onward(label(258, 1)), hop(0, label(258, 2)));
    assert_eq!(chains.onward(label(258, 2)), hop(1, None));
    assert_eq!(chains.onward(label(258, 3)), Ok(Way::Direct));
}

#[test]
fn a_label_that_leads_nowhere_says_why() {
    let chains = chains(vec![chain(258, &[Some(0), None])], Vec::new());
    assert_eq!(chains.onward(label(9, 1)), Err(NoWay::UnknownChain(9)));
    let beyond = NoWay::UnknownPosition(258, 3);
    assert_eq!(chains.onward(label(258, 3)), Err(beyond));
    let stranger = NoWay::UnknownPeer(258, 1);
    assert_eq!(chains.onward(label(258, 1)), Err(stranger));
}

#[test]
fn a_chain_that_begins_with_a_stranger_is_no_way() {
    let chains = chains(
        vec![chain(258, &[None, Some(0)])],
        vec![to(&[], &[0], false)],
    );
    assert_eq!(chains.ways(&flow("198.51.100.7:80")), []);
}

#[test]
fn a_peer_shows_everything_but_its_key() {
    let text = format!("{:?}", peer(2));
    assert!(text.contains("node-2") && !text.contains('7'), "{text}");
}
