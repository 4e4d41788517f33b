// SPDX-License-Identifier: Apache-2.0
//! A worker's listeners, and what their connections are.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use crate::sys;

/// What the connections of a listener are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Clients that have connected to a server.
    Transit,
    /// Those who name the destination themselves, here.
    Requests(SocketAddr),
    /// Clients for this destination.
    Fixed(SocketAddr),
}

/// All of them, each by its number.
#[derive(Debug)]
pub(super) struct Listeners(Vec<(Socket, Purpose)>);

impl Listeners {
    /// The transparent ones, the explicit ones, and those with a destination of their own.
    pub(super) fn new(
        transparent: Vec<Socket>,
        explicit: Vec<Socket>,
        fixed: Vec<(Socket, SocketAddr)>,
    ) -> io::Result<Self> {
        let transparent = transparent.into_iter();
        let mut all: Vec<_> = transparent
            .map(|socket| (socket, Purpose::Transit))
            .collect();
        for socket in explicit {
            let address = socket.local_addr()?.as_socket();
            let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
            all.push((socket, Purpose::Requests(address)));
        }
        let fixed = fixed.into_iter();
        all.extend(fixed.map(|(socket, destination)| (socket, Purpose::Fixed(destination))));
        Ok(Self(all))
    }

    pub(super) fn get(&self, number: usize) -> Option<&(Socket, Purpose)> {
        self.0.get(number)
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.0.iter().map(|(socket, _)| socket)
    }

    /// Whether this is where the node is asked for flows.
    pub(super) fn are_asked_at(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(_, purpose)| {
            let Purpose::Requests(listener) = purpose else {
                return false;
            };
            let everywhere = listener.ip().is_unspecified() && sys::is_own_address(address.ip());
            listener.port() == address.port() && (listener.ip() == address.ip() || everywhere)
        })
    }
}
