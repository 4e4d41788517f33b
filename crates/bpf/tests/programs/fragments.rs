// SPDX-License-Identifier: Apache-2.0
//! Segments in fragments: those for sockets of ours come to us, with all that belongs to them.

use posthaste_lab::network::Family;
use socket2::Socket;

use crate::host::Verdict::{Passed, Redirected};
use crate::host::{Host, SOCKET_MARK, client, connecting, end, on_host, server};
use crate::segment::{ACK, RST, SYN, Segment, TCP, UDP, ethernet, finish_ipv4, ip};

/// Bytes of TCP in the first fragment, and where the second begins.
const FIRST_BYTES: u16 = 24;
const MORE: bool = true;
const LAST: bool = false;

/// A fragment from the server to the client: of protocol `protocol`, from byte `offset` on.
fn fragment_of(
    family: Family,
    protocol: u8,
    (id, offset, more): (u16, u16, bool),
    payload: &[u8],
) -> Vec<u8> {
    let (from, to) = (server(family).ip(), client(family).ip());
    if family == Family::V4 {
        let mut packet = ip(from, to, protocol, payload);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        let field = (offset / 8) | (u16::from(more) << 13);
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        finish_ipv4(&mut packet);
        return ethernet(&packet);
    }
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    let [id_high, id_low] = id.to_be_bytes();
    let header = [protocol, 0, high, low, 0xab, 0, id_high, id_low];
    ethernet(&ip(from, to, 44, &[&header, payload].concat()))
}

/// The first fragment of a segment from the server to the client.
fn first(family: Family, id: u16, flags: u8) -> Vec<u8> {
    let packet = Segment::new(server(family), client(family), flags).packet();
    let tcp = &packet[if family == Family::V4 { 20 } else { 40 }..];
    assert_eq!(tcp.len(), usize::from(FIRST_BYTES));
    fragment_of(family, TCP, (id, 0, MORE), tcp)
}

/// A later one.
fn later(family: Family, id: u16, more: bool) -> Vec<u8> {
    let offset = if more { FIRST_BYTES } else { FIRST_BYTES + 80 };
    fragment_of(family, TCP, (id, offset, more), &[0x55; 80])
}

/// A socket of ours under the client's address.
fn upstream(family: Family, mark: u32) -> Socket {
    connecting(client(family), server(family), mark)
}

fn on_both(test: impl Fn(&mut Host<'_>, Family) + Sync) {
    on_host(|host| {
        for family in Family::ALL {
            test(host, family);
            assert!(host.events().is_empty(), "{family}");
        }
    });
}

// promise: T17
#[test]
fn own_fragments_redirected() {
    on_both(|host, family| {
        let _socket = upstream(family, SOCKET_MARK);
        for id in 1..=3 {
            for frame in [
                first(family, id, ACK),
                later(family, id, MORE),
                later(family, id, LAST),
                later(family, id, LAST),
            ] {
                assert_eq!(host.receive(&frame), Redirected, "{family} {id}");
            }
        }
        assert_eq!(host.receive(&first(family, 4, RST)), Redirected, "{family}");
    });
}

// promise: T15
#[test]
fn other_fragments_pass() {
    on_both(|host, family| {
        for socket in [None, Some(upstream(family, 5))] {
            for frame in [first(family, 1, ACK), later(family, 1, LAST)] {
                assert_eq!(host.receive(&frame), Passed, "{family} {socket:?}");
            }
        }
    });
}

// promise: T15
#[test]
fn early_fragments_pass() {
    on_both(|host, family| {
        let _socket = upstream(family, SOCKET_MARK);
        assert_eq!(host.receive(&later(family, 1, LAST)), Passed, "{family}");
        assert_eq!(host.receive(&first(family, 1, ACK)), Redirected);
        assert_eq!(host.receive(&later(family, 1, MORE)), Redirected);
        assert_eq!(host.receive(&later(family, 2, LAST)), Passed, "another's");
    });
}

// promise: T17
#[test]
fn reused_identification_forgotten() {
    on_both(|host, family| {
        let socket = upstream(family, SOCKET_MARK);
        assert_eq!(host.receive(&first(family, 1, ACK)), Redirected);
        end(socket);
        assert_eq!(host.receive(&first(family, 1, ACK)), Passed);
        assert_eq!(host.receive(&later(family, 1, LAST)), Passed, "{family}");
    });
}

/// A SYN-ACK waits at the worker for the client's validation, and would not in fragments.
// promise: T15
#[test]
fn opening_fragments_pass() {
    on_both(|host, family| {
        let _socket = upstream(family, SOCKET_MARK);
        for flags in [SYN, SYN | ACK] {
            assert_eq!(host.receive(&first(family, 1, flags)), Passed, "{family}");
            assert_eq!(host.receive(&later(family, 1, LAST)), Passed, "{family}");
        }
    });
}

// promise: T15
#[test]
fn short_first_fragment_passes() {
    on_both(|host, family| {
        let _socket = upstream(family, SOCKET_MARK);
        let whole = first(family, 1, ACK);
        let header = whole.len() - usize::from(FIRST_BYTES);
        for bytes in [8, 16] {
            let short = fragment_of(family, TCP, (1, 0, MORE), &whole[header..][..bytes]);
            assert_eq!(host.receive(&short), Passed, "{family} {bytes}");
            assert_eq!(host.receive(&later(family, 1, LAST)), Passed, "{family}");
        }
    });
}

#[test]
fn fragments_of_other_protocols_pass() {
    on_both(|host, family| {
        let _socket = upstream(family, SOCKET_MARK);
        assert_eq!(host.receive(&first(family, 1, ACK)), Redirected);
        let tcp = first(family, 1, ACK);
        let tcp = &tcp[tcp.len() - usize::from(FIRST_BYTES)..];
        for (place, what) in [((1, 0, MORE), "first"), ((1, 24, LAST), "last")] {
            let frame = fragment_of(family, UDP, place, tcp);
            assert_eq!(host.receive(&frame), Passed, "{family} {what}");
        }
    });
}

/// RFC 6946: a whole packet with a fragment header.
#[test]
fn atomic_fragment_is_segment() {
    on_host(|host| {
        let _socket = upstream(Family::V6, SOCKET_MARK);
        let tcp = first(Family::V6, 1, ACK);
        let tcp = &tcp[tcp.len() - usize::from(FIRST_BYTES)..];
        let atomic = fragment_of(Family::V6, TCP, (1, 0, LAST), tcp);
        assert_eq!(host.receive(&atomic), Redirected);
        assert_eq!(
            host.receive(&first(Family::V6, 2, ACK)[..14 + 40 + 4]),
            Passed
        );
    });
}
