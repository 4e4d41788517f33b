// SPDX-License-Identifier: Apache-2.0
//! Paths that fail, and ends of connections.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use posthaste_lab::network::Family;
use socket2::Protocol;

use super::testbed::{TwoPaths, content, multipath, server, transfer, until_joined};
use super::{converting, converting_in_each_mode};
use crate::ends::{KINDS, ORDERLY, exchange};
use crate::support::{
    MODES_BY_PORT, PORT, Pair, counter, errno, expect_reset, firewall, kernel_counter,
    until_counter, until_ended,
};

/// Downloads while `cut` breaks the first path.
fn download_across(cut: impl Fn(&TwoPaths) + Sync) {
    const BYTES: usize = 24 << 20;
    let bed = TwoPaths::new();
    let node = bed.node(&converting("early"));
    // Slow enough that the cut meets the download.
    for side in ["c1", "c2"] {
        let shape = format!("qdisc add dev {side} root tbf rate 40mbit burst 32kb latency 50ms");
        let mut tc = bed.router.command("tc").expect("tc");
        assert!(
            tc.args(shape.split(' '))
                .status()
                .expect("tc runs")
                .success()
        );
    }
    let listener = bed.listen(Family::V4, Protocol::TCP);
    let (mut client, mut server) = bed.connect(Family::V4, &listener);
    until_joined(&bed.router, 1);
    let sender = thread::spawn(move || {
        server.write_all(&content(BYTES)).expect("it is sent");
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(700));
            cut(&bed);
        });
        let mut received = Vec::with_capacity(BYTES);
        // It has a timeout; how long the download stops is the lab's to measure.
        let read = client.read_to_end(&mut received);
        read.expect("no error reaches the client");
        assert!(received == content(BYTES), "{} bytes", received.len());
    });
    sender.join().expect("the sender ends");
    drop(client);
    until_ended(&node, "finished", 1);
}

// promise: MP4
#[test]
fn download_survives_a_link_down() {
    download_across(|bed| bed.client.ip("link set p1 down").expect("a link"));
}

// promise: MP4
#[test]
fn download_survives_a_silent_path() {
    download_across(|bed| {
        let arriving = ("prerouting", "iifname \"c1\" drop");
        let leaving = ("postrouting", "oifname \"c1\" drop");
        firewall(&bed.router, "silent", &[arriving, leaving]);
    });
}

// promise: MP5
#[test]
fn ends_reach_the_other_side() {
    let bed = TwoPaths::new();
    let node = bed.node(&converting_in_each_mode());
    for (turn, (_, port)) in (1..).zip(MODES_BY_PORT) {
        for family in Family::ALL {
            let listener = bed.listen_at(port, family, Protocol::TCP);
            for kind in 0..KINDS {
                let (client, server) = bed.connect(family, &listener);
                exchange(kind, turn, Pair { client, server });
            }
        }
        until_ended(&node, "finished", (turn * 2 * ORDERLY) as u64);
        until_counter(&node, "relays", 0);
    }
    assert_eq!(counter(&node, "multipath_accepted"), 6 * KINDS as u64);
}

/// The paths of a connection end after it.
// promise: MP5
#[test]
fn orderly_ends_reset_no_path() {
    const COUNT: u64 = 30;
    let bed = TwoPaths::new();
    let node = bed.node(&converting("early"));
    // A connection ends by an option (RFC 8684 section 3.3.3), and only then its paths.
    let fin = ("output", "tcp flags & fin == fin drop");
    firewall(&bed.client, "late", &[fin]);
    for family in Family::ALL {
        let listener = bed.listen(family, Protocol::TCP);
        let before = multipath(&bed.router, "MPJoinAckRx");
        for count in 1..=COUNT {
            let (mut client, server) = bed.connect(family, &listener);
            // Later ones would be refused.
            until_joined(&bed.router, before + count);
            let mut server = transfer(server, &mut client, 1_000);
            transfer(client, &mut server, 1_000);
        }
    }
    until_ended(&node, "finished", 2 * COUNT);
    assert_eq!(multipath(&bed.client, "MPRstRx"), 0);
    assert_eq!(kernel_counter(&bed.client, "Tcp", "EstabResets"), 0);
}

// promise: MP5
#[test]
fn refusal_reaches_the_client() {
    let bed = TwoPaths::new();
    let _node = bed.node(&converting("strict"));
    for family in Family::ALL {
        let refused = bed.dial(server(family, PORT));
        assert_eq!(errno(&refused), Some(libc::ECONNREFUSED), "{family}");
    }
}

/// A node that dies resets both ends, and the next one converts.
// promise: MP5
#[test]
fn restart_resets_open_relays() {
    let bed = TwoPaths::new();
    let mut node = bed.node(&converting("early"));
    let open = (1..).zip(Family::ALL).map(|(count, family)| {
        let listener = bed.listen(family, Protocol::TCP);
        let ends = bed.connect(family, &listener);
        until_joined(&bed.router, count);
        ends
    });
    let open: Vec<_> = open.collect();
    node.kill().expect("it can be killed");
    for (mut client, mut server) in open {
        expect_reset(&mut client);
        expect_reset(&mut server);
    }
    let node = bed.node(&converting("early"));
    for (count, family) in (3..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.router, count);
        let mut client = transfer(client, &mut server, 100_000);
        transfer(server, &mut client, 100_000);
    }
    until_ended(&node, "finished", 2);
}

/// What a middlebox may do to all segments but SYNs.
const STRIP: &str = "table inet strip {
chain out {
type filter hook output priority 0;
tcp flags & syn == 0 reset tcp option mptcp
}
}
";

/// A middlebox begins to remove the option: the connection goes on as TCP.
#[test]
fn removed_options_make_it_tcp() {
    let bed = TwoPaths::new();
    bed.client.ip("mptcp endpoint flush").expect("no endpoints");
    let node = bed.node(&converting("early"));
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        let (client, server) = bed.connect(family, &listener);
        let exchange = || {
            for [from, to] in [[&client, &server], [&server, &client]] {
                let (mut from, mut to) = (from, to);
                let mut received = [0; 6];
                from.write_all(b"either").expect("it is sent");
                to.read_exact(&mut received).expect("it arrives");
                assert_eq!(received, *b"either", "{family}");
            }
        };
        exchange();
        bed.client.nft(STRIP).expect("nft removes options");
        exchange();
        bed.client
            .nft("delete table inet strip")
            .expect("it is there");
        drop((client, server));
        until_counter(&node, "multipath_fell_back_later", count);
    }
}
