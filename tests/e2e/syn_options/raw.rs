// SPDX-License-Identifier: Apache-2.0
//! Segments that open connections, with any option, from any address.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::thread;
use std::time::Duration;

use posthaste_lab::netns::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

/// `IPPROTO_RAW`: the IP header is the sender's own.
const RAW: i32 = 255;
const TCP: u8 = 6;
const SYN: u16 = 0x02;
const ACK: u16 = 0x10;
/// All that a SYN has for Accurate ECN (RFC 9768 section 3.1.1).
const ACCURATE_ECN: u16 = 0x1c0;

/// Sends a SYN from a host, under any source address. Options are filled up with no-operations.
pub(crate) fn send_syn(host: &Namespace, from: SocketAddrV4, to: SocketAddrV4, options: &[u8]) {
    send(host, to, &packet(from, to, [1, 0], SYN, options));
}

/// Sends a SYN that requests Accurate ECN.
pub(crate) fn send_ecn_syn(host: &Namespace, from: SocketAddrV4, to: SocketAddrV4, options: &[u8]) {
    send(
        host,
        to,
        &packet(from, to, [1, 0], SYN | ACCURATE_ECN, options),
    );
}

/// Sends a SYN-ACK that acknowledges the number 0.
pub(crate) fn send_syn_ack(host: &Namespace, from: SocketAddrV4, to: SocketAddrV4) {
    send(host, to, &packet(from, to, [1, 0], SYN | ACK, &[]));
}

/// Sends a segment without payload, with these sequence and acknowledgement numbers.
pub(crate) fn send_segment(
    host: &Namespace,
    from: SocketAddrV4,
    to: SocketAddrV4,
    numbers: [u32; 2],
    flags: u8,
) {
    send(host, to, &packet(from, to, numbers, flags.into(), &[]));
}

/// Sends many such segments from a host, one each millisecond, until there are no more numbers.
pub(crate) fn send_segments(
    host: &Namespace,
    [from, to]: [SocketAddrV4; 2],
    segments: impl Iterator<Item = ([u32; 2], u8)> + Send,
) {
    const PACE: Duration = Duration::from_millis(1);
    let sent = host.run_in(|| {
        let socket = raw_socket()?;
        for (numbers, flags) in segments {
            let packet = packet(from, to, numbers, flags.into(), &[]);
            socket.send_to(&packet, &SocketAddr::from(to).into())?;
            thread::sleep(PACE);
        }
        io::Result::Ok(())
    });
    sent.expect("root can send them");
}

fn raw_socket() -> io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))
}

fn send(host: &Namespace, to: SocketAddrV4, packet: &[u8]) {
    let send = || raw_socket()?.send_to(packet, &SocketAddr::from(to).into());
    let sent = host.run_in(send).expect("root can send it");
    assert_eq!(sent, packet.len());
}

fn packet(
    from: SocketAddrV4,
    to: SocketAddrV4,
    numbers: [u32; 2],
    flags: u16,
    options: &[u8],
) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(numbers.map(u32::to_be_bytes).as_flattened());
    let words = 5 + options.len().div_ceil(4);
    let offset = u16::try_from(words).expect("40 bytes") << 12;
    tcp.extend((offset | flags).to_be_bytes());
    tcp.extend([0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.resize(4 * words, 1);
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let length = u16::try_from(tcp.len()).expect("a header is short");
    let pseudo = [&addresses[..], &[0, TCP], &length.to_be_bytes()].concat();
    let sum = checksum(&[pseudo, tcp.clone()].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    // The kernel fills in length, identification and checksum.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, TCP, 0, 0];
    packet.extend(addresses);
    packet.extend(tcp);
    packet
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
