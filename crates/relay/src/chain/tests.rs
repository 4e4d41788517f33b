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
        encapsulation: Encapsulation::Stream,
        source_addresses: Vec::new(),
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
        resolve: None,
    }
}

fn flow(server: &str) -> Flow {
    Flow::new("192.0.2.9:4000".parse().unwrap(), server.parse().unwrap())
}

fn label(chain: u32, position: u8) -> Option<Label> {
    Label::new(chain, position)
}

#[test]
fn no_route_goes_direct() {
    let chains = chains(Vec::new(), vec![to(&["203.0.113.0/24"], &[], true)]);
    assert_eq!(
        chains.next_hops(&flow("198.51.100.7:80"), None),
        [NextHop::Direct]
    );
}

#[test]
fn chains_in_order_direct_last() {
    let chains = chains(
        vec![chain(258, &[Some(0), Some(1)]), chain(259, &[Some(1)])],
        vec![
            to(&["198.51.100.0/24"], &[0, 1], true),
            to(&["198.51.100.128/25"], &[1], false),
        ],
    );
    let by_two = NextHop::Hop {
        peer: node(2),
        chain: 258,
        label: label(258, 1),
    };
    let by_one = NextHop::Hop {
        peer: node(3),
        chain: 259,
        label: None,
    };
    let near = chains.next_hops(&flow("198.51.100.7:80"), None);
    assert_eq!(near, [by_two, by_one, NextHop::Direct]);
    assert_eq!(chains.next_hops(&flow("198.51.100.200:80"), None), [by_one]);
}

#[test]
fn label_next_hop_or_destination() {
    // This node is the second, the third and the last.
    let long = vec![
        chain(258, &[None, Some(0), Some(1)]),
        chain(259, &[Some(0), None, Some(1)]),
        chain(260, &[Some(0), Some(1), None]),
    ];
    let chains = chains(long, Vec::new());
    assert_eq!(chains.onward(None), Ok(NextHop::Direct));
    let hop = |peer, chain, next| {
        Ok(NextHop::Hop {
            peer: node(peer),
            chain,
            label: next,
        })
    };
    assert_eq!(chains.onward(label(258, 1)), hop(2, 258, label(258, 2)));
    assert_eq!(chains.onward(label(259, 2)), hop(3, 259, None));
    assert_eq!(chains.onward(label(260, 3)), Ok(NextHop::Direct));
}

#[test]
fn bad_label_has_reason() {
    let chains = chains(
        vec![chain(258, &[None, None]), chain(259, &[Some(0), Some(1)])],
        Vec::new(),
    );
    assert_eq!(chains.onward(label(9, 1)), Err(NoNextHop::UnknownChain(9)));
    let beyond = NoNextHop::UnknownPosition(258, 3);
    assert_eq!(chains.onward(label(258, 3)), Err(beyond));
    let unauthorized = NoNextHop::UnknownPeer(258, 1);
    assert_eq!(chains.onward(label(258, 1)), Err(unauthorized));
    // This node is not the one of that position.
    let elsewhere = NoNextHop::NotHere(259, 2);
    assert_eq!(chains.onward(label(259, 2)), Err(elsewhere));
}

#[test]
fn unauthorized_first_node_skipped() {
    let chains = chains(
        vec![chain(258, &[None, Some(0)])],
        vec![to(&[], &[0], false)],
    );
    assert_eq!(chains.next_hops(&flow("198.51.100.7:80"), None), []);
}

#[test]
fn debug_hides_keys() {
    let text = format!("{:?}", peer(2));
    assert!(text.contains("node-2") && !text.contains('7'), "{text}");
}

/// Two size classes, up to 15 kB and above; 203.0.113.0/24 is at node 3.
fn planned(chains: &Chains) -> Planned {
    let next_hop = |number, place| {
        let chain = chains.chain(number).unwrap();
        chains.hop(chain, place).unwrap()
    };
    let between = Chain::between_two(&chains.peers[1], 1);
    let short = [chains.hop(&between, 0).unwrap()];
    let long = [next_hop(258, 0), short[0]];
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

fn first_chain(next_hops: &[NextHop]) -> Option<u32> {
    next_hops.iter().find_map(|next_hop| match next_hop {
        NextHop::Hop { chain, .. } => Some(*chain),
        NextHop::Direct => None,
    })
}

#[test]
fn plan_by_destination_and_size() {
    let chains = with_plan(Vec::new());
    let between = Chain::between_two(&chains.peers[1], 1).number;
    let next_hops = |server, bytes| chains.next_hops(&flow(server), bytes);
    assert_eq!(next_hops("198.51.100.7:80", None), [NextHop::Direct]);
    // What is usual, what was learned, what is said.
    assert_eq!(
        first_chain(&next_hops("203.0.113.7:80", None)),
        Some(between)
    );
    assert_eq!(first_chain(&next_hops("203.0.113.70:80", None)), Some(258));
    assert_eq!(
        first_chain(&next_hops("203.0.113.70:80", Some(15_000))),
        Some(between)
    );
    assert_eq!(
        first_chain(&next_hops("203.0.113.7:80", Some(u32::MAX))),
        Some(258)
    );
    let all = next_hops("203.0.113.70:80", None);
    assert_eq!((all.len(), all.last()), (3, Some(&NextHop::Direct)));
}

#[test]
fn last_hop_without_label() {
    let chains = with_plan(Vec::new());
    let between = Chain::between_two(&chains.peers[0], 0);
    assert!(Label::new(between.number, 0).is_none());
    let next_hop = NextHop::Hop {
        peer: node(2),
        chain: between.number,
        label: None,
    };
    assert_eq!(chains.hop(&between, 0), Some(next_hop));
}

#[test]
fn route_before_plan() {
    let mut sized = to(&["203.0.113.0/25"], &[], true);
    sized.transfer_bytes = Some(40_000);
    let chains = with_plan(vec![to(&["203.0.113.0/24"], &[], true), sized]);
    assert_eq!(
        chains.next_hops(&flow("203.0.113.200:80"), Some(40_000)),
        [NextHop::Direct]
    );
    let next_hops = chains.next_hops(&flow("203.0.113.7:80"), Some(1));
    assert_eq!(first_chain(&next_hops), Some(258));
}

// promise: K13
#[test]
fn unknown_destination_resolved() {
    let mut chains = with_plan(vec![to(&["192.0.2.0/24"], &[], true)]);
    let resolve = Chain::by_resolve(&chains.peers[1], 1);
    chains.chains = vec![chain(258, &[Some(0), Some(1)]), resolve].into();
    chains.planned = Some(planned(&chains));
    chains.resolve = chains.chains.place(RESOLVE.into());
    let hop = NextHop::Hop {
        peer: node(3),
        chain: RESOLVE,
        label: label(RESOLVE, 1),
    };
    let next_hops = |server| chains.next_hops(&flow(server), None);
    assert_eq!(next_hops("198.51.100.7:80"), [hop, NextHop::Direct]);
    assert_eq!(next_hops("192.0.2.7:80"), [NextHop::Direct]);
    let planned = next_hops("203.0.113.70:80");
    assert_eq!(first_chain(&planned), Some(258));
    assert_eq!(planned[planned.len() - 2..], [hop, NextHop::Direct]);
    // Who asks for others is no chain that leads on here.
    let requested = chains.onward(label(RESOLVE, 1));
    assert_eq!(requested, Err(NoNextHop::NotHere(RESOLVE, 1)));
}
