// SPDX-License-Identifier: Apache-2.0
//! Services on the node's own host, and a configured cookie.

use std::net::{IpAddr, SocketAddr};

use posthaste_lab::network::{Family, Network};

use crate::requests::{
    ExplicitNode, Received, explicit, fixture, listener, read, receive_all, send_to,
};
use crate::support::{PORT, accept, add_address, listen};

use super::{connect, message, server};

const ALL: &str = "\"10.0.0.0/8\", \"fd00::/8\"";
/// The server has answered.
const CONNECTED: [u8; 4] = [1, 1, 0x22, 0x63];
/// Not authorized.
const DENIED: [u8; 8] = [1, 2, 0x22, 0x63, 30, 1, 32, 0];

fn config(network: &Network, destinations: &str, extra: &str) -> String {
    format!(
        "[node]\nid = 1\n[access]\nclients = [{ALL}]\ndestinations = [{destinations}]\n{extra}{}",
        explicit(network, 0)
    )
}

/// Requests a connection to a destination, and returns the first bytes of the answer.
fn query(network: &Network, family: Family, to: IpAddr) -> Vec<u8> {
    let request = message(&[&connect(SocketAddr::new(to, PORT), &[])]);
    let mut client = send_to(network, listener(network, 0, family), &request);
    read(&mut client, 4)
}

/// The addresses of the node's host; one was added after the node had started.
fn own_addresses(network: &Network, family: Family) -> [IpAddr; 3] {
    let late = match family {
        Family::V4 => "10.200.3.3",
        Family::V6 => "fd00:200::33",
    };
    let late = late.parse().unwrap();
    add_address(network.node(0), late);
    [
        network.node_address(0, family),
        network.calling_address(0, family),
        late,
    ]
}

// promise: Q7
#[test]
fn own_addresses_refused() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &config(&network, ALL, ""));
    let _service = listen(network.node(0), PORT);
    let mut count = 0;
    for family in Family::ALL {
        for own in own_addresses(&network, family) {
            let request = message(&[&connect(SocketAddr::new(own, PORT), &[])]);
            let mut client = send_to(&network, listener(&network, 0, family), &request);
            assert_eq!(
                receive_all(&mut client),
                Received::and_closed(&DENIED),
                "{own}"
            );
            count += 1;
            listening.until_denied(&network, "destination", count);
        }
    }
    assert_eq!(listening.settle(), 0);
}

// promise: Q7
#[test]
fn own_address_allowed_by_name() {
    let network = fixture();
    let own = Family::ALL.map(|family| network.node_address(0, family));
    let allowed = format!("{ALL}, \"{}/32\", \"{}/128\"", own[0], own[1]);
    let _node = ExplicitNode::start(&network, &config(&network, &allowed, ""));
    let service = listen(network.node(0), PORT);
    for (family, own) in Family::ALL.into_iter().zip(own) {
        assert_eq!(query(&network, family, own), CONNECTED, "{own}");
        drop(accept(&service));
    }
}

// promise: Q6
#[test]
fn configured_cookie_text() {
    let network = fixture();
    let text = "open-sesame";
    let extra = format!("cookie = \"{text}\"\n");
    let listening = ExplicitNode::start(&network, &config(&network, ALL, &extra));
    let servers = listen(network.server(), PORT);
    // The bytes of the text, and zeros to the end of the word.
    let with = |family, text: &str| {
        let padded = text.len().next_multiple_of(4);
        let words = u8::try_from(1 + padded / 4).unwrap();
        let mut tlv = vec![22, words, 0, 0];
        tlv.extend_from_slice(text.as_bytes());
        tlv.resize(4 + padded, 0);
        message(&[&connect(server(&network, family), &[]), &tlv])
    };
    for (count, family) in (1..).zip(Family::ALL) {
        let node = listener(&network, 0, family);
        let without = message(&[&connect(server(&network, family), &[])]);
        for request in [without, with(family, "open-sesami")] {
            let mut client = send_to(&network, node, &request);
            assert_eq!(
                receive_all(&mut client),
                Received::and_closed(&DENIED),
                "{family}"
            );
        }
        listening.until_denied(&network, "cookie", 2 * count);
        let mut client = send_to(&network, node, &with(family, text));
        let _server = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED, "{family}");
    }
}
