// SPDX-License-Identifier: Apache-2.0
//! Requests that are not granted, and what is none: the error that RFC 8803 has for it and an end in
//! order, or a reset where the RFC wants one.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Instant;

use posthaste_lab::network::{Family, Network};
use posthaste_wire::convert::Request;
use posthaste_wire::header::{ChainHeader, Endpoint, NodeId};
use posthaste_wire::segments::SegmentList;

use crate::requests::{
    ExplicitNode, Received, explicit, fixture, listener, read, receive_all, send_to,
};
use crate::support::{
    PORT, Pair, accept, add_address, dial_from, listen, until, until_counter, until_ended,
};
use crate::watch::wait_for_line;

use super::{CONNECTED, connect, converter, message, server};

/// Sends bytes to a node over each family, and asserts its answer and its counter.
fn expect(request: impl Fn(&Network, Family) -> Vec<u8>, answer: &Received, reason: &str) {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
    expect_of(&network, &listening, request, answer, reason);
}

fn expect_of(
    network: &Network,
    listening: &ExplicitNode,
    request: impl Fn(&Network, Family) -> Vec<u8>,
    answer: &Received,
    reason: &str,
) {
    for (count, family) in (1..).zip(Family::ALL) {
        let node = listener(network, 0, family);
        let mut client = send_to(network, node, &request(network, family));
        let from = client.local_addr().unwrap();
        assert_eq!(receive_all(&mut client), *answer, "{family}");
        listening.until_denied(network, reason, count);
        let reason = format!("reason={reason}");
        let from = format!("from={from}");
        let quoted = from.replace('=', "=\"") + "\"";
        until("line of the log", || {
            listening.node.log().iter().any(|line| {
                let named = line.contains(&from) || line.contains(&quoted);
                line.contains("request denied") && named && line.contains(&reason)
            })
        });
    }
    assert_eq!(listening.settle(), 0, "no flow was begun");
}

/// An Error TLV (§6.2.8) and the end.
fn error(value: &[u8]) -> Received {
    let mut tlv = vec![30, 0];
    tlv.extend_from_slice(value);
    tlv.resize(tlv.len().next_multiple_of(4), 0);
    tlv[1] = u8::try_from(tlv.len() / 4).unwrap();
    Received::and_closed(&message(&[&tlv]))
}

/// A request as it should be.
fn good(network: &Network, family: Family) -> Vec<u8> {
    message(&[&connect(server(network, family), &[])])
}

// promise: Q5
#[test]
fn another_version_is_error_0() {
    let request = |network: &Network, family| {
        let mut request = good(network, family);
        request[0] = 2;
        request
    };
    expect(request, &error(&[0, 1]), "malformed");
}

// promise: Q9
#[test]
fn clients_choose_no_route() {
    let request = |network: &Network, family| {
        let destination = Endpoint::new(server(network, family)).unwrap();
        let mut header = ChainHeader::to(destination);
        header.segments = SegmentList::of(NodeId::new(9)).unwrap();
        Request::connect(header).encode(None).unwrap()
    };
    expect(request, &error(&[65, 0]), "segment");
}

// promise: Q5
#[test]
fn unreadable_tlv_is_error_1() {
    // A Connect TLV with a port and nothing else; one that runs over the end; one without a length.
    for broken in [[10, 1, 0, 80], [10, 9, 0, 80], [10, 0, 0, 80]] {
        let request = |_: &Network, _| message(&[&broken]);
        let answer = error(&[&[1, 0][..], &broken].concat());
        expect(request, &answer, "malformed");
    }
}

// promise: Q5
#[test]
fn duplicate_tlv_is_error_1() {
    let info = [1, 1, 0, 0];
    let request = |_: &Network, _| message(&[&info, &info]);
    let answer = error(&[&[1, 0][..], &info].concat());
    expect(request, &answer, "malformed");
}

// promise: Q5
#[test]
fn empty_request_is_error_1() {
    expect(|_, _| message(&[]), &error(&[1, 0]), "malformed");
}

