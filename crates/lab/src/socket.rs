// SPDX-License-Identifier: Apache-2.0
//! TCP sockets of the lab's clients and servers.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

/// Length of the accept queue; `net.core.somaxconn` bounds it further.
const BACKLOG: i32 = 16384;

/// A socket for a connection to `target`.
pub(crate) fn toward(target: SocketAddr) -> io::Result<Socket> {
    toward_by(Protocol::TCP, target)
}

/// The same of another protocol, such as Multipath TCP.
pub(crate) fn toward_by(protocol: Protocol, target: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(target);
    Socket::new(domain, Type::STREAM, Some(protocol))
}

/// Begins to connect without waiting.
pub(crate) fn begin(socket: Socket, target: SocketAddr) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        // Without delay on the links an answer may arrive within the call.
        result => result?,
    }
    Ok(socket.into())
}

/// Listens on a port of all addresses of both families. `prepare` sets further options, which
/// accepted sockets inherit.
pub(crate) fn listen(
    port: u16,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<Socket> {
    listen_by(Protocol::TCP, port, prepare)
}

/// The same of another protocol, such as Multipath TCP.
pub(crate) fn listen_by(
    protocol: Protocol,
    port: u16,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(protocol))?;
    // An experiment binds the same port again while sockets of the last one are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    // One listener for both families, whatever the host's `net.ipv6.bindv6only` is.
    socket.set_only_v6(false)?;
    prepare(&socket)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Raises the limit of descriptors to its hard limit; returns it.
pub(crate) fn raise_descriptor_limit() -> Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read RLIMIT_NOFILE")?;
    // The soft limit is 1024 on most hosts, and each connection takes a descriptor at either end.
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise RLIMIT_NOFILE")?;
    Ok(hard)
}
