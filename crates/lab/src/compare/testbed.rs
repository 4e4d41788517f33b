// SPDX-License-Identifier: Apache-2.0
//! A subject with its network and servers, ready for loads.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::sched_setaffinity;
use nix::unistd::Pid;

use super::counts::Counts;
use super::ends::{PATIENCE, Server, finish, ksoftirqd, merge, spawn};
use super::integrity::{self, Account};
use super::load::{Load, Placement, Yield};
use super::site::{Running, Site, cpu_set};
use super::subject::Subject;
use super::syn_watch::SynWatch;
use crate::link::Link;
use crate::load::{Call, Order, Outcome, Served, Work, percentiles};
use crate::netns::Namespace;
use crate::network::{Network, TO_CLIENT, TO_SERVER};
use crate::node::Binary;
use crate::process::{Process, wait_until};
use crate::threads;

/// Settings of all hosts, the same for all subjects: room for many connections per second, and one
/// congestion control.
const SETTINGS: &[(&str, &str)] = &[
    ("net.ipv4.ip_local_port_range", "1024 65535"),
    ("net.ipv4.tcp_tw_reuse", "1"),
    ("net.core.somaxconn", "16384"),
    ("net.ipv4.tcp_max_syn_backlog", "16384"),
    ("net.ipv4.tcp_congestion_control", CONGESTION),
];

/// Without pacing, whose timers would run outside the load.
const CONGESTION: &str = "reno";

/// More simultaneous connections than any load has.
pub(super) const CONNECTIONS_MAX: usize = 4000;

/// How long the server may take to detect the end of connections.
const SETTLED: Duration = Duration::from_secs(5);

/// The results of one load.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The combined results of the clients.
    pub(super) outcome: Outcome,
    /// Packets on the client's and on the server's link for each connection.
    pub(super) packets: [f64; 2],
    /// Segments that either end retransmitted.
    pub(super) retransmitted: u64,
    /// Delay of SYNs through the relay, in us: percentiles 10, 50, 90, 99; where requested.
    pub(super) syn_delay_us: Option<[f64; 4]>,
    /// Violations of integrity.
    pub(super) problems: Vec<String>,
}

/// The place where loads run with a subject. Its parts are dropped in their order.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) subject: Subject,
    servers: Vec<Server>,
    /// CPUs of the relay, and its threads.
    relay_cpus: Vec<usize>,
    pub(super) threads: usize,
    /// CPUs of clients and servers.
    end_cpus: Vec<usize>,
    binary: Binary,
    /// Load before the measurement.
    warm_up: Duration,
    /// The kernel's softirq threads by CPU.
    ksoftirqd: Vec<i32>,
    network: Network,
}

impl Testbed {
    /// Builds the network and starts the servers. `cpus` has as many CPUs as the placement needs.
    pub(super) fn new(
        subject: Subject,
        placement: Placement,
        cpus: &[usize],
        binary: &Binary,
    ) -> Result<Self> {
        let network = network(&subject, placement, cpus)?;
        let hosts = [network.client(), network.server()];
        for host in hosts.into_iter().chain(network.nodes()) {
            for (key, value) in SETTINGS {
                host.sysctl(key, value)?;
            }
        }
        // After the common settings, which a subject may refine.
        subject.prepare(&network)?;
        if placement == Placement::TwoOneReceives {
            for node in network.nodes() {
                node.receive_on(cpus[0])?;
            }
        }
        let (relay_cpus, end_cpus) = match placement {
            Placement::One | Placement::Far | Placement::Two | Placement::TwoOneReceives => {
                (cpus, cpus)
            }
            Placement::Split => (&cpus[..1], &cpus[1..]),
        };
        let servers = end_cpus
            .iter()
            .map(|&cpu| Server::start(network.server(), cpu, end_cpus.len() > 1))
            .collect::<Result<_>>()?;
        Ok(Self {
            subject,
            servers,
            relay_cpus: relay_cpus.to_vec(),
            threads: relay_cpus.len(),
            end_cpus: end_cpus.to_vec(),
            binary: binary.clone(),
            warm_up: placement.warm_up(),
            // Packets that wait for it count too, of every sender.
            ksoftirqd: ksoftirqd(cpus)?,
            network,
        })
    }

    /// Starts the subject, for at most so many simultaneous connections.
    pub(super) fn start(&self, connections: usize) -> Result<Running> {
        let site = Site {
            network: &self.network,
            cpus: &self.relay_cpus,
            threads: self.threads,
            connections,
            binary: &self.binary,
        };
        let name = self.subject.name;
        let running = self.subject.start(&site);
        running.with_context(|| format!("start {name}"))
    }

    /// Runs a load with the subject, and measures it for a while.
    pub(super) fn measure(&self, load: &Load, window: Duration) -> Result<Measured> {
        let running = self.start(CONNECTIONS_MAX)?;
        let measured = self.measure_running(&running, load, window)?;
        running.stop()?;
        Ok(measured)
    }

