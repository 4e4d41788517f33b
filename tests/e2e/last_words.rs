// SPDX-License-Identifier: Apache-2.0
//! Bytes that one end sends before it resets its connection: a server that refuses an upload
//! answers and closes with bytes unread, and its kernel sends a reset after the answer (RFC 9112
//! section 9.6).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};

use crate::chains::{Plan, line_of};
use crate::support::{
    MODES_BY_PORT, PORT, Pair, accept, dial, each_mode, expect_reset, firewall, line, listen,
    network, relay_of, remove_firewall, reset, start_relaying, target, until, until_counter,
};

const UPLOAD_BYTES: usize = 2 << 20;
const READ_BYTES: usize = 1024;
const ANSWER: [u8; 2000] = [7; 2000];
/// Connections that are open at a time.
const AT_ONCE: usize = 8;

/// How the end that answers goes.
#[derive(Clone, Copy, Debug)]
enum Close {
    /// With bytes unread: its kernel sends a reset in place of a FIN.
    AtOnce,
    /// It sends its FIN first, and the reset follows.
    BehindFin,
}

/// Reads some of an upload, answers, and goes while more comes.
fn refuse(mut stream: TcpStream, close: Close) {
    let mut some = [0; READ_BYTES];
    stream.read_exact(&mut some).expect("an upload begins");
    stream.write_all(&ANSWER).expect("the other end is there");
    if matches!(close, Close::BehindFin) {
        stream.shutdown(Shutdown::Write).expect("it is open");
    }
    let more = stream.peek(&mut some).expect("the upload continues");
    assert!(more > 0, "without unread bytes there is no reset");
}

/// Uploads until that fails, then reads what there is; whether all of the answer came.
fn upload(mut stream: TcpStream, close: Close) -> bool {
    let sent = stream.write_all(&vec![1; UPLOAD_BYTES]);
    let mut received = Vec::new();
    let end = stream.read_to_end(&mut received);
    let is_reported = sent.is_err() || end.is_err();
    assert!(
        is_reported || matches!(close, Close::BehindFin),
        "no reset: {} bytes",
        received.len()
    );
    for error in [sent.err(), end.err()].into_iter().flatten() {
        let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(reset.contains(&error.kind()), "{error}");
    }
    received == ANSWER
}

/// Who uploads, and so who is cut off.
#[derive(Clone, Copy, Debug)]
enum Uploader {
    Client,
    Server,
}

/// Has so many uploads refused; how many of the answers came.
fn refused(
    network: &Network,
    family: Family,
    listener: &TcpListener,
    count: usize,
    (uploader, close): (Uploader, Close),
) -> usize {
    let to = target(network, family, listener);
    let whole = AtomicUsize::new(0);
    let play = |stream, uploads: bool| {
        if uploads {
            whole.fetch_add(upload(stream, close).into(), Ordering::Relaxed);
        } else {
            refuse(stream, close);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..count / AT_ONCE {
                    let client = dial(network.client(), to).expect("it connects");
                    play(client, matches!(uploader, Uploader::Client));
                }
            });
            scope.spawn(|| {
                for _ in 0..count / AT_ONCE {
                    play(accept(listener).0, matches!(uploader, Uploader::Server));
                }
            });
        }
    });
    whole.into_inner()
}

/// Has packets arrive in the order in which they were sent: a kernel's reset, sent by the CPU that received more of the
/// upload, could overtake the answer, which the CPU of its server sends.
fn keep_order(network: &Network) {
    let ends = [network.client(), network.server()];
    for host in ends.into_iter().chain(network.nodes()) {
        host.receive_on(0).expect("packets are steered");
    }
}

const WAYS: [(Uploader, Close); 4] = [
    (Uploader::Client, Close::AtOnce),
    (Uploader::Client, Close::BehindFin),
    (Uploader::Server, Close::AtOnce),
    (Uploader::Server, Close::BehindFin),
];

