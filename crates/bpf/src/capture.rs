// SPDX-License-Identifier: Apache-2.0
//! Redirects the connections of the processes in a cgroup to local listeners.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use posthaste_relay::policy::Prefix;

use crate::error::Error;
use crate::layout::{self, bytes};
use crate::object::{Map, Program};
use crate::objects::capture::{self, map, program};
use crate::objects::types;
use crate::sys;

/// Exists if the kernel supports Multipath TCP.
const MPTCP: &str = "/proc/sys/net/mptcp/enabled";

/// Ports of the listeners on 127.0.0.1 and ::1; `None` where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Port on 127.0.0.1.
    pub ipv4: Option<u16>,
    /// Port on ::1.
    pub ipv6: Option<u16>,
}

/// The loaded programs. After dropping it, new connections are left alone.
#[derive(Debug)]
pub struct Capture {
    /// By their indexes in the object.
    maps: Vec<Arc<Map>>,
    programs: Vec<Program>,
    links: Vec<OwnedFd>,
}

impl Capture {
    /// Loads the programs.
    ///
    /// # Errors
    /// [`Error::Load`] with the kernel's reason, [`Error::Map`].
    pub fn load() -> Result<Self, Error> {
        let object = &capture::OBJECT;
        let types = object.load_types()?;
        let make = |number| match number {
            map::ORIGINAL_DST => object.make_typed(number, &types),
            _ => object.make(number, None),
        };
        let maps: Vec<_> = (0..object.maps.len()).map(make).collect::<Result<_, _>>()?;
        let settings = capture::Settings {
            mptcp: Path::new(MPTCP).exists().into(),
        };
        let numbers = 0..object.programs.len();
        let load = |number| object.load(number, &types, &maps, &settings.in_order());
        let programs = numbers.map(load);
        Ok(Self {
            programs: programs.collect::<Result<_, _>>()?,
            maps,
            links: Vec::new(),
        })
    }

    /// Attaches the programs to `cgroup` and its descendants. Connections are left alone until
    /// there are listeners.
    ///
    /// # Errors
    /// [`Error::AttachCgroup`].
    pub fn attach(&mut self, cgroup: BorrowedFd<'_>) -> Result<(), Error> {
        // `enum bpf_attach_type`. The program that stores destinations for the listeners
        // goes first: it must run for every redirected connection.
        let places = [
            (program::RECORD_ORIGINAL_DST, 3),
            (program::RESTORE_PEERNAME4, 29),
            (program::RESTORE_PEERNAME6, 30),
            (program::REDIRECT_CONNECT4, 10),
            (program::REDIRECT_CONNECT6, 11),
        ];
        let target = cgroup.as_raw_fd().cast_unsigned();
        for (number, attach) in places {
            let program = &self.programs[number];
            let link = sys::link(program.as_fd(), target, attach);
            self.links.push(link.map_err(|source| Error::AttachCgroup {
                program: program.name,
                source,
            })?);
        }
        Ok(())
    }

    /// Leaves connections to a prefix alone.
    ///
    /// # Errors
    /// [`Error::Map`]: there are too many.
    pub fn exempt(&self, prefix: Prefix) -> Result<(), Error> {
        let key = types::exempt_key {
            prefix_bits: prefix.mapped_bits().into(),
            ip: layout::address(prefix.octets()),
        };
        self.maps[map::EXEMPT].update(bytes(&key), &1_u32.to_ne_bytes())
    }

    /// Redirects new connections in the network namespace with this cookie to the listeners on
    /// these ports, or stops that where a port is `None`.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn lead_to(&self, netns: u64, ports: Ports) -> Result<(), Error> {
        let value = types::capture {
            netns,
            port4: ports.ipv4.unwrap_or(0).to_be(),
            port6: ports.ipv6.unwrap_or(0).to_be(),
            pad: 0,
        };
        self.maps[map::CAPTURE_CONFIG].update(&0_u32.to_ne_bytes(), bytes(&value))
    }

    /// The original destination of a client of the listeners, if it was redirected. Returns it only
    /// once.
    pub fn take_original(&self, client: SocketAddr) -> Option<SocketAddr> {
        let key = layout::destination(client.ip(), client.port());
        let mut value = [0; size_of::<types::destination>()];
        // A failed read counts as an unknown client.
        let original_dst_by_client = &self.maps[map::ORIGINAL_DST_BY_CLIENT];
        let found = original_dst_by_client
            .take(bytes(&key), &mut value)
            .unwrap_or(false);
        let original: types::destination = layout::whole(&value).filter(|_| found)?;
        let ip = Ipv6Addr::from(layout::octets(original.ip)).to_canonical();
        Some(SocketAddr::new(ip, u16::from_be(original.port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_load_empty() {
        let programs = Capture::load().unwrap();
        let any = "[::]:1".parse().unwrap();
        assert_eq!(programs.take_original(any), None);
        let prefix = Prefix::new("::".parse().unwrap(), 128).unwrap();
        programs.exempt(prefix).unwrap();
        programs.lead_to(1, Ports::default()).unwrap();
    }

    #[test]
    fn original_destination_once() {
        let programs = Capture::load().unwrap();
        let [client, original]: [SocketAddr; 2] =
            ["[fd00::7]:4711", "192.0.2.9:443"].map(|at| at.parse().unwrap());
        let key = |at: SocketAddr| layout::destination(at.ip(), at.port());
        let original_dst_by_client = &programs.maps[map::ORIGINAL_DST_BY_CLIENT];
        original_dst_by_client
            .update(bytes(&key(client)), bytes(&key(original)))
            .unwrap();
        assert_eq!(programs.take_original(client), Some(original));
        assert_eq!(programs.take_original(client), None);
    }
}
