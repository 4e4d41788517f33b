// SPDX-License-Identifier: Apache-2.0
//! Which clients may have flows relayed from an explicit listener, and to which destinations.
//!
//! A node that connects to any destination for any client is an open proxy, also into the
//! operator's own network. So only peers and listed clients may use it, and only for destinations
//! that any Internet host could reach directly, unless the configuration allows others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use posthaste_wire::header::NodeId;

use crate::flow::{Flow, mapped};
use crate::policy::Prefix;

/// Which clients may use the explicit listeners, and for which destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Source prefixes of clients that may send requests without a key (RFC 8803).
    pub clients: Vec<Prefix>,
    /// Destinations that are allowed although [`Special::of`] denies them.
    pub destinations: Vec<Prefix>,
    /// Whether clients without a key must first prove with a cookie (RFC 8803 §6.2.7) that they
    /// receive what is sent to their address.
    pub cookies: bool,
    /// The text that such clients must send as their cookie; they get it out of band.
    pub cookie: Option<Cookie>,
    /// Peers that may request route lookups from this node.
    pub resolve: Vec<NodeId>,
}

/// A shared text that clients without a key send as their cookie.
#[derive(Clone, PartialEq, Eq)]
pub struct Cookie(String);

impl Cookie {
    /// The most characters it may have.
    pub const MOST: usize = 64;

    /// Accepts 1 to [`Self::MOST`] printable ASCII characters without spaces, so that a client can
    /// take it from an environment variable.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=Self::MOST).contains(&text.len());
        let prints = text.bytes().all(|byte| byte.is_ascii_graphic());
        (fits && prints).then(|| Self(text.to_owned()))
    }

    /// Whether `bytes` is this text, zero-padded to a multiple of 4 bytes. Compares in constant
    /// time.
    pub fn is_sent_as(&self, bytes: &[u8]) -> bool {
        let text = self.0.as_bytes();
        let padded = text.len().next_multiple_of(4);
        let known = text.iter().chain(std::iter::repeat(&0)).take(padded);
        // To the end in any case: the time must not show how many characters are right.
        let differences = known.zip(bytes).fold(0, |all, (a, b)| all | (a ^ b));
        bytes.len() == padded && differences == 0
    }
}

impl std::fmt::Debug for Cookie {
    /// Without the text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cookie").finish_non_exhaustive()
    }
}

/// Why a destination is not relayed to. The addresses are those of the IANA special-purpose address
/// registries (RFC 6890), and those at which clouds serve data that only the machine itself may
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// The host itself: 127.0.0.0/8, ::1.
    Loopback,
    /// An address of this host: a client that may connect to it may not do so from the host itself.
    Own,
    /// RFC 1918, RFC 6598 (shared by carriers), RFC 4193, RFC 3879 (site-local).
    Private,
    /// RFC 3927, RFC 4291 §2.5.6.
    LinkLocal,
    /// Metadata services of clouds, which serve credentials to the machine.
    Metadata,
    /// RFC 1112, RFC 4291 §2.7.
    Multicast,
    /// Reserved for documentation, benchmarks, protocols and translators, or unassigned.
    Reserved,
}

/// IPv4 metadata services and host addresses of clouds: most of them, Azure, Alibaba, Oracle.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// The IPv6 metadata service of Amazon.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

