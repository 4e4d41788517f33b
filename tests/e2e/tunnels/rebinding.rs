// SPDX-License-Identifier: Apache-2.0
//! A NAT between two nodes, which gives their tunnels other ports.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

/// How often the NAT looks whether it should end, or forget.
const LOOK: Duration = Duration::from_millis(20);

/// A NAT in the namespace of the first node, which passes on what comes to `inside`.
struct Nat {
    inside: UdpSocket,
    to: SocketAddr,
    /// How often it has forgotten everything.
    generation: AtomicU64,
    has_ended: AtomicBool,
}

impl Nat {
    fn new(network: &Network, inside: SocketAddr, to: SocketAddr) -> Self {
        let inside = network.node(0).run_in(|| UdpSocket::bind(inside));
        let inside = inside.expect("the address is free");
        inside.set_read_timeout(Some(LOOK)).expect("it is a socket");
        Self {
            inside,
            to,
            generation: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    fn forget(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether what was made in this generation has no more to do.
    fn is_old(&self, generation: u64) -> bool {
        self.has_ended.load(Ordering::SeqCst)
            || self.generation.load(Ordering::SeqCst) != generation
    }

    /// Passes on what comes, in the namespace of the first node.
    fn run(&self, network: &Network) {
        thread::scope(|scope| {
            let mut generation = 0;
            let mut mapped: HashMap<SocketAddr, UdpSocket> = HashMap::new();
            let mut datagram = [0; 2048];
            while !self.has_ended.load(Ordering::SeqCst) {
                let Ok((bytes, from)) = self.inside.recv_from(&mut datagram) else {
                    continue;
                };
                if self.is_old(generation) {
                    generation = self.generation.load(Ordering::SeqCst);
                    mapped.clear();
                }
                let outside = mapped.entry(from).or_insert_with(|| {
                    let outside = network
                        .node(0)
                        .run_in(|| self.map())
                        .expect("a port is free");
                    let back = outside.try_clone().expect("a descriptor is free");
                    scope.spawn(move || self.answer(&back, from, generation));
                    outside
                });
                // What a node with a closed port rejects is lost.
                let _ = outside.send(&datagram[..bytes]);
            }
        });
    }

    /// Another port of the NAT.
    fn map(&self) -> io::Result<UdpSocket> {
        let outside = UdpSocket::bind((self.unspecified(), 0))?;
        outside.connect(self.to)?;
        outside.set_read_timeout(Some(LOOK))?;
        Ok(outside)
    }

    fn unspecified(&self) -> IpAddr {
        if self.to.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        }
    }

    /// Passes on the answers to one port, until the NAT forgets it: then the port is closed.
    fn answer(&self, outside: &UdpSocket, to: SocketAddr, generation: u64) {
        let mut datagram = [0; 2048];
        while !self.is_old(generation) {
            if let Ok(bytes) = outside.recv(&mut datagram) {
                let _ = self.inside.send_to(&datagram[..bytes], to);
            }
        }
    }
}

/// The new ports lead to the sockets of other workers than those that have the tunnels.
// promise: K30
#[test]
fn flows_survive_a_nat_that_forgets_them() {
    const WORKERS: u64 = 4;
    let network = far(0.0);
    for family in Family::ALL {
        let inside: SocketAddr = match family {
            Family::V4 => "127.0.0.9:4480",
            Family::V6 => "[::1]:4480",
        }
        .parse()
        .expect("it is an address");
        let outside = listener(&network, 1, family);
        let nat = Nat::new(&network, inside, outside);
        thread::scope(|scope| {
            scope.spawn(|| nat.run(&network));
            let ended = End(&nat);
            let dialer = member(&network, 0, "early", family).replace(
                &format!("address = \"{outside}\""),
                &format!("address = \"{inside}\""),
            );
            let acceptor = member(&network, 1, "early", family)
                .replace("workers = 1", &format!("workers = {WORKERS}"));
            let nodes = start_all(&network, [dialer, acceptor].into_iter());
            until("tunnels are up", || counter(&nodes[0], "tunnels_up") == 2);
            let listener = listen(network.server(), PORT);
            let mut pairs: Vec<_> = (0..4)
                .map(|_| {
                    let mut pair = Pair::open(&network, Family::V4, &listener);
                    pair.check();
                    pair
                })
                .collect();
            assert_eq!(counter(&nodes[0], "hops_quic"), 4, "{family}");
            for _ in 0..4 {
                nat.forget();
                for pair in &mut pairs {
                    // The acceptor sends to ports that are closed, until it hears of the others.
                    transfer(&mut pair.server, &mut pair.client, &[5; 100_000]);
                    transfer(&mut pair.client, &mut pair.server, &[6; 100_000]);
                }
            }
            for node in &nodes {
                assert_eq!(counter(node, "tunnels_lost"), 0, "{family}");
            }
            drop(ended);
        });
    }
}

/// Ends a NAT, also when its test fails.
struct End<'a>(&'a Nat);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
    }
}
