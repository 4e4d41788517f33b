// SPDX-License-Identifier: Apache-2.0
//! Writes flows, addresses and times as the programs' structures, and reads them back.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use posthaste_relay::flow::{Flow, mapped};
use posthaste_relay::intercept::PathSettings;

use crate::objects::types;

/// A plain struct of the program as the bytes a map takes.
pub(crate) fn bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the generated types are `repr(C)` integers with explicit padding,
    // so every byte is initialised; the slice borrows `value`.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

/// A structure of the programs from its bytes; `None` if there are fewer.
pub(crate) fn whole<T: Copy + Structure>(raw: &[u8]) -> Option<T> {
    let raw = raw.get(..size_of::<T>())?;
    // SAFETY: `raw` is as long as the structure, whose fields take any bits.
    Some(unsafe { raw.as_ptr().cast::<T>().read_unaligned() })
}

const _: () = assert!(size_of::<Flow>() == size_of::<types::flow>());

/// Types for which any bit pattern is valid: integers, with explicit padding.
pub(crate) trait Structure {}
impl Structure for Flow {}
impl Structure for types::destination {}
impl Structure for types::event_head {}
impl Structure for types::flow {}
impl Structure for types::packet_flow {}
impl Structure for types::packet_key {}
impl Structure for types::packet_passage {}
impl Structure for types::packet_passage_key {}
impl Structure for types::packet_patience {}
impl Structure for types::packet_profile {}
impl Structure for types::profile {}
impl Structure for types::profile_key {}

/// 16 bytes of an address in network order. The words of the programs are in memory order, so the
/// conversion does not depend on the byte order of the host.
pub(crate) fn address(ip: [u8; 16]) -> types::address {
    let mut word = [0; 4];
    for (word, bytes) in word.iter_mut().zip(ip.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    types::address { word }
}

/// Reverts [`address`].
pub(crate) fn octets(address: types::address) -> [u8; 16] {
    let mut ip = [0; 16];
    for (bytes, word) in ip.as_chunks_mut().0.iter_mut().zip(address.word) {
        *bytes = word.to_ne_bytes();
    }
    ip
}

/// A flow in the words of the programs: the two have one layout.
pub(crate) fn flow_key(flow: &Flow) -> types::flow {
    whole(bytes(flow)).expect("both have one layout")
}

/// The key by which the packet path finds a flow, and whether the client is its second end.
pub(crate) fn packet_key(flow: &Flow) -> (types::packet_key, bool) {
    let key = flow_key(flow);
    let client = (key.client_port, key.client);
    let server = (key.server_port, key.server);
    // As the programs compare: in the order of the host's memory.
    let turned = (client.0, client.1.word) > (server.0, server.1.word);
    let (first, second) = if turned {
        (server, client)
    } else {
        (client, server)
    };
    let key = types::packet_key {
        first: first.1,
        second: second.1,
        first_port: first.0,
        second_port: second.0,
    };
    (key, turned)
}

/// Reverts [`flow_key`].
pub(crate) fn flow(key: &types::flow) -> Flow {
    whole(bytes(key)).expect("both have one layout")
}

/// The key of a flow's client and service; the client's port does not count.
pub(crate) fn profile_key(flow: &Flow) -> types::profile_key {
    let (client, server) = flow.addresses();
    types::profile_key {
        client: address(client),
        server: address(server),
        port: flow.server().port().to_be(),
        pad: 0,
    }
}

/// The prefixes of a flow's client and server: 24 bits of IPv4 addresses, 64 of IPv6 ones.
pub(crate) fn prefixes(flow: &Flow) -> [types::address; 2] {
    let (client, server) = flow.addresses();
    [client, server].map(|ip| {
        let bits = match Ipv6Addr::from(ip).to_ipv4_mapped() {
            Some(_) => 96 + 24,
            None => 64,
        };
        address((u128::from_be_bytes(ip) & (!0 << (128 - bits))).to_be_bytes())
    })
}

pub(crate) fn destination(ip: IpAddr, port: u16) -> types::destination {
    types::destination {
        ip: address(mapped(ip)),
        port: port.to_be(),
        pad: 0,
    }
}

/// As `client_prefix` in the program: IPv4 /24, IPv6 /64.
pub(crate) fn client_prefix(client: IpAddr) -> [u8; 8] {
    let ip = mapped(client);
    let mut prefix = [0; 8];
    if client.is_ipv4() {
        prefix[..4].copy_from_slice(&ip[8..12]);
        prefix[4..7].copy_from_slice(&ip[12..15]);
    } else {
        prefix.copy_from_slice(&ip[..8]);
    }
    prefix
}

/// An initial window. The programs take the rate in bytes per millisecond.
pub(crate) fn peer_settings(start: PathSettings) -> types::peer_settings {
    let round = start.round.unwrap_or(Duration::ZERO);
    types::peer_settings {
        segments: start.segments,
        rate: start.rate / 1000,
        rtt_us: u32::try_from(round.as_micros()).unwrap_or(u32::MAX),
    }
}

/// A time as the programs count it; the longest one never passes.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
