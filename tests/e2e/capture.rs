// SPDX-License-Identifier: Apache-2.0
//! What crosses the wires of a host, seen before its firewall and its TCP.

use std::cell::RefCell;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use posthaste_lab::netns::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes kept of each packet: the longest headers, and no more.
const HEADERS_MAX: usize = 160;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// `ETH_P_ALL`: every protocol.
const EVERYTHING: u16 = 0x0003;

/// The header of one TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u8,
    /// What a SYN announces as the largest segment.
    pub(crate) mss: Option<u16>,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
}

impl Segment {
    /// Whether it is the first of a handshake.
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
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

/// Reads an IP packet with a TCP segment; none for anything else.
fn parse(packet: &[u8]) -> Option<Segment> {
    let octets = |range: std::ops::Range<usize>| packet.get(range);
    let (header, protocol, ttl, from, to): (_, _, _, IpAddr, IpAddr) = match packet.first()? >> 4 {
        4 => {
            let address = |at| {
                let octets = <[u8; 4]>::try_from(octets(at..at + 4)?).ok()?;
                Some(Ipv4Addr::from(octets).into())
            };
            let header = usize::from(packet[0] & 15) * 4;
            (
                header,
                *packet.get(9)?,
                packet[8],
                address(12)?,
                address(16)?,
            )
        }
        6 => {
            let address = |at| {
                let octets = <[u8; 16]>::try_from(octets(at..at + 16)?).ok()?;
                Some(Ipv6Addr::from(octets).into())
            };
            (
                40,
                *packet.get(6)?,
                *packet.get(7)?,
                address(8)?,
                address(24)?,
            )
        }
        _ => return None,
    };
    let tcp = packet.get(header..).filter(|_| protocol == 6)?;
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let options = tcp.get(20..usize::from(tcp.get(12)? >> 4) * 4)?;
    Some(Segment {
        from: (from, port(0)?).into(),
        to: (to, port(2)?).into(),
        flags: tcp[13],
        mss: mss(options),
        ttl,
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