// promise: Q5
#[test]
fn unknown_tlv_is_error_2() {
    // Reserved, unknown, and one that converters send.
    for unsupported in [[0, 1, 0, 0], [99, 1, 0, 0], [20, 1, 0, 0]] {
        let request = |network: &Network, family| {
            message(&[&connect(server(network, family), &[]), &unsupported])
        };
        let answer = error(&[&[2, 0][..], &unsupported].concat());
        expect(request, &answer, "malformed");
    }
}

// promise: Q5
#[test]
fn forbidden_option_is_error_33() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
    for family in Family::ALL {
        // Fast Open, SACK, which is supported, and Multipath TCP.
        let options = [34, 2, 4, 2, 30, 2];
        let request = message(&[&connect(server(&network, family), &options)]);
        let mut client = send_to(&network, listener(&network, 0, family), &request);
        assert_eq!(receive_all(&mut client), error(&[33, 34, 30]), "{family}");
    }
    assert_eq!(listening.settle(), 0);
}

// promise: Q5
#[test]
fn authentication_option_is_error_33() {
    let request =
        |network: &Network, family| message(&[&connect(server(network, family), &[29, 4, 1, 2])]);
    expect(request, &error(&[33, 29]), "malformed");
}

// promise: Q6
#[test]
fn unlisted_client_is_error_32() {
    let network = fixture();
    let config = "[node]\nid = 1\n[access]\nclients = [\"192.0.2.0/24\"]\n\
                  destinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n";
    let listening = ExplicitNode::start(&network, &format!("{config}{}", explicit(&network, 0)));
    expect_of(&network, &listening, good, &error(&[32, 0]), "unauthorized");
}

// promise: Q6
#[test]
fn rejected_flow_is_error_32() {
    let network = fixture();
    let config =
        converter(&network) + "[[rule]]\nname = \"no\"\naction = \"reject\"\nports = [80]\n";
    let listening = ExplicitNode::start(&network, &config);
    expect_of(&network, &listening, good, &error(&[32, 0]), "rule");
}

// promise: Q7
#[test]
fn impossible_destination_is_error_1() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
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
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let tlv = connect(to, &[]);
        let node = listener(&network, 0, Family::V4);
        let mut client = send_to(&network, node, &message(&[&tlv]));
        let answer = error(&[&[1, 0][..], &tlv].concat());
        assert_eq!(receive_all(&mut client), answer, "{ip}");
        listening.until_denied(&network, "malformed", count);
    }
    assert_eq!(listening.settle(), 0);
}

/// The server's addresses are private, and allowed by name: others like it are not.
// promise: Q7
#[test]
fn denied_destination_is_error_32() {
    let network = fixture();
    let allowed = Family::ALL.map(|family| format!("\"{}\"", network.server_address(family)));
    let config = format!(
        "[node]\nid = 1\n[access]\nclients = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
         destinations = [{}]\n{}",
        allowed.join(", "),
        explicit(&network, 0)
    );
    let listening = ExplicitNode::start(&network, &config);
    let servers = listen(network.server(), PORT);
    let denied = [
        "10.0.2.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.0.1",
        "169.254.169.254",
        "0.0.0.1",
        "240.0.0.1",
        "fd00:0:0:2::1",
        "fe80::1",
        "fd00:ec2::254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ];
    for (count, ip) in (1..).zip(denied) {
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let node = listener(&network, 0, Family::ALL[usize::from(to.is_ipv6())]);
        let mut client = send_to(&network, node, &message(&[&connect(to, &[])]));
        assert_eq!(receive_all(&mut client), error(&[32, 0]), "{ip}");
        listening.until_denied(&network, "destination", count);
        wait_for_line(&listening.node, &["request denied", &to.to_string()]);
    }
    for family in Family::ALL {
        let node = listener(&network, 0, family);
        let mut client = send_to(&network, node, &good(&network, family));
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED);
        Pair { client, server }.close_client_first();
    }
    until_ended(&listening.node, "finished", 2);
    assert_eq!(listening.settle(), 2);
}

