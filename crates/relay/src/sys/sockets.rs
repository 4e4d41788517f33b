// SPDX-License-Identifier: Apache-2.0
//! Sockets that listen, connect and accept, with local and foreign addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::chain::{Peer, Transport};
use crate::policy::{MULTIPATH_CONGESTION, OWN_CONGESTION, SideOptions};

use super::multipath::is_multipath;
use super::options::{apply, set_option};

/// From linux/tcp.h; not in the libc crate.
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;

/// Settings of every socket of a node.
#[derive(Clone, Copy, Debug)]
pub struct SocketSettings {
    /// `SO_MARK`, by which the redirect program recognises the node's sockets.
    pub mark: u32,
    /// Length of the accept queue of each listener.
    pub backlog: i32,
}

/// Opens a transparent listener on the loopback address of the family, on a port that the kernel
/// picks. Flows reach it only by redirection: the worker refuses connections to its own address.
///
/// # Errors
/// Any of the system calls; `EPERM` without `CAP_NET_ADMIN`, and
/// `EAFNOSUPPORT` or `EADDRNOTAVAIL` where IPv6 is off.
pub fn transparent_listener(ipv6: bool, settings: SocketSettings) -> io::Result<Socket> {
    listen_on_loopback(ipv6, settings, Protocol::TCP)
}

pub(super) fn listen_on_loopback(
    ipv6: bool,
    settings: SocketSettings,
    protocol: Protocol,
) -> io::Result<Socket> {
    let socket = stream_socket(ipv6, settings.mark, protocol)?;
    // No other host can connect to it, and `bpf_sk_assign` ignores the address.
    let loopback = if ipv6 {
        IpAddr::V6(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    };
    prepare_listener(&socket)?;
    socket.bind(&SocketAddr::new(loopback, 0).into())?;
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Sets what accepted sockets inherit.
pub(super) fn prepare_listener(socket: &Socket) -> io::Result<()> {
    // A crash of the node resets them instead of ending their streams.
    socket.set_linger(Some(Duration::ZERO))?;
    // A service of the host may begin to listen on all addresses while connections in transit have
    // its port; and those of a former process may be in TIME_WAIT at this address.
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)
}

/// Opens a listener on `address` for clients that name the destination themselves. Several may
/// share the address; the kernel distributes connections. A request in a SYN (TCP Fast Open, RFC
/// 7413) is readable before the handshake is complete. No cookie is needed, since a request has an
/// authentication tag or waits for the handshake.
///
/// # Errors
/// Any of the system calls; `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn explicit_listener(address: SocketAddr, settings: SocketSettings) -> io::Result<Socket> {
    let socket = bound_listener(address, settings, Protocol::TCP)?;
    // Best effort: without it requests arrive one round trip later.
    let _ = set_option(&socket, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1);
    let _ = set_option(
        &socket,
        libc::IPPROTO_TCP,
        libc::TCP_FASTOPEN,
        settings.backlog,
    );
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Opens a listener on `address` that accepts clients after their handshake. Several may share the
/// address, as those of [`explicit_listener`].
///
/// # Errors
/// Any of the system calls; `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn fixed_listener(address: SocketAddr, settings: SocketSettings) -> io::Result<Socket> {
    listen_on(address, settings, Protocol::TCP)
}

/// A listener on `address` for clients of Multipath TCP and of TCP, explicit or fixed. Without TCP
/// Fast Open: once a SYN with data was accepted, a second path stalls downloads (Linux 6.18).
///
/// # Errors
/// Any of the system calls; `EPROTONOSUPPORT` or `ENOPROTOOPT` where the host has no Multipath TCP.
pub fn addressed_multipath_listener(
    address: SocketAddr,
    settings: SocketSettings,
) -> io::Result<Socket> {
    listen_on(address, settings, Protocol::MPTCP)
}

fn listen_on(
    address: SocketAddr,
    settings: SocketSettings,
    protocol: Protocol,
) -> io::Result<Socket> {
    let socket = bound_listener(address, settings, protocol)?;
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Prefers a listener for connections that arrive on `cpu`, among those that share its address
/// (Linux 6.2).
///
/// # Errors
/// The kernel's.
pub fn prefer_cpu(listener: &Socket, cpu: usize) -> io::Result<()> {
    let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
    set_option(listener, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, cpu)
}

fn bound_listener(
    address: SocketAddr,
    settings: SocketSettings,
    protocol: Protocol,
) -> io::Result<Socket> {
    let socket = stream_socket(address.is_ipv6(), settings.mark, protocol)?;
    if address.is_ipv6() {
        // Or `[::]` would take the IPv4 addresses too, and `0.0.0.0` beside it would be in use.
        socket.set_only_v6(true)?;
    }
    prepare_listener(&socket)?;
    // Each worker opens a listener of its own.
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A non-blocking TCP socket with the node's mark that may use foreign addresses.
pub(crate) fn tcp_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    stream_socket(ipv6, mark, Protocol::TCP)
}

/// The same, of TCP or of Multipath TCP.
pub(super) fn stream_socket(ipv6: bool, mark: u32, protocol: Protocol) -> io::Result<Socket> {
    let socket = own_stream_socket(ipv6, mark, protocol)?;
    if ipv6 {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
    }
    Ok(socket)
}

/// The same for addresses of this host alone.
fn own_stream_socket(ipv6: bool, mark: u32, protocol: Protocol) -> io::Result<Socket> {
    let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(domain, kind, Some(protocol))?;
    socket.set_mark(mark)?;
    // Urgent bytes stay in line; otherwise the relay would lose them. Accepted sockets inherit it.
    // Multipath TCP has none (RFC 8684 section 3.3.4), and the kernel refuses the option.
    if protocol == Protocol::TCP {
        socket.set_out_of_band_inline(true)?;
    }
    Ok(socket)
}

/// A socket for an upstream connection: a crash of the node resets it instead of ending its stream,
/// and it may share an address with another connection.
pub(crate) fn upstream_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    share_address(prepare_upstream(tcp_socket(ipv6, mark)?)?)
}

