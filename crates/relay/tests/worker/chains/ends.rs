// SPDX-License-Identifier: Apache-2.0
//! Ends and resets through a chain of three nodes.

use std::io::Write;
use std::net::{Shutdown, TcpListener};

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::Node;
use crate::streams::{accept, close, content, expect_end, expect_reset, read, reset, transfer};

use super::{COLD, WARM, chain_of_three};

/// Does the same in every mode and for both families of servers, over cold hops of one family and
/// warm ones of the other; then so many relays of each node have ended so, for each time.
fn in_every_mode(
    outcomes: &[(Outcome, u64)],
    check: impl Fn(&Node, AcceptMode, Family, &TcpListener),
) {
    for (hops, pool) in [(Family::V6, COLD), (Family::V4, WARM)] {
        let host = Host::enter();
        let nodes = chain_of_three(&host, hops, pool);
        let servers = host.listen();
        let mut count = 0;
        for mode in AcceptMode::all() {
            for theirs in Family::ALL {
                check(&nodes[0], mode, theirs, &servers);
                count += 1;
                for node in &nodes {
                    for (outcome, each) in outcomes {
                        node.until_ended(*outcome, each * count);
                    }
                }
            }
        }
        let relays = count * outcomes.iter().map(|(_, each)| each).sum::<u64>();
        for node in &nodes {
            assert_eq!(node.settle(), relays, "{pool:?}");
        }
    }
}

// promise: K7
#[test]
fn server_sends_first() {
    in_every_mode(&[(Outcome::Finished, 1)], |node, mode, theirs, servers| {
        let mut pair = node.open(mode, theirs, servers);
        transfer(&mut pair.server, &mut pair.client, b"220 ready\r\n");
        pair.check();
        pair.close_server_first();
    });
}

// promise: K7
#[test]
fn half_close_through_chain() {
    in_every_mode(&[(Outcome::Finished, 2)], |node, mode, theirs, servers| {
        let bytes = content(90_000);
        let mut pair = node.open(mode, theirs, servers);
        transfer(&mut pair.client, &mut pair.server, b"all of my request");
        pair.client.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut pair.server);
        transfer(&mut pair.server, &mut pair.client, &bytes);
        close(pair.server, pair.client);

        let mut pair = node.open(mode, theirs, servers);
        transfer(&mut pair.server, &mut pair.client, b"all there is");
        pair.server.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut pair.client);
        transfer(&mut pair.client, &mut pair.server, &bytes);
        close(pair.client, pair.server);
    });
}

/// A client may close before the server has answered; its bytes must still arrive.
// promise: K7
#[test]
fn bytes_before_close_arrive() {
    in_every_mode(&[(Outcome::Finished, 1)], |node, mode, theirs, servers| {
        let mut client = node.dial(mode, theirs).unwrap();
        client.write_all(b"all of my request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut server = accept(servers);
        assert_eq!(read(&mut server, 17), b"all of my request");
        expect_end(&mut server);
        close(server, client);
    });
}

// promise: K7
#[test]
fn reset_in_both_directions() {
    let outcomes = [(Outcome::DownstreamReset, 1), (Outcome::UpstreamReset, 1)];
    in_every_mode(&outcomes, |node, mode, theirs, servers| {
        let mut pair = node.open(mode, theirs, servers);
        pair.check();
        reset(pair.client);
        expect_reset(&mut pair.server);

        let mut pair = node.open(mode, theirs, servers);
        pair.check();
        reset(pair.server);
        expect_reset(&mut pair.client);
    });
}
