// SPDX-License-Identifier: Apache-2.0
//! Kinds of connections and how they end, over lossy links and behind a strict firewall.

use super::*;

/// Bytes that depend on their place.
pub(super) fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from((at * 7 + at / 251 + seed) % 256).expect("a byte"))
        .collect()
}

/// Sends from one end while the other reads, and compares.
pub(super) fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: usize, seed: usize) {
    let sent = pattern(bytes, seed);
    let mut received = vec![0; bytes];
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("the bytes are sent"));
        to.read_exact(&mut received).expect("the bytes arrive");
    });
    assert!(sent == received, "{bytes} bytes, seed {seed}");
}

/// One connection of a kind.
pub(super) fn exchange(kind: usize, seed: usize, mut pair: Pair) {
    let (client, server) = (&mut pair.client, &mut pair.server);
    match kind {
        // The client, then the server closes first.
        0 => carry(client, server, 700, seed),
        1 => {
            carry(client, server, 700, seed);
            carry(server, client, 30_000, seed);
            return pair.close_server_first();
        }
        // The server has something to say first.
        2 => carry(server, client, 2_000, seed),
        // A first flight, an upload, a download.
        3 => carry(client, server, 14_000, seed),
        4 => carry(client, server, 200_000, seed),
        5 => carry(server, client, 300_000, seed),
        // Half closed.
        6 => {
            carry(client, server, 900, seed);
            client.shutdown(Shutdown::Write).expect("it is open");
            expect_end(server);
            carry(server, client, 60_000, seed);
            server.shutdown(Shutdown::Write).expect("it is open");
            return expect_end(client);
        }
        // Nothing at all.
        7 => (),
        // Resets.
        8 => {
            carry(client, server, 5_000, seed);
            let mut server = pair.server;
            reset(pair.client);
            return expect_reset(&mut server);
        }
        _ => {
            carry(server, client, 5_000, seed);
            let mut client = pair.client;
            reset(pair.server);
            return expect_reset(&mut client);
        }
    }
    pair.close_client_first();
}

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
#[test]
fn every_kind_ends_as_without_a_node() {
    let network = line();
    let (node, listener) = ready(&network);
    exchange_all(&network, &node, &listener, 10);
}

// promise: PK2
/// Resets are left out: nobody repeats one that was lost.
#[test]
fn losses_are_repaired() {
    let link = || Link::delay(Duration::from_millis(4)).loss(0.02);
    let network = network([link(), link()]);
    let (node, listener) = ready(&network);
    exchange_all(&network, &node, &listener, 8);
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
    exchange_all(&network, &node, &listener, 10);
    let rules = host
        .command("nft")
        .and_then(|mut nft| Ok(nft.args(["list", "table", "inet", "strict"]).output()?));
    let rules = String::from_utf8(rules.expect("nft runs").stdout).expect("text");
    assert!(
        rules.contains("ct state invalid counter packets 0 "),
        "{rules}"
    );
}
