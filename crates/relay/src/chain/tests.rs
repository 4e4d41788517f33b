// SPDX-License-Identifier: Apache-2.0
//! The next hops of flows.

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
        other_key: None,
        encapsulation: Encapsulation::Stream,
        transport: Transport::Tcp,
        rate_limit: None,
        source_addresses: Vec::new(),
        pool: PoolLimits { min: 0, max: 0 },
        socket: SideOptions::default(),
    }
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn path(nodes: &[u64]) -> Path {
    Path::over(nodes.iter().map(|id| node(*id))).unwrap()
}

fn hop(nodes: &[u64]) -> NextHop {
    NextHop::Hop(path(nodes))
}

fn chain(nodes: &[u64]) -> Chain {
    Chain {
        name: format!("over {}", nodes.len()).into(),
        path: path(nodes),
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
        chains,
        routes,
        planned: None,
        resolve: None,
    }
}

fn flow(server: &str) -> Flow {
    Flow::new("192.0.2.9:4000".parse().unwrap(), server.parse().unwrap())
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
        vec![chain(&[2, 3]), chain(&[3])],
        vec![
            to(&["198.51.100.0/24"], &[0, 1], true),
            to(&["198.51.100.128/25"], &[1], false),
        ],
    );
    let near = chains.next_hops(&flow("198.51.100.7:80"), None);
    assert_eq!(near, [hop(&[2, 3]), hop(&[3]), NextHop::Direct]);
    let far = chains.next_hops(&flow("198.51.100.200:80"), None);
    assert_eq!(far, [hop(&[3])]);
}

// promise: B9
#[test]
fn segments_lead_onward() {
    let chains = chains(Vec::new(), Vec::new());
    let onward =
        |nodes: &[u64]| chains.onward(SegmentList::of(nodes.iter().map(|id| node(*id))).unwrap());
    assert_eq!(onward(&[]), Ok(NextHop::Direct));
    assert_eq!(onward(&[3]), Ok(hop(&[3])));
    // Only the next node has to be a peer.
    assert_eq!(onward(&[2, 9, 8]), Ok(hop(&[2, 9, 8])));
    assert_eq!(onward(&[9, 2]), Err(NoNextHop::Unknown));
    assert_eq!(onward(&[2, 3, 1]), Err(NoNextHop::Loop), "this node is 1");
    let resolve = chains.onward(SegmentList::RESOLVE);
    assert_eq!(resolve, Err(NoNextHop::Unknown));
}

#[test]
fn path_length_bounded() {
    let nodes = |count: u64| Path::over((1..=count).map(node));
    assert_eq!(nodes(0), None);
    assert_eq!(nodes(8).unwrap().nodes().count(), 8);
    assert_eq!(nodes(9), None);
}

#[test]
fn paths_have_names() {
    let chains = chains(vec![chain(&[2, 3])], Vec::new());
    assert_eq!(chains.path_name(path(&[2, 3])), "over 2");
    assert_eq!(chains.path_name(path(&[3, 2, 9])), "node-3 > node-2 > 9");
}

#[test]
fn unauthorized_first_node_skipped() {
    let chains = chains(vec![chain(&[9, 2])], vec![to(&[], &[0], false)]);
    assert_eq!(chains.next_hops(&flow("198.51.100.7:80"), None), []);
}

#[test]
fn debug_hides_keys() {
    let text = format!("{:?}", peer(2));
    assert!(text.contains("node-2") && !text.contains('7'), "{text}");
}

/// Two size classes, up to 15 kB and above; 203.0.113.0/24 is at node 3.
fn planned() -> Planned {
    let (short, long) = ([hop(&[3])], [hop(&[2, 3]), hop(&[3])]);
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
    let mut chains = chains(vec![chain(&[2, 3])], routes);
    chains.planned = Some(planned());
    chains
}

#[test]
fn plan_by_destination_and_size() {
    let chains = with_plan(Vec::new());
    let next_hops = |server, bytes| chains.next_hops(&flow(server), bytes);
    assert_eq!(next_hops("198.51.100.7:80", None), [NextHop::Direct]);
    let (short, long) = (hop(&[3]), hop(&[2, 3]));
    // The usual size, the learned one, and the configured one.
    for (server, bytes, first) in [
        ("203.0.113.7:80", None, short),
        ("203.0.113.70:80", None, long),
        ("203.0.113.70:80", Some(15_000), short),
        ("203.0.113.7:80", Some(u32::MAX), long),
    ] {
        assert_eq!(next_hops(server, bytes)[0], first, "{server}, {bytes:?}");
    }
    let all = next_hops("203.0.113.70:80", None);
    assert_eq!(all, [long, short, NextHop::Direct]);
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
    assert_eq!(next_hops[0], hop(&[2, 3]));
}

// promise: K13
#[test]
fn unknown_destination_resolved() {
    let mut chains = with_plan(vec![to(&["192.0.2.0/24"], &[], true)]);
    let resolve = Chain::by_resolve(&chains.peers[1]);
    chains.chains.push(resolve);
    chains.resolve = Some(1);
    let by_resolve = NextHop::Hop(Path::by_resolve(node(3)));
    let next_hops = |server| chains.next_hops(&flow(server), None);
    assert_eq!(next_hops("198.51.100.7:80"), [by_resolve, NextHop::Direct]);
    assert_eq!(next_hops("192.0.2.7:80"), [NextHop::Direct]);
    let planned = next_hops("203.0.113.70:80");
    assert_eq!(
        planned,
        [hop(&[2, 3]), hop(&[3]), by_resolve, NextHop::Direct]
    );
}
