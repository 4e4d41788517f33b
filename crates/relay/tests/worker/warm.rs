// SPDX-License-Identifier: Apache-2.0
//! Hops between nodes that are open before there is a flow for them.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::control::SideInfo;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::Progress;
use posthaste_wire::auth::Key;
use posthaste_wire::hop::{Accepting, Acceptor, HELLO_BYTES, Reply, VALIDATED};

use crate::host::{Family, Host, SOON, until};
use crate::node::{Node, Setup, id, key, start_all};
use crate::peers::nonce;
use crate::streams::{accept, expect_reset, read, reset};

/// A node that keeps so many hops to the next one.
fn first(hops: Family, pool: u16) -> Setup {
    let setup = Setup::of(0).peer_with(1, hops, |peer| {
        peer.pool = PoolLimits {
            min: pool,
            max: pool,
        };
    });
    setup.chain(&[1])
}

fn second() -> Setup {
    Setup::of(1).peer(0, Family::V4)
}

fn start(host: &Host, hops: Family, pool: u16) -> [Node; 2] {
    let nodes = start_all(host, [first(hops, pool), second()]);
    nodes[0].until_waiting(pool.into());
    nodes
}

/// Flows that left over warm hops, and over cold ones.
fn hops(node: &Node) -> [u64; 2] {
    let warm = node.count(|counters| counters.hops_warm.read());
    [warm, node.count(|counters| counters.hops_cold.read())]
}

#[test]
fn flows_take_warm_hops() {
    for family in Family::ALL {
        let host = Host::enter();
        let (nodes, servers) = (start(&host, family, 4), host.listen());
        let flows = AcceptMode::all().flat_map(|mode| Family::ALL.map(|theirs| (mode, theirs)));
        for (count, (mode, theirs)) in (1..).zip(flows) {
            nodes[0].until_waiting(4);
            let mut pair = nodes[0].open(mode, theirs, &servers);
            pair.check();
            pair.close_client_first();
            for node in &nodes {
                node.until_ended(Outcome::Finished, count);
            }
            assert_eq!(hops(&nodes[0]), [count, 0], "{mode:?} {family}");
        }
    }
}

// promise: F7
/// Idle hops have authenticated once, and could open flows for as long as the peer pings.
#[test]
fn removed_peer_loses_its_idle_hops() {
    for is_removed in [true, false] {
        let host = Host::enter();
        let nodes = start(&host, Family::V4, 2);
        let mut changed = second();
        if is_removed {
            changed.peers.clear();
        } else {
            changed.peers[0].key = Some(Key::new([7; 32]));
        }
        nodes[1].adopt(&changed);
        nodes[0].until_waiting(0);
    }
}

#[test]
fn refusals_over_warm_hops() {
    let host = Host::enter();
    let nodes = start(&host, Family::V6, 4);
    for family in Family::ALL {
        nodes[0].until_waiting(4);
        let refused = nodes[0].dial(AcceptMode::STRICT, family).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family}");
    }
    for node in &nodes {
        node.until_ended(Outcome::UpstreamRefused, 2);
    }
    assert_eq!(hops(&nodes[0]), [2, 0]);
}

#[test]
fn returning_node_dialed() {
    let host = Host::enter();
    let [first, former] = start(&host, Family::V4, 4);
    drop(former);
    first.until_waiting(0);
    let _returned = second().start(&host);
    first.until_waiting(4);
    let mut pair = first.open(AcceptMode::EARLY, Family::V4, &host.listen());
    pair.check();
    pair.close_server_first();
    first.until_ended(Outcome::Finished, 1);
}

fn congestion(side: &Option<SideInfo>) -> &str {
    let Some(SideInfo::Tcp(info)) = side else {
        panic!("{side:?} is no socket");
    };
    &info.congestion
}

