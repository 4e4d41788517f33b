// SPDX-License-Identifier: Apache-2.0
//! Connections one after the other between the same addresses and ports, and servers that stop
//! granting what they granted.

use std::net::SocketAddr;

use super::ends::exchange;
use super::*;
use crate::support::dial_from;

/// Ports of the client that its connections use again and again.
const PORTS: u16 = 40;
const ROUNDS: usize = 30;

/// Connects as soon as the client's former connection from this port allows it (TIME-WAIT).
fn open_from(
    network: &Network,
    source: SocketAddr,
    to: SocketAddr,
    listener: &TcpListener,
) -> Pair {
    let mut pair = None;
    until("a free port", || {
        let dialled = dial_from(network.client(), source, to);
        let waits = errno(&dialled) == Some(libc::EADDRNOTAVAIL);
        if !waits {
            pair = Some(Pair::of(dialled, listener));
        }
        !waits
    });
    pair.expect("it connected")
}

// promise: PK2
/// An entry of a connection that has ended must not carry the next one.
#[test]
fn ports_are_used_again() {
    let network = line();
    for host in [network.client(), network.server()] {
        host.sysctl("net.ipv4.tcp_tw_reuse", "1")
            .expect("a setting");
    }
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        let source = network.client_address(family);
        let to = target(&network, family, &listener);
        for round in 0..ROUNDS {
            for port in (20_000..).take(PORTS.into()) {
                let mut pair = open_from(&network, (source, port).into(), to, &listener);
                pair.check();
                match round % 3 {
                    0 => pair.close_client_first(),
                    1 => pair.close_server_first(),
                    // Both ends in TIME-WAIT or none: the reset ends both at once.
                    _ => {
                        let mut server = pair.server;
                        reset(pair.client);
                        expect_reset(&mut server);
                    }
                }
            }
        }
        let all = u64::from(PORTS) * u64::try_from(ROUNDS).expect("a small number");
        let now = redirect(&node, "packet_taken");
        assert!(now > taken + all / 2, "{family}: {} of {all}", now - taken);
    }
}

// promise: PK2
/// The server stops granting an option behind the node's back: connections of every kind that were
/// promised it are exact, and the node promises it no more.
#[test]
fn stale_promises_lose_no_byte() {
    for option in ["sack", "timestamps", "window_scaling"] {
        let network = line();
        let (node, _listener) = ready(&network);
        let listeners = [0, 1, 2, 3, 4, 5, 6, 7].map(|kind| listen(network.server(), 81 + kind));
        for listener in &listeners {
            for family in Family::ALL {
                learn(&network, &node, family, listener);
            }
        }
        network
            .server()
            .sysctl(&format!("net.ipv4.tcp_{option}"), "0")
            .expect("a setting");
        for family in Family::ALL {
            for (kind, listener) in listeners.iter().enumerate() {
                exchange(kind, kind, Pair::open(&network, family, listener));
                let pair = Pair::open(&network, family, listener);
                pair.close_client_first();
            }
        }
        assert_eq!(redirect(&node, "packet_mismatches"), 16, "{option}");
    }
}
