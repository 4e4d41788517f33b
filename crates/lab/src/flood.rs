// SPDX-License-Identifier: Apache-2.0
//! Floods of spoofed SYNs, and their effect on a server.
//!
//! A flood sends SYNs of connections that do not exist: every packet has a new source address and
//! port, from a prefix that is routed to the flood's origin, so that answers arrive there and are
//! dropped. It is bounded in rate and time and sends only from the namespace in which it was
//! started.

pub mod counts;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use etherparse::PacketBuilder;
pub use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, Type};

use crate::rng::Rng;

/// Hop limit of the packets.
const HOPS: u8 = 64;

/// The window of a usual Linux SYN, and its options: MSS 1460, SACK permitted, timestamps (value
/// 1), window scale 7.
const WINDOW: u16 = 64240;
const OPTIONS: [u8; 20] = [
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

/// The parameters of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The prefix of the sources; of the target's family.
    pub sources: IpNet,
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
        let Plan {
            sources, target, ..
        } = plan;
        ensure!(
            sources.addr().is_ipv4() == target.is_ipv4(),
            "sources {sources} and target {target} differ in family"
        );
        ensure!(
            sources == sources.trunc(),
            "{sources} has bits set behind the prefix"
        );
        ensure!(plan.rate > 0, "a flood needs a rate above zero");
        let socket = raw_socket(plan.target).context("open a raw socket")?;
        let stop = Arc::new(AtomicBool::new(false));
        // Dropped floods end at once: a failed test must not leave one running.
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
    // A burst after a delay of this thread must fit, or the mean rate is not reached.
    socket.set_send_buffer_size(1 << 20)?;
    Ok(socket)
}

/// Sends every SYN at its due time; a late one is sent at once, so that the mean rate holds on a
/// busy machine.
fn send_all(socket: &Socket, plan: Plan, stop: &AtomicBool) -> io::Result<u64> {
    // IPv6 raw sockets reject a port that is not their protocol number.
    let target = SocketAddr::new(plan.target.ip(), 0).into();
    // Without repetition: a second SYN of one source would be a retransmission.
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
        socket.send_to(&syn(source, plan.target, sequence)?, &target)?;
    }
    Ok(total)
}

/// The address of a prefix whose other bits are those of `host`.
fn address(prefix: IpNet, host: u128) -> IpAddr {
    match prefix {
        IpNet::V4(net) => {
            let [.., a, b, c, d] = host.to_be_bytes();
            (net.network() | Ipv4Addr::new(a, b, c, d) & net.hostmask()).into()
        }
        IpNet::V6(net) => (net.network() | Ipv6Addr::from(host) & net.hostmask()).into(),
    }
}

/// A SYN with the options of Linux. For IPv4 the kernel fills in the identification.
fn syn(source: SocketAddr, target: SocketAddr, sequence: u32) -> io::Result<Vec<u8>> {
    let ip = match (source.ip(), target.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (from, to) => PacketBuilder::ipv6(v6(from).octets(), v6(to).octets(), HOPS),
    };
    let tcp = ip.tcp(source.port(), target.port(), sequence, WINDOW).syn();
    let tcp = tcp.options_raw(&OPTIONS).map_err(io::Error::other)?;
    let mut packet = Vec::with_capacity(tcp.size(0));
    tcp.write(&mut packet, &[]).map_err(io::Error::other)?;
    Ok(packet)
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Random sources without repetition.
#[derive(Debug)]
struct Sources {
    prefix: IpNet,
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
            let source = SocketAddr::new(
                address(self.prefix, host),
                // Clients have no ports below 1024.
                u16::from_be_bytes([a, b]) | 1024,
            );
            if self.used.insert(source) {
                return (source, u32::from_be_bytes([c, d, e, f]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketHeaders;

    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan {
            sources: "198.18.0.0/15".parse().unwrap(),
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
                .all(|source| plan(1).sources.contains(&source.ip()) && source.port() >= 1024)
        );
        assert_eq!(drawn, draw(1));
        assert_ne!(drawn, draw(2));
    }

    #[test]
    fn wrong_plans_refused() {
        let refused = |plan| Flood::start(plan).unwrap_err().to_string();
        let target = "[::1]:80".parse().unwrap();
        assert!(refused(Plan { target, ..plan(1) }).contains("family"));
        let sources = "198.18.0.1/15".parse().unwrap();
        assert!(refused(Plan { sources, ..plan(1) }).contains("behind the prefix"));
    }

    #[test]
    fn syn_of_either_family() {
        let parsed = |source: &str, target: &str| {
            let packet = syn(source.parse().unwrap(), target.parse().unwrap(), 7).unwrap();
            let headers = PacketHeaders::from_ip_slice(&packet).unwrap();
            let tcp = headers.transport.unwrap().tcp().unwrap();
            let flags = (tcp.syn, tcp.ack, tcp.sequence_number, tcp.destination_port);
            assert_eq!(flags, (true, false, 7, 80));
            (packet.len(), headers.net.unwrap(), tcp)
        };
        let (length, net, tcp) = parsed("198.18.0.1:1025", "10.0.0.1:80");
        let (ip, _) = net.ipv4_ref().unwrap();
        assert_eq!((length, ip.destination), (60, [10, 0, 0, 1]));
        assert_eq!(tcp.calc_checksum_ipv4(ip, &[]), Ok(tcp.checksum));
        let (length, net, tcp) = parsed("[2001:db8::1]:1025", "[fd00::1]:80");
        let (ip, _) = net.ipv6_ref().unwrap();
        assert_eq!(length, 80);
        assert_eq!(tcp.calc_checksum_ipv6(ip, &[]), Ok(tcp.checksum));
    }
}
