// SPDX-License-Identifier: Apache-2.0
//! By which uplink hops of Multipath TCP to a peer begin. All paths of such a hop need its first
//! handshake, which takes one uplink: that of the routes, or one of the addresses that the operator
//! has named for further paths. Where an uplink is silent, the next hops begin by another. Pure.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// How long hops begin by another uplink, until that of the routes is tried again.
const OTHER_FOR: Duration = Duration::from_secs(30);

/// The uplinks to a peer.
#[derive(Debug, Default)]
pub(crate) struct Uplinks {
    /// This host's addresses for further paths, of the peer's family.
    addresses: Vec<IpAddr>,
    /// The one in use and since when; none while routes decide.
    other: Option<(IpAddr, Duration)>,
}

impl Uplinks {
    /// This host has these addresses for further paths, to peers of any family.
    pub(crate) fn set(&mut self, addresses: &[IpAddr], ipv6: bool) {
        let ours = addresses.iter().filter(|ip| ip.is_ipv6() == ipv6);
        self.addresses = ours.copied().collect();
        self.other.take_if(|(ip, _)| !self.addresses.contains(ip));
    }

    /// From which address a hop begins now; `None` for that of the routes.
    pub(crate) fn source(&mut self, now: Duration) -> Option<IpAddr> {
        self.other.take_if(|(_, since)| now >= *since + OTHER_FOR);
        self.other.map(|(ip, _)| ip)
    }

    /// How many uplinks there are.
    pub(crate) fn count(&self) -> usize {
        1 + self.addresses.len()
    }

    /// A hop from `source` got no answer, or could not begin: the next ones take another uplink, unless
    /// they do already. False if this was the last, so that the peer itself may be the cause.
    pub(crate) fn leave(&mut self, source: Option<IpAddr>, now: Duration) -> bool {
        if self.other.map(|(ip, _)| ip) != source {
            return true;
        }
        let place = |ip| self.addresses.iter().position(|address| *address == ip);
        let next = source.map_or(0, |ip| place(ip).map_or(0, |place| place + 1));
        self.other = self.addresses.get(next).map(|ip| (*ip, now));
        self.other.is_some()
    }
}

/// Whether a connection could not be opened for want of a way to the peer by its uplink.
pub(crate) fn is_of_uplink(error: &io::Error) -> bool {
    let of_uplink = [
        // The address is no longer this host's.
        libc::EADDRNOTAVAIL,
        libc::EHOSTUNREACH,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ETIMEDOUT,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| of_uplink.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    // promise: MP12
    #[test]
    fn silent_uplinks_are_left_in_turn() {
        let [one, two] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let mut uplinks = Uplinks::default();
        assert!(!uplinks.leave(None, seconds(1)), "there is no other");
        assert_eq!((uplinks.source(seconds(1)), uplinks.count()), (None, 1));
        uplinks.set(&[one, "2001:db8::1".parse().unwrap(), two], false);
        assert_eq!((uplinks.source(seconds(1)), uplinks.count()), (None, 3));
        assert!(uplinks.leave(None, seconds(1)));
        assert_eq!(uplinks.source(seconds(2)), Some(one));
        assert!(uplinks.leave(None, seconds(2)), "another hop of that time");
        assert_eq!(uplinks.source(seconds(2)), Some(one));
        assert!(uplinks.leave(Some(one), seconds(3)));
        assert_eq!(uplinks.source(seconds(32)), Some(two));
        assert_eq!(uplinks.source(seconds(33)), None, "it is tried again");
        assert!(uplinks.leave(None, seconds(34)));
        uplinks.set(&[two], false);
        assert_eq!(uplinks.source(seconds(34)), None, "the address is gone");
        assert!(uplinks.leave(None, seconds(34)));
        assert!(!uplinks.leave(Some(two), seconds(35)), "all are silent");
        assert_eq!(uplinks.source(seconds(35)), None);
    }
}