/// An address that the node's own sockets listen on, allowed or not, is no way to its listeners.
// promise: Q5
#[test]
fn non_convert_reset() {
    let http = |_: &Network, _| b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec();
    let wrong_magic = |network: &Network, family| {
        let mut request = good(network, family);
        request[2] = 0x23;
        request
    };
    let no_length = |_: &Network, _| vec![1, 0, 0x22, 0x63];
    expect(http, &Received::only_a_reset(), "malformed");
    expect(wrong_magic, &Received::only_a_reset(), "malformed");
    expect(no_length, &Received::only_a_reset(), "malformed");
}

// promise: Q12
#[test]
fn client_ends_within_request() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
    for family in Family::ALL {
        let request = good(&network, family);
        for length in [0, 1, 3, 4, 5, request.len() - 1] {
            let node = listener(&network, 0, family);
            let client = send_to(&network, node, &request[..length]);
            client.shutdown(Shutdown::Write).unwrap();
            let mut client = client;
            assert!(receive_all(&mut client).bytes.is_empty(), "{length} bytes");
        }
    }
    until_counter(&listening.node, "explicit_connections", 12);
    listening.until_denied(&network, "malformed", 0);
    assert_eq!(listening.settle(), 0);
}

/// Five seconds for all of it, not for each byte.
// promise: Q12
#[test]
fn slow_client_reset() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
    let begin = Instant::now();
    thread::scope(|scope| {
        for family in Family::ALL {
            let (network, node) = (&network, listener(&network, 0, family));
            scope.spawn(move || {
                let mut client = send_to(network, node, b"");
                assert_eq!(receive_all(&mut client), Received::only_a_reset(), "silent");
            });
            let request = good(network, family);
            scope.spawn(move || {
                let mut client = send_to(network, node, &request[..1]);
                for byte in &request[1..] {
                    thread::sleep(std::time::Duration::from_millis(500));
                    if client.write_all(&[*byte]).is_err() {
                        return;
                    }
                }
                panic!("the node read all of it, in {:?}", begin.elapsed());
            });
        }
    });
    let least = std::time::Duration::from_secs(5);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    listening.until_denied(&network, "slow", 4);
    assert_eq!(listening.settle(), 0);
}

// promise: Q6
#[test]
fn cookie_required() {
    let network = fixture();
    let all = "[\"10.0.0.0/8\", \"fd00::/8\"]";
    let config = format!(
        "[node]\nid = 1\n[access]\nclients = {all}\ndestinations = {all}\ncookies = true\n{}",
        explicit(&network, 0)
    );
    let listening = ExplicitNode::start(&network, &config);
    let servers = listen(network.server(), PORT);
    let unauthorized = ["10.100.0.9", "fd00:100::9"];
    for (count, (family, unauthorized)) in (1..).zip(Family::ALL.into_iter().zip(unauthorized)) {
        let node = listener(&network, 0, family);
        let mut client = send_to(&network, node, &good(&network, family));
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
        let with = |cookie: &[u8]| {
            let words = u8::try_from(1 + cookie.len() / 4).unwrap();
            let tlv = [&[22, words, 0, 0][..], cookie].concat();
            message(&[&connect(server(&network, family), &[]), &tlv])
        };
        let mut wrong = cookie.to_vec();
        wrong[0] ^= 1;
        let mut client = send_to(&network, node, &with(&wrong));
        assert_eq!(receive_all(&mut client), error(&[32, 0]), "a wrong cookie");
        // Another address has another cookie.
        let unauthorized: std::net::IpAddr = unauthorized.parse().unwrap();
        add_address(network.client(), unauthorized);
        let from = SocketAddr::new(unauthorized, 0);
        let mut client = dial_from(network.client(), from, node).unwrap();
        client.write_all(&with(cookie)).unwrap();
        assert_eq!(
            receive_all(&mut client),
            error(&[32, 0]),
            "another's cookie"
        );
        listening.until_denied(&network, "cookie", 2 * count);
        let mut client = send_to(&network, node, &with(cookie));
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED);
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
    }
    until_ended(&listening.node, "finished", 2);
    assert_eq!(listening.settle(), 2);
}
