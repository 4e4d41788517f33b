// SPDX-License-Identifier: Apache-2.0
//! Who may have a flow relayed from an explicit listener, and to where.
//!
//! A node that connects wherever anybody asks is an open proxy, into the
//! operator's own network too. So only peers may ask and clients that are
//! listed, and only for destinations that any host of the Internet could reach
//! by itself, unless others are allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use posthaste_wire::header::NodeId;

use crate::flow::Flow;
use crate::policy::Prefix;

/// Who may use the explicit listeners, and for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients that may ask without a key (RFC 8803), by their own address.
    pub clients: Vec<Prefix>,
    /// Destinations that would be denied otherwise.
    pub destinations: Vec<Prefix>,
    /// Clients without a key have to show first that they receive what is sent
    /// to their address, by a cookie (RFC 8803 §6.2.7).
    pub cookies: bool,
    /// Peers that may have the way of a flow looked up here.
    pub look_up: Vec<NodeId>,
}

/// What keeps a destination from being relayed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// The host itself: 127.0.0.0/8, ::1.
    Loopback,
    /// RFC 1918, RFC 6598 (shared by carriers), RFC 4193.
    Private,
    /// RFC 3927, RFC 4291 §2.5.6.
    LinkLocal,
    /// Where clouds tell a machine its secrets: 169.254.169.254,
    /// fd00:ec2::254.
    Metadata,
    /// RFC 1112, RFC 4291 §2.7.
    Multicast,
    /// 0.0.0.0/8, 240.0.0.0/4 with the broadcast address, ::.
    Reserved,
}

impl Special {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        }
    }

    /// What is special about an address, if anything is.
    pub fn of(ip: IpAddr) -> Option<Self> {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Option<Self> {
        let [first, second, ..] = ip.octets();
        Some(match (first, second) {
            _ if ip == Ipv4Addr::new(169, 254, 169, 254) => Self::Metadata,
            (127, _) => Self::Loopback,
            (169, 254) => Self::LinkLocal,
            (10, _) | (192, 168) | (172, 16..=31) | (100, 64..=127) => Self::Private,
            (224..=239, _) => Self::Multicast,
            (0 | 240..=255, _) => Self::Reserved,
            _ => return None,
        })
    }

    fn of_v6(ip: Ipv6Addr) -> Option<Self> {
        /// Where Amazon's machines find their metadata by IPv6.
        const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
        Some(match ip.segments()[0] {
            _ if ip == METADATA => Self::Metadata,
            _ if ip.is_loopback() => Self::Loopback,
            _ if ip.is_unspecified() => Self::Reserved,
            0xfe80..=0xfebf => Self::LinkLocal,
            0xfc00..=0xfdff => Self::Private,
            0xff00..=0xffff => Self::Multicast,
            // A translator at the edge makes an IPv4 address of the last four
            // bytes (RFC 6052 §2.1), which may be any of the above.
            0x64 if ip.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
                return Self::of_v4(last_v4(ip));
            }
            // 6to4 (RFC 3056) holds one behind its prefix.
            0x2002 => {
                let [_, _, a, b, c, d, ..] = ip.octets();
                return Self::of_v4(Ipv4Addr::new(a, b, c, d));
            }
            _ => return None,
        })
    }
}

fn last_v4(ip: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = ip.octets();
    Ipv4Addr::new(a, b, c, d)
}

