// SPDX-License-Identifier: Apache-2.0
//! UDP sockets with offloads: many datagrams in one system call.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_proto::Transmit;
use quinn_udp::{RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Type};

/// Bytes of the buffers of a socket in the kernel: what arrives in 40 ms at 400 Mbit/s.
const BUFFER_BYTES: usize = 2 << 20;
/// Reads of one system call, and bytes of each: as many as the kernel joins.
pub(crate) const READS: usize = 8;
pub(crate) const READ_BYTES: usize = 64 << 10;

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: socket2::Socket,
    state: UdpSocketState,
    /// The connection that it is connected for.
    pub(crate) connection: Option<u64>,
    /// What the kernel had no room for.
    pub(crate) blocked: Option<(Vec<u8>, Transmit)>,
}

impl Socket {
    /// A socket that is bound to `local`, which others may be too.
    pub(crate) fn bound(local: SocketAddr, mark: u32) -> io::Result<Self> {
        let socket = new(local, mark)?;
        socket.set_reuse_port(true)?;
        socket.bind(&local.into())?;
        Self::of(socket)
    }

    /// A socket for one connection, from `local` if that is given.
    pub(crate) fn connected(
        local: Option<SocketAddr>,
        remote: SocketAddr,
        mark: u32,
    ) -> io::Result<Self> {
        let socket = new(remote, mark)?;
        if let Some(local) = local {
            socket.set_reuse_port(true)?;
            socket.bind(&local.into())?;
        }
        socket.connect(&remote.into())?;
        Self::of(socket)
    }

    fn of(socket: socket2::Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            socket,
            state,
            connection: None,
            blocked: None,
        })
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    /// Datagrams that fit into one call.
    pub(crate) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends datagrams.
    ///
    /// # Errors
    /// `WouldBlock`, or what the network has reported.
    pub(crate) fn send(&self, transmit: &Transmit, contents: &[u8]) -> io::Result<()> {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit
                .ecn
                .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Receives into the parts of `buffer`; returns how many were used.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
        metas: &mut [RecvMeta; READS],
    ) -> io::Result<usize> {
        let mut parts = buffer.chunks_mut(READ_BYTES).map(IoSliceMut::new);
        let mut parts: [IoSliceMut<'_>; READS] =
            std::array::from_fn(|_| parts.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        self.state.recv((&self.socket).into(), &mut parts, metas)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket with the mark by which firewalls recognise the node's.
fn new(of: SocketAddr, mark: u32) -> io::Result<socket2::Socket> {
    let kind = Type::DGRAM.cloexec();
    let socket = socket2::Socket::new(Domain::for_address(of), kind, Some(Protocol::UDP))?;
    setsockopt(&socket, sockopt::Mark, &mark)?;
    if of.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Beyond net.core.rmem_max with CAP_NET_ADMIN, else up to it. A small buffer costs packets.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
        SockRef::from(&socket).set_recv_buffer_size(BUFFER_BYTES)?;
    }
    if setsockopt(&socket, sockopt::SndBufForce, &BUFFER_BYTES).is_err() {
        SockRef::from(&socket).set_send_buffer_size(BUFFER_BYTES)?;
    }
    Ok(socket)
}
