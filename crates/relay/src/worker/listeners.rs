// SPDX-License-Identifier: Apache-2.0
//! A worker's listeners, and what their connections are.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use crate::control::Shared;
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

/// All of them, each by its number. Those that a successor goes on with are closed here.
#[derive(Debug)]
pub(super) struct Listeners(Vec<(Option<Socket>, Purpose)>);

impl Listeners {
    /// The transparent ones, the explicit ones, and those with a destination of their own.
    pub(super) fn new(
        transparent: Vec<Socket>,
        explicit: Vec<Socket>,
        fixed: Vec<(Socket, SocketAddr)>,
    ) -> io::Result<Self> {
        let transparent = transparent.into_iter();
        let mut all: Vec<_> = transparent
            .map(|socket| (Some(socket), Purpose::Transit))
            .collect();
        for socket in explicit {
            let address = socket.local_addr()?.as_socket();
            let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
            all.push((Some(socket), Purpose::Requests(address)));
        }
        let fixed = fixed.into_iter();
        all.extend(fixed.map(|(socket, destination)| (Some(socket), Purpose::Fixed(destination))));
        Ok(Self(all))
    }

    pub(super) fn get(&self, number: usize) -> Option<(&Socket, Purpose)> {
        let (socket, purpose) = self.0.get(number)?;
        Some((socket.as_ref()?, *purpose))
    }

    /// The open ones, by their numbers.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u64, &Socket)> {
        let all = (0..).zip(&self.0);
        all.filter_map(|(number, (socket, _))| Some((number, socket.as_ref()?)))
    }

    /// Duplicates of those that have an address of their own.
    pub(super) fn shared(&self) -> io::Result<Vec<Shared>> {
        let each = self.0.iter().filter_map(|(socket, purpose)| {
            let fixed = match purpose {
                Purpose::Transit => return None,
                Purpose::Requests(_) => false,
                Purpose::Fixed(_) => true,
            };
            Some((socket.as_ref()?, fixed))
        });
        each.map(|(socket, fixed)| {
            let address = socket.local_addr()?.as_socket();
            Ok(Shared {
                address: address.ok_or(io::ErrorKind::AddrNotAvailable)?,
                fixed,
                socket: socket.try_clone()?.into(),
            })
        })
        .collect()
    }

    /// Takes out those that have an address of their own.
    pub(super) fn take_shared(&mut self) -> Vec<Socket> {
        let all = self.0.iter_mut();
        let shared = all.filter(|(_, purpose)| !matches!(purpose, Purpose::Transit));
        shared.filter_map(|(socket, _)| socket.take()).collect()
    }

    /// Whether this is where the node is asked for flows.
    pub(super) fn are_requested_at(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(_, purpose)| {
            let Purpose::Requests(listener) = purpose else {
                return false;
            };
            let everywhere = listener.ip().is_unspecified() && sys::is_own_address(address.ip());
            listener.port() == address.port() && (listener.ip() == address.ip() || everywhere)
        })
    }
}
