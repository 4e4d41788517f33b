// SPDX-License-Identifier: Apache-2.0
//! A forwarded SYN that is lost behind the node, which its client does not repeat.

use super::ends::carry;
use super::*;

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
            firewall(network.node(0), "lossy", &[("forward", syns)]);
            let dialled = dial(network.client(), target(&network, family, &listener));
            let mut client = dialled.expect("the node answers");
            client.write_all(b"a question").expect("it is sent");
            remove_firewall(network.node(0), "lossy");
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
