// SPDX-License-Identifier: Apache-2.0
//! UDP sockets with kernel timestamps of received and sent packets. Times are since 1970 by the
//! host's own clock, as the kernel's are.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockFlag, SockType,
    SockaddrStorage, TimestampingFlag, Timestamps, bind, recvmsg, sendmsg, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeSpec;
use posthaste_relay::clock;

/// Bound on the size of a packet, which an error queue returns with its headers.
const PACKET_BYTES_MAX: usize = 512;

/// Origins of messages in an error queue (linux/errqueue.h).
const ORIGINS_ICMP: [u8; 2] = [2, 3];
const ORIGIN_TIMESTAMP: u8 = 4;

/// A non-blocking UDP socket of one family.
#[derive(Debug)]
pub(super) struct Udp {
    socket: OwnedFd,
    ipv6: bool,
}

/// A received packet.
#[derive(Debug)]
pub(super) struct Datagram {
    bytes: [u8; PACKET_BYTES_MAX],
    length: usize,
    pub(super) from: SocketAddr,
    /// The local address to which it was sent.
    pub(super) to: Option<IpAddr>,
    /// When it arrived, by the kernel's timestamp if there is one.
    pub(super) at: Duration,
    /// Its TTL or hop limit on arrival.
    pub(super) ttl: Option<u8>,
}

impl Datagram {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The fate of a sent packet.
#[derive(Debug)]
pub(super) struct Fate {
    bytes: [u8; PACKET_BYTES_MAX],
    length: usize,
    pub(super) kind: FateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FateKind {
    /// The time it was passed to the network card.
    Left(Duration),
    /// The network reported that it did not arrive.
    Refused,
}

impl Fate {
    /// The last bytes of the packet. The buffer has the packet, with or without headers before it.
    pub(super) fn tail<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes[..self.length].last_chunk()
    }
}

impl Udp {
    /// Opens a socket at an address. With `fates` it reports the fate of the packets that it sends.
    ///
    /// # Errors
    /// The address is not local, taken, or needs privilege.
    pub(super) fn bind(address: SocketAddr, mark: u32, fates: bool) -> Result<Self, Errno> {
        let ipv6 = address.is_ipv6();
        let family = if ipv6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        if ipv6 {
            // Both families may be bound to one port of the wildcard address.
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
            setsockopt(&socket, sockopt::Ipv6RecvErr, &fates)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            // A reflection reports the TTL that its probe had left (RFC 8762 section 4.3.1).
            setsockopt(&socket, sockopt::Ipv4RecvTtl, &true)?;
            // The kernel reports ICMP errors to a socket that is not connected only with this.
            setsockopt(&socket, sockopt::Ipv4RecvErr, &fates)?;
        }
        // A mark needs a capability, even a mark of 0 (socket(7)).
        if mark != 0 {
            setsockopt(&socket, sockopt::Mark, &mark)?;
        }
        let mut times = TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
            | TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE;
        if fates {
            // They take room in the receive buffer until they are read from the error queue, which
            // a reflector never does.
            times |= TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE;
        }
        // Best effort: without kernel timestamps the clock is read instead.
        let _ = setsockopt(&socket, sockopt::Timestamping, &times);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        Ok(Self { socket, ipv6 })
    }

    /// A socket that a predecessor has bound, with all its options.
    pub(super) fn inherited(socket: OwnedFd, address: SocketAddr) -> Self {
        Self {
            socket,
            ipv6: address.is_ipv6(),
        }
    }

    /// A duplicate, for a successor.
    pub(super) fn share(&self) -> std::io::Result<OwnedFd> {
        // Both have one queue: a successor finds the probes that were not read here.
        self.socket.try_clone()
    }

    /// The next packet, if there is one.
    ///
    /// # Errors
    /// There is none (EAGAIN), or the socket has an error.
    pub(super) fn receive(&self) -> Result<Datagram, Errno> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        // With room to spare: what does not fit is cut off, and a timestamp could be (recvmsg(2)).
        let mut control = cmsg_space!(Timestamps, libc::in6_pktinfo, libc::c_int, [u8; 128]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let fd = self.socket.as_raw_fd();
        let message: RecvMsg<'_, '_, SockaddrStorage> =
            recvmsg(fd, &mut parts, Some(&mut control), flags)?;
        let from = message.address.as_ref().and_then(to_std);
        let mut datagram = Datagram {
            bytes: [0; PACKET_BYTES_MAX],
            // A longer packet stays too long after truncation.
            length: message.bytes.min(PACKET_BYTES_MAX),
            from: from.ok_or(Errno::EAFNOSUPPORT)?,
            to: None,
            at: clock::own(),
            ttl: None,
        };
        for part in message.cmsgs()? {
            match part {
                ControlMessageOwned::ScmTimestampsns(times) => {
                    datagram.at = kernel_time(times.system).unwrap_or(datagram.at);
                }
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    // The local address; ipi_addr is that of the header, which may be a broadcast (ip(7)).
                    let ip = u32::from_be(info.ipi_spec_dst.s_addr);
                    datagram.to = Some(IpAddr::V4(ip.into()));
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    datagram.to = Some(IpAddr::V6(info.ipi6_addr.s6_addr.into()));
                }
                ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => {
                    datagram.ttl = u8::try_from(ttl).ok();
                }
                _ => {}
            }
        }
        // Last: the message borrows the buffer until its control data is read.
        datagram.bytes = bytes;
        Ok(datagram)
    }

