// SPDX-License-Identifier: Apache-2.0
//! A forwarded SYN that is lost behind the node, which its client does not repeat.
//!
//! A client that waits for its server to speak sends nothing that could show the loss.

use std::net::IpAddr;

use super::forged::{CLAIMED, MSS, expect_claimed};
use super::*;
use crate::ends::carry;
use crate::support::{deliver, dial_from, kernel_counter};
use crate::syn_options::raw::send_syn;

// promise: PK3
/// The node sends the SYN again, by the way of its client, over devices with and without a link
/// layer.
#[test]
fn lost_syns_are_sent_again() {
    let millisecond = || Link::delay(Duration::from_millis(1));
    for links in [[Link::Veth, Link::Veth], [millisecond(), millisecond()]] {
        let network = network(links);
        let (node, listener) = ready(&network);
        for family in Family::ALL {
            let resent = redirect(&node, "packet_resent");
            let syns = "tcp flags & (syn | ack) == syn drop";
            firewall(network.server(), "lossy", &[("input", syns)]);
            let dialled = dial(network.client(), target(&network, family, &listener));
            let mut client = dialled.expect("the node answers");
            client.write_all(b"a question").expect("it is sent");
            remove_firewall(network.server(), "lossy");
            let (mut server, _) = accept(&listener);
            let mut received = [0; 10];
            server.read_exact(&mut received).expect("it arrives");
            assert_eq!(&received, b"a question", "{family}");
            assert_eq!(redirect(&node, "packet_resent"), resent + 1, "{family}");
            carry(&mut client, &mut server, 100_000, 1);
            carry(&mut server, &mut client, 100_000, 2);
            Pair { client, server }.close_client_first();
        }
    }
}

// promise: PK3
/// The client's acknowledgement is lost too: neither end would ever send again.
#[test]
fn silent_clients_reach_their_server() {
    let network = line();
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let syns = "tcp flags & (syn | ack) == syn drop";
        firewall(network.server(), "lossy", &[("input", syns)]);
        let answers = "tcp flags & (syn | ack) == ack drop";
        firewall(network.client(), "lossy", &[("output", answers)]);
        let dialled = dial(network.client(), target(&network, family, &listener));
        let client = dialled.expect("the node answers");
        remove_firewall(network.client(), "lossy");
        remove_firewall(network.server(), "lossy");
        let (server, _) = accept(&listener);
        let mut pair = Pair { client, server };
        carry(&mut pair.server, &mut pair.client, 2_000, 1);
        carry(&mut pair.client, &mut pair.server, 2_000, 2);
        assert_eq!(redirect(&node, "packet_given_up"), 0, "{family}");
        pair.close_client_first();
    }
}

// promise: PK3
#[test]
fn silent_clients_learn_that_no_server_answers() {
    let millisecond = || Link::delay(Duration::from_millis(1));
    for links in [[Link::Veth, Link::Veth], [millisecond(), millisecond()]] {
        let network = network(links);
        let (_node, listener) = impatient(&network);
        firewall(network.server(), "dead", &[("input", "drop")]);
        let clients = Family::ALL.map(|family| {
            let dialled = dial(network.client(), target(&network, family, &listener));
            (family, dialled.expect("the node answers"))
        });
        for (family, mut client) in clients {
            let error = uninterrupted(|| client.read(&mut [0])).expect_err("it is reset");
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{family}");
        }
    }
}

/// A forged SYN costs a server that does not answer one more, and its victim one more SYN-ACK.
// promise: PK3, D10
#[test]
fn absent_clients_have_one_syn_repeated() {
    let network = line();
    let (node, listener) = ready(&network);
    let server = target(&network, Family::V4, &listener);
    let [client, server] = [CLAIMED.to_owned(), server.to_string()];
    let counted = "tcp flags & (syn | ack) == syn counter drop";
    firewall(network.server(), "dead", &[("input", counted)]);
    let [client, server] = [client, server].map(|end| end.parse().expect("an IPv4 address"));
    expect_claimed(&network);
    send_syn(network.client(), client, server, &MSS);
    until("the SYN is repeated", || {
        redirect(&node, "packet_resent") == 1
    });
    // Longer than until the next would be due, and until the flow is forgotten.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(redirect(&node, "packet_resent"), 1);
    assert_eq!(redirect(&node, "packet_given_up"), 0);
    let rules = firewall_text(network.server(), "dead");
    assert!(rules.contains("counter packets 2 "), "{rules}");
}

/// What is left of a flow without an answer ends with its client's next SYN: it would drop the new
/// connection's acknowledgement, and reset it.
// promise: PK3
#[test]
fn given_up_flows_leave_their_ports() {
    let network = line();
    let (_node, listener) = impatient(&network);
    let [client, server] = [network.client(), network.server()];
    firewall(server, "silent", &[("input", "tcp flags syn drop")]);
    let to = target(&network, Family::V4, &listener);
    let sources = [0, 1, 2, 3, 4].map(|port| (network.client_address(Family::V4), 20_000 + port));
    let dialled = sources.map(|source| dial_from(client, source.into(), to));
    for dialled in dialled {
        let mut stream = dialled.expect("the node answers");
        uninterrupted(|| stream.read(&mut [0])).expect_err("it is reset");
    }
    remove_firewall(server, "silent");
    let opens_at_once = |source: (IpAddr, u16)| {
        let before = kernel_counter(server, "TcpExt", "TCPTimeouts");
        let mut pair = Pair::of(dial_from(client, source.into(), to), &listener);
        // The server is the first to send.
        deliver(&mut pair.server, &mut pair.client, b"220 ready");
        pair.close_client_first();
        kernel_counter(server, "TcpExt", "TCPTimeouts") == before
    };
    // On a busy machine a timer may expire.
    assert!(sources.into_iter().any(opens_at_once));
}
