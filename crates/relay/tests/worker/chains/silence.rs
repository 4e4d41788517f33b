// SPDX-License-Identifier: Apache-2.0
//! Nodes that answer no SYN. These tests wait for retransmissions of TCP, so each of their cases has a
//! thread and a host of its own.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::{Node, Setup, start_all};
use crate::streams::{Received, accept, content, receive_all};

use super::{COLD, member};

/// Checks each of these modes with servers of both families, all at once.
fn at_once(modes: &[AcceptMode], check: impl Fn(AcceptMode, Family) + Sync) {
    thread::scope(|scope| {
        for mode in modes {
            for theirs in Family::ALL {
                let check = &check;
                scope.spawn(move || check(*mode, theirs));
            }
        }
    });
}

/// The third node of a chain answers no SYN until the second has lost two, and gives its hop up. The
/// first has no other chain. Returns what the client and the server do.
fn retried<C: Send, S>(
    client: impl FnOnce(&Node) -> C + Send,
    server: impl FnOnce(&TcpListener) -> S,
) -> (C, S) {
    let host = Host::enter();
    let silence = host.silence(Family::V4.node(2));
    let cold = |node| member(node, Family::V4, COLD);
    let [first, second] = start_all(&host, [cold(0).chain(&[1, 2]), cold(1)]);
    let servers = host.listen();
    thread::scope(|scope| {
        let client = scope.spawn(|| client(&first));
        second.until_count(1, |counters| counters.hops_failed.read());
        // Before the silence ends: nobody is to be refused in between.
        let third = cold(2).start(&host);
        drop(silence);
        let served = server(&servers);
        let client = client.join().unwrap();
        third.until_ended(Outcome::Finished, 1);
        first.until_ended(Outcome::Finished, 1);
        assert_eq!(second.count(|counters| counters.hops_failed.read()), 1);
        (client, served)
    })
}

/// The client would have waited for a third SYN.
// promise: K19
#[test]
fn only_chain_retried() {
    let modes: Vec<AcceptMode> = AcceptMode::all().collect();
    at_once(&modes, |mode, theirs| {
        let request = |first: &Node| {
            let mut client = first.dial(mode, theirs).unwrap();
            client.write_all(b"a question").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            receive_all(&mut client)
        };
        let answer = |servers: &TcpListener| {
            let mut server = accept(servers);
            let requested = receive_all(&mut server);
            server.write_all(b"an answer").unwrap();
            requested
        };
        let (answered, requested) = retried(request, answer);
        assert_eq!(requested, Received::and_closed(b"a question"));
        assert_eq!(answered, Received::and_closed(b"an answer"));
    });
}

/// As above, with a client that has sent more than the first node keeps.
// promise: K19
#[test]
fn only_chain_retried_for_upload() {
    let bytes = content(4 << 20);
    at_once(&[AcceptMode::EARLY, AcceptMode::LATE], |mode, theirs| {
        let send = |first: &Node| {
            let mut client = first.dial(mode, theirs).unwrap();
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            receive_all(&mut client)
        };
        let send_back = |servers: &TcpListener| {
            let mut server = accept(servers);
            let received = receive_all(&mut server);
            server.write_all(&received.bytes).unwrap();
            received
        };
        for received in <[Received; 2]>::from(retried(send, send_back)) {
            assert!(received == Received::and_closed(&bytes), "other bytes");
        }
    });
}

/// A busy machine makes some attempts longer, none shorter: the best of some counts.
// promise: K4
#[test]
fn silent_node_skipped() {
    at_once(&[AcceptMode::EARLY, AcceptMode::STRICT], |mode, theirs| {
        let host = Host::enter();
        let _silence = host.silence(theirs.node(1));
        let _third = Setup::of(2).peer(0, theirs).start(&host);
        let servers = host.listen();
        let mut took = (0..10).map(|_| {
            // A new node has not noticed that the way is down.
            let first = Setup::of(0).peer(1, theirs).peer(2, theirs);
            let first = first.chain(&[1]).chain(&[2]).start(&host);
            let begin = Instant::now();
            let mut pair = first.open(mode, theirs, &servers);
            pair.check();
            let took = begin.elapsed();
            pair.close_client_first();
            assert_eq!(first.count(|counters| counters.hops_failed.read()), 1);
            took
        });
        let soon = took.find(|took| *took < Duration::from_millis(2500));
        assert!(soon.is_some(), "{mode:?} {theirs}");
    });
}