/// The same for a connection whose address and port `connect` picks from this host's: two system
/// calls less.
pub(crate) fn own_upstream_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    prepare_upstream(own_stream_socket(ipv6, mark, Protocol::TCP)?)
}

/// The same for a hop to a peer: of Multipath TCP where that carries it and this host has it. It has the
/// address `source`, or one that the host picks.
pub(crate) fn hop_socket(peer: &Peer, source: Option<IpAddr>, mark: u32) -> io::Result<Socket> {
    let ipv6 = peer.address.is_ipv6();
    let multipath = (peer.transport == Transport::Mptcp)
        .then(|| multipath_upstream_socket(ipv6, mark))
        .and_then(Result::ok);
    let socket = multipath.map_or_else(|| upstream_socket(ipv6, mark), Ok)?;
    // Best effort: the connection works without these settings.
    let _ = apply(&socket, &peer.socket);
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    Ok(socket)
}

/// Applies the settings of a peer to a hop that it has opened, maybe by Multipath TCP though this node
/// has another transport to it.
///
/// # Errors
/// The kernel has rejected one.
pub(crate) fn apply_to_accepted(socket: &OwnedFd, peer: &Peer) -> io::Result<()> {
    let of_one_path = peer.transport != Transport::Mptcp
        && peer.socket.congestion.as_deref() == Some(OWN_CONGESTION)
        // No other knows all connections to the peer.
        && peer.rate_limit.is_none();
    if !of_one_path || !is_multipath(socket) {
        return apply(socket, &peer.socket);
    }
    let of_multipath = SideOptions {
        congestion: Some(MULTIPATH_CONGESTION.to_owned()),
        ..peer.socket.clone()
    };
    apply(socket, &of_multipath)
}

/// The same of Multipath TCP, which becomes TCP where the server does not answer with it.
pub(crate) fn multipath_upstream_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    share_address(prepare_upstream(stream_socket(
        ipv6,
        mark,
        Protocol::MPTCP,
    )?)?)
}

fn prepare_upstream(socket: Socket) -> io::Result<Socket> {
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

fn share_address(socket: Socket) -> io::Result<Socket> {
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Sends the SYN of a connection to `address`.
pub(crate) fn connect(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Sends the SYN of a connection to `address`, with as many of `bytes` in it as fit (TCP Fast
/// Open), and returns that number: zero where the kernel does not offer it.
pub(crate) fn connect_with_data(
    socket: &Socket,
    address: SocketAddr,
    bytes: &[u8],
) -> io::Result<usize> {
    let without = || connect(socket, address).map(|()| 0);
    if set_option(socket, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1).is_err() {
        return without();
    }
    let flags = libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL;
    match socket.send_to_with_flags(bytes, &address.into(), flags) {
        Ok(sent) => Ok(sent),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINPROGRESS) => Ok(0),
            // Switched off by `net.ipv4.tcp_fastopen`.
            Some(libc::EOPNOTSUPP) => without(),
            _ => Err(error),
        },
    }
}

/// Accepts a connection whose handshake is complete: the socket, its client and its original
/// destination.
pub(crate) fn accept(listener: &Socket) -> io::Result<(OwnedFd, SocketAddr, SocketAddr)> {
    let (socket, client) = listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
    let address = |address: socket2::SockAddr| {
        address
            .as_socket()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    };
    let (client, server) = (address(client)?, address(socket.local_addr()?)?);
    Ok((socket.into(), client, server))
}

/// Whether an address is one of this host's.
pub fn is_own_address(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// Whether packets to an address stay in this host: the kernel then picks that address as their
/// source, on whichever interface it is.
pub fn leads_here(ip: IpAddr) -> bool {
    // Not by bind(2): `net.ipv4.ip_nonlocal_bind` allows any address.
    local_address_toward(SocketAddr::new(ip, 9)).is_ok_and(|source| source == ip)
}

/// The address that this host would use toward `destination`. Sends nothing.
pub(crate) fn local_address_toward(destination: SocketAddr) -> io::Result<IpAddr> {
    let any = if destination.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    // For a datagram socket this only looks the route up.
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}
