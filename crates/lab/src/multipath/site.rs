// SPDX-License-Identifier: Apache-2.0
//! The network of the experiment: a client with two paths, a router with the node, a server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::Protocol;

use super::arrivals::Arrivals;
use super::subjects::Subject;
use crate::content::{self, Received};
use crate::flood::counts;
use crate::netns::Namespace;
use crate::transfer::{Server, exchange};
use crate::{load, socket};

/// The server, with TCP or Multipath TCP.
pub(super) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 31, 3, 2)), 80);
/// Bound on a transfer, also on one that ends when its paths have changed often enough.
const DEADLINE: Duration = Duration::from_secs(3600);
/// The paths of the client by their interfaces, and those of the server, in Mbit/s.
const PATHS: [Path; 2] = [Path { number: 1, rate: 8 }, Path { number: 2, rate: 2 }];
const OF_SERVER: [Path; 2] = [Path { number: 3, rate: 8 }, Path { number: 4, rate: 2 }];
/// The faster path.
pub(super) const FASTER: Path = PATHS[0];
/// The other.
pub(super) const SLOWER: Path = PATHS[1];
/// What both paths carry of TCP's bytes, in Mbit/s: all but headers, in full segments with
/// timestamps.
pub(super) const LIMIT: f64 = 10.0 * 1448.0 / 1514.0;

/// A path in the network 10.31.N.0/24: `pN` at the client and `cN` at the router, or `sN` at the
/// router and `eN` at the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    number: u8,
    rate: u32,
}

/// Whose paths have their rates; the other end has one without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Client,
    Server,
    Both,
}

/// `client p1,p2 -- c1,c2 router s3,s4 -- e3,e4 server`.
#[derive(Debug)]
pub(super) struct Site {
    client: Namespace,
    pub(super) router: Namespace,
    pub(super) server: Namespace,
    ends: Ends,
}

impl Site {
    pub(super) fn build(ends: Ends) -> Result<Self> {
        let site = Self {
            client: Namespace::new()?,
            router: Namespace::new()?,
            server: Namespace::new()?,
            ends,
        };
        site.router.sysctl("net.ipv4.ip_forward", "1")?;
        for host in [&site.client, &site.router, &site.server] {
            host.ip("mptcp limits set subflows 4 add_addr_accepted 4")?;
        }
        for path in OF_SERVER {
            site.lead_to_server(path)?;
        }
        site.server.ip("route add default via 10.31.3.1")?;
        let router = site.router.name();
        for path in PATHS {
            let Path { number, .. } = path;
            site.client.ip(&format!(
                "link add p{number} type veth peer name c{number} netns {router}"
            ))?;
            batch(
                &site.router,
                &format!("link set c{number} up\naddress add 10.31.{number}.1/24 dev c{number}"),
            )?;
            if ends == Ends::Server && path.number == SLOWER.number {
                continue;
            }
            site.shape(path)?;
            site.attach(path)?;
        }
        Ok(site)
    }

    /// Joins router and server by a path, over which the router opens further subflows.
    fn lead_to_server(&self, path: Path) -> Result<()> {
        let Path { number, rate } = path;
        let router = self.router.name();
        self.server.ip(&format!(
            "link add e{number} type veth peer name s{number} netns {router}"
        ))?;
        batch(
            &self.server,
            &format!("link set e{number} up\naddress add 10.31.{number}.2/24 dev e{number}"),
        )?;
        batch(
            &self.router,
            &format!("link set s{number} up\naddress add 10.31.{number}.1/24 dev s{number}"),
        )?;
        if self.ends == Ends::Client {
            return Ok(());
        }
        limit(&self.router, &format!("s{number}"), rate)?;
        limit(&self.server, &format!("e{number}"), rate)?;
        batch(
            &self.router,
            &format!(
                "rule add from 10.31.{number}.1 lookup 10{number}
                route add default via 10.31.{number}.2 dev s{number} table 10{number}
                mptcp endpoint add 10.31.{number}.1 id {number} dev s{number} subflow"
            ),
        )
    }

    /// The server announces its addresses to clients, which the node knows without.
    pub(super) fn announce(&self) -> Result<()> {
        for Path { number, .. } in OF_SERVER {
            batch(
                &self.server,
                &format!(
                    "rule add from 10.31.{number}.2 lookup 10{number}
                    route add default via 10.31.{number}.1 dev e{number} table 10{number}
                    mptcp endpoint add 10.31.{number}.2 id {number} dev e{number} signal"
                ),
            )?;
        }
        Ok(())
    }

    /// Starts the server.
    pub(super) fn serve(&self, protocol: Protocol) -> Result<Server> {
        Server::start_by(protocol, &self.server, SERVER.port(), "cubic")
    }

