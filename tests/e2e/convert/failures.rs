// SPDX-License-Identifier: Apache-2.0
//! Granted requests for unreachable servers: the client receives an error (RFC 8803 §6.2.8) and a
//! FIN.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;

use posthaste_lab::network::Family;

use crate::requests::{ExplicitNode, Received, fixture, listener, receive_all, send_to};
use crate::support::{PORT, ended, firewall, talkative};

use super::{connect, converter, message, server};

/// An Error TLV of one word.
fn error(code: u8, value: u8) -> Received {
    Received::and_closed(&message(&[&[30, 1, code, value]]))
}

// promise: Q4
#[test]
fn a_refusal_is_error_96() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &converter(&network));
    for family in Family::ALL {
        let mut request = message(&[&connect(server(&network, family), &[])]);
        // Early bytes of the client must not turn the error into a reset.
        request.resize(100_000, b'x');
        let mut client = send_to(&network, listener(&network, 0, family), &request);
        assert_eq!(receive_all(&mut client), error(96, 0), "{family}");
    }
    assert_eq!(explicit.settle(), 2);
    assert_eq!(ended(&explicit.node, "upstream_refused"), 2);
}

// promise: Q4
#[test]
fn icmp_error_is_error_97() {
    let network = fixture();
    talkative(network.nodes());
    let explicit = ExplicitNode::start(&network, &converter(&network));
    let cases: [(Family, &[(&str, u8)]); 2] = [
        (
            Family::V4,
            &[
                ("icmp type net-unreachable", 0),
                ("icmp type host-unreachable", 1),
                ("icmp type admin-prohibited", 13),
            ],
        ),
        (
            Family::V6,
            &[
                ("icmpv6 type no-route", 0),
                ("icmpv6 type admin-prohibited", 1),
                ("icmpv6 type addr-unreachable", 3),
            ],
        ),
    ];
    for (family, kinds) in cases {
        let rules = (3000..).zip(kinds);
        let rules = rules.map(|(port, (kind, _))| format!("tcp dport {port} reject with {kind}\n"));
        let rules: String = rules.collect();
        let table = format!("for_{family}");
        firewall(network.node(1), &table, &[("forward", &rules)]);
        for (port, (kind, code)) in (3000..).zip(kinds) {
            let to = SocketAddr::new(network.server_address(family), port);
            let request = message(&[&connect(to, &[])]);
            let mut client = send_to(&network, listener(&network, 0, family), &request);
            assert_eq!(receive_all(&mut client), error(97, *code), "{kind}");
        }
    }
    assert_eq!(explicit.settle(), 6);
    assert_eq!(ended(&explicit.node, "upstream_unreachable"), 6);
}

/// An error from the node's own kernel counts like one from a router.
// promise: Q4
#[test]
fn route_error_is_error_97() {
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &converter(&network));
    for (family, kind, to, code) in [
        (Family::V4, "unreachable", "10.200.0.1", 1),
        (Family::V4, "prohibit", "10.200.0.2", 13),
        (Family::V4, "throw", "10.200.0.3", 0),
        (Family::V6, "unreachable", "fd00:200::1", 0),
        (Family::V6, "prohibit", "fd00:200::2", 1),
        (Family::V6, "throw", "fd00:200::3", 0),
    ] {
        let length = if family == Family::V4 { 32 } else { 128 };
        let route = format!("route add {kind} {to}/{length}");
        network.node(0).ip(&route).unwrap();
        let to = SocketAddr::new(to.parse().unwrap(), PORT);
        let request = message(&[&connect(to, &[])]);
        let mut client = send_to(&network, listener(&network, 0, family), &request);
        assert_eq!(receive_all(&mut client), error(97, code), "{route}");
    }
    assert_eq!(explicit.settle(), 6);
    assert_eq!(ended(&explicit.node, "upstream_unreachable"), 6);
}

// promise: Q4
#[test]
fn silence_is_error_65() {
    let network = fixture();
    let config = converter(&network) + "[defaults.timeouts]\nconnect = \"300ms\"\n";
    let explicit = ExplicitNode::start(&network, &config);
    let silence = format!("tcp dport {PORT} drop");
    firewall(network.node(1), "silence", &[("forward", &silence)]);
    for family in Family::ALL {
        let request = message(&[&connect(server(&network, family), &[])]);
        let mut client = send_to(&network, listener(&network, 0, family), &request);
        assert_eq!(receive_all(&mut client), error(65, 0), "{family}");
    }
    assert_eq!(explicit.settle(), 2);
    assert_eq!(ended(&explicit.node, "connect_timeout"), 2);
}

/// No client remains to receive the server's answer, and no relay remains.
// promise: Q4
#[test]
fn client_closes_before_answer() {
    let network = fixture();
    let config = converter(&network) + "[defaults.timeouts]\nconnect = \"1s\"\n";
    let explicit = ExplicitNode::start(&network, &config);
    let silence = format!("tcp dport {PORT} drop");
    firewall(network.node(1), "silence", &[("forward", &silence)]);
    for family in Family::ALL {
        let request = message(&[&connect(server(&network, family), &[])]);
        let client = send_to(&network, listener(&network, 0, family), &request);
        crate::support::until("relay", || {
            crate::support::counter(&explicit.node, "relays") == 1
        });
        crate::support::reset(client);
        crate::support::until_counter(&explicit.node, "relays", 0);
    }
    assert_eq!(explicit.settle(), 2);
}

/// The node closes the connection of a client that does not stop sending.
// promise: Q12
#[test]
fn client_continues_after_error() {
    /// Far more than all buffers on the way hold.
    const BYTES: usize = 256 << 20;
    let network = fixture();
    let explicit = ExplicitNode::start(&network, &converter(&network));
    for family in Family::ALL {
        let request = message(&[&connect(server(&network, family), &[])]);
        let mut client = send_to(&network, listener(&network, 0, family), &request);
        let piece = [b'x'; 64 << 10];
        let mut pieces = (0..BYTES / piece.len()).map(|_| client.write_all(&piece));
        let stopped = pieces.find_map(Result::err).expect("it is stopped");
        let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(reset.contains(&stopped.kind()), "{stopped}");
    }
    assert_eq!(explicit.settle(), 2);
}
