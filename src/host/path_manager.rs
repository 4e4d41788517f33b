// SPDX-License-Identifier: Apache-2.0
//! The kernel's path manager of Multipath TCP: its limits, how many further paths a connection gets and how
//! many announced addresses it uses, and the addresses of this host for further paths. They are no sysctls;
//! generic netlink reads and changes them (linux/mptcp_pm.h).

use std::io;
use std::net::IpAddr;

use posthaste_netlink::{GenericFamily, Netlink, attribute, attributes_of, u32_at};

/// `MPTCP_PM_NAME`, `MPTCP_PM_VER`
const FAMILY: &str = "mptcp_pm";
const VERSION: u8 = 1;
/// `MPTCP_PM_CMD_GET_ADDR`, `MPTCP_PM_CMD_SET_LIMITS`, `MPTCP_PM_CMD_GET_LIMITS`
const GET_ADDRESSES: u8 = 3;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;

/// `MPTCP_PM_ATTR_ADDR`, and in it `MPTCP_PM_ADDR_ATTR_ADDR4`, `_ADDR6` and `_FLAGS`
const ADDRESS: u16 = 1;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const ADDRESS_FLAGS: u16 = 6;
/// `MPTCP_PM_ADDR_FLAG_SUBFLOW`, `MPTCP_PM_ADDR_FLAG_FULLMESH`: connections open further paths from it.
const OPENS_PATHS: u32 = 2 | 8;

/// The addresses of this network namespace that connections open further paths from.
///
/// # Errors
/// `NotFound` where the kernel has no Multipath TCP.
pub(crate) fn subflow_endpoints() -> io::Result<Vec<IpAddr>> {
    let (mut netlink, family) = open()?;
    let mut addresses = Vec::new();
    netlink.dump(family.message(GET_ADDRESSES), |_, body| {
        let Some(endpoint) = attribute(attributes_of(body), ADDRESS) else {
            return;
        };
        let flags = attribute(endpoint, ADDRESS_FLAGS);
        let flags = flags.and_then(|flags| u32_at(flags, 0)).unwrap_or(0);
        let v4 = attribute(endpoint, ADDRESS_V4).and_then(|ip| <[u8; 4]>::try_from(ip).ok());
        let v6 = attribute(endpoint, ADDRESS_V6).and_then(|ip| <[u8; 16]>::try_from(ip).ok());
        let address = v4.map(IpAddr::from).or_else(|| v6.map(IpAddr::from));
        addresses.extend(address.filter(|_| flags & OPENS_PATHS != 0));
    })?;
    Ok(addresses)
}

/// A limit, by its attribute (`MPTCP_PM_ATTR_RCV_ADD_ADDRS`, `MPTCP_PM_ATTR_SUBFLOWS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum PathLimit {
    /// Addresses announced by the peer that a connection uses.
    AnnouncedAddresses = 2,
    /// Paths of a connection beside the first.
    Subflows = 3,
}

impl PathLimit {
    /// Its name for `ip mptcp limits`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AnnouncedAddresses => "add_addr_accepted",
            Self::Subflows => "subflows",
        }
    }

    /// Its value in this network namespace.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no Multipath TCP.
    pub(crate) fn read(self) -> io::Result<u32> {
        let (mut netlink, family) = open()?;
        let mut value = None;
        netlink.query(family.message(GET_LIMITS), |_, body| {
            let found = attribute(attributes_of(body), self as u16);
            value = found.and_then(|bytes| u32_at(bytes, 0)).or(value);
        })?;
        Ok(value.ok_or(io::ErrorKind::InvalidData)?)
    }

    /// Changes it for new connections, and leaves the other.
    ///
    /// # Errors
    /// As for [`Self::read`]; `EINVAL` for more than the kernel's bound, 8 in Linux 6.18.
    pub(crate) fn write(self, value: u32) -> io::Result<()> {
        let (mut netlink, family) = open()?;
        let message = family.message(SET_LIMITS);
        netlink.request(message.attribute(self as u16, &value.to_ne_bytes()))
    }
}

fn open() -> io::Result<(Netlink, GenericFamily)> {
    let mut netlink = Netlink::generic()?;
    let family = GenericFamily::find(&mut netlink, FAMILY, VERSION)?;
    Ok((netlink, family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_that_open_paths_are_read() {
        let counts = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this needs root");
            let endpoints = [
                ("10.0.0.1", "signal"),
                ("10.0.0.2", "subflow"),
                ("fd00::1", "fullmesh"),
            ];
            endpoints.map(|(address, kind)| {
                let arguments = ["mptcp", "endpoint", "add", address, kind];
                let added = std::process::Command::new("ip").args(arguments).status();
                assert!(added.unwrap().success(), "{address} {kind}");
                subflow_endpoints().unwrap()
            })
        });
        let [v4, v6] = ["10.0.0.2", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(counts.join().unwrap(), [vec![], vec![v4], vec![v4, v6]]);
    }

    #[test]
    fn one_limit_leaves_the_other() {
        let here = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this needs root");
            let other = PathLimit::AnnouncedAddresses.read().unwrap();
            for value in [5, 1] {
                PathLimit::Subflows.write(value).unwrap();
                assert_eq!(PathLimit::Subflows.read().unwrap(), value);
                assert_eq!(PathLimit::AnnouncedAddresses.read().unwrap(), other);
            }
            PathLimit::Subflows.write(1000).unwrap_err()
        });
        assert_eq!(here.join().unwrap().raw_os_error(), Some(libc::EINVAL));
    }
}
