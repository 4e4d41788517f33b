// SPDX-License-Identifier: Apache-2.0
//! SYN-ACKs that come late: after the client has repeated what it sent, and after the node has sent the
//! SYN again or given up.

use super::*;
use crate::ends::carry;

/// A network whose server is `delay` away once the node, which gives it 4 s, knows what it grants.
fn far(delay: Duration) -> (Network, Node, TcpListener) {
    let network = network([(); 2].map(|()| Link::delay(Duration::from_millis(1))));
    let (node, listener) = impatient(&network);
    network.change(1, Link::delay(delay)).expect("a delay");
    (network, node, listener)
}

/// How often an end has dropped segments for their timestamps (RFC 7323 section 5).
fn paws_drops(host: &Namespace) -> u64 {
    let text = host.run_in(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    let text = text.expect("the kernel counts");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("two lines"));
    let pairs = names.split(' ').zip(values.split(' '));
    // Not `PAWSOldAck`: the node's answer to a repeated SYN-ACK is older than the client's data, and
    // changes nothing.
    let of_paws = pairs.filter(|(name, _)| ["PAWSActive", "PAWSEstab"].contains(name));
    of_paws
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum()
}

// promise: PK3
/// The client repeats its data and the node its SYN, so the server has two SYNs and the node two
/// SYN-ACKs; the second one becomes an acknowledgement.
#[test]
fn late_answers_open_the_flow() {
    let (network, node, listener) = far(Duration::from_millis(800));
    for family in Family::ALL {
        let resent = redirect(&node, "packet_resent");
        let to = target(&network, family, &listener);
        let mut client = dial(network.client(), to).expect("the node answers");
        client.write_all(b"a question").expect("it is sent");
        let (mut server, _) = accept(&listener);
        server.read_exact(&mut [0; 10]).expect("it arrives");
        assert_eq!(redirect(&node, "packet_resent"), resent + 1, "{family}");
        carry(&mut client, &mut server, 30_000, 1);
        carry(&mut server, &mut client, 30_000, 2);
        Pair { client, server }.close_client_first();
    }
    for host in [network.client(), network.server()] {
        assert_eq!(paws_drops(host), 0);
    }
    assert_eq!(redirect(&node, "packet_given_up"), 0);
}

// promise: PK3
/// The client of a flow that was given up is reset at its next segment, and the server's answer, later
/// still, reaches nobody. The next flow is forwarded.
#[test]
fn late_answers_reach_no_client() {
    let (network, node, listener) = far(Duration::from_millis(2_600));
    let to = target(&network, Family::V4, &listener);
    let mut client = dial(network.client(), to).expect("the node answers");
    client.write_all(b"a question").expect("it is sent");
    let error = uninterrupted(|| client.read(&mut [0])).expect_err("it is reset");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{error}");
    assert_eq!(redirect(&node, "packet_given_up"), 1);
    let opened = redirect(&node, "packet_opened");
    network
        .change(1, Link::delay(Duration::from_millis(1)))
        .expect("a delay");
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    pair.close_client_first();
    assert_eq!(redirect(&node, "packet_opened"), opened);
    assert!(redirect(&node, "packet_bad") > 0);
}
