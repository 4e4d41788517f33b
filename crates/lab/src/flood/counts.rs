// SPDX-License-Identifier: Apache-2.0
//! The state of a host's TCP for a set of clients: sockets by state, and the kernel's own counters,
//! which include everything between two readings.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// `TCP_SYN_RECV` in /proc/net/tcp.
const SYN_RECEIVED: &str = "03";
/// `TCP_LISTEN` in /proc/net/tcp.
pub(crate) const LISTEN: &str = "0A";

/// One reading of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sockets toward the prefix whose handshake is complete, in any state
    /// from ESTABLISHED on.
    pub completed: u64,
    /// Half-open connections toward the prefix.
    pub half_open: u64,
    /// Handshakes completed by any client since the namespace was created (`Tcp: PassiveOpens`).
    pub passive_opens: u64,
    /// SYN cookies sent (`TcpExt: SyncookiesSent`).
    pub cookies_sent: u64,
    /// Handshakes completed with a SYN cookie (`TcpExt: SyncookiesRecv`).
    pub cookies_received: u64,
}

impl Counts {
    /// Reads the network namespace of the calling thread.
    pub fn take(prefix: IpNet) -> io::Result<Self> {
        let sockets = read("tcp")? + &read("tcp6")?;
        let (completed, half_open) = sockets_toward(prefix, &sockets);
        let (snmp, netstat) = (read("snmp")?, read("netstat")?);
        Ok(Self {
            completed,
            half_open,
            passive_opens: counter(&snmp, "Tcp:", "PassiveOpens")?,
            cookies_sent: counter(&netstat, "TcpExt:", "SyncookiesSent")?,
            cookies_received: counter(&netstat, "TcpExt:", "SyncookiesRecv")?,
        })
    }
}

/// Completed and half-open sockets toward `prefix` in the lines of /proc/net/tcp and
/// /proc/net/tcp6.
fn sockets_toward(prefix: IpNet, lines: &str) -> (u64, u64) {
    let (mut completed, mut half_open) = (0, 0);
    for (_, remote, state) in sockets(lines) {
        match state {
            // A listener has no peer: its remote address is zero.
            LISTEN => {}
            _ if !remote_ip(remote).is_some_and(|ip| prefix.contains(&ip)) => {}
            SYN_RECEIVED => half_open += 1,
            _ => completed += 1,
        }
    }
    (completed, half_open)
}

/// Local address, remote address and state of each socket in these lines.
pub(crate) fn sockets(lines: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    lines.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    })
}

/// A file about the network namespace of the calling thread.
pub(crate) fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/thread-self/net/{name}"))
}

/// The address in `ADDRESS:PORT` as /proc/net/tcp has it: words of 32 bits in
/// the byte order of this machine.
fn remote_ip(field: &str) -> Option<IpAddr> {
    let (hex, _) = field.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = (0..hex.len() / 8)
        .map(|index| {
            u32::from_str_radix(hex.get(index * 8..index * 8 + 8)?, 16)
                .ok()
                .map(u32::to_ne_bytes)
        })
        .collect();
    let octets = words?.concat();
    if let Ok(octets) = <[u8; 4]>::try_from(octets.as_slice()) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(octets).ok()?;
    // An IPv4 client of a listener of both families is a mapped address.
    Some(Ipv6Addr::from(octets).to_canonical())
}

/// The value of `name` in a file of pairs of lines, names above values.
pub(crate) fn counter(text: &str, group: &str, name: &str) -> io::Result<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let values = lines.next().zip(lines.next());
    let found = values.and_then(|(names, values)| {
        let mut pairs = names.split(' ').zip(values.split(' '));
        pairs
            .find(|(candidate, _)| *candidate == name)?
            .1
            .parse()
            .ok()
    });
    found.ok_or_else(|| io::Error::other(format!("the kernel shows no {group} {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on a little-endian machine, the only kind these lines come from.
    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_by_peer_and_state() {
        let lines = "  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:0050 00000000:0000 0A 00000000:00000000
   1: 0100000A:0050 010012C6:0401 01 00000000:00000000
   2: 0100000A:0050 020012C6:0402 03 00000000:00000000
   3: 0100000A:0050 020012C6:0403 08 00000000:00000000
   4: 0100000A:0050 0200000A:0404 01 00000000:00000000
   5: 0000000000000000FFFF00000100000A:0050 0000000000000000FFFF0000030012C6:0405 01 0:0
";
        assert_eq!(
            sockets_toward("198.18.0.0/15".parse().unwrap(), lines),
            (3, 1)
        );
        assert_eq!(sockets_toward("10.0.0.0/8".parse().unwrap(), lines), (1, 0));
        let v6 = "   0: B80D0120000000000000000001000000:0050 B80D0120000000000000000002000000:9C40 01 0:0\n";
        assert_eq!(sockets_toward("2001:db8::/32".parse().unwrap(), v6), (1, 0));
    }

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoMin PassiveOpens MaxConn\nTcp: 200 17 -1\n";
        assert_eq!(counter(text, "Tcp:", "PassiveOpens").unwrap(), 17);
        assert!(counter(text, "Tcp:", "Missing").is_err());
    }

    #[test]
    fn snapshot_of_host() {
        let counts = Counts::take("198.18.0.0/15".parse().unwrap()).unwrap();
        assert_eq!(counts.completed, 0);
    }
}
