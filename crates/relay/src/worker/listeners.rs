// SPDX-License-Identifier: Apache-2.0
//! A worker's listeners and their purposes.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use crate::control::Shared;
use crate::sys;

/// The purpose of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Redirected clients, which address a server.
    Transit,
    /// The same, of Multipath TCP.
    Multipath,
    /// Clients that name the destination themselves, at this address.
    Requests(SocketAddr),
    /// Clients for this fixed destination.
    Fixed(SocketAddr),
}

/// All listeners, by number, and the numbers of those that accept Multipath TCP. A listener that a
/// successor takes over is closed here.
#[derive(Debug)]
pub(super) struct Listeners(Vec<(Option<Socket>, Purpose)>, Vec<usize>);

impl Listeners {
    /// Transparent listeners, explicit ones, and those with a fixed destination.
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
        let accept_multipath = |(number, (socket, _)): (usize, &(Option<Socket>, Purpose))| {
            socket
                .as_ref()
                .is_some_and(sys::is_multipath)
                .then_some(number)
        };
        let multipath = all.iter().enumerate().filter_map(accept_multipath);
        let multipath = multipath.collect();
        Ok(Self(all, multipath))
    }

    /// A listener, its purpose, and whether its clients may use Multipath TCP.
    pub(super) fn get(&self, number: usize) -> Option<(&Socket, Purpose, bool)> {
        let (socket, purpose) = self.0.get(number)?;
        let socket = socket.as_ref()?;
        Some((socket, *purpose, self.1.contains(&number)))
    }

    /// The families of the transparent listeners: whether each is IPv6.
    pub(super) fn transit_families(&self) -> Vec<bool> {
        let all = self.0.iter();
        let sockets = all.filter(|(_, purpose)| matches!(purpose, Purpose::Transit));
        let addresses = sockets.filter_map(|(socket, _)| {
            let address = socket.as_ref()?.local_addr().ok()?.as_socket()?;
            Some(address.is_ipv6())
        });
        addresses.collect()
    }

    /// Whether clients of some may use Multipath TCP.
    pub(super) fn have_multipath(&self) -> bool {
        !self.1.is_empty()
    }

    /// Adds a listener for redirected clients of Multipath TCP; returns it with its number.
    pub(super) fn add_multipath(&mut self, socket: Socket) -> (u64, &Socket) {
        let number = self.0.len();
        self.1.push(number);
        self.0.push((None, Purpose::Multipath));
        let (place, _) = &mut self.0[number];
        (number as u64, place.insert(socket))
    }

    /// Where clients and peers name the destination themselves.
    pub(super) fn requested_at(&self) -> Vec<SocketAddr> {
        let all = self.0.iter();
        let addresses = all.filter_map(|(_, purpose)| match purpose {
            Purpose::Requests(address) => Some(*address),
            Purpose::Transit | Purpose::Multipath | Purpose::Fixed(_) => None,
        });
        addresses.collect()
    }

    /// The open listeners, with their numbers.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u64, &Socket)> {
        let all = (0..).zip(&self.0);
        all.filter_map(|(number, (socket, _))| Some((number, socket.as_ref()?)))
    }

    /// Duplicates of the listeners that have an address of their own.
    pub(super) fn shared(&self) -> io::Result<Vec<Shared>> {
        let each = self.0.iter().filter_map(|(socket, purpose)| {
            let fixed = match purpose {
                Purpose::Transit | Purpose::Multipath => return None,
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

    /// Removes the listeners that have an address of their own.
    pub(super) fn take_shared(&mut self) -> Vec<Socket> {
        let all = self.0.iter_mut();
        let shared =
            all.filter(|(_, purpose)| !matches!(purpose, Purpose::Transit | Purpose::Multipath));
        shared.filter_map(|(socket, _)| socket.take()).collect()
    }

    /// Whether the node takes requests at this address.
    pub(super) fn are_requested_at(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(_, purpose)| {
            let Purpose::Requests(listener) = purpose else {
                return false;
            };
            // A wildcard listener takes only connections to addresses of this host.
            let everywhere = listener.ip().is_unspecified() && sys::is_own_address(address.ip());
            listener.port() == address.port() && (listener.ip() == address.ip() || everywhere)
        })
    }
}
