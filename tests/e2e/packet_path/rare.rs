// SPDX-License-Identifier: Apache-2.0
//! Flows whose segments come in fragments, behind IP options or extension headers, or in chains: all of
//! them are translated.

use posthaste_lab::link::split::{checksum, split};

use crate::fragments::{both_ways, reassembled};
use crate::support::{kernel_counter, run};

use super::*;

const TCP: u8 = 6;
const SYN: u8 = 2;
/// Destination options of an IPv6 packet (RFC 8200 section 4.6), of eight bytes of padding.
const OPTIONS: u8 = 60;
/// Bytes that [`with_options`] adds.
const ADDED: usize = 8;

/// A connection of each family that the packet path carries, on the network's own listener.
fn carried(network: &Network, node: &Node, listener: &TcpListener) -> [Pair; 2] {
    let taken = redirect(node, "packet_taken");
    let pairs = Family::ALL.map(|family| Pair::open(network, family, listener));
    assert_eq!(redirect(node, "packet_taken"), taken + 2);
    pairs
}

/// Every packet of more than 576 bytes arrives in fragments, in both directions.
// promise: PK21
#[test]
fn fragments_of_carried_flows() {
    let small = Link::Veth.rewrites(split);
    let network = network([small.clone(), small]);
    let (node, listener) = ready(&network);
    let pairs = carried(&network, &node, &listener);
    for (family, pair) in Family::ALL.into_iter().zip(pairs) {
        let hosts = [network.client(), network.server()];
        let before = hosts.map(|host| reassembled(host, family));
        both_ways(&pair);
        let after = hosts.map(|host| reassembled(host, family));
        assert!(after[0] > before[0] + 500 && after[1] > before[1] + 500);
        pair.close_client_first();
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// All but SYNs have IP options, or extension headers.
// promise: PK21
#[test]
fn options_of_carried_flows() {
    let link = Link::Veth.rewrites(with_options);
    let network = network([link.clone(), link]);
    for host in [network.client(), network.server()] {
        each_device(host, "ip link set $d mtu 1400");
    }
    let (node, listener) = ready(&network);
    for pair in carried(&network, &node, &listener) {
        both_ways(&pair);
        pair.close_server_first();
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// Transfers of which one at least shows what segments are like: a busy machine makes the ends send some again.
const TRANSFERS: usize = 5;

fn with_options(packet: Vec<u8>) -> Vec<Vec<u8>> {
    let is_ipv4 = packet[0] >> 4 == 4;
    let (header, next) = if is_ipv4 { (20, 9) } else { (40, 6) };
    if packet[next] != TCP || (is_ipv4 && packet[0] != 0x45) || packet[header + 13] & SYN != 0 {
        return vec![packet];
    }
    let mut packet = packet;
    let whole = u16::try_from(packet.len() + ADDED).expect("a packet");
    if is_ipv4 {
        packet.splice(header..header, [1; ADDED]);
        packet[0] = 0x47;
        packet[2..4].copy_from_slice(&whole.to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header + ADDED]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet.splice(header..header, [TCP, 0, 1, 4, 0, 0, 0, 0]);
        packet[6] = OPTIONS;
        packet[4..6].copy_from_slice(&(whole - 40).to_be_bytes());
    }
    vec![packet]
}

/// The host joins segments to chains in which each has its own header (`rx-gro-list`): the numbers of all of
/// them are right, so nothing is sent again.
// promise: PK21
#[test]
fn chains_of_carried_flows() {
    let network = line();
    let host = network.node(0);
    for end in [network.client(), network.server()] {
        each_device(end, "ethtool -K $d tso off gso off gro off");
    }
    each_device(host, "ethtool -K $d gro on rx-gro-list on");
    each_device(host, "ethtool -K $d tso off; ethtool -K $d tx-gso-list off");
    // Segments wait for others to be joined with.
    let wait = "echo 2000000 > /sys/class/net/$d/gro_flush_timeout; \
                echo 100 > /sys/class/net/$d/napi_defer_hard_irqs";
    each_device(host, wait);
    // What several CPUs receive overtakes, and is sent again for that.
    for host in [network.client(), host, network.server()] {
        host.receive_on(0).expect("packets are steered");
    }
    let (node, listener) = ready(&network);
    let sent_again = || -> u64 {
        let ends = [network.client(), network.server()];
        ends.map(|host| kernel_counter(host, "Tcp", "RetransSegs"))
            .iter()
            .sum()
    };
    for pair in carried(&network, &node, &listener) {
        let transfers = (0..TRANSFERS).map(|_| {
            let before = sent_again();
            both_ways(&pair);
            sent_again() - before
        });
        let counts: Vec<_> = transfers.collect();
        let least = counts.iter().min().expect("there are transfers");
        assert!(*least < 20, "segments are sent again: {counts:?}");
        pair.close_client_first();
    }
}

/// Runs a line of a shell for each device of a host, `$d`.
fn each_device(host: &Namespace, line: &str) {
    let script = format!(
        "mount -t sysfs none /sys; for d in $(ls /sys/class/net); do [ $d = lo ] && continue; {line}; done"
    );
    let mut command = host.command("unshare").expect("the namespace is open");
    run(command.args(["--mount", "sh", "-ec", &script]), line);
}