impl Access {
    /// Whether a client that has no key may ask at all.
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = octets(client);
        self.clients.iter().any(|prefix| prefix.contains(client))
    }

    /// Whether the destination of a flow may be connected to.
    ///
    /// # Errors
    /// It may not, for what it is.
    pub fn permits(&self, flow: &Flow) -> Result<(), Special> {
        let (_, server) = flow.addresses();
        let Some(special) = Special::of(flow.server().ip()) else {
            return Ok(());
        };
        // Nobody means the secrets of the machine when allowing a network that
        // they happen to lie in.
        let bits = if special == Special::Metadata { 128 } else { 0 };
        let mut allowing = self.destinations.iter();
        let allowed = allowing.any(|p| p.contains(server) && p.mapped_bits() >= bits);
        if allowed { Ok(()) } else { Err(special) }
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(ip: &str) -> Option<Special> {
        Special::of(ip.parse().unwrap())
    }

    fn flow_to(server: &str) -> Flow {
        let client = if server.starts_with('[') {
            "[2001:db8::1]:40000"
        } else {
            "192.0.2.1:40000"
        };
        Flow::new(client.parse().unwrap(), server.parse().unwrap())
    }

    fn prefix(text: &str) -> Prefix {
        let (ip, bits) = text.split_once('/').unwrap();
        Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap()
    }

    #[test]
    fn addresses_of_the_internet_are_not_special() {
        for ip in [
            "198.51.100.7",
            "1.1.1.1",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "169.253.0.1",
            "223.255.255.255",
            "2001:db8::7",
            "64:ff9b::c633:6407",
            "2002:c633:6407::1",
            "64:ff9b:1::a00:1",
        ] {
            assert_eq!(special(ip), None, "{ip}");
        }
    }

    #[test]
    fn others_are_named() {
        for (ip, named) in [
            ("127.0.0.1", Special::Loopback),
            ("127.255.255.255", Special::Loopback),
            ("::1", Special::Loopback),
            ("::ffff:127.0.0.1", Special::Loopback),
            ("10.0.0.1", Special::Private),
            ("172.16.0.0", Special::Private),
            ("172.31.255.255", Special::Private),
            ("192.168.1.1", Special::Private),
            ("100.64.0.1", Special::Private),
            ("fd12::1", Special::Private),
            ("fc00::1", Special::Private),
            ("169.254.0.1", Special::LinkLocal),
            ("fe80::1", Special::LinkLocal),
            ("febf::1", Special::LinkLocal),
            ("169.254.169.254", Special::Metadata),
            ("fd00:ec2::254", Special::Metadata),
            ("224.0.0.1", Special::Multicast),
            ("ff02::1", Special::Multicast),
            ("0.0.0.0", Special::Reserved),
            ("255.255.255.255", Special::Reserved),
            ("240.0.0.1", Special::Reserved),
            ("::", Special::Reserved),
        ] {
            assert_eq!(special(ip), Some(named), "{ip}");
        }
    }

    #[test]
    fn a_translated_address_is_what_it_stands_for() {
        for ip in ["64:ff9b::a00:1", "2002:a00:1::1"] {
            assert_eq!(special(ip), Some(Special::Private), "{ip}");
        }
        assert_eq!(special("64:ff9b::a9fe:a9fe"), Some(Special::Metadata));
        assert_eq!(special("2002:7f00:1::"), Some(Special::Loopback));
    }

    #[test]
    fn what_is_allowed_is_allowed_and_no_more() {
        let access = Access {
            destinations: vec![prefix("10.1.0.0/16"), prefix("fd00:1::/32")],
            ..Access::default()
        };
        for server in ["10.1.2.3:80", "[fd00:1::2]:80", "198.51.100.7:80"] {
            assert_eq!(access.permits(&flow_to(server)), Ok(()), "{server}");
        }
        for server in ["10.2.0.1:80", "[fd00:2::2]:80"] {
            let denied = Err(Special::Private);
            assert_eq!(access.permits(&flow_to(server)), denied, "{server}");
        }
    }

    #[test]
    fn where_secrets_are_told_is_allowed_by_its_own_address_only() {
        let allowing = |text: &str| Access {
            destinations: vec![prefix(text)],
            ..Access::default()
        };
        for (server, network, itself) in [
            ("169.254.169.254:80", "169.254.0.0/16", "169.254.169.254/32"),
            ("[fd00:ec2::254]:80", "fd00::/8", "fd00:ec2::254/128"),
        ] {
            let denied = Err(Special::Metadata);
            assert_eq!(allowing(network).permits(&flow_to(server)), denied);
            assert_eq!(allowing(itself).permits(&flow_to(server)), Ok(()));
        }
    }

    #[test]
    fn nobody_may_ask_unless_listed() {
        let client = "192.0.2.1".parse().unwrap();
        assert!(!Access::default().admits(client));
        let access = Access {
            clients: vec![prefix("192.0.2.0/24")],
            ..Access::default()
        };
        assert!(access.admits(client));
        assert!(!access.admits("192.0.3.1".parse().unwrap()));
        assert!(!access.admits("2001:db8::1".parse().unwrap()));
    }
}
