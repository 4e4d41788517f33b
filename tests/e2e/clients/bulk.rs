// SPDX-License-Identifier: Apache-2.0
//! Much at once: iperf3, and a gigabyte over a link that loses packets.

use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::Process;
use posthaste_lab::transfer::{Request, Server, fetch};
use serde_json::Value;

use super::{program, run, settle};
use crate::support::{PORT, SOON, counter, line, network, start_relaying, until};
use crate::watch::{Accounts, sockets};

// promise: T8
#[test]
fn iperf3_moves_gigabytes_both_ways() {
    let network = line();
    let mut server = network.server().command(program("iperf3")).unwrap();
    server.arg("--server");
    let mut server = Process::spawn("iperf3", server).unwrap();
    server
        .wait_until("listener", SOON, |_| {
            !sockets(network.server(), "listening").is_empty()
        })
        .unwrap();
    let node = start_relaying(&network, "");
    let accounts = Accounts::of(&node);
    let mut connections = 0;
    for family in Family::ALL {
        for direction in [&[][..], &["--reverse"]] {
            connections += measure(&network, family, direction);
        }
    }
    assert_eq!(settle(&node, &accounts), connections);
    let total = counter(&node, "bytes_spliced");
    assert!(total > 3_600_000_000, "{total} bytes spliced");
}

/// The message of iperf3 while the server still serves the previous client.
const BUSY: &str = "the server is busy running a test. try again later";

/// Measures when the server is free. Returns how many connections that took: one for control, one
/// for data, and one for each refusal.
fn measure(network: &Network, family: Family, options: &[&str]) -> u64 {
    let mut refusals = 0;
    let mut report = Value::Null;
    until("time of the server", || {
        report = run_client(network, family, options);
        let busy = report["error"] == BUSY;
        refusals += u64::from(busy);
        !busy
    });
    // iperf3 that prints JSON ends well even when it fails.
    assert_eq!(report["error"], Value::Null, "{report}");
    // The receiver stops on the sender's control message, even with data still in flight.
    for (side, least) in [("sum_sent", 1_000_000_000), ("sum_received", 900_000_000)] {
        let bytes = report["end"][side]["bytes"].as_u64();
        assert!(bytes >= Some(least), "{bytes:?} {side}: {report}");
    }
    2 + refusals
}

fn run_client(network: &Network, family: Family, options: &[&str]) -> Value {
    let mut client = network.client().command(program("iperf3")).unwrap();
    client
        .arg("--client")
        .arg(network.server_address(family).to_string())
        .args(["--bytes", "1000000000", "--json"])
        .args(options);
    serde_json::from_str(&run(&mut client)).unwrap()
}

/// What the client fetches over the lossy link.
const GIGABYTE: u64 = 1_000_000_000;

// promise: I1
#[test]
fn gigabyte_over_lossy_link() {
    let lossy = Link::delay(Duration::from_millis(5))
        .rate(300_000_000)
        .loss(0.01);
    let network = network([lossy, Link::Veth]);
    let _server = Server::start(network.server(), PORT, "cubic").unwrap();
    let node = start_relaying(&network, "[defaults.downstream]\ncongestion = \"bbr\"\n");
    let accounts = Accounts::of(&node);
    let shares = [(Family::V4, GIGABYTE), (Family::V6, GIGABYTE / 10)];
    for (family, bytes) in shares {
        let mut request = Request::new(network.server_address(family), PORT, bytes);
        request.deadline = Duration::from_secs(600);
        // It compares every byte.
        let timing = fetch(network.client(), &request).unwrap();
        println!("{family}: {bytes} bytes in {:.1?}", timing.complete);
    }
    accounts.settle(&node, &[("finished", 2)]);
    let carried: u64 = shares.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(counter(&node, "bytes_down"), carried);
    let stats = network.stats();
    assert!(stats.dropped * 150 > stats.packets, "{stats:?}");
}
