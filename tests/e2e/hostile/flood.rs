// SPDX-License-Identifier: Apache-2.0
//! More connections without a request than a node holds.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use posthaste_lab::network::{Family, Network};
use socket2::{Domain, Socket, Type};

use crate::requests::{ExplicitNode, fixture, listener, read, receive_all};
use crate::support::{PORT, accept, add_address, counter, dial, dial_from, listen, until};

use super::{Draft, config};

/// How many a worker keeps, and how many of one source.
const SILENT_MAX: usize = 4096;
const OF_SOURCE: usize = 256;

/// Addresses that are all the client's: those of one network, or of many.
fn own_whole_networks(network: &Network) {
    for prefix in ["10.100.0.0/16", "fd00:100::/32"] {
        let routed = network
            .client()
            .ip(&format!("route add local {prefix} dev lo"));
        routed.expect("a host can have a whole network");
    }
}

fn source(family: Family, network: usize, host: usize) -> IpAddr {
    let host = host % 200 + 1;
    let text = match family {
        Family::V4 => format!("10.100.{}.{host}", network % 200),
        Family::V6 => format!("fd00:100:{:x}::{host:x}", network % 200),
    };
    text.parse().expect("an address")
}

/// Opens silent connections from these sources until `stop` is set.
fn flood(
    network: &Network,
    node: SocketAddr,
    source: impl Fn(usize) -> IpAddr + Send + Sync,
    stop: &AtomicBool,
) {
    let flooded = network.client().run_in(|| {
        let mut silent: VecDeque<TcpStream> = VecDeque::new();
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let socket = Socket::new(Domain::for_address(node), Type::STREAM, None)?;
            if node.is_ipv6() {
                socket.set_freebind_v6(true)?;
            }
            socket.bind(&SocketAddr::new(source(number), 0).into())?;
            // One that is turned away at once is none the less one.
            if socket.connect(&node.into()).is_ok() {
                silent.push_back(socket.into());
            }
            if silent.len() > 2 * SILENT_MAX {
                silent.pop_front();
            }
        }
        Ok::<_, std::io::Error>(())
    });
    flooded.expect("connections can be opened");
}

/// Ends a flood, also when the test has failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests a flow as the peer, from this address, and returns how long that took.
fn is_served(network: &Network, family: Family, from: IpAddr) -> Duration {
    let servers = listen(network.server(), PORT);
    let request = Draft::to_server(network, family).encode();
    let begun = Instant::now();
    let node = listener(network, 0, family);
    let client = dial_from(network.client(), SocketAddr::new(from, 0), node);
    let mut client = client.expect("the node accepts");
    client.write_all(&request).expect("it can be sent");
    assert_eq!(read(&mut client, 24)[..5], [4, 0, 0, 20, 0]);
    let took = begun.elapsed();
    drop(accept(&servers));
    took
}

/// A node under a flood from these sources serves its peer wherever that calls from.
fn is_served_meanwhile(sources: impl Fn(Family, usize) -> IpAddr + Send + Sync, from: [IpAddr; 2]) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let network = fixture();
    own_whole_networks(&network);
    for from in from {
        add_address(network.client(), from);
    }
    let config = config(&network).replace("workers = 2", "workers = 1");
    for (family, from) in Family::ALL.into_iter().zip(from) {
        let explicit = ExplicitNode::start(&network, &config);
        let (stop, node) = (AtomicBool::new(false), listener(&network, 0, family));
        thread::scope(|scope| {
            let (network, sources, stop) = (&network, &sources, &stop);
            let _end = Stop(stop);
            scope.spawn(move || flood(network, node, |number| sources(family, number), stop));
            until("places are taken from silent ones", || {
                explicit.denied(network, "overload") > 0
            });
            let took = is_served(network, family, from);
            println!(
                "{family}: served after {took:?}, {} connections",
                counter(&explicit.node, "explicit_connections")
            );
            assert!(took < Duration::from_secs(4), "{family}: {took:?}");
        });
        // Those that are left have their time and then go, too.
        let gone = || explicit.denied(&network, "slow") + explicit.denied(&network, "overload");
        let opened = || counter(&explicit.node, "explicit_connections");
        until("end of all silent connections", || opened() > 0);
        until("end of all silent connections", || gone() <= opened());
        explicit.settle();
    }
}

// promise: Q12
#[test]
fn flood_from_one_source() {
    let others = Family::ALL.map(|family| source(family, 7, 7));
    is_served_meanwhile(|family, number| source(family, 1, number), others);
}

// promise: Q12
#[test]
fn flood_from_many_sources() {
    let others = Family::ALL.map(|family| source(family, 7, 7));
    is_served_meanwhile(|family, number| source(family, number, number), others);
}

// promise: Q12
#[test]
fn silent_connections_bounded() {
    let network = fixture();
    let config = config(&network).replace("workers = 2", "workers = 1");
    let explicit = ExplicitNode::start(&network, &config);
    for (count, family) in (1..).zip(Family::ALL) {
        let node = listener(&network, 0, family);
        let silent: Vec<_> = (0..OF_SOURCE + 10)
            .map(|_| dial(network.client(), node).expect("it is accepted"))
            .collect();
        let gone = || explicit.denied(&network, "slow") + explicit.denied(&network, "overload");
        until("the oldest go", || gone() >= 10 * count);
        until("all go", || gone() == count * (OF_SOURCE as u64 + 10));
        for mut stream in silent {
            let received = receive_all(&mut stream);
            assert!(received.bytes.is_empty() && received.reset, "{received:?}");
        }
    }
    assert!(explicit.denied(&network, "overload") > 0, "some made way");
    assert_eq!(explicit.settle(), 0);
}
