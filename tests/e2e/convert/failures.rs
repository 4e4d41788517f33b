// SPDX-License-Identifier: Apache-2.0
//! Granted requests for servers that routers report as unreachable: the client receives an error
//! (RFC 8803 §6.2.8) and a FIN.

use std::net::SocketAddr;

use posthaste_lab::network::Family;

use crate::requests::{ExplicitNode, Received, fixture, listener, receive_all, send_to};
use crate::support::{ended, firewall, talkative};

use super::{connect, converter, message};

/// An Error TLV of one word.
fn error(code: u8, value: u8) -> Received {
    Received::and_closed(&message(&[&[30, 1, code, value]]))
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
