// SPDX-License-Identifier: Apache-2.0
//! What every denied request has in common.

use posthaste_relay::control::Denial;

use crate::host::{Family, Host};
use crate::node::Setup;
use crate::streams::{Received, receive_all, send_to};

/// Sends bytes to a node over each family: it answers so, begins no flow, counts and reports the
/// reason with the sender's address, and keeps no socket.
pub(crate) fn expect_denied(
    setup: &Setup,
    denial: Denial,
    answer: &Received,
    request: impl Fn(Family) -> Vec<u8>,
) {
    let host = Host::enter();
    let node = setup.start(&host);
    for (count, family) in (1..).zip(Family::ALL) {
        let mut client = send_to(family.node(0), &request(family));
        let from = client.local_addr().unwrap();
        assert_eq!(receive_all(&mut client), *answer, "{family}");
        node.until_denied(denial, count);
        let reported = node.denials().pop().unwrap();
        assert_eq!((reported.from, reported.denial), (from, denial));
    }
    assert_eq!(host.settle(&node), 0, "no flow was begun");
}