impl Special {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Own => "own",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        }
    }

    /// The class of an address, if it is special. IPv4-mapped addresses count as IPv4.
    pub fn of(ip: IpAddr) -> Option<Self> {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Option<Self> {
        let [first, second, third, _] = ip.octets();
        Some(match (first, second, third) {
            // Before the networks that contain them: allowing those must not allow these.
            _ if METADATA_V4.contains(&ip) => Self::Metadata,
            (127, ..) => Self::Loopback,
            (169, 254, _) => Self::LinkLocal,
            (10, ..) | (192, 168, _) | (172, 16..=31, _) | (100, 64..=127, _) => Self::Private,
            (224..=239, ..) => Self::Multicast,
            (0 | 240..=255, ..) => Self::Reserved,
            // For protocols (RFC 6890), documents (RFC 5737), relays of 6to4 (RFC 7526).
            (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) | (192, 88, 99) => Self::Reserved,
            // For benchmarks (RFC 2544).
            (198, 18..=19, _) => Self::Reserved,
            _ => return None,
        })
    }

    fn of_v6(ip: Ipv6Addr) -> Option<Self> {
        let [first, second, ..] = ip.segments();
        Some(match (first, second) {
            _ if ip == METADATA_V6 => Self::Metadata,
            _ if ip.is_loopback() => Self::Loopback,
            (0xfe80..=0xfebf, _) => Self::LinkLocal,
            (0xfc00..=0xfdff | 0xfec0..=0xfeff, _) => Self::Private,
            (0xff00..=0xffff, _) => Self::Multicast,
            // NAT64 translates to the IPv4 address in the last four bytes (RFC 6052 §2.1), which
            // may be any of the above.
            (0x64, 0xff9b) if ip.segments()[2..6] == [0; 4] => return Self::of_v4(last_v4(ip)),
            // 6to4 (RFC 3056) embeds an IPv4 address behind the prefix.
            (0x2002, _) => {
                let [_, _, a, b, c, d, ..] = ip.octets();
                return Self::of_v4(Ipv4Addr::new(a, b, c, d));
            }
            // For protocols (RFC 2928), among them Teredo, which leads to an IPv4 address
            // (RFC 4380); for documents (RFC 3849, RFC 9637).
            (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => Self::Reserved,
            (0x2000..=0x3fff, _) => return None,
            // Everything else outside global unicast (RFC 4291 §2.4): IPv4-compatible and
            // IPv4-translated addresses, translation within a site (RFC 8215), discard (RFC 6666),
            // and the rest.
            _ => Self::Reserved,
        })
    }
}

fn last_v4(ip: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = ip.octets();
    Ipv4Addr::new(a, b, c, d)
}

impl Access {
    /// Whether a client without a key may send requests.
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = mapped(client);
        self.clients.iter().any(|prefix| prefix.contains(client))
    }

    /// Checks whether the node may connect to the destination of a flow. `is_own` returns whether
    /// an address is one of this host's.
    ///
    /// # Errors
    /// The class of the destination, if it is denied.
    pub fn permits(&self, flow: &Flow, is_own: impl Fn(IpAddr) -> bool) -> Result<(), Special> {
        let (_, server) = flow.addresses();
        let ip = flow.server().ip();
        // An address of this host may be global, private or reserved: no registry shows it.
        let own = || is_own(ip).then_some(Special::Own);
        let special = match Special::of(ip) {
            Some(Special::Private | Special::LinkLocal | Special::Reserved) | None => {
                own().or_else(|| Special::of(ip))
            }
            special => special,
        };
        let Some(special) = special else {
            return Ok(());
        };
        // Allowing a network does not allow the metadata service or this host's own address within
        // it: those need a prefix of 128 bits.
        let bits = match special {
            Special::Metadata | Special::Own => 128,
            _ => 0,
        };
        let mut allowing = self.destinations.iter();
        let allowed = allowing.any(|p| p.contains(server) && p.mapped_bits() >= bits);
        if allowed { Ok(()) } else { Err(special) }
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
    fn internet_addresses_not_special() {
        for ip in [
            "198.50.100.7",
            "1.1.1.1",
            "192.0.1.1",
            "198.17.255.255",
            "198.20.0.0",
            "168.63.129.17",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "169.253.0.1",
            "223.255.255.255",
            "2001:200::7",
            "2001:db7::7",
            "2001:db9::7",
            "2606:4700::1111",
            "3ffe::1",
            "64:ff9b::101:101",
            "2002:101:101::1",
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
            ("192.0.0.1", Special::Reserved),
            ("192.0.2.1", Special::Reserved),
            ("198.51.100.7", Special::Reserved),
            ("203.0.113.7", Special::Reserved),
            ("198.18.0.1", Special::Reserved),
            ("198.19.255.255", Special::Reserved),
            ("192.88.99.1", Special::Reserved),
            ("192.0.0.192", Special::Metadata),
            ("168.63.129.16", Special::Metadata),
            ("100.100.100.200", Special::Metadata),
            ("::a00:1", Special::Reserved),
            ("::808:808", Special::Reserved),
            ("::ffff:0:a00:1", Special::Reserved),
            ("64:ff9b:1::808:808", Special::Reserved),
            ("100::1", Special::Reserved),
            ("2001::1", Special::Reserved),
            ("2001:0:808:808::1", Special::Reserved),
            ("2001:2::1", Special::Reserved),
            ("2001:db8::7", Special::Reserved),
            ("3fff::1", Special::Reserved),
            ("5f00::1", Special::Reserved),
            ("4000::1", Special::Reserved),
            ("fec0::1", Special::Private),
        ] {
            assert_eq!(special(ip), Some(named), "{ip}");
        }
    }

    #[test]
    fn translated_address_resolved() {
        for ip in ["64:ff9b::a00:1", "2002:a00:1::1"] {
            assert_eq!(special(ip), Some(Special::Private), "{ip}");
        }
        assert_eq!(special("64:ff9b::a9fe:a9fe"), Some(Special::Metadata));
        assert_eq!(special("2002:7f00:1::"), Some(Special::Loopback));
    }

    #[test]
    fn allowed_and_no_more() {
        let access = Access {
            destinations: vec![prefix("10.1.0.0/16"), prefix("fd00:1::/32")],
            ..Access::default()
        };
        for server in ["10.1.2.3:80", "[fd00:1::2]:80", "1.1.1.1:80"] {
            assert_eq!(
                access.permits(&flow_to(server), |_| false),
                Ok(()),
                "{server}"
            );
        }
        for server in ["10.2.0.1:80", "[fd00:2::2]:80"] {
            let denied = Err(Special::Private);
            assert_eq!(
                access.permits(&flow_to(server), |_| false),
                denied,
                "{server}"
            );
        }
    }

    #[test]
    fn metadata_needs_own_address() {
        let allowing = |text: &str| Access {
            destinations: vec![prefix(text)],
            ..Access::default()
        };
        for (server, network, itself) in [
            ("169.254.169.254:80", "169.254.0.0/16", "169.254.169.254/32"),
            ("[fd00:ec2::254]:80", "fd00::/8", "fd00:ec2::254/128"),
        ] {
            let denied = Err(Special::Metadata);
            let permits = |allowed| allowing(allowed).permits(&flow_to(server), |_| false);
            assert_eq!(permits(network), denied);
            assert_eq!(permits(itself), Ok(()));
        }
    }

    #[test]
    fn host_address_needs_itself() {
        let allowing = |text: &str| Access {
            destinations: vec![prefix(text)],
            ..Access::default()
        };
        let own = |ip: IpAddr| ["10.1.2.3", "1.1.1.1", "fd00::7"].contains(&&*ip.to_string());
        for (server, network, itself) in [
            ("10.1.2.3:22", "10.0.0.0/8", "10.1.2.3/32"),
            ("1.1.1.1:22", "0.0.0.0/0", "1.1.1.1/32"),
            ("[fd00::7]:22", "fd00::/8", "fd00::7/128"),
        ] {
            let denied = Err(Special::Own);
            assert_eq!(allowing(network).permits(&flow_to(server), own), denied);
            assert_eq!(allowing(itself).permits(&flow_to(server), own), Ok(()));
        }
        let allowed = allowing("10.0.0.0/8").permits(&flow_to("10.1.2.4:22"), own);
        assert_eq!(allowed, Ok(()));
    }

    #[test]
    fn cookie_in_whole_words() {
        let cookie = Cookie::new("open sesame");
        assert_eq!(cookie, None, "a space");
        assert!(Cookie::new("").is_none() && Cookie::new(&"x".repeat(65)).is_none());
        assert!(Cookie::new("caf\u{e9}").is_none() && Cookie::new("a\0b").is_none());
        let cookie = Cookie::new("sesame").unwrap();
        assert!(cookie.is_sent_as(b"sesame\0\0"));
        for other in [
            &b"sesame"[..],
            b"sesame\0\0\0\0\0\0",
            b"sesamE\0\0",
            b"sesame\0x",
            b"",
        ] {
            assert!(!cookie.is_sent_as(other), "{other:?}");
        }
        assert!(Cookie::new("whole123").unwrap().is_sent_as(b"whole123"));
        assert!(!format!("{cookie:?}").contains("sesame"));
    }

    #[test]
    fn only_listed_clients_may_request() {
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
