// SPDX-License-Identifier: Apache-2.0
//! The check whether peers with tunnels answer over UDP: a firewall on the way is not noticed
//! otherwise, since hops use TCP then.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use posthaste_config::Config;
use posthaste_relay::sys;

use super::Verdict;
use super::checks::{or_ok, warn};
use super::host::Host;

/// The least size of a datagram that is answered (RFC 9000 section 6.1).
const PROBE_BYTES: usize = 1200;
/// A long header (RFC 9000 section 17.2), and a version that no server has (section 15).
const LONG_HEADER: u8 = 0xc0;
const UNKNOWN_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// Version of a Version Negotiation packet (section 17.2.1).
const NEGOTIATION: [u8; 4] = [0; 4];
const ID_BYTES: usize = 8;
/// How often a peer is probed, and how long each time: more than a long path takes.
const ATTEMPTS: usize = 2;
const WAIT: Duration = Duration::from_millis(600);

/// Requests the versions of QUIC of every peer with tunnels; returns those that did not answer. Takes
/// 1.2 s if there is one.
pub(super) fn look(config: &Config) -> Vec<SocketAddr> {
    let peers = config.policy.chains.peers.iter();
    let peers = peers.filter(|peer| peer.transport.has_tunnels());
    let addresses: BTreeSet<SocketAddr> = peers.map(|peer| peer.address).collect();
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    let v4 = silent(Ipv4Addr::UNSPECIFIED.into(), v4);
    let v6 = silent(Ipv6Addr::UNSPECIFIED.into(), v6);
    [v4, v6].concat()
}

/// Those of `addresses` that do not answer.
fn silent(any: IpAddr, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    // Without a socket of the family no node here reaches them either.
    let Ok(socket) = UdpSocket::bind(SocketAddr::new(any, 0)) else {
        return addresses;
    };
    let id: [u8; ID_BYTES] = sys::random();
    for _ in 0..ATTEMPTS {
        for address in &addresses {
            // What cannot be sent is not answered.
            let _ = socket.send_to(&probe(id), address);
        }
        let until = Instant::now() + WAIT;
        while !addresses.is_empty()
            && let Some(from) = answer(&socket, id, until)
        {
            addresses.retain(|address| *address != from);
        }
    }
    addresses
}

/// The sender of the next answer to a probe with `id`.
fn answer(socket: &UdpSocket, id: [u8; ID_BYTES], until: Instant) -> Option<SocketAddr> {
    let mut datagram = [0; PROBE_BYTES];
    loop {
        let left = until.checked_duration_since(Instant::now())?;
        socket.set_read_timeout(Some(left)).ok()?;
        match socket.recv_from(&mut datagram) {
            Ok((bytes, from)) if is_negotiation(&datagram[..bytes], id) => return Some(from),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

/// A packet of an unknown version whose two connection IDs are `id`.
fn probe(id: [u8; ID_BYTES]) -> Vec<u8> {
    let mut probe = head(UNKNOWN_VERSION, id);
    probe.resize(PROBE_BYTES, 0);
    probe
}

fn head(version: [u8; 4], id: [u8; ID_BYTES]) -> Vec<u8> {
    let mut head = vec![LONG_HEADER];
    head.extend(version);
    for _ in 0..2 {
        head.extend(u8::try_from(ID_BYTES));
        head.extend(id);
    }
    head
}

/// Whether it lists versions, in answer to a probe with `id`. The low bits of the first byte have
/// any value.
fn is_negotiation(datagram: &[u8], id: [u8; ID_BYTES]) -> bool {
    let expected = head(NEGOTIATION, id);
    datagram
        .first()
        .is_some_and(|first| first & 0x80 != 0 && datagram[1..].starts_with(&expected[1..]))
}

pub(super) fn tunnels(host: &Host, config: &Config) -> Vec<Verdict> {
    let peers = config.policy.chains.peers.iter();
    let mut peers = peers.filter(|peer| peer.transport.has_tunnels()).peekable();
    if peers.peek().is_none() {
        return Vec::new();
    }
    let silent = peers.filter(|peer| host.silent_tunnels.contains(&peer.address));
    let findings = silent.flat_map(|peer| {
        let (name, port) = (&peer.name, peer.address.port());
        warn(
            format!(
                "peer \"{name}\" does not answer over UDP at {}: hops to it use TCP",
                peer.address
            ),
            format!(
                "let UDP port {port} through on both hosts and on the way, and configure this node at \
                 the peer with transport = \"{}\"",
                peer.transport.name()
            ),
        )
    });
    or_ok(findings.collect(), "peers with tunnels answer over UDP")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; ID_BYTES] = [7; ID_BYTES];

    #[test]
    fn answers_to_this_probe_count() {
        let mut list = head(NEGOTIATION, ID);
        list.extend([0, 0, 0, 1]);
        assert!(is_negotiation(&list, ID));
        list[0] = 0x9a;
        assert!(is_negotiation(&list, ID), "low bits are any");
        assert!(!is_negotiation(&list, [8; ID_BYTES]), "another's");
        assert!(!is_negotiation(&probe(ID), ID), "an echo");
        assert!(!is_negotiation(&list[..12], ID), "cut off");
        assert!(!is_negotiation(&[], ID), "empty");
        list[0] = 0x40;
        assert!(!is_negotiation(&list, ID), "a short header");
    }
}