    fn measure_running(
        &self,
        running: &Running,
        load: &Load,
        window: Duration,
    ) -> Result<Measured> {
        // The subject runs already: its own connections at the start count in neither reading.
        let before = self.look()?;
        let node = self.network.nodes().first();
        let watch = node.filter(|_| load.yields == Yield::SynDelay);
        let watch = watch.map(SynWatch::start).transpose()?;
        // All clients are started before one is waited for, so that their windows overlap.
        let clients = self
            .works(load)
            .into_iter()
            .zip(&self.end_cpus)
            .map(|(work, &cpu)| self.call(running, (work, load.multipath), cpu, window))
            .collect::<Result<Vec<_>>>()?;
        let outcomes = clients
            .into_iter()
            .map(|client| finish(client, self.warm_up + window))
            .collect::<Result<Vec<Outcome>>>()?;
        let outcome = merge(outcomes);
        // The server may detect the last ends slightly later than the client.
        let expected = before.served.accepted + outcome.begun;
        let settled = || {
            self.served()
                .is_ok_and(|now| now.accepted >= expected && now.accepted == now.ended + now.broken)
        };
        // The checks below report what is missing then.
        let _ = wait_until("end of all connections", SETTLED, settled);
        let in_order = load.placement.cpus() == 1;
        let account = Account::new(&before, &self.look()?, &outcome, in_order);
        Ok(Measured {
            packets: account.packets_per_connection(),
            retransmitted: account.retransmitted(),
            syn_delay_us: match watch {
                Some(watch) => percentiles(&watch.delays_us()?),
                None => None,
            },
            problems: integrity::problems(&account, &load.work),
            outcome,
        })
    }

    /// Opens connections that stay silent. They last as long as the client.
    pub(super) fn hold(&self, running: &Running, connections: usize) -> Result<Process> {
        let before = self.served()?;
        let (work, cpu) = (Work::Hold { connections }, self.end_cpus[0]);
        let mut client = self.call(running, (work, false), cpu, Duration::ZERO)?;
        client.wait_until("open connections", PATIENCE, |client| {
            client.stdout().ends_with('\n')
        })?;
        let now = self.served()?;
        let open = now.accepted - before.accepted;
        ensure!(
            open == connections as u64 && now.ended + now.broken == before.ended + before.broken,
            "the server has {open} connections, not {connections}"
        );
        Ok(client)
    }

    /// The load, distributed over the clients.
    fn works(&self, load: &Load) -> Vec<Work> {
        let clients = self.end_cpus.len();
        let part = match &load.work {
            // Two clients share the connections of a closed loop, so that as many are open as on
            // one CPU.
            Work::Closed { at_once, sizes } => Work::Closed {
                at_once: at_once / clients,
                sizes: sizes.clone(),
            },
            whole => whole.clone(),
        };
        vec![part; clients]
    }

    fn call(
        &self,
        running: &Running,
        (work, multipath): (Work, bool),
        cpu: usize,
        window: Duration,
    ) -> Result<Process> {
        let call = Call {
            multipath,
            target: running.target,
            request_for: running.request_for,
            warm_up_ms: milliseconds(self.warm_up),
            window_ms: milliseconds(window),
            parties: self.parties(running)?,
            work,
        };
        spawn("the client", self.network.client(), cpu, &Order::Call(call))
    }

    /// The processes whose CPU time counts besides the client's.
    fn parties(&self, running: &Running) -> Result<BTreeMap<String, Vec<i32>>> {
        let ids = |pids: Vec<u32>| pids.into_iter().map(|pid| Ok(i32::try_from(pid)?));
        let relay = ids(running.pids()?).collect::<Result<_>>()?;
        let servers = self.servers.iter().map(Server::pid);
        let servers = ids(servers.collect()).collect::<Result<_>>()?;
        Ok([
            ("relay".to_owned(), relay),
            ("server".to_owned(), servers),
            ("ksoftirqd".to_owned(), self.ksoftirqd.clone()),
        ]
        .into())
    }

    fn look(&self) -> Result<Look> {
        let of = |host: &Namespace, interface: &str| host.run_in(|| Counts::take(interface));
        Ok(Look {
            client: of(self.network.client(), TO_SERVER)?,
            server: of(self.network.server(), TO_CLIENT)?,
            served: self.served()?,
        })
    }

    fn served(&self) -> Result<Served> {
        let mut sum = Served::default();
        for server in &self.servers {
            let served = server.served()?;
            sum.accepted += served.accepted;
            sum.ended += served.ended;
            sum.broken += served.broken;
            sum.sent += served.sent;
        }
        Ok(sum)
    }
}

/// A network for a subject. If a link has a delay, the thread that carries its packets is pinned to
/// the CPUs of the load.
fn network(subject: &Subject, placement: Placement, cpus: &[usize]) -> Result<Network> {
    let mut links = vec![placement.access_link()];
    links.extend(vec![Link::Veth; subject.nodes]);
    let cpus = cpu_set(cpus)?;
    let build = || {
        // Threads inherit the affinity.
        sched_setaffinity(Pid::from_raw(0), &cpus).context("stay on the CPUs of the load")?;
        Network::line(links).congestion(CONGESTION).build()
    };
    thread::scope(|scope| threads::join(scope.spawn(build)))
}

/// A snapshot of all counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) client: Counts,
    pub(super) server: Counts,
    pub(super) served: Served,
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
