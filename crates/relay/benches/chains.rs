// SPDX-License-Identifier: Apache-2.0
//! What it takes to find the ways of a flow, and the next node of a label, at one node of a thousand.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use criterion::{Criterion, criterion_group, criterion_main};
use posthaste_relay::chain::{
    Chain, Chains, Encapsulation, NextHop, Peer, Planned, PoolLimits, Prefixes, Toward,
};
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::{Prefix, SideOptions};
use posthaste_relay::rng::Rng;
use posthaste_wire::auth::Key;
use posthaste_wire::header::{Label, NodeId};

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
        encapsulation: Encapsulation::Stream,
        source_addresses: Vec::new(),
        pool: PoolLimits { min: 0, max: 0 },
        socket: SideOptions::default(),
    }
}

fn prefix(address: u32, bits: u8) -> Prefix {
    let first = address & !(u32::MAX >> bits);
    Prefix::new(Ipv4Addr::from(first).into(), bits).expect("nothing behind the prefix")
}

/// Node 1 of a thousand: four chains to each other node, by two nodes between.
fn chains(rng: &mut Rng) -> Chains {
    let mut one = || {
        (1..)
            .nth(rng.below(NODES))
            .map(|node: usize| node % (NODES - 1))
    };
    let peers: Vec<Peer> = (2..=NODES as u64).map(peer).collect();
    let numbers = 1..=u32::try_from((NODES - 1) * CHAINS_OF_EGRESS).expect("few");
    let all = numbers.map(|number| Chain {
        name: format!("#{number}").into(),
        number,
        nodes: vec![one(), one(), Some(number as usize % (NODES - 1))],
    });
    Chains {
        me: NodeId::new(1),
        peers: peers.into(),
        chains: all.collect(),
        ..Chains::default()
    }
}

fn toward(chains: &Chains, egress: usize) -> Toward {
    let next_hops =
        (0..CHAINS_OF_EGRESS).map(|place| &chains.chains[egress * CHAINS_OF_EGRESS + place]);
    let next_hops: Vec<NextHop> = next_hops.filter_map(|chain| chains.hop(chain, 0)).collect();
    let choices =
        (0..CHAINS_OF_EGRESS - 1).map(|first| next_hops[first..].iter().copied().take(3).collect());
    Toward {
        classes: (0..SIZES)
            .map(|size| u8::try_from(size % 3).expect("few"))
            .collect(),
        choices: choices.collect(),
    }
}

fn planned(chains: &Chains, rng: &mut Rng) -> Planned {
    let mut address = || u32::try_from(rng.next() >> 32).expect("32 bits");
    let addresses: Vec<u32> = (0..PREFIXES / 2).map(|_| address()).collect();
    let nested = addresses
        .iter()
        .flat_map(|at| [prefix(*at, 16), prefix(*at, 24)]);
    let index_by_id = nested.zip((0..u32::try_from(NODES - 1).expect("few")).cycle());
    Planned {
        egresses: Prefixes::new(index_by_id),
        toward: (0..NODES - 1)
            .map(|egress| toward(chains, egress))
            .collect(),
        sizes: (1..=SIZES as u64).map(|rounds| rounds * 15_000).collect(),
        learned: Prefixes::new(addresses.iter().map(|at| (prefix(*at, 24), 90_000))),
        usual_bytes: 45_000,
    }
}

fn bench(criterion: &mut Criterion) {
    let mut rng = Rng::new(1);
    let mut chains = chains(&mut rng);
    let planned = planned(&chains, &mut rng);
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
    let labels: Vec<Label> = (0..4096)
        .filter_map(|_| Label::new(1 + u32::try_from(rng.below(3996)).expect("few"), 1))
        .collect();
    let mut label = labels.iter().cycle();
    criterion.bench_function("the next node of a label", |bencher| {
        bencher.iter(|| black_box(chains.onward(label.next().copied())));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