#[test]
fn accepted_hops_congestion_control() {
    for pool in [2, 0] {
        let host = Host::enter();
        let mut requested = second();
        requested.peers[0].socket.congestion = Some("reno".to_owned());
        let nodes = start_all(&host, [first(Family::V6, pool), requested]);
        nodes[0].until_waiting(pool.into());
        let mut pair = nodes[0].open(AcceptMode::EARLY, Family::V4, &host.listen());
        pair.check();
        let relay = nodes[1].relay();
        assert_eq!(congestion(&relay.downstream), "reno", "{pool}");
        assert_ne!(congestion(&relay.upstream), "reno", "{pool}");
        pair.close_client_first();
    }
}

/// A peer as the test plays it: a hop that it has accepted.
fn accept_hop(listener: &TcpListener) -> TcpStream {
    let mut hop = accept(listener);
    let mut accepting = Accepting::new(id(1), nonce());
    let hello = read(&mut hop, HELLO_BYTES);
    let Ok(Progress::Done {
        value: mut challenged,
        ..
    }) = accepting.feed(&hello, |_, _| Some(key()))
    else {
        panic!("the node has the key");
    };
    hop.write_all(challenged.challenge()).unwrap();
    let response = read(&mut hop, 16);
    assert!(matches!(
        challenged.feed(&response),
        Ok(Progress::Done { .. })
    ));
    hop
}

/// A request on a connection of its own, up to the flow's first byte.
fn accept_request(listener: &TcpListener) -> TcpStream {
    let begin = Instant::now();
    loop {
        let mut hop = accept(listener);
        assert!(begin.elapsed() < SOON, "there is no request");
        let head = read(&mut hop, 4);
        // Others are idle hops that the node dials meanwhile.
        if head[0] == 1 {
            read(&mut hop, usize::from(head[1]) * 4 - 4);
            return hop;
        }
    }
}

/// The next node closes an idle hop, as in an upgrade, when a request is under way on it. A FIN
/// without a reply shows that nothing was delivered, so the flow takes a new connection.
// promise: F14
#[test]
fn flow_leaves_a_hop_that_was_closed() {
    for mode in AcceptMode::all() {
        let host = Host::enter();
        let peer = host.listen_at(Family::V4.node(1), 16);
        let node = first(Family::V4, 1).start(&host);
        let mut hop = accept_hop(&peer);
        node.until_waiting(1);
        std::thread::scope(|scope| {
            let dialing = scope.spawn(|| {
                let mut client = node.dial(mode, Family::V4).unwrap();
                client.write_all(b"a question").unwrap();
                client
            });
            // The request has come, and except in strict mode the flow's bytes.
            read(&mut hop, 1);
            if mode != AcceptMode::STRICT {
                until("the client's bytes", || {
                    node.count(|counters| counters.bytes_up.read()) == 10
                });
            }
            hop.shutdown(Shutdown::Write).unwrap();
            let mut other = accept_request(&peer);
            other.write_all(&Acceptor::reply(Reply::Connected)).unwrap();
            let mut client = dialing.join().unwrap();
            if mode == AcceptMode::STRICT {
                assert_eq!(read(&mut other, 4), VALIDATED);
            }
            assert_eq!(read(&mut other, 10), b"a question", "{mode:?}");
            other.write_all(b"an answer").unwrap();
            assert_eq!(read(&mut client, 9), b"an answer");
        });
        // Nothing is known against the node.
        assert_eq!(node.count(|counters| counters.hops_failed.read()), 0);
        assert_eq!(hops(&node), [1, 1]);
    }
}

