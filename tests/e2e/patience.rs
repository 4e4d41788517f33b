// SPDX-License-Identifier: Apache-2.0
//! How long a node waits for a slow end, and how it detects a dead one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;

use crate::support::{
    PORT, Pair, counter, ended, expect_end, firewall, line, listen, start_relaying, until_ended,
};

/// More than the socket buffers of a whole path hold.
const MUCH: usize = 20 << 20;
/// As long as any end may be silent in these tests.
const TIMEOUTS: &str = "[defaults.downstream]\nuser_timeout = \"5s\"\nkeepalive_idle = \"1s\"\n\
    keepalive_interval = \"1s\"\nkeepalive_probes = 3\n\
    [defaults.upstream]\nuser_timeout = \"5s\"\nkeepalive_idle = \"1s\"\n\
    keepalive_interval = \"1s\"\nkeepalive_probes = 3\n";
/// Three pauses of that.
const PAUSE: Duration = Duration::from_secs(15);
/// Probes come ever less often.
const IN_TIME: Duration = Duration::from_secs(120);
/// Cuts a host off.
const DEAF: &str = "drop";

/// Writes much, reads nothing until [`PAUSE`] is over, and gets all of it.
fn write_to_pausing_reader(mut from: TcpStream, mut to: TcpStream) {
    from.set_write_timeout(None).expect("an option");
    let writer = thread::spawn(move || from.write_all(&vec![3; MUCH]).map(|()| from));
    // The pause is what is tested: there is nothing to wait for.
    thread::sleep(PAUSE);
    let mut got = vec![0; MUCH];
    to.read_exact(&mut got).expect("every byte after the pause");
    assert!(got.iter().all(|byte| *byte == 3));
    let from = writer.join().expect("the writer").expect("all is sent");
    drop(from);
    expect_end(&mut to);
}

// promise: I9
#[test]
fn pausing_reader_gets_everything() {
    let network = line();
    let node = start_relaying(&network, TIMEOUTS);
    let listener = listen(network.server(), PORT);
    thread::scope(|scope| {
        for family in Family::ALL {
            let Pair { client, server } = Pair::open(&network, family, &listener);
            scope.spawn(|| write_to_pausing_reader(client, server));
            let Pair { client, server } = Pair::open(&network, family, &listener);
            scope.spawn(|| write_to_pausing_reader(server, client));
        }
    });
    until_ended(&node, "finished", 4);
}

// promise: I9
#[test]
fn dead_end_detected() {
    let network = line();
    let node = start_relaying(&network, TIMEOUTS);
    let listener = listen(network.server(), PORT);
    let open = || Family::ALL.map(|family| Pair::open(&network, family, &listener));
    let [mut silent, mut reading, mut pausing] = [open(), open(), open()];
    for pairs in [&mut silent, &mut reading, &mut pausing] {
        pairs.iter_mut().for_each(Pair::check);
    }
    for pair in &mut pausing {
        fill(&mut pair.server);
    }
    firewall(
        network.client(),
        "deaf",
        &[("input", DEAF), ("output", DEAF)],
    );
    for pair in &mut reading {
        pair.server.write_all(b"lost").expect("it is taken");
    }
    let found = wait_until("dead ends", IN_TIME, || {
        ended(&node, "downstream_timeout") == 6
    });
    assert!(found.is_ok(), "{:#}", node.relays().expect("it answers"));
}

/// Writes until nothing has been taken for a second: every window on the path is closed.
fn fill(stream: &mut TcpStream) {
    let second = Duration::from_secs(1);
    stream.set_write_timeout(Some(second)).expect("an option");
    let begun = Instant::now();
    while stream.write(&[0; 65_536]).is_ok() {
        assert!(begun.elapsed() < IN_TIME, "it takes everything");
    }
}

/// Keepalive probes find both ends alive, although they send nothing for longer than a dead one
/// may.
// promise: I9
#[test]
fn silent_live_ends_kept() {
    let network = line();
    let node = start_relaying(&network, TIMEOUTS);
    let listener = listen(network.server(), PORT);
    let mut pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    // A half-closed one too: its client sends no more, and waits.
    let mut waiting = Pair::open(&network, Family::V4, &listener);
    waiting
        .client
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    expect_end(&mut waiting.server);
    thread::sleep(PAUSE);
    pairs.iter_mut().for_each(Pair::check);
    waiting.server.write_all(b"late").expect("it is open");
    let mut late = [0; 4];
    waiting.client.read_exact(&mut late).expect("it arrives");
    assert_eq!(counter(&node, "relays"), 3);
}
