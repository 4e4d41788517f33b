// SPDX-License-Identifier: Apache-2.0
//! Network cards with offloads, which virtual cables lack: what arrives is joined, its checksum is
//! complete, partial or not looked at, and another program sees it first.

use super::ends::exchange_all;
use super::*;
use crate::ends::{KINDS, exchange};

/// Pairs of virtio cards that the emulated machine has.
const CARDS: [Link; 2] = [
    Link::Devices(["eth0", "eth1"]),
    Link::Devices(["eth2", "eth3"]),
];
/// A program that passes all packets, there.
const PASS: &str = "/pass.o";
/// Changes of the node's cards, one after another.
const CHANGES: [&str; 7] = [
    "true",
    "ethtool -K DEV gro off",
    "ethtool -K DEV rx-gro-hw off",
    "ethtool -K DEV tso off gso off",
    "ethtool -K DEV tx off sg off",
    "ethtool -K DEV tx on sg on tso on gso on gro on rx-gro-hw on",
    "ip link set dev DEV xdpgeneric obj /pass.o sec xdp",
];

fn change_cards(host: &Namespace, change: &str) {
    for card in ["c0", "s0"] {
        let line = change.replace("DEV", card);
        let mut words = line.split(' ');
        let mut command = host
            .command(words.next().expect("a program"))
            .expect("a host");
        let output = command.args(words).output().expect("it is installed");
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

#[test]
#[ignore = "needs two pairs of virtio cards: run by make kernel-test"]
fn every_kind_ends_over_cards() {
    assert!(
        std::path::Path::new(PASS).exists(),
        "scripts/kernel-test.sh makes {PASS}"
    );
    let network = network(CARDS);
    let (packets, listener) = ready(&network);
    for (first, change) in (1000..).step_by(KINDS).zip(CHANGES) {
        println!("packet path: {change}");
        change_cards(network.node(0), change);
        exchange_all(&network, &packets, first, KINDS);
    }
    change_cards(network.node(0), "ip link set dev DEV xdpgeneric off");
    drop(packets);
    let relays = start_relaying_in(network.node(0), "");
    // The killed node counts as living for some seconds.
    until("flows are relayed", || {
        Pair::open(&network, Family::V4, &listener).close_client_first();
        counter(&relays, "relays_opened") > 0
    });
    for change in CHANGES {
        println!("relays: {change}");
        change_cards(network.node(0), change);
        let opened = counter(&relays, "relays_opened");
        for family in Family::ALL {
            for kind in 0..KINDS {
                exchange(kind, 1, Pair::open(&network, family, &listener));
            }
        }
        let all = opened + 2 * KINDS as u64;
        assert_eq!(counter(&relays, "relays_opened"), all, "{change}");
    }
}
