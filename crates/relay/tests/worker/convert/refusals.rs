// SPDX-License-Identifier: Apache-2.0
//! Requests that are not granted, and what is none: the error that RFC 8803 has for it and an end in
//! order, or a reset where the RFC wants one.

use std::net::{Shutdown, SocketAddr};

use posthaste_relay::control::Denial;
use posthaste_relay::policy::{Action, Match, Rule};
use posthaste_wire::convert::Request;
use posthaste_wire::header::{ChainHeader, Endpoint};
use posthaste_wire::segments::SegmentList;

use crate::denied::expect_denied;
use crate::host::{Family, Host, PORT};
use crate::node::{Setup, id, rule};
use crate::streams::{Pair, Received, accept, read, receive_all, send_to};

use super::{CONNECTED, connect, error, good, message};

fn malformed(answer: &Received, request: impl Fn(Family) -> Vec<u8>) {
    expect_denied(&Setup::of(0), Denial::Malformed, answer, request);
}

// promise: Q5
#[test]
fn another_version_is_error_0() {
    malformed(&error(&[0, 1]), |family| {
        let mut request = good(family);
        request[0] = 2;
        request
    });
}

// promise: Q9
#[test]
fn clients_choose_no_route() {
    let request = |family: Family| {
        let mut header = ChainHeader::to(Endpoint::new(family.server()).unwrap());
        header.segments = SegmentList::of([id(8)]).unwrap();
        Request::connect(header).encode(None).unwrap()
    };
    expect_denied(&Setup::of(0), Denial::Segment, &error(&[65, 0]), request);
}

// promise: Q5
#[test]
fn unreadable_tlv_is_error_1() {
    // A Connect TLV with a port and nothing else; one that runs over the end; one without a length.
    for broken in [[10, 1, 0, 80], [10, 9, 0, 80], [10, 0, 0, 80]] {
        let answer = error(&[&[1, 0][..], &broken].concat());
        malformed(&answer, |_| message(&[&broken]));
    }
}

// promise: Q5
#[test]
fn duplicate_tlv_is_error_1() {
    let info = [1, 1, 0, 0];
    let answer = error(&[&[1, 0][..], &info].concat());
    malformed(&answer, |_| message(&[&info, &info]));
}

// promise: Q5
#[test]
fn empty_request_is_error_1() {
    malformed(&error(&[1, 0]), |_| message(&[]));
}

// promise: Q5
#[test]
fn unknown_tlv_is_error_2() {
    // Reserved, unknown, and one that converters send.
    for unsupported in [[0, 1, 0, 0], [99, 1, 0, 0], [20, 1, 0, 0]] {
        let answer = error(&[&[2, 0][..], &unsupported].concat());
        malformed(&answer, |family| {
            message(&[&connect(family.server(), &[]), &unsupported])
        });
    }
}

// promise: Q5
#[test]
fn forbidden_option_is_error_33() {
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for family in Family::ALL {
        // Fast Open, SACK, which is supported, and Multipath TCP.
        let options = [34, 2, 4, 2, 30, 2];
        let request = message(&[&connect(family.server(), &options)]);
        let mut client = send_to(family.node(0), &request);
        assert_eq!(receive_all(&mut client), error(&[33, 34, 30]), "{family}");
    }
    assert_eq!(host.settle(&node), 0);
}

// promise: Q5
#[test]
fn authentication_option_is_error_33() {
    malformed(&error(&[33, 29]), |family| {
        message(&[&connect(family.server(), &[29, 4, 1, 2])])
    });
}

// promise: Q6
#[test]
fn rejected_flow_is_error_32() {
    let mut setup = Setup::of(0);
    setup.policy.rules.push(Rule {
        action: Action::Reject,
        matches: Match {
            ports: vec![PORT..=PORT],
            ..Match::default()
        },
        ..rule("no")
    });
    expect_denied(&setup, Denial::Rule, &error(&[32, 0]), good);
}

// promise: Q7
#[test]
fn impossible_destination_is_error_1() {
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for (count, ip) in (1..).zip([
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "239.255.255.250",
        "ff02::1",
        "255.255.255.255",
    ]) {
        let tlv = connect(SocketAddr::new(ip.parse().unwrap(), PORT), &[]);
        let mut client = send_to(Family::V4.node(0), &message(&[&tlv]));
        let answer = error(&[&[1, 0][..], &tlv].concat());
        assert_eq!(receive_all(&mut client), answer, "{ip}");
        node.until_denied(Denial::Malformed, count);
    }
    assert_eq!(host.settle(&node), 0);
}

/// The server's addresses are private, and allowed by name: others like it are not.
// promise: Q7
#[test]
fn denied_destination_is_error_32() {
    let host = Host::enter();
    let (node, servers) = (Setup::of(0).start(&host), host.listen());
    let denied = [
        "10.0.2.7",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.0.1",
        "169.254.169.254",
        "0.0.0.1",
        "240.0.0.1",
        "fd00:0:0:2::7",
        "fe80::1",
        "fd00:ec2::254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ];
    for (count, ip) in (1..).zip(denied) {
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let request = message(&[&connect(to, &[])]);
        let mut client = send_to(Family::of(to).node(0), &request);
        assert_eq!(receive_all(&mut client), error(&[32, 0]), "{ip}");
        node.until_denied(Denial::Destination, count);
        let flow = node.denials().pop().unwrap().flow;
        assert_eq!(flow.unwrap().server(), to);
    }
    for family in Family::ALL {
        let mut client = send_to(family.node(0), &good(family));
        let server = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED);
        Pair { client, server }.close_client_first();
    }
    assert_eq!(host.settle(&node), 2);
}

// promise: Q5
#[test]
fn non_convert_reset() {
    let reset = Received::only_a_reset();
    malformed(&reset, |_| b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec());
    malformed(&reset, |family| {
        let mut wrong_magic = good(family);
        wrong_magic[2] = 0x23;
        wrong_magic
    });
    malformed(&reset, |_| vec![1, 0, 0x22, 0x63]);
}

// promise: Q12
#[test]
fn client_ends_within_request() {
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for family in Family::ALL {
        let request = good(family);
        for length in [0, 1, 3, 4, 5, request.len() - 1] {
            let mut client = send_to(family.node(0), &request[..length]);
            client.shutdown(Shutdown::Write).unwrap();
            assert!(receive_all(&mut client).bytes.is_empty(), "{length} bytes");
        }
    }
    node.until_count(12, |counters| counters.explicit_connections.read());
    node.until_denied(Denial::Malformed, 0);
    assert_eq!(host.settle(&node), 0);
}
