// SPDX-License-Identifier: Apache-2.0
//! Changes of this host's filtering and routing: firewall rules and sets (nftables), routes,
//! routing rules, addresses.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use posthaste_netlink::Netlink;

/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;
/// `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE`, and the bit of group 19,
/// `RTNLGRP_IPV6_RULE`.
const ROUTING_GROUPS: u32 = 0x40 | 0x80 | 0x400 | 1 << 18;
/// `NFNLGRP_NFTABLES`, which is group 7.
const NFTABLES_GROUPS: u32 = 1 << 6;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostChange {
    /// Firewall rules, or elements of their sets.
    Firewall,
    /// The host's own addresses.
    Addresses,
    /// Routes or routing rules.
    Routing,
}

impl HostChange {
    /// The kind as a word for the log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Firewall => "firewall",
            Self::Addresses => "addresses",
            Self::Routing => "routing",
        }
    }
}

/// A subscription to changes of one kind. Its descriptor is readable after a change.
#[derive(Debug)]
pub(crate) struct ChangeWatch {
    notifications: Netlink,
    change: HostChange,
}

impl ChangeWatch {
    /// Subscribes.
    ///
    /// # Errors
    /// The kernel has no such notifications.
    pub(crate) fn open(change: HostChange) -> io::Result<Self> {
        let notifications = match change {
            HostChange::Firewall => Netlink::subscribed_to_netfilter(NFTABLES_GROUPS)?,
            HostChange::Addresses => Netlink::subscribed(ADDRESS_GROUPS)?,
            HostChange::Routing => Netlink::subscribed(ROUTING_GROUPS)?,
        };
        Ok(Self {
            notifications,
            change,
        })
    }

    /// The kind of changes.
    pub(crate) fn change(&self) -> HostChange {
        self.change
    }

    /// Whether there was a change since the last call.
    pub(crate) fn take(&self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.notifications.notifications(|_, _| ()) {
                // All pending notifications are one change: the caller reads the host's state anew.
                Ok(()) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                // Notifications were lost, so there were changes.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRawFd for ChangeWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.notifications.as_fd().as_raw_fd()
    }
}
