// SPDX-License-Identifier: Apache-2.0
//! Sockets of Multipath TCP (RFC 8684). They differ from TCP's in the options that they know, and
//! `TCP_INFO` of one is that of its first path.

use std::io;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::info::state_name;
use super::options::{OptionValue, SO_BUF_LOCK, get_option, read_option, set_option};
use super::sockets::{SocketSettings, listen_on_loopback, prepare_listener, stream_socket};

/// From linux/mptcp.h; not in the libc crate.
const SOL_MPTCP: i32 = 284;
const MPTCP_INFO: i32 = 1;
const MPTCP_TCPINFO: i32 = 2;
const MPTCP_SUBFLOW_ADDRS: i32 = 3;
/// Most paths of a connection in Linux (`MPTCP_PM_ADDR_MAX`).
const PATHS_MAX: usize = 8;
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

/// The paths of a connection as the kernel lists them (`struct mptcp_subflow_data`).
#[derive(Clone, Copy)]
#[repr(C)]
struct PerPath<T> {
    head_bytes: u32,
    count: u32,
    kernel_bytes: u32,
    user_bytes: u32,
    each: [T; PATHS_MAX],
}

/// Two socket addresses, local and remote, each with room for any family.
type Addresses = [[u8; 128]; 2];

// SAFETY: integers and arrays of them; the head fills a multiple of the alignment of what follows.
unsafe impl OptionValue for PerPath<Addresses> {}
// SAFETY: as above; `tcp_info` consists of integers.
unsafe impl OptionValue for PerPath<libc::tcp_info> {}

impl<T> PerPath<T> {
    /// Reads a list, for each path what the kernel knows of a `T`.
    fn read(socket: &impl AsFd, name: i32, empty: T) -> io::Result<impl Iterator<Item = T>>
    where
        T: Copy,
        Self: OptionValue,
    {
        let bytes = |size: usize| u32::try_from(size).map_err(io::Error::other);
        let list = Self {
            head_bytes: bytes(offset_of!(Self, each))?,
            count: 0,
            kernel_bytes: 0,
            user_bytes: bytes(size_of::<T>())?,
            each: [empty; PATHS_MAX],
        };
        let list = read_option(socket, SOL_MPTCP, name, list)?;
        Ok(list.each.into_iter().take(list.count as usize))
    }
}

/// One path of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Its addresses.
    pub local: SocketAddr,
    /// As above.
    pub remote: SocketAddr,
    /// Kernel state, for example `ESTABLISHED`.
    pub state: &'static str,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Congestion window in segments.
    pub cwnd_segments: u32,
    /// Segments retransmitted since its start.
    pub retransmitted_segments: u32,
    /// Bytes acknowledged by the peer.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes that the scheduler gave it and that are not sent yet.
    pub notsent_bytes: u32,
    /// Recent rate at which the peer took data by it, in bytes per second.
    pub delivery_rate_bytes_per_second: u64,
}

/// The state of a connection of Multipath TCP above its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathInfo {
    /// Whether it continues as TCP.
    pub fell_back: bool,
    /// Times that bytes were sent again by another path.
    pub retransmissions: u32,
    /// Its paths.
    pub paths: Vec<PathInfo>,
}

fn info(socket: &impl AsFd) -> io::Result<[u32; INFO_WORDS]> {
    get_option(socket, SOL_MPTCP, MPTCP_INFO)
}

/// Identifies a connection of Multipath TCP at this host (RFC 8684 section 3.2). `None` for one of
/// TCP, also if it became that in its handshake.
pub(crate) fn token(socket: &impl AsFd) -> Option<u32> {
    Some(info(socket).ok()?[INFO_TOKEN])
}

/// Reads the state of a connection; `None` as for [`token`].
pub(super) fn multipath_info(socket: &impl AsFd) -> Option<MultipathInfo> {
    let info = info(socket).ok()?;
    Some(MultipathInfo {
        fell_back: info[INFO_FLAGS] & FLAG_FALLBACK != 0,
        retransmissions: info[INFO_RETRANSMITS],
        paths: paths(socket).unwrap_or_default(),
    })
}

fn paths(socket: &impl AsFd) -> io::Result<Vec<PathInfo>> {
    let none = [[0; 128]; 2];
    let addresses = PerPath::<Addresses>::read(socket, MPTCP_SUBFLOW_ADDRS, none)?;
    // SAFETY: it consists of integers.
    let empty: libc::tcp_info = unsafe { std::mem::zeroed() };
    let infos = PerPath::<libc::tcp_info>::read(socket, MPTCP_TCPINFO, empty)?;
    let each = addresses.zip(infos).filter_map(|([local, remote], info)| {
        Some(PathInfo {
            local: socket_address(&local)?,
            remote: socket_address(&remote)?,
            state: state_name(info.tcpi_state),
            rtt_us: info.tcpi_rtt,
            cwnd_segments: info.tcpi_snd_cwnd,
            retransmitted_segments: info.tcpi_total_retrans,
            acked_bytes: info.tcpi_bytes_acked,
            received_bytes: info.tcpi_bytes_received,
            notsent_bytes: info.tcpi_notsent_bytes,
            delivery_rate_bytes_per_second: info.tcpi_delivery_rate,
        })
    });
    Ok(each.collect())
}

/// A `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(raw: &[u8; 128]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([raw[0], raw[1]]);
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::from(*raw[4..].first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(*raw[8..].first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Whether a socket is one of Multipath TCP, also if its connection became TCP.
pub fn is_multipath(socket: &impl AsFd) -> bool {
    let protocol: io::Result<i32> = get_option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    protocol.is_ok_and(|protocol| protocol == libc::IPPROTO_MPTCP)
}

/// Whether a socket of Multipath TCP has become one of TCP.
pub(crate) fn fell_back(socket: &impl AsFd) -> bool {
    // The kernel has no such option for what it treats as TCP.
    info(socket).map_or(true, |info| info[INFO_FLAGS] & FLAG_FALLBACK != 0)
}

/// Whether this host supports Multipath TCP now (`net.mptcp.enabled`).
///
/// # Errors
/// The reason why not.
pub fn supports_multipath() -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).map(drop)
}

/// As [`super::transparent_listener`], for clients of Multipath TCP; with its port.
///
/// # Errors
/// Any of the system calls; `EPROTONOSUPPORT` or `ENOPROTOOPT` where the host has no Multipath TCP.
pub(crate) fn multipath_listener(
    ipv6: bool,
    settings: SocketSettings,
) -> io::Result<(Socket, u16)> {
    let listener = listen_on_loopback(ipv6, settings, Protocol::MPTCP)?;
    let address = listener.local_addr()?.as_socket();
    let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((listener, address.port()))
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