    /// The client gets a path, as a host that has entered a network.
    pub(super) fn attach(&self, path: Path) -> Result<()> {
        self.link_up(path)?;
        let Path { number, .. } = path;
        batch(
            &self.client,
            &format!(
                "address add 10.31.{number}.2/24 dev p{number}
                rule add from 10.31.{number}.2 lookup 10{number}
                mptcp endpoint add 10.31.{number}.2 id {number} dev p{number} subflow"
            ),
        )
    }

    /// The client leaves the network of a path.
    pub(super) fn detach(&self, path: Path) -> Result<()> {
        let Path { number, .. } = path;
        batch(
            &self.client,
            &format!(
                "link set p{number} down
                mptcp endpoint delete id {number}
                rule delete from 10.31.{number}.2 lookup 10{number}
                address delete 10.31.{number}.2/24 dev p{number}"
            ),
        )
    }

    /// The link of a path fails; the client has its address on.
    pub(super) fn link_down(&self, path: Path) -> Result<()> {
        self.client.ip(&format!("link set p{} down", path.number))
    }

    /// The link works, with the routes that its failure removed.
    pub(super) fn link_up(&self, path: Path) -> Result<()> {
        let Path { number, .. } = path;
        let via = format!("via 10.31.{number}.1 dev p{number} onlink");
        batch(
            &self.client,
            &format!(
                "link set p{number} up
                route add default {via} metric 10{number}
                route add default {via} table 10{number}"
            ),
        )
    }

    /// A path loses all packets, which neither end is shown.
    pub(super) fn silence(&self, path: Path) -> Result<()> {
        let Path { number, .. } = path;
        tc(
            &self.router,
            &format!("qdisc replace dev c{number} root blackhole"),
        )?;
        tc(
            &self.client,
            &format!("qdisc replace dev p{number} root blackhole"),
        )
    }

    /// Ends a silence.
    pub(super) fn unsilence(&self, path: Path) -> Result<()> {
        self.shape(path)
    }

    /// Limits both directions of a path of the client.
    fn shape(&self, path: Path) -> Result<()> {
        let Path { number, rate } = path;
        if self.ends == Ends::Server {
            return Ok(());
        }
        limit(&self.router, &format!("c{number}"), rate)?;
        limit(&self.client, &format!("p{number}"), rate)
    }

    /// Downloads once from the server, checks every byte, and ends early when `is_over`.
    pub(super) fn download(
        &self,
        protocol: Protocol,
        bytes: u64,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<Arrivals> {
        let object = load::Request::Object(bytes).encode();
        let mut arrivals = Arrivals::default();
        let mut received = Received::of(bytes);
        let take = |part: &[u8]| {
            arrivals.push(Instant::now(), received.take(part)?);
            Ok(part.is_empty() || is_over())
        };
        self.client.run_in(|| {
            let socket = socket::toward_by(protocol, SERVER)?;
            exchange(socket, SERVER, &object, DEADLINE, take)
        })?;
        Ok(arrivals)
    }

    /// Transfers once as a subject does, every byte checked. Returns how long that took, with the
    /// end of the stream.
    pub(super) fn transfer(&self, subject: &Subject, bytes: u64) -> Result<Duration> {
        let target = subject.target.address();
        let mut message = subject.target.preface();
        if subject.is_upload {
            message.extend(load::Request::Upload(bytes).encode());
            let mut sent = 0;
            while sent < bytes {
                let part = content::part(sent, bytes - sent);
                message.extend(part);
                sent += part.len() as u64;
            }
        } else {
            message.extend(load::Request::Object(bytes).encode());
        }
        let mut answer = subject.target.answer();
        let mut received = Received::of(if subject.is_upload { 0 } else { bytes });
        let start = Instant::now();
        self.client.run_in(|| {
            let socket = socket::toward_by(subject.client, target)?;
            exchange(socket, target, &message, DEADLINE, |part| {
                let is_end = part.is_empty();
                let part = answer.strip(part)?;
                // An answer alone is no end.
                if is_end || !part.is_empty() {
                    received.take(part)?;
                }
                Ok(is_end)
            })
        })?;
        Ok(start.elapsed())
    }

    /// Further paths that have joined connections of the node.
    pub(super) fn joined(&self) -> Result<u64> {
        let read = || counts::counter(&counts::read("netstat")?, "MPTcpExt:", "MPJoinAckRx");
        self.router
            .run_in(read)
            .context("count the paths that joined")
    }
}

/// Limits what a host sends by an interface.
fn limit(host: &Namespace, interface: &str, rate: u32) -> Result<()> {
    tc(
        host,
        &format!("qdisc replace dev {interface} root tbf rate {rate}mbit burst 16kb latency 100ms"),
    )
}

fn tc(host: &Namespace, words: &str) -> Result<()> {
    let mut tc = host.command("tc")?;
    let status = tc.args(words.split(' ')).status().context("run tc")?;
    ensure!(status.success(), "tc {words}: {status}");
    Ok(())
}

fn batch(host: &Namespace, lines: &str) -> Result<()> {
    let lines: Vec<String> = lines.lines().map(|line| line.trim().to_owned()).collect();
    host.ip_batch(&lines)
}
