// SPDX-License-Identifier: Apache-2.0
//! Clients that send a cookie, and services on the node's own host.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use posthaste_relay::access::Cookie;
use posthaste_relay::control::Denial;

use crate::host::{Family, Host, PORT};
use crate::node::{Setup, everything, only};
use crate::streams::{Pair, accept, dial_from, read, receive_all, send_to};

use super::{CONNECTED, connect, error, good, message};

/// A request with a cookie (§6.2.7), which has whole words.
fn with_cookie(family: Family, cookie: &[u8]) -> Vec<u8> {
    let words = u8::try_from(1 + cookie.len() / 4).unwrap();
    let tlv = [&[22, words, 0, 0][..], cookie].concat();
    message(&[&connect(family.server(), &[]), &tlv])
}

// promise: Q6
#[test]
fn cookie_required() {
    let host = Host::enter();
    let mut setup = Setup::of(0);
    setup.policy.access.cookies = true;
    let (node, servers) = (setup.start(&host), host.listen());
    for (count, family) in (1..).zip(Family::ALL) {
        let mut client = send_to(family.node(0), &good(family));
        let received = receive_all(&mut client);
        // Missing Cookie: the cookie follows a zero, in whole words.
        let tlv = &received.bytes[4..];
        assert_eq!(
            (received.reset, &tlv[..4]),
            (false, &[30, tlv[1], 3, 0][..])
        );
        let cookie = &tlv[4..];
        assert!(
            cookie.len() >= 32 && cookie.iter().all(u8::is_ascii_hexdigit),
            "a text"
        );
        let mut wrong = cookie.to_vec();
        wrong[0] ^= 1;
        let mut client = send_to(family.node(0), &with_cookie(family, &wrong));
        assert_eq!(receive_all(&mut client), error(&[32, 0]), "a wrong cookie");
        // Another address has another cookie.
        let from = SocketAddr::new(family.other_client(), 0);
        let mut client = dial_from(from, family.node(0));
        client.write_all(&with_cookie(family, cookie)).unwrap();
        assert_eq!(
            receive_all(&mut client),
            error(&[32, 0]),
            "another's cookie"
        );
        node.until_denied(Denial::Cookie, 2 * count);
        let mut client = send_to(family.node(0), &with_cookie(family, cookie));
        let server = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED);
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(host.settle(&node), 2);
}

// promise: Q6
#[test]
fn configured_cookie_text() {
    let host = Host::enter();
    let mut setup = Setup::of(0);
    setup.policy.access.cookie = Cookie::new("open-sesame");
    let (node, servers) = (setup.start(&host), host.listen());
    for (count, family) in (1..).zip(Family::ALL) {
        // The bytes of the text, and zeros to the end of the word.
        for request in [good(family), with_cookie(family, b"open-sesami\0")] {
            let mut client = send_to(family.node(0), &request);
            assert_eq!(receive_all(&mut client), error(&[32, 0]), "{family}");
        }
        node.until_denied(Denial::Cookie, 2 * count);
        let mut client = send_to(family.node(0), &with_cookie(family, b"open-sesame\0"));
        let server = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED, "{family}");
        Pair { client, server }.close_client_first();
    }
    assert_eq!(host.settle(&node), 2);
}

/// Addresses of the node's host; one was added after the node had started.
fn own_addresses(host: &Host, family: Family) -> [IpAddr; 3] {
    let late = match family {
        Family::V4 => "10.200.3.3",
        Family::V6 => "fd00:200::33",
    };
    let late = late.parse().unwrap();
    host.add_addresses(&[late]);
    [family.node(0).ip(), family.client(), late]
}

// promise: Q7
#[test]
fn own_addresses_refused() {
    let host = Host::enter();
    let mut setup = Setup::of(0);
    setup.policy.access.destinations = everything();
    let (node, _service) = (setup.start(&host), host.listen());
    let mut count = 0;
    for family in Family::ALL {
        for own in own_addresses(&host, family) {
            let request = message(&[&connect(SocketAddr::new(own, PORT), &[])]);
            let mut client = send_to(family.node(0), &request);
            assert_eq!(receive_all(&mut client), error(&[32, 0]), "{own}");
            count += 1;
            node.until_denied(Denial::Destination, count);
        }
    }
    assert_eq!(host.settle(&node), 0);
}

// promise: Q7
#[test]
fn own_address_allowed_by_name() {
    let host = Host::enter();
    let own = Family::ALL.map(|family| family.node(0).ip());
    let mut setup = Setup::of(0);
    setup.policy.access.destinations = own.map(only).into();
    let (node, service) = (setup.start(&host), host.listen());
    for (family, own) in Family::ALL.into_iter().zip(own) {
        let request = message(&[&connect(SocketAddr::new(own, PORT), &[])]);
        let mut client = send_to(family.node(0), &request);
        let server = accept(&service);
        assert_eq!(read(&mut client, 4), CONNECTED, "{own}");
        Pair { client, server }.close_client_first();
    }
    assert_eq!(host.settle(&node), 2);
}
