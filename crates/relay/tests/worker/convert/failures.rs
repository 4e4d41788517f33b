// SPDX-License-Identifier: Apache-2.0
//! Granted requests for unreachable servers: the client receives an error (RFC 8803 §6.2.8) and a
//! FIN.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host, PORT};
use crate::node::{Setup, everything};
use crate::streams::{receive_all, reset, send_to};

use super::{connect, error, good, message};

// promise: Q4
#[test]
fn a_refusal_is_error_96() {
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for family in Family::ALL {
        // Early bytes of the client must not turn the error into a reset.
        let mut request = good(family);
        request.resize(100_000, b'x');
        let mut client = send_to(family.node(0), &request);
        assert_eq!(receive_all(&mut client), error(&[96, 0]), "{family}");
    }
    assert_eq!(host.settle(&node), 2);
    assert_eq!(node.ended(Outcome::UpstreamRefused), 2);
}

/// An error from the node's own kernel counts like one from a router.
// promise: Q4
#[test]
fn route_error_is_error_97() {
    const UNREACHABLE: u8 = 7;
    const PROHIBIT: u8 = 8;
    const THROW: u8 = 9;
    let host = Host::enter();
    let mut setup = Setup::of(0);
    setup.policy.access.destinations = everything();
    let node = setup.start(&host);
    for (kind, to, code) in [
        (UNREACHABLE, "10.200.0.1", 1),
        (PROHIBIT, "10.200.0.2", 13),
        (THROW, "10.200.0.3", 0),
        (UNREACHABLE, "fd00:200::1", 0),
        (PROHIBIT, "fd00:200::2", 1),
        (THROW, "fd00:200::3", 0),
    ] {
        let to: IpAddr = to.parse().unwrap();
        host.add_route(kind, to);
        let to = SocketAddr::new(to, PORT);
        let mut client = send_to(Family::of(to).node(0), &message(&[&connect(to, &[])]));
        assert_eq!(receive_all(&mut client), error(&[97, code]), "{to}");
    }
    assert_eq!(host.settle(&node), 6);
    assert_eq!(node.ended(Outcome::UpstreamUnreachable), 6);
}

fn impatient(connect: Duration) -> Setup {
    let mut setup = Setup::of(0);
    setup.policy.rules[0].timeouts.connect = connect;
    setup
}

// promise: Q4
#[test]
fn silence_is_error_65() {
    let host = Host::enter();
    let node = impatient(Duration::from_millis(10)).start(&host);
    let _silent = Family::ALL.map(|family| host.silence(family.server()));
    for mut client in Family::ALL.map(|family| send_to(family.node(0), &good(family))) {
        assert_eq!(receive_all(&mut client), error(&[65, 0]));
    }
    assert_eq!(host.settle(&node), 2);
    assert_eq!(node.ended(Outcome::ConnectTimeout), 2);
}

/// No client remains to receive the server's answer, and no relay remains.
// promise: Q4
#[test]
fn client_closes_before_answer() {
    let host = Host::enter();
    let node = impatient(Duration::from_secs(1)).start(&host);
    let _silent = Family::ALL.map(|family| host.silence(family.server()));
    for family in Family::ALL {
        let client = send_to(family.node(0), &good(family));
        node.until_count(1, |counters| counters.relays.read());
        reset(client);
        node.until_count(0, |counters| counters.relays.read());
    }
    assert_eq!(host.settle(&node), 2);
}

/// The node closes the connection of a client that does not stop sending.
// promise: Q12
#[test]
fn client_continues_after_error() {
    /// Far more than all buffers on the way hold.
    const BYTES: usize = 256 << 20;
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for family in Family::ALL {
        let mut client = send_to(family.node(0), &good(family));
        let piece = [b'x'; 64 << 10];
        let mut pieces = (0..BYTES / piece.len()).map(|_| client.write_all(&piece));
        let stopped = pieces.find_map(Result::err).expect("it is stopped");
        let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(reset.contains(&stopped.kind()), "{stopped}");
    }
    assert_eq!(host.settle(&node), 2);
}
