// SPDX-License-Identifier: Apache-2.0
//! Rules that change between packets and sockets while connections are open.

use super::forged::{MSS, v4_ends};
use super::*;
use crate::ends::carry;
use crate::syn_options::raw::send_syn;

/// Reloads rules with a data path.
pub(super) fn switch(node: &Node, data_path: &str) {
    let config = format!("[defaults]\ndata_path = \"{data_path}\"\n");
    node.write_config(&config).expect("a file is written");
    node.admin("reload").expect("the rules are right");
}

/// Opens a connection of each family.
fn open(network: &Network, listener: &TcpListener) -> [Pair; 2] {
    Family::ALL.map(|family| Pair::open(network, family, listener))
}

fn exchange(pairs: &mut [Pair]) {
    for pair in pairs {
        pair.check();
        // The packet path does not answer for services that receive much.
        carry(&mut pair.client, &mut pair.server, 2_000, 1);
        carry(&mut pair.server, &mut pair.client, 100_000, 2);
    }
}

// promise: PK8
/// New connections take the path of the rules at their time, and open ones keep theirs.
#[test]
fn open_connections_keep_their_path() {
    let network = line();
    let (node, listener) = ready(&network);
    let counters = || {
        let relays = counter(&node, "relays_opened");
        [relays, redirect(&node, "packet_taken")]
    };
    let mut all = Vec::new();
    let before = counters();
    for (round, data_path) in ["packet", "socket", "packet", "socket", "packet"]
        .into_iter()
        .enumerate()
    {
        switch(&node, data_path);
        exchange(&mut all);
        all.extend(open(&network, &listener));
        exchange(&mut all);
        let relays = u64::try_from(2 * round.div_ceil(2)).expect("a small number");
        let packets = u64::try_from(2 * (round / 2 + 1)).expect("a small number");
        assert_eq!(counters(), [before[0] + relays, before[1] + packets]);
    }
    for pair in all {
        pair.close_client_first();
    }
}

// promise: PK8
/// A forged SYN, or that of a client that was started anew, goes to the relay that is open, whose
/// segments no program may keep from it.
#[test]
fn open_relays_keep_their_addresses() {
    let network = line();
    let (node, listener) = ready(&network);
    switch(&node, "socket");
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    switch(&node, "packet");
    let [from, to] = v4_ends(&pair);
    let [taken, local] = ["packet_taken", "packet_local"].map(|name| redirect(&node, name));
    send_syn(network.client(), from, to, &MSS);
    until("the SYN", || redirect(&node, "packet_local") > local);
    assert_eq!(redirect(&node, "packet_taken"), taken);
    pair.check();
    pair.close_client_first();
}
