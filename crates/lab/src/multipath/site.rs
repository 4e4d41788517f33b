// SPDX-License-Identifier: Apache-2.0
//! The network of the experiment: a client with two paths, a router with the node, a server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use super::arrivals::Arrivals;
use crate::content::Received;
use crate::flood::counts;
use crate::load;
use crate::netns::Namespace;
use crate::transfer::{Server, exchange};

const PORT: u16 = 80;
/// Bound on a download, also on one that ends when its paths have changed often enough.
const DEADLINE: Duration = Duration::from_secs(3600);
/// The paths by their interfaces at the client and at the node, in Mbit/s.
const PATHS: [Path; 2] = [Path { number: 1, rate: 8 }, Path { number: 2, rate: 2 }];
/// The faster path.
pub(super) const FASTER: Path = PATHS[0];
/// The other.
pub(super) const SLOWER: Path = PATHS[1];
/// What both paths carry of TCP's bytes, in Mbit/s: all but headers, in full segments with
/// timestamps.
pub(super) const LIMIT: f64 = 10.0 * 1448.0 / 1514.0;

/// A path: `pN` at the client, `cN` at the router, in the network 10.31.N.0/24.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    number: u8,
    rate: u32,
}

/// `client p1,p2 -- c1,c2 router s -- eth0 server`.
#[derive(Debug)]
pub(super) struct Site {
    client: Namespace,
    pub(super) router: Namespace,
    server: Namespace,
}

impl Site {
    pub(super) fn build() -> Result<Self> {
        let site = Self {
            client: Namespace::new()?,
            router: Namespace::new()?,
            server: Namespace::new()?,
        };
        let router = site.router.name();
        for Path { number, .. } in PATHS {
            site.client.ip(&format!(
                "link add p{number} type veth peer name c{number} netns {router}"
            ))?;
        }
        site.server.ip(&format!(
            "link add eth0 type veth peer name s netns {router}"
        ))?;
        batch(
            &site.router,
            "link set c1 up
            link set c2 up
            link set s up
            address add 10.31.1.1/24 dev c1
            address add 10.31.2.1/24 dev c2
            address add 10.31.3.1/24 dev s
            mptcp limits set subflows 4 add_addr_accepted 4",
        )?;
        batch(
            &site.server,
            "link set eth0 up
            address add 10.31.3.2/24 dev eth0
            route add default via 10.31.3.1",
        )?;
        site.router.sysctl("net.ipv4.ip_forward", "1")?;
        site.client
            .ip("mptcp limits set subflows 4 add_addr_accepted 4")?;
        for path in PATHS {
            site.shape(path)?;
            site.attach(path)?;
        }
        Ok(site)
    }

    /// Starts the server.
    pub(super) fn serve(&self) -> Result<Server> {
        Server::start(&self.server, PORT, "cubic")
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
        self.shape(path)?;
        tc(
            &self.client,
            &format!("qdisc delete dev p{} root", path.number),
        )
    }

    /// Limits what the router sends to the client by a path.
    fn shape(&self, path: Path) -> Result<()> {
        let Path { number, rate } = path;
        tc(
            &self.router,
            &format!(
                "qdisc replace dev c{number} root tbf rate {rate}mbit burst 16kb latency 100ms"
            ),
        )
    }

    /// Downloads once, checks every byte, and ends early when `is_over`.
    pub(super) fn download(
        &self,
        protocol: Protocol,
        bytes: u64,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<Download> {
        let target = SocketAddr::from(([10, 31, 3, 2], PORT));
        let object = load::Request::Object(bytes).encode();
        let mut arrivals = Arrivals::default();
        let mut received = Received::of(bytes);
        let take = |part: &[u8]| {
            arrivals.push(Instant::now(), received.take(part)?);
            Ok(part.is_empty() || is_over())
        };
        let timing = self.client.run_in(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
            exchange(socket, target, &object, DEADLINE, take)
        })?;
        Ok(Download {
            elapsed: timing.complete,
            arrivals,
        })
    }

    /// Further paths that have joined connections of the node.
    pub(super) fn joined(&self) -> Result<u64> {
        let read = || counts::counter(&counts::read("netstat")?, "MPTcpExt:", "MPJoinAckRx");
        self.router
            .run_in(read)
            .context("count the paths that joined")
    }
}

/// A download that has ended.
#[derive(Debug)]
pub(super) struct Download {
    /// From the start of the connection attempt to the last byte.
    pub(super) elapsed: Duration,
    pub(super) arrivals: Arrivals,
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
