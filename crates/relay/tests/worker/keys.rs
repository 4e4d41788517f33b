// SPDX-License-Identifier: Apache-2.0
//! Two nodes that replace the key that they share.

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::{Peer, PoolLimits, Transport};
use posthaste_relay::control::Denial;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::auth::Key;

use crate::host::{Family, Host, until};
use crate::node::{KEY_ID, Node, Setup, key, start_all};

const NEXT_ID: u32 = KEY_ID + 1;

/// The keys of a peer in each round: the one in use, and the other.
fn rounds() -> [[Option<(Key, u32)>; 2]; 4] {
    let (former, next) = (Some((key(), KEY_ID)), Some((Key::new([7; 32]), NEXT_ID)));
    [
        [former.clone(), None],
        [former.clone(), next.clone()],
        [next.clone(), former],
        [next, None],
    ]
}

fn set_keys(peer: &mut Peer, [own, other]: &[Option<(Key, u32)>; 2]) {
    let (own, id) = own.clone().unwrap();
    (peer.key, peer.key_id, peer.other_key) = (Some(own), id, other.clone());
}

fn member(node: u8, transport: Transport, pool: u16) -> Setup {
    Setup::of(node).peer_with(1 - node, Family::V4, |peer| {
        peer.transport = transport;
        let most = if node == 0 { pool } else { 0 };
        peer.pool = PoolLimits {
            min: most,
            max: most,
        };
    })
}

/// Whether the hops that the first node keeps open are there.
fn is_ready(node: &Node, transport: Transport, pool: u16) -> bool {
    let peer = &node.known().peers[0];
    let tunnels = if transport == Transport::Quic { 2 } else { 0 };
    peer.waiting == pool.into() && peer.tunnels == tunnels
}

/// In every round either of the two may be the first to reload; no flow has another way.
// promise: F7
#[test]
fn keys_are_replaced_without_an_interruption() {
    for (transport, pool) in [
        (Transport::Tcp, 0),
        (Transport::Tcp, 2),
        (Transport::Quic, 0),
    ] {
        for order in [[0, 1], [1, 0]] {
            let host = Host::enter();
            let mut setups = [
                member(0, transport, pool).chain(&[1]),
                member(1, transport, pool),
            ];
            let nodes = start_all(&host, setups.clone());
            let servers = host.listen();
            let mut count = 0;
            for round in rounds() {
                for node in order {
                    set_keys(&mut setups[node].peers[0], &round);
                    nodes[node].adopt(&setups[node]);
                    // At once, and when the hops of before are replaced.
                    for is_late in [false, true] {
                        if is_late {
                            until("hops", || is_ready(&nodes[0], transport, pool));
                        }
                        let mut pair = nodes[0].open(AcceptMode::EARLY, Family::V4, &servers);
                        pair.check();
                        pair.close_client_first();
                        count += 1;
                        nodes[0].until_ended(Outcome::Finished, count);
                    }
                }
            }
            assert_eq!(nodes[1].denied(Denial::AuthTag), 0, "{transport:?} {pool}");
            assert_eq!(nodes[0].count(|counters| counters.hops_failed.read()), 0);
        }
    }
}

/// The former key opens nothing once it is removed.
// promise: F7
#[test]
fn removed_key_opens_nothing() {
    let host = Host::enter();
    let [_, both, _, next] = rounds();
    let mut setups = [
        member(0, Transport::Tcp, 2).chain(&[1]),
        member(1, Transport::Tcp, 2),
    ];
    set_keys(&mut setups[1].peers[0], &both);
    let nodes = start_all(&host, setups.clone());
    nodes[0].until_waiting(2);
    set_keys(&mut setups[1].peers[0], &next);
    nodes[1].adopt(&setups[1]);
    nodes[0].until_waiting(0);
}