    /// The fate of a sent packet, if one is pending.
    ///
    /// # Errors
    /// There is none (EAGAIN).
    pub(super) fn next_fate(&self) -> Result<Option<Fate>, Errno> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        let mut control = cmsg_space!(Timestamps, [u8; 64], [u8; 128]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        // The kernel queues errors and timestamps apart from packets (recv(2)).
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_ERRQUEUE;
        let fd = self.socket.as_raw_fd();
        let message: RecvMsg<'_, '_, SockaddrStorage> =
            recvmsg(fd, &mut parts, Some(&mut control), flags)?;
        let length = message.bytes;
        let (mut left, mut origin) = (None, None);
        for part in message.cmsgs()? {
            match part {
                ControlMessageOwned::ScmTimestampsns(times) => left = kernel_time(times.system),
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => origin = Some(error.ee_origin),
                _ => {}
            }
        }
        let kind = match (origin, left) {
            (Some(ORIGIN_TIMESTAMP), Some(left)) => Some(FateKind::Left(left)),
            (Some(origin), _) if ORIGINS_ICMP.contains(&origin) => Some(FateKind::Refused),
            // Other origins, as local errors, have no bearing on what left or was refused.
            _ => None,
        };
        Ok(kind.map(|kind| Fate {
            bytes,
            length,
            kind,
        }))
    }

    /// Sends a packet, from a local address if one is given.
    ///
    /// # Errors
    /// It was not sent.
    pub(super) fn send(
        &self,
        bytes: &[u8],
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<(), Errno> {
        let parts = [IoSlice::new(bytes)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let (fd, to) = (self.socket.as_raw_fd(), SockaddrStorage::from(to));
        let send = |from: &[ControlMessage<'_>]| sendmsg(fd, &parts, from, flags, Some(&to));
        // With several addresses the kernel may choose another source than the one that the probe
        // was sent to, and its sender rejects an answer from there.
        let sent = match from {
            Some(IpAddr::V4(ip)) if !self.ipv6 => {
                let ip = libc::in_addr {
                    s_addr: u32::from(ip).to_be(),
                };
                let info = libc::in_pktinfo {
                    // The routing table chooses the interface.
                    ipi_ifindex: 0,
                    ipi_spec_dst: ip,
                    ipi_addr: ip,
                };
                send(&[ControlMessage::Ipv4PacketInfo(&info)])
            }
            Some(IpAddr::V6(ip)) if self.ipv6 => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr {
                        s6_addr: ip.octets(),
                    },
                    ipi6_ifindex: 0,
                };
                send(&[ControlMessage::Ipv6PacketInfo(&info)])
            }
            // An address of the other family cannot be the source.
            _ => send(&[]),
        };
        sent.map(drop)
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A kernel timestamp; `None` if it is unset.
fn kernel_time(time: TimeSpec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    let nanos = u32::try_from(time.tv_nsec()).ok()?;
    (seconds > 0).then(|| Duration::new(seconds, nanos))
}

fn to_std(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4));
    let v6 = || address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6));
    v4.map(SocketAddr::V4).or_else(|| v6().map(SocketAddr::V6))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

    impl Udp {
        pub(crate) fn address(&self) -> SocketAddr {
            let address = nix::sys::socket::getsockname(self.socket.as_raw_fd());
            to_std(&address.unwrap()).unwrap()
        }
    }

    fn open(text: &str) -> (Udp, SocketAddr) {
        let udp = Udp::bind(text.parse().unwrap(), 0, true).unwrap();
        let address = udp.address();
        (udp, address)
    }

    fn wait<T>(mut query: impl FnMut() -> Result<Option<T>, Errno>) -> T {
        loop {
            match query() {
                Ok(Some(answer)) => return answer,
                Ok(None) | Err(Errno::EAGAIN | Errno::ECONNREFUSED) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn receive_time_and_address() {
        for local in ANY {
            let ((one, from), (other, to)) = (open(local), open(local));
            let before = clock::own();
            one.send(b"a packet", to, None).unwrap();
            let received = wait(|| other.receive().map(Some));
            assert_eq!(received.bytes(), b"a packet");
            assert_eq!((received.from, received.to), (from, Some(to.ip())));
            assert!(before <= received.at && received.at <= clock::own());
            assert_eq!(received.ttl, Some(64));
            other.send(b"another", from, received.to).unwrap();
            assert_eq!(wait(|| one.receive().map(Some)).bytes(), b"another");
        }
    }

    // promise: L1
    #[test]
    fn kernel_transmit_times() {
        for local in ANY {
            let ((one, _), (other, to)) = (open(local), open(local));
            let before = clock::own();
            one.send(b"the first packet", to, None).unwrap();
            let fate = wait(|| one.next_fate());
            assert_eq!(fate.tail(), Some(b"packet"));
            let FateKind::Left(left) = fate.kind else {
                panic!("{fate:?}");
            };
            let received = wait(|| other.receive().map(Some));
            assert!(
                before <= left && left <= received.at,
                "{left:?} {:?}",
                received.at
            );
            drop(other);
            one.send(b"the second packet", to, None).unwrap();
            let fate = wait(|| {
                let fate = one.next_fate()?;
                Ok(fate.filter(|fate| fate.kind == FateKind::Refused))
            });
            assert_eq!(fate.tail(), Some(b"the second packet"));
        }
    }

    #[test]
    fn oversized_packet_refused() {
        let ((one, _), (other, to)) = (open(ANY[0]), open(ANY[0]));
        one.send(&[1; 1_000], to, None).unwrap();
        let received = wait(|| other.receive().map(Some));
        assert_eq!(received.bytes().len(), PACKET_BYTES_MAX);
    }
}
