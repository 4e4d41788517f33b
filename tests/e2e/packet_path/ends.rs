// SPDX-License-Identifier: Apache-2.0
//! Every kind of connection over lossy links and behind a strict firewall.

use super::*;
use crate::ends::{KINDS, ORDERLY, UPLOADS, exchange};

/// Makes three connections of each kind up to `kinds` with a service of its own, and checks that they took the packet
/// path, but for those behind an upload.
pub(crate) fn exchange_all(network: &Network, node: &Node, first: u16, kinds: usize) {
    let ports = (first..).take(kinds);
    let listeners: Vec<_> = ports.map(|port| listen(network.server(), port)).collect();
    for family in Family::ALL {
        for (kind, listener) in listeners.iter().enumerate() {
            learn(network, node, family, listener);
            let taken = redirect(node, "packet_taken");
            for seed in 0..3 {
                exchange(kind, seed, Pair::open(network, family, listener));
                if UPLOADS.contains(&kind) {
                    // An acknowledgement that is lost shows nothing before it is repeated.
                    until("the end of the upload", || have_ended(node));
                }
            }
            let left = if UPLOADS.contains(&kind) { 2 } else { 0 };
            let now = redirect(node, "packet_taken");
            assert_eq!(now, taken + 3 - left, "{family}, kind {kind}");
        }
    }
}

/// Whether both ends of each flow have acknowledged its end.
fn have_ended(node: &Node) -> bool {
    let relays = node.relays().expect("the node answers");
    let flows = relays["packet_flows"].as_array().expect("a list");
    flows.iter().all(|flow| flow["phase"] == "closing")
}

// promise: PK2
/// Resets are left out: nobody repeats one that was lost.
#[test]
fn losses_are_repaired() {
    let link = || Link::delay(Duration::from_millis(4)).loss(0.02);
    let network = network([link(), link()]);
    let (node, _listener) = ready(&network);
    exchange_all(&network, &node, PORT + 1, ORDERLY);
}

// promise: PK5
/// The programs see packets before conntrack does on their way in, and after NAT on their way out:
/// the firewall sees one ordinary connection.
#[test]
fn strict_firewall_finds_nothing_invalid() {
    let network = line();
    let node = network.node(0);
    firewall_script(node, MASQUERADE);
    firewall_script(node, STRICT);
    let host = node;
    let (node, _listener) = ready(&network);
    exchange_all(&network, &node, PORT + 1, KINDS);
    let rules = host
        .command("nft")
        .and_then(|mut nft| Ok(nft.args(["list", "table", "inet", "strict"]).output()?));
    let rules = String::from_utf8(rules.expect("nft runs").stdout).expect("text");
    assert!(
        rules.contains("ct state invalid counter packets 0 "),
        "{rules}"
    );
}
