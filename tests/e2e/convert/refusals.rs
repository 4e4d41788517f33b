// SPDX-License-Identifier: Apache-2.0
//! Clients that are not listed, and slow ones.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Family, Network};

use crate::requests::{ExplicitNode, Received, explicit, fixture, listener, receive_all, send_to};
use crate::watch::wait_for_line;

use super::{connect, converter, message, server};

/// A request as it should be.
fn good(network: &Network, family: Family) -> Vec<u8> {
    message(&[&connect(server(network, family), &[])])
}

// promise: Q6
#[test]
fn unlisted_client_is_error_32() {
    let network = fixture();
    let config = "[node]\nid = 1\n[access]\nclients = [\"192.0.2.0/24\"]\n\
                  destinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n";
    let listening = ExplicitNode::start(&network, &format!("{config}{}", explicit(&network, 0)));
    // An Error TLV (§6.2.8) and the end.
    let answer = Received::and_closed(&message(&[&[30, 1, 32, 0]]));
    for (count, family) in (1..).zip(Family::ALL) {
        let node = listener(&network, 0, family);
        let mut client = send_to(&network, node, &good(&network, family));
        let from = client.local_addr().unwrap().to_string();
        assert_eq!(receive_all(&mut client), answer, "{family}");
        listening.until_denied(&network, "unauthorized", count);
        let words = ["request denied", &from, "reason=unauthorized"];
        wait_for_line(&listening.node, &words);
    }
    assert_eq!(listening.settle(), 0, "no flow was begun");
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
                    thread::sleep(Duration::from_millis(500));
                    if client.write_all(&[*byte]).is_err() {
                        return;
                    }
                }
                panic!("the node read all of it, in {:?}", begin.elapsed());
            });
        }
    });
    let least = Duration::from_secs(5);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    listening.until_denied(&network, "slow", 4);
    assert_eq!(listening.settle(), 0);
}
