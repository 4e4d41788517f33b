// SPDX-License-Identifier: Apache-2.0
//! Sockets of Multipath TCP (RFC 8684). They differ from TCP's in the options that they know, and
//! `TCP_INFO` of one is that of its first path.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::options::{OptionValue, SO_BUF_LOCK, get_option, set_option};
use super::sockets::{SocketSettings, listen_on_loopback, prepare_listener, stream_socket};

/// From linux/mptcp.h; not in the libc crate.
const SOL_MPTCP: i32 = 284;
const MPTCP_INFO: i32 = 1;
/// Length of the known part of `struct mptcp_info` in words, and the indexes of its token, of its
/// flags and of its retransmissions.
const INFO_WORDS: usize = 24;
const INFO_FLAGS: usize = 2;
const INFO_TOKEN: usize = 3;
const INFO_RETRANSMITS: usize = 11;
/// The first path alone is left: an end or the path between does not support more.
const FLAG_FALLBACK: u32 = 1;
/// First word of the IPv6 prefix for traffic to discard (RFC 6666).
const DISCARD_PREFIX: u16 = 0x100;
/// A join completes no connection that would wait to be accepted, so the queue stays empty.
const JOINS_BACKLOG: i32 = 1024;

// SAFETY: integers.
unsafe impl OptionValue for [u32; INFO_WORDS] {}

/// The state of a connection of Multipath TCP above its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipathInfo {
    /// Identifies it at this host.
    pub token: u32,
    /// Paths besides the first.
    pub further_paths: u8,
    /// Whether it continues as TCP.
    pub fell_back: bool,
    /// Times that bytes were sent again by another path.
    pub retransmissions: u32,
}

/// Reads the state of a connection; `None` for one of TCP, and for one that became TCP in its
/// handshake.
pub(crate) fn multipath_info(socket: &impl AsFd) -> Option<MultipathInfo> {
    let info: [u32; INFO_WORDS] = get_option(socket, SOL_MPTCP, MPTCP_INFO).ok()?;
    Some(MultipathInfo {
        token: info[INFO_TOKEN],
        further_paths: info[0].to_ne_bytes()[0],
        fell_back: info[INFO_FLAGS] & FLAG_FALLBACK != 0,
        retransmissions: info[INFO_RETRANSMITS],
    })
}

/// Whether a socket is one of Multipath TCP, also if its connection became TCP.
pub(super) fn is_multipath(socket: &impl AsFd) -> bool {
    let protocol: io::Result<i32> = get_option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    protocol.is_ok_and(|protocol| protocol == libc::IPPROTO_MPTCP)
}

/// Whether this host supports Multipath TCP now (`net.mptcp.enabled`).
///
/// # Errors
/// The reason why not.
pub fn supports_multipath() -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).map(drop)
}

/// As [`super::transparent_listener`], for clients of Multipath TCP.
///
/// # Errors
/// Any of the system calls; `EPROTONOSUPPORT` or `ENOPROTOOPT` where the host has no Multipath TCP.
pub fn multipath_listener(ipv6: bool, settings: SocketSettings) -> io::Result<Socket> {
    listen_on_loopback(ipv6, settings, Protocol::MPTCP)
}

/// A listener on the given port for further paths of open connections. The kernel lets a path join
/// only at a listener with the port of the connection. Its address is of a range that no host uses,
/// so that no process can connect to it: a full accept queue would refuse the paths.
///
/// # Errors
/// Any of the system calls; `EADDRINUSE` while a service of the host listens on this port on all
/// addresses, `EACCES` for a privileged port.
pub(crate) fn join_listener(ipv6: bool, last: u32, port: u16, mark: u32) -> io::Result<Socket> {
    let socket = stream_socket(ipv6, mark, Protocol::MPTCP)?;
    let [high, low] = [(last >> 16) as u16, (last & 0xffff) as u16];
    let ip = if ipv6 {
        IpAddr::V6(Ipv6Addr::new(DISCARD_PREFIX, 0, 0, 0, 0, 0, high, low))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(last))
    };
    prepare_listener(&socket)?;
    socket.bind(&SocketAddr::new(ip, port).into())?;
    socket.listen(JOINS_BACKLOG)?;
    Ok(socket)
}

/// The end of the address of [`join_listener`], by random bits: a node that replaces another listens
/// on the same ports. Of 240.0.0.0/4 (RFC 1112 section 4), which no host has.
pub(crate) fn join_address(random: u32) -> u32 {
    // Not 255.255.255.255.
    0xf000_0000 | random >> 5
}

/// Gives a socket of TCP that came from a listener of Multipath TCP what that could not pass on.
pub(crate) fn restore_tcp(socket: &impl AsFd) {
    // Best effort: the connection works without these settings.
    let _ = SockRef::from(socket).set_out_of_band_inline(true);
    let _ = set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
}