/// The same at a node in the middle, which another has chosen the chain for.
// promise: F14
#[test]
fn transit_leaves_a_hop_that_was_closed() {
    let host = Host::enter();
    let peer = host.listen_at(Family::V4.node(1), 16);
    // Node 2 is between the first and the peer, which is node 1.
    let transit = Setup::of(2).peer(0, Family::V4);
    let transit = transit.peer_with(1, Family::V4, |peer| {
        peer.pool = PoolLimits { min: 1, max: 1 }
    });
    let first = Setup::of(0).peer(2, Family::V4).chain(&[2, 1]);
    let [first, transit] = start_all(&host, [first, transit]);
    let mut hop = accept_hop(&peer);
    until("a warm hop", || transit.known().peers[1].waiting == 1);
    let mut client = first.dial(AcceptMode::EARLY, Family::V4).unwrap();
    client.write_all(b"a question").unwrap();
    read(&mut hop, 1);
    until("the client's bytes", || {
        transit.count(|counters| counters.bytes_up.read()) == 10
    });
    hop.shutdown(Shutdown::Write).unwrap();
    let mut other = accept_request(&peer);
    other.write_all(&Acceptor::reply(Reply::Connected)).unwrap();
    assert_eq!(read(&mut other, 10), b"a question");
    other.write_all(b"an answer").unwrap();
    assert_eq!(read(&mut client, 9), b"an answer");
    assert_eq!(first.count(|counters| counters.hops_rerouted.read()), 0);
    assert_eq!(transit.count(|counters| counters.hops_rerouted.read()), 1);
}

/// A router that translates addresses forgets all hops at once. The first flow is reset; no worker
/// gives another one a hop of before that it has not checked.
// promise: K28
#[test]
fn workers_share_the_loss_of_a_hop() {
    let host = Host::enter();
    let peer = host.listen_at(Family::V4.node(1), 16);
    let mut setup = first(Family::V4, 1);
    setup.workers = 2;
    let node = setup.start(&host);
    let mut hops = vec![accept_hop(&peer), accept_hop(&peer)];
    for worker in [0, 1] {
        until("a warm hop", || node.known_at(worker).peers[0].waiting == 1);
    }
    let mut client = node.dial(AcceptMode::EARLY, Family::V4).unwrap();
    client.write_all(b"a question").unwrap();
    let is_taken = |hop: &TcpStream| {
        hop.set_nonblocking(true).unwrap();
        hop.peek(&mut [0]).is_ok()
    };
    until("its request", || hops.iter().any(is_taken));
    let taken = hops.iter().position(is_taken).unwrap();
    // Without them it would begin again over another hop.
    node.until_count(10, |counters| counters.bytes_up.read());
    reset(hops.remove(taken));
    expect_reset(&mut client);
    let mut client = node.dial_at(1, AcceptMode::LATE, Family::V4).unwrap();
    client.write_all(b"a question").unwrap();
    let mut other = accept_request(&peer);
    other.write_all(&Acceptor::reply(Reply::Connected)).unwrap();
    assert_eq!(read(&mut other, 10), b"a question");
}

/// A node that accepts connections and sends nothing, found by one worker, is avoided by all.
// promise: K16
#[test]
fn workers_share_the_silence_of_a_node() {
    let host = Host::enter();
    let _peer = host.listen_at(Family::V4.node(1), 16);
    let mut setup = first(Family::V4, 0).or_direct();
    setup.workers = 2;
    let (node, servers) = (setup.start(&host), host.listen());
    let mut client = node.dial(AcceptMode::EARLY, Family::V4).unwrap();
    client.write_all(b"a question").unwrap();
    until("the silence", || node.known().peers[0].down_for.is_some());
    let mut client = node.dial_at(1, AcceptMode::EARLY, Family::V4).unwrap();
    // These bytes would end the flow of a worker that does not know.
    client.write_all(b"another one").unwrap();
    let mut server = accept(&servers);
    assert_eq!(read(&mut server, 11), b"another one");
}

/// Where the client has sent nothing, its flow takes another way.
// promise: K16
#[test]
fn silent_node_left_before_the_first_byte() {
    for mode in AcceptMode::all() {
        let host = Host::enter();
        let _peer = host.listen_at(Family::V4.node(1), 16);
        let (node, servers) = (first(Family::V4, 0).or_direct().start(&host), host.listen());
        node.open(mode, Family::V4, &servers).check();
    }
}
