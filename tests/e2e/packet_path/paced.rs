// SPDX-License-Identifier: Apache-2.0
//! Clients that are much nearer than their servers, behind an interface with `fq`.

use super::*;
use crate::support::kernel_counter;

/// One way from the server, longer than the client's retransmission timeout after the handshake
/// with the node (200 ms and its own round trip).
const FAR: Duration = Duration::from_millis(200);
const UPLOADS: usize = 10;

/// Uploads that fit the first window, and returns the segments that the client repeated.
fn repeated(network: &Network, listener: &TcpListener) -> u64 {
    let counter = || kernel_counter(network.client(), "Tcp", "RetransSegs");
    let before = counter();
    for _ in 0..UPLOADS {
        let mut pair = Pair::open(network, Family::V4, listener);
        let mut received = vec![0; 9_000];
        pair.client.write_all(&received).expect("it is sent");
        pair.server.read_exact(&mut received).expect("it arrives");
        pair.close_server_first();
    }
    counter() - before
}

#[test]
#[ignore = "needs fq: run by make kernel-test"]
fn answers_wait_for_far_servers() {
    let network = network([Link::delay(Duration::from_millis(1)), Link::delay(FAR)]);
    let (node, listener) = ready(&network);
    let without = repeated(&network, &listener);
    assert!(without > 0, "nothing waits at the node for its server");
    let host = network.node(0);
    let mut tc = host.command("tc").unwrap();
    tc.args("qdisc replace dev c0 root fq".split(' '));
    assert!(tc.status().unwrap().success());
    // The node reads the interface anew.
    host.ip("link set c0 alias paced").unwrap();
    let taken = redirect(&node, "packet_taken");
    until("the node delays its answers", || {
        let begun = std::time::Instant::now();
        let pair = Pair::open(&network, Family::V4, &listener);
        let took = begun.elapsed();
        pair.close_client_first();
        took > FAR
    });
    let with = repeated(&network, &listener);
    assert!(with * 4 < without, "{with} of {without} are still repeated");
    assert!(redirect(&node, "packet_taken") > taken);
}
