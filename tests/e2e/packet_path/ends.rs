// SPDX-License-Identifier: Apache-2.0
//! Every kind of connection over lossy links and behind a strict firewall.

use super::*;
use crate::ends::{KINDS, ORDERLY, exchange};

/// Makes connections of all kinds up to `kinds`, and checks that they took the packet path.
pub(super) fn exchange_all(network: &Network, node: &Node, listener: &TcpListener, kinds: usize) {
    for family in Family::ALL {
        let taken = redirect(node, "packet_taken");
        for seed in 0..3 {
            for kind in 0..kinds {
                exchange(kind, seed, Pair::open(network, family, listener));
            }
        }
        let all = u64::try_from(3 * kinds).expect("a small number");
        assert_eq!(redirect(node, "packet_taken"), taken + all, "{family}");
    }
}

// promise: PK2
/// Resets are left out: nobody repeats one that was lost.
#[test]
fn losses_are_repaired() {
    let link = || Link::delay(Duration::from_millis(4)).loss(0.02);
    let network = network([link(), link()]);
    let (node, listener) = ready(&network);
    exchange_all(&network, &node, &listener, ORDERLY);
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
    let (node, listener) = ready(&network);
    exchange_all(&network, &node, &listener, KINDS);
    let rules = host
        .command("nft")
        .and_then(|mut nft| Ok(nft.args(["list", "table", "inet", "strict"]).output()?));
    let rules = String::from_utf8(rules.expect("nft runs").stdout).expect("text");
    assert!(
        rules.contains("ct state invalid counter packets 0 "),
        "{rules}"
    );
}