// promise: I8
#[test]
fn answer_before_reset() {
    let network = line();
    keep_order(&network);
    let check = |how: &str, port: u16| {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            for way in WAYS {
                let count = if matches!(way.1, Close::AtOnce) {
                    200
                } else {
                    40
                };
                let whole = refused(&network, family, &listener, count, way);
                assert_eq!(whole, count, "{how} {family} {way:?}");
            }
        }
    };
    check("without a node", PORT);
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        check(mode, port);
        until_counter(&node, "relays", 0);
    }
}

// promise: I8
#[test]
fn answer_before_reset_over_hops() {
    let network = line_of(2);
    keep_order(&network);
    let listener = listen(network.server(), PORT);
    for (hops, warm) in [(Family::V6, false), (Family::V4, true)] {
        let plan = Plan {
            hops,
            warm,
            ..Plan::of(2)
        };
        let nodes = plan.start(&network);
        for family in Family::ALL {
            for way in WAYS {
                let whole = refused(&network, family, &listener, 40, way);
                assert_eq!(whole, 40, "warm: {warm} {family} {way:?}");
            }
        }
        for node in &nodes {
            until_counter(node, "relays", 0);
        }
    }
}

/// The node has taken everything long before the end behind a slow link has.
// promise: I8
#[test]
fn reset_waits_for_acknowledgement() {
    let slow = Link::delay(Duration::from_millis(50)).rate(4_000_000);
    for (links, late) in [
        ([slow.clone(), Link::Veth], Uploader::Client),
        ([Link::Veth, slow], Uploader::Server),
    ] {
        let network = network(links);
        let node = start_relaying(&network, &each_mode());
        for (_, port) in MODES_BY_PORT {
            let listener = listen(network.server(), port);
            for family in Family::ALL {
                let pair = Pair::open(&network, family, &listener);
                let client = pair.client_address();
                let taken = |key: &str| {
                    let relay = relay_of(&node, client).expect("it is relayed");
                    relay[key].as_u64().expect("a number")
                };
                match late {
                    Uploader::Client => {
                        last_words(pair.server, pair.client, || taken("bytes_down"))
                    }
                    Uploader::Server => last_words(pair.client, pair.server, || taken("bytes_up")),
                }
            }
            until_counter(&node, "relays", 0);
        }
    }
}

/// Sends bytes, waits until the node has them, resets; all of them have to arrive.
fn last_words(mut from: TcpStream, mut to: TcpStream, taken: impl Fn() -> u64) {
    let message = vec![9; 100_000];
    from.write_all(&message).expect("they are sent");
    until("bytes at the node", || taken() == message.len() as u64);
    reset(from);
    let mut received = vec![0; message.len()];
    to.read_exact(&mut received)
        .expect("every byte before a reset");
    assert!(received == message);
    expect_reset(&mut to);
}

/// More than is kept for another hop: the rest waits for the reply, which the server delays.
// promise: I8
#[test]
fn reset_before_a_late_reply() {
    let network = line_of(2);
    let listener = listen(network.server(), PORT);
    let nodes = Plan::of(2).start(&network);
    for family in Family::ALL {
        let syns = "tcp flags & (syn | ack) == syn drop";
        firewall(network.server(), "late", &[("input", syns)]);
        let target = target(&network, family, &listener);
        let mut client = dial(network.client(), target).expect("the node accepts");
        client
            .write_all(&[9; 230_000])
            .expect("the node takes them");
        reset(client);
        remove_firewall(network.server(), "late");
        let (mut server, _) = accept(&listener);
        let begun = Instant::now();
        let mut received = Vec::new();
        let end = server.read_to_end(&mut received).expect_err("a reset");
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{family}");
        assert!(received.iter().all(|byte| *byte == 9));
        // A relay without progress ends after 30 s.
        assert!(begun.elapsed() < Duration::from_secs(20), "{family}");
    }
    for node in &nodes {
        until_counter(node, "relays", 0);
    }
}
