// SPDX-License-Identifier: Apache-2.0
//! The delay of SYNs through a relay: from a client's SYN that arrives on one side to the next SYN
//! that leaves on the other, by the kernel's timestamps.
//!
//! A packet socket captures both, on all interfaces of a namespace. It requires a load of one
//! connection at a time, so that the SYNs can be matched.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::netns::Namespace;
use crate::network::{TO_CLIENT, TO_SERVER};

/// `ETH_P_ALL` in network byte order, for packet sockets.
const ALL_PROTOCOLS: i32 = 0x0300;

/// Room for all SYNs of a load.
const BUFFER_BYTES: usize = 8 << 20;

/// A capture in one namespace; its packets are queued in the kernel until they are read.
#[derive(Debug)]
pub(super) struct SynWatch {
    socket: Socket,
    client_side: usize,
    server_side: usize,
}

/// A captured SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// From the client, at this time.
    In(Duration),
    /// To the server.
    Out(Duration),
}

impl SynWatch {
    /// Starts a capture at a node.
    pub(super) fn start(node: &Namespace) -> Result<Self> {
        node.run_in(|| {
            let kind = Type::DGRAM.nonblocking();
            let protocol = Some(Protocol::from(ALL_PROTOCOLS));
            let socket = Socket::new(Domain::PACKET, kind, protocol).context("a packet socket")?;
            socket
                .attach_filter(&syns_only())
                .context("attach a filter")?;
            // Packets are read after the load: reading during it would be CPU time beside the
            // relay.
            socket.set_recv_buffer_size(BUFFER_BYTES)?;
            setsockopt(&socket, ReceiveTimestampns, &true).context("enable time stamps")?;
            let index = |name| -> Result<usize> {
                let index = if_nametoindex(name).with_context(|| format!("find {name}"))?;
                Ok(usize::try_from(index)?)
            };
            Ok(Self {
                client_side: index(TO_CLIENT)?,
                server_side: index(TO_SERVER)?,
                socket,
            })
        })
    }

    /// The delays of all SYNs captured since the start, in us.
    pub(super) fn delays_us(self) -> Result<Vec<f64>> {
        let mut seen = Vec::new();
        while let Some(next) = self.next()? {
            seen.extend(next);
        }
        Ok(pair(&seen))
    }

    /// The next packet, if there is one, and its kind, if relevant.
    fn next(&self) -> Result<Option<Option<Seen>>> {
        let mut bytes = [0; 64];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let flags = MsgFlags::empty();
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<LinkAddr>(fd, &mut parts, Some(&mut space), flags) {
            Err(nix::Error::EAGAIN) => return Ok(None),
            message => message.context("receive a packet")?,
        };
        let mut stamps = message.cmsgs()?.filter_map(|part| match part {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        });
        let interface = message.address.map(|address| address.ifindex());
        Ok(Some(stamps.next().zip(interface).and_then(
            |(stamp, index)| match index {
                index if index == self.client_side => Some(Seen::In(stamp)),
                index if index == self.server_side => Some(Seen::Out(stamp)),
                _ => None,
            },
        )))
    }
}

/// Delays in us, from every SYN in to the first one out after it.
fn pair(seen: &[Seen]) -> Vec<f64> {
    let mut last = None;
    let mut delays = Vec::new();
    for one in seen {
        match one {
            Seen::In(when) => last = Some(*when),
            Seen::Out(when) => {
                let delay = last.take().map(|from| when.saturating_sub(from));
                delays.extend(delay.map(|delay| delay.as_secs_f64() * 1e6));
            }
        }
    }
    delays
}

/// Instructions of classic BPF: load a byte of the packet, go on if equal, and, return.
const LOAD: u16 = 0x30;
const IF_EQUAL: u16 = 0x15;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// Passes IPv4 packets whose 20 bytes of header are followed by TCP with SYN and without ACK.
fn syns_only() -> [SockFilter; 9] {
    [
        SockFilter::new(LOAD, 0, 0, 0),
        // IPv4 with a header of five words, so that the flags of TCP are at a fixed offset.
        SockFilter::new(IF_EQUAL, 0, 6, 0x45),
        SockFilter::new(LOAD, 0, 0, 9),
        SockFilter::new(IF_EQUAL, 0, 4, 6),
        SockFilter::new(LOAD, 0, 0, 33),
        SockFilter::new(AND, 0, 0, 0x12),
        SockFilter::new(IF_EQUAL, 0, 1, 0x02),
        SockFilter::new(RETURN, 0, 0, 64),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syn_matches_last_one() {
        let at = Duration::from_micros;
        let seen = [
            Seen::Out(at(1)),
            Seen::In(at(10)),
            Seen::Out(at(14)),
            // The SYN of a hop of the node itself.
            Seen::Out(at(15)),
            Seen::In(at(20)),
            Seen::In(at(30)),
            Seen::Out(at(37)),
        ];
        assert_eq!(pair(&seen), [4.0, 7.0]);
    }
}
