// SPDX-License-Identifier: Apache-2.0
//! What it takes to find the ways of a flow, and the next node of a route, at one node of a thousand.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use criterion::{Criterion, criterion_group, criterion_main};
use posthaste_relay::chain::{
    Chains, Encapsulation, NextHop, Path, Peer, Planned, PoolLimits, Prefixes, Toward, Transport,
};
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::{Prefix, SideOptions};
use posthaste_relay::rng::Rng;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::segments::SegmentList;

const NODES: usize = 1000;
/// Prefixes of which it is known whose they are, a /16 and /24 in it each.
const PREFIXES: usize = 10_000;
const CHAINS_OF_EGRESS: usize = 4;
const SIZES: usize = 10;

fn peer(number: u64) -> Peer {
    Peer {
        name: format!("node-{number}").into(),
        id: NodeId::new(number).expect("not 0"),
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

fn prefix(address: u32, bits: u8) -> Prefix {
    let first = address & !(u32::MAX >> bits);
    Prefix::new(Ipv4Addr::from(first).into(), bits).expect("nothing behind the prefix")
}

/// Node 1 of a thousand.
fn chains() -> Chains {
    let peers: Vec<Peer> = (2..=NODES as u64).map(peer).collect();
    Chains {
        me: NodeId::new(1),
        peers: peers.into(),
        ..Chains::default()
    }
}

fn other_node(rng: &mut Rng) -> NodeId {
    let number = 2 + rng.below(NODES - 1);
    NodeId::new(number as u64).expect("below 65535")
}

/// Four chains to a node, each with two nodes between.
fn toward(egress: usize, rng: &mut Rng) -> Toward {
    let egress = NodeId::new(egress as u64 + 2).expect("below 65535");
    let mut path = || Path::over([other_node(rng), other_node(rng), egress]).expect("short");
    let next_hops: Vec<NextHop> = (0..CHAINS_OF_EGRESS)
        .map(|_| NextHop::Hop(path()))
        .collect();
    let choices =
        (0..CHAINS_OF_EGRESS - 1).map(|first| next_hops[first..].iter().copied().take(3).collect());
    Toward {
        classes: (0..SIZES)
            .map(|size| u8::try_from(size % 3).expect("few"))
            .collect(),
        choices: choices.collect(),
    }
}

fn planned(rng: &mut Rng) -> Planned {
    let mut address = || u32::try_from(rng.next() >> 32).expect("32 bits");
    let addresses: Vec<u32> = (0..PREFIXES / 2).map(|_| address()).collect();
    let nested = addresses
        .iter()
        .flat_map(|at| [prefix(*at, 16), prefix(*at, 24)]);
    let index_by_id = nested.zip((0..u32::try_from(NODES - 1).expect("few")).cycle());
    Planned {
        egresses: Prefixes::new(index_by_id),
        toward: (0..NODES - 1).map(|egress| toward(egress, rng)).collect(),
        sizes: (1..=SIZES as u64).map(|rounds| rounds * 15_000).collect(),
        learned: Prefixes::new(addresses.iter().map(|at| (prefix(*at, 24), 90_000))),
        usual_bytes: 45_000,
    }
}

fn bench(criterion: &mut Criterion) {
    let mut rng = Rng::new(1);
    let mut chains = chains();
    let planned = planned(&mut rng);
    let flows: Vec<Flow> = (0..4096)
        .map(|_| {
            let to = Ipv4Addr::from(u32::try_from(rng.next() >> 32).expect("32 bits"));
            Flow::new(([192, 0, 2, 9], 4000).into(), (to, 443).into())
        })
        .collect();
    let mut next = flows.iter().cycle();
    criterion.bench_function("ways of a flow, looked up", |bencher| {
        bencher.iter(|| black_box(planned.next_hops(next.next().expect("endless"), None)));
    });
    chains.planned = Some(planned);
    criterion.bench_function("ways of a flow, as a list", |bencher| {
        bencher.iter(|| black_box(chains.next_hops(next.next().expect("endless"), None)));
    });
    let routes: Vec<SegmentList> = (0..4096)
        .filter_map(|_| SegmentList::of([other_node(&mut rng), other_node(&mut rng)]))
        .collect();
    let mut route = routes.iter().cycle();
    criterion.bench_function("the next node of a route", |bencher| {
        bencher.iter(|| black_box(chains.onward(*route.next().expect("endless"))));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
