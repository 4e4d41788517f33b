// SPDX-License-Identifier: Apache-2.0
//! Destinations that are not redirected.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use nix::ifaddrs::getifaddrs;
use posthaste_relay::policy::Prefix;

/// Destinations that no node can reach for this host: the host itself ("this network" is that to
/// Linux, too), its links, and multicast groups.
const ALWAYS: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255",
    "::/127",
    "fe80::/10",
    "ff00::/8",
];

/// An address prefix from the command line, or a single address.
pub(super) fn prefix(text: &str) -> Result<Prefix, String> {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(address, bits)| (address, Some(bits)));
    let form = "expected a prefix such as 10.0.0.0/8 or 2001:db8::/32, or an address";
    let ip: IpAddr = address.parse().map_err(|_| form)?;
    let bits = match bits {
        Some(bits) => bits.parse().map_err(|_| form)?,
        None if ip.is_ipv4() => 32,
        None => 128,
    };
    Prefix::new(ip, bits).ok_or_else(|| format!("{form}, without bits behind the prefix"))
}

/// All exempt destinations: the fixed ones, the current addresses of this host, the node's address,
/// and those of the command line.
pub(super) fn all(requested: &[Prefix], node: SocketAddr) -> anyhow::Result<Vec<Prefix>> {
    let always = ALWAYS.iter().map(|text| prefix(text).expect("a prefix"));
    let interfaces = getifaddrs().context("list the addresses of this host")?;
    let own = interfaces.filter_map(|interface| address_of(&interface));
    let single = own.chain([node.ip()]).filter_map(|ip| {
        // The node's address may be written as IPv4-mapped.
        let ip = ip.to_canonical();
        Prefix::new(ip, if ip.is_ipv4() { 32 } else { 128 })
    });
    let requested = requested.iter().copied();
    Ok(always.chain(single).chain(requested).collect())
}

fn address_of(interface: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use posthaste_wire::header::mapped;

    use super::*;

    #[test]
    fn prefixes_and_addresses_are_read() {
        assert_eq!(prefix("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(prefix("192.0.2.1").unwrap().to_string(), "192.0.2.1/32");
        assert_eq!(
            prefix("2001:db8::/32").unwrap().to_string(),
            "2001:db8::/32"
        );
        for wrong in ["", "10.0.0.0/33", "10.0.0.1/8", "example.org", "1.2.3.4/x"] {
            assert!(
                prefix(wrong).unwrap_err().starts_with("expected"),
                "{wrong}"
            );
        }
    }

    // promise: P3
    #[test]
    fn local_destinations_exempt() {
        let requested = [prefix("198.51.100.0/24").unwrap()];
        let all = all(&requested, "192.0.2.8:4480".parse().unwrap()).unwrap();
        let is_exempt = |text: &str| {
            let ip: IpAddr = text.parse().unwrap();
            all.iter().any(|prefix| prefix.contains(mapped(ip)))
        };
        for left in [
            "127.1.2.3",
            "::1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "239.1.1.1",
            "ff02::1",
            "255.255.255.255",
            "192.0.2.8",
            "198.51.100.200",
        ] {
            assert!(is_exempt(left), "{left}");
        }
        for led in ["192.0.2.9", "203.0.113.1", "2001:db8::1", "10.1.2.3"] {
            assert!(!is_exempt(led), "{led}");
        }
    }
}
