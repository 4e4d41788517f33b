// SPDX-License-Identifier: Apache-2.0
//! Floods of spoofed SYNs, and their effect on a server.
//!
//! A flood sends SYNs of connections that do not exist: every packet has a new source address and
//! port, from a prefix that is routed to the flood's origin, so that answers arrive there and are
//! dropped. It is bounded in rate and time and sends only from the namespace in which it was
//! started.

pub mod counts;
mod packet;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::rng::Rng;

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    base: IpAddr,
    bits: u32,
}

impl Prefix {
    /// Whether `address` lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (u32::from(base) ^ u32::from(address)) & !self.host_mask_v4() == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (u128::from(base) ^ u128::from(address)) & !self.host_mask_v6() == 0
            }
            _ => false,
        }
    }

    /// The address whose bits behind the prefix are those of `host`.
    fn address(&self, host: u128) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => {
                let [.., a, b, c, d] = host.to_be_bytes();
                let host = u32::from_be_bytes([a, b, c, d]) & self.host_mask_v4();
                Ipv4Addr::from(u32::from(base) | host).into()
            }
            IpAddr::V6(base) => {
                Ipv6Addr::from(u128::from(base) | host & self.host_mask_v6()).into()
            }
        }
    }

    fn has_host_bits(&self) -> bool {
        match self.base {
            IpAddr::V4(base) => u32::from(base) & self.host_mask_v4() != 0,
            IpAddr::V6(base) => u128::from(base) & self.host_mask_v6() != 0,
        }
    }

    fn host_mask_v4(&self) -> u32 {
        u32::MAX.checked_shr(self.bits).unwrap_or(0)
    }

    fn host_mask_v6(&self) -> u128 {
        u128::MAX.checked_shr(self.bits).unwrap_or(0)
    }
}

impl FromStr for Prefix {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (base, bits) = text.split_once('/').context("expected ADDRESS/BITS")?;
        let base: IpAddr = base
            .parse()
            .context("expected an address before the slash")?;
        let bits: u32 = bits.parse().context("expected a number behind the slash")?;
        let prefix = Self { base, bits };
        ensure!(
            bits <= if base.is_ipv4() { 32 } else { 128 },
            "{bits} bits are more than {base} has"
        );
        ensure!(
            !prefix.has_host_bits(),
            "{text} has bits set behind the prefix"
        );
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

/// The parameters of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The prefix of the sources; of the target's family.
    pub sources: Prefix,
    /// The target.
    pub target: SocketAddr,
    /// SYNs per second.
    pub rate: u32,
    /// For how long.
    pub duration: Duration,
    /// Seed of sources, ports and sequence numbers.
    pub seed: u64,
}

/// A running flood. It ends after its duration, or when dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Flood {
    /// Starts to send from the network namespace of the calling thread.
    pub fn start(plan: Plan) -> anyhow::Result<Self> {
        let same_family = plan.sources.base.is_ipv4() == plan.target.is_ipv4();
        ensure!(
            same_family,
            "sources {} and target {} differ in family",
            plan.sources,
            plan.target
        );
        ensure!(plan.rate > 0, "a flood needs a rate above zero");
        let socket = raw_socket(plan.target).context("open a raw socket")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("flood".to_string())
            .spawn(move || send_all(&socket, plan, &stopped))
            .context("start the flood's thread")?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Whether SYNs are still being sent.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the end and returns the number of SYNs sent.
    pub fn finish(mut self) -> anyhow::Result<u64> {
        let thread = self
            .thread
            .take()
            .context("the flood was finished before")?;
        let sent = thread
            .join()
            .map_err(|_| anyhow!("the flood's thread panicked"))?;
        sent.context("send a spoofed SYN")
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the flood's thread panicked");
        }
    }
}

/// A socket that sends whole packets, including the IP header, and routes them.
fn raw_socket(target: SocketAddr) -> io::Result<Socket> {
    let raw = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(Domain::for_address(target), Type::RAW, Some(raw))?;
    socket.set_send_buffer_size(1 << 20)?;
    Ok(socket)
}

/// Sends every SYN at its due time; a late one is sent at once, so that the mean rate holds on a
/// busy machine.
fn send_all(socket: &Socket, plan: Plan, stop: &AtomicBool) -> io::Result<u64> {
    // IPv6 raw sockets reject a port that is not their protocol number.
    let target = SocketAddr::new(plan.target.ip(), 0).into();
    let mut sources = Sources::new(plan);
    let total =
        u64::from(plan.rate) * u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX) / 1000;
    let start = Instant::now();
    for count in 0..total {
        let due = Duration::from_secs_f64(count as f64 / f64::from(plan.rate));
        thread::sleep(due.saturating_sub(start.elapsed()));
        if stop.load(Ordering::Relaxed) {
            return Ok(count);
        }
        let (source, sequence) = sources.next();
        socket.send_to(&packet::syn(source, plan.target, sequence), &target)?;
    }
    Ok(total)
}

/// Random sources without repetition.
#[derive(Debug)]
struct Sources {
    prefix: Prefix,
    random: Rng,
    used: HashSet<SocketAddr>,
}

impl Sources {
    fn new(plan: Plan) -> Self {
        Self {
            prefix: plan.sources,
            random: Rng::new(plan.seed),
            used: HashSet::new(),
        }
    }

    /// A source never returned before, and an initial sequence number.
    fn next(&mut self) -> (SocketAddr, u32) {
        loop {
            let host = u128::from(self.random.next()) << 64 | u128::from(self.random.next());
            let [a, b, c, d, e, f, ..] = self.random.next().to_be_bytes();
            let source =
                SocketAddr::new(self.prefix.address(host), u16::from_be_bytes([a, b]) | 1024);
            if self.used.insert(source) {
                return (source, u32::from_be_bytes([c, d, e, f]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes() {
        assert_eq!(prefix("198.18.0.0/15").to_string(), "198.18.0.0/15");
        assert!(prefix("198.18.0.0/15").contains("198.19.255.1".parse().unwrap()));
        assert!(!prefix("198.18.0.0/15").contains("198.20.0.0".parse().unwrap()));
        assert!(prefix("2001:db8::/32").contains("2001:db8:1::1".parse().unwrap()));
        assert!(!prefix("2001:db8::/32").contains("198.18.0.1".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").contains("8.8.8.8".parse().unwrap()));
        for wrong in [
            "198.18.0.1/15",
            "198.18.0.0",
            "198.18.0.0/33",
            "x/8",
            "2001:db8::1/32",
        ] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }

    fn plan(seed: u64) -> Plan {
        Plan {
            sources: prefix("198.18.0.0/15"),
            target: "10.0.0.1:80".parse().unwrap(),
            rate: 1000,
            duration: Duration::from_secs(1),
            seed,
        }
    }

    #[test]
    fn fresh_repeatable_sources() {
        let draw = |seed| {
            let mut sources = Sources::new(plan(seed));
            (0..5000).map(|_| sources.next()).collect::<Vec<_>>()
        };
        let drawn = draw(1);
        let distinct: HashSet<SocketAddr> = drawn.iter().map(|(source, _)| *source).collect();
        assert_eq!(distinct.len(), 5000);
        assert!(
            distinct
                .iter()
                .all(|source| plan(1).sources.contains(source.ip()) && source.port() >= 1024)
        );
        assert_eq!(drawn, draw(1));
        assert_ne!(drawn, draw(2));
    }

    #[test]
    fn families_must_agree() {
        let target = "[::1]:80".parse().unwrap();
        assert!(
            Flood::start(Plan { target, ..plan(1) })
                .unwrap_err()
                .to_string()
                .contains("family")
        );
    }
}
