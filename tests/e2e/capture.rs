// SPDX-License-Identifier: Apache-2.0
//! What crosses the wires of a host, seen before its firewall and its TCP.

use std::cell::RefCell;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use posthaste_lab::netns::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes kept of each packet: the longest headers, and no more.
const HEADERS_MAX: usize = 160;

const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const ACK: u16 = 0x10;
/// Of ECN, Accurate ECN among them (RFC 9768 section 3.1).
const ECN: u16 = 0x1c0;
/// All of them: the rest is the length of the header.
const FLAGS: u16 = 0x0fff;
const TCP: u8 = 6;
/// `ETH_P_ALL`: every protocol.
const EVERYTHING: u16 = 0x0003;

/// The header of one TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u16,
    /// What a SYN announces as the largest segment.
    pub(crate) mss: Option<u16>,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// Bytes of content.
    pub(crate) bytes: usize,
}

impl Segment {
    /// Whether it is the first of a handshake.
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Whether it has a flag of ECN.
    pub(crate) fn is_ecn(&self) -> bool {
        self.flags & ECN != 0
    }

    /// Whether it ends a connection at once.
    pub(crate) fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }
}

/// Records the TCP segments that a host sends and receives on all its interfaces.
#[derive(Debug)]
pub(crate) struct Capture {
    socket: RefCell<Socket>,
    seen: RefCell<Vec<Segment>>,
}

impl Capture {
    /// Begins to record.
    pub(crate) fn start(host: &Namespace) -> Self {
        let all = Protocol::from(i32::from(EVERYTHING.to_be()));
        let socket = host
            .run_in(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(all)))
            .expect("root can capture packets");
        socket.set_nonblocking(true).expect("a socket has options");
        socket
            .set_recv_buffer_size(4 << 20)
            .expect("a socket has options");
        Self {
            socket: RefCell::new(socket),
            seen: RefCell::default(),
        }
    }

    /// Every segment so far, in order.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut seen = self.seen.borrow_mut();
        let mut packet = [0; HEADERS_MAX];
        while let Ok(length) = self.socket.borrow_mut().read(&mut packet) {
            seen.extend(parse(&packet[..length]));
        }
        seen.clone()
    }

    /// The SYNs to a port that are not answers.
    pub(crate) fn syns_to(&self, port: u16) -> Vec<Segment> {
        let segments = self.segments().into_iter();
        segments
            .filter(|segment| segment.is_syn() && segment.to.port() == port)
            .collect()
    }
}

/// The parts of an IP header that matter here, and where they put what follows.
struct IpHeader {
    from: IpAddr,
    to: IpAddr,
    ttl: u8,
    protocol: u8,
    /// Bytes of the header.
    length: usize,
    /// Length of the packet, from its header.
    total: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn parse_ip(packet: &[u8]) -> Option<IpHeader> {
    let v4 = |at: usize| {
        let octets = <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?;
        Some(IpAddr::from(Ipv4Addr::from(octets)))
    };
    let v6 = |at: usize| {
        let octets = <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?;
        Some(IpAddr::from(Ipv6Addr::from(octets)))
    };
    let byte = |at: usize| packet.get(at).copied();
    match byte(0)? >> 4 {
        4 => Some(IpHeader {
            from: v4(12)?,
            to: v4(16)?,
            ttl: byte(8)?,
            protocol: byte(9)?,
            length: usize::from(byte(0)? & 15) * 4,
            total: word(packet, 2)?.into(),
        }),
        6 => Some(IpHeader {
            from: v6(8)?,
            to: v6(24)?,
            ttl: byte(7)?,
            protocol: byte(6)?,
            length: 40,
            total: 40 + usize::from(word(packet, 4)?),
        }),
        _ => None,
    }
}

/// Reads an IP packet with a TCP segment; none for anything else.
fn parse(packet: &[u8]) -> Option<Segment> {
    let ip = parse_ip(packet)?;
    let tcp = packet.get(ip.length..).filter(|_| ip.protocol == TCP)?;
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    Some(Segment {
        from: (ip.from, word(tcp, 0)?).into(),
        to: (ip.to, word(tcp, 2)?).into(),
        flags: word(tcp, 12)? & FLAGS,
        mss: mss(tcp.get(20..header)?),
        ttl: ip.ttl,
        // The header of a packet that segmentation offload made too large has no valid length.
        bytes: ip.total.saturating_sub(ip.length + header),
    })
}

/// The maximum segment size option.
fn mss(mut options: &[u8]) -> Option<u16> {
    loop {
        match *options {
            [1, ref rest @ ..] => options = rest,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([high, low])),
            [2..=u8::MAX, length @ 2..=u8::MAX, ..] => {
                options = options.get(usize::from(length)..)?;
            }
            _ => return None,
        }
    }
}
