// SPDX-License-Identifier: Apache-2.0
//! Rules that change between packets and sockets while connections are open.

use super::ends::carry;
use super::*;
use crate::support::dial_from;

/// Reloads rules with a data path.
fn switch(node: &Node, data_path: &str) {
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
        carry(&mut pair.client, &mut pair.server, 100_000, 1);
        carry(&mut pair.server, &mut pair.client, 100_000, 2);
    }
}

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

/// A relay that has ended leaves a TIME_WAIT socket, to which this host would give the packets of the
/// next connection with its addresses and ports.
#[test]
fn ports_of_relays_are_used_again() {
    let network = line();
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let to = target(&network, family, &listener);
        let source = (network.client_address(family), 20_000).into();
        for data_path in ["socket", "packet", "socket", "packet"] {
            switch(&node, data_path);
            let mut pair = Pair::of(dial_from(network.client(), source, to), &listener);
            pair.check();
            // The client has no TIME_WAIT socket then.
            pair.close_server_first();
        }
    }
}
