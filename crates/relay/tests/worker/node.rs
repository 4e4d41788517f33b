// SPDX-License-Identifier: Apache-2.0
//! Nodes: a policy, its workers, and what these count and report.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::access::Access;
use posthaste_relay::chain::{
    Chain, Chains, Encapsulation, Path, Peer, PoolLimits, Route, Transport,
};
use posthaste_relay::clock::Clock;
use posthaste_relay::control::{
    Command, Denial, Denied, Ended, Handle, Journal, Known, RelayDetail,
};
use posthaste_relay::counters::Counters;
use posthaste_relay::outcome::Outcome;
use posthaste_relay::policy::{
    Action, Bypass, DataPath, HalfOpenLimits, Match, Multipath, Policy, Prefix, Rule, SideOptions,
    SourceAddress, Timeouts,
};
use posthaste_relay::sys::{self, SocketSettings};
use posthaste_relay::worker::{self, Common, ReplayGuard};
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;

use crate::host::{Family, Host, SOON, happens, until};
use crate::redirection::Transit;
use crate::streams::{Pair, accept};

/// Which key the nodes share.
pub(crate) const KEY_ID: u32 = 7;
/// Of all sockets of nodes.
const SOCKETS: SocketSettings = SocketSettings {
    mark: 0,
    backlog: 1024,
};

/// The number of a node.
pub(crate) fn id(node: u8) -> NodeId {
    NodeId::new(u64::from(node) + 1).unwrap()
}

/// The key that the nodes share.
pub(crate) fn key() -> Key {
    Key::new(std::array::from_fn(|at| u8::try_from(at).unwrap()))
}

/// The prefix of one address.
pub(crate) fn only(ip: IpAddr) -> Prefix {
    Prefix::new(ip, if ip.is_ipv4() { 32 } else { 128 }).unwrap()
}

/// All addresses of both families.
pub(crate) fn everything() -> Vec<Prefix> {
    let all = ["0.0.0.0", "::"].map(|ip| Prefix::new(ip.parse().unwrap(), 0).unwrap());
    all.to_vec()
}

/// A rule for every flow.
pub(crate) fn rule(name: &str) -> Rule {
    Rule {
        name: name.to_owned(),
        matches: Match::default(),
        action: Action::Relay,
        accept: AcceptMode::EARLY,
        observe: true,
        data_path: DataPath::Auto,
        bypass: Bypass::Off,
        multipath: Multipath::Off,
        upstream_multipath: false,
        source_address: SourceAddress::Auto,
        proxy_protocol: false,
        downstream: SideOptions::default(),
        upstream: SideOptions::default(),
        timeouts: Timeouts::default(),
        transfer_bytes: None,
    }
}

/// What a node starts with: one that serves requests of all clients for the server.
#[derive(Clone)]
pub(crate) struct Setup {
    node: u8,
    pub(crate) workers: u16,
    /// Without chains.
    pub(crate) policy: Policy,
    pub(crate) peers: Vec<Peer>,
    /// Without peers.
    pub(crate) chains: Chains,
    /// Where clients connect, and to which destination.
    pub(crate) fixed: Vec<(SocketAddr, SocketAddr)>,
    pub(crate) clock: Clock,
}

impl Setup {
    pub(crate) fn of(node: u8) -> Self {
        let access = Access {
            clients: everything(),
            destinations: Family::ALL.map(|family| only(family.server().ip())).into(),
            ..Access::default()
        };
        let policy = Policy {
            rules: vec![rule("rest")],
            half_open: HalfOpenLimits::default(),
            strict_after_failure: Duration::from_secs(60),
            relays_max: 1000,
            chains: Arc::default(),
            access,
        };
        Self {
            node,
            workers: 1,
            policy,
            peers: Vec::new(),
            chains: Chains {
                me: Some(id(node)),
                ..Chains::default()
            },
            fixed: Vec::new(),
            clock: Clock::default(),
        }
    }

    /// With another node as a peer, which it reaches by this family, over cold hops.
    pub(crate) fn peer(self, other: u8, family: Family) -> Self {
        self.peer_with(other, family, |_| ())
    }

    /// The same, of a peer that differs.
    pub(crate) fn peer_with(
        mut self,
        other: u8,
        family: Family,
        differ: impl FnOnce(&mut Peer),
    ) -> Self {
        let address = family.node(other);
        let mut peer = Peer {
            name: format!("node-{other}").into(),
            id: id(other),
            address,
            key: Some(key()),
            key_id: KEY_ID,
            other_key: None,
            encapsulation: Encapsulation::Stream,
            transport: Transport::Tcp,
            source_addresses: vec![address.ip()],
            pool: PoolLimits { min: 0, max: 0 },
            rate_limit: None,
            socket: SideOptions::default(),
        };
        differ(&mut peer);
        self.peers.push(peer);
        self
    }

    /// With a chain over these nodes, after those that it has, for all flows that begin here.
    pub(crate) fn chain(mut self, nodes: &[u8]) -> Self {
        let number = self.chains.chains.len();
        self.chains.chains.push(Chain {
            name: format!("chain-{number}").into(),
            path: Path::over(nodes.iter().map(|node| id(*node))).unwrap(),
        });
        self.chains.routes = vec![Route {
            matches: Match::default(),
            chains: (0..=number).collect(),
            direct: false,
            transfer_bytes: None,
        }];
        self
    }

    /// Flows for which there is no chain go directly.
    pub(crate) fn or_direct(mut self) -> Self {
        self.chains.routes[0].direct = true;
        self
    }

    /// With listeners of both families for clients of the server's address of this family.
    pub(crate) fn entrance(mut self, theirs: Family) -> Self {
        let each = Family::ALL.map(|ours| (entrance(self.node, ours, theirs), theirs.server()));
        self.fixed.extend(each);
        self
    }

    /// The same, for both of the server's addresses.
    pub(crate) fn entrances(self) -> Self {
        let [v4, v6] = Family::ALL;
        self.entrance(v4).entrance(v6)
    }

    fn policy(&self) -> Arc<Policy> {
        let chains = Chains {
            peers: self.peers.clone().into(),
            ..self.chains.clone()
        };
        let policy = Policy {
            chains: chains.into(),
            ..self.policy.clone()
        };
        policy.into()
    }

    pub(crate) fn start(&self, host: &Host) -> Node {
        let node = Node::start(self);
        host.rest();
        node
    }
}

/// Where clients of one family connect to a node, whose server they reach by another.
pub(crate) fn entrance(node: u8, ours: Family, theirs: Family) -> SocketAddr {
    let port = 8080 + u16::from(theirs == Family::V6);
    SocketAddr::new(ours.node(node).ip(), port)
}

/// Starts nodes, the last one first, so that its dials find the others.
pub(crate) fn start_all<const N: usize>(host: &Host, setups: [Setup; N]) -> [Node; N] {
    let nodes = setups.iter().rev().map(|setup| setup.start(host));
    let mut nodes: Vec<Node> = nodes.collect();
    nodes.reverse();
    nodes.try_into().map_err(|_| ()).unwrap()
}

/// What workers have reported.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<(Vec<Ended>, Vec<Denied>)>>);

impl Journal for Records {
    fn record(&mut self, ended: &mut Vec<Ended>) -> u64 {
        self.0.lock().unwrap().0.append(ended);
        0
    }

    fn deny(&mut self, denied: &Denied) {
        self.0.lock().unwrap().1.push(*denied);
    }
}

/// A running node. Dropping it resets its relays and ends its workers.
pub(crate) struct Node {
    workers: Vec<(Handle, JoinHandle<()>)>,
    /// Where clients on whose path it is reach each worker.
    transits: Vec<Transit>,
    records: Records,
}

impl Node {
    fn start(setup: &Setup) -> Self {
        let common = Common {
            replay_guard: ReplayGuard::new(setup.clock.clone()).into(),
            ..Common::default()
        };
        let (policy, records) = (setup.policy(), Records::default());
        let mut transits = Vec::new();
        let workers = (0..setup.workers).map(|index| {
            let (transit, redirection, listeners) = Transit::new(SOCKETS);
            transits.push(transit);
            let explicit = Family::ALL.map(|family| family.node(setup.node));
            let explicit = explicit.map(|at| sys::explicit_listener(at, SOCKETS).unwrap());
            let fixed = setup.fixed.iter().map(|(at, destination)| {
                let listener = sys::fixed_listener(*at, SOCKETS).unwrap();
                (listener, *destination)
            });
            let settings = worker::Settings {
                index,
                listeners,
                sockets: SOCKETS,
                explicit: explicit.into(),
                fixed: fixed.collect(),
                common: common.clone(),
                policy: Arc::clone(&policy),
            };
            let journal = Box::new(records.clone());
            let starting = worker::spawn(settings, journal, move || Ok((redirection, 0)));
            let starting = starting.unwrap();
            (starting.handle(), starting.wait().unwrap())
        });
        Self {
            workers: workers.collect(),
            transits,
            records,
        }
    }

    /// Connects a client on whose path it is to the server.
    ///
    /// # Errors
    /// As [`Transit::dial`].
    pub(crate) fn dial(&self, mode: AcceptMode, theirs: Family) -> io::Result<TcpStream> {
        self.dial_at(0, mode, theirs)
    }

    /// The same, at one of its workers.
    ///
    /// # Errors
    /// As [`Transit::dial`].
    pub(crate) fn dial_at(
        &self,
        worker: usize,
        mode: AcceptMode,
        theirs: Family,
    ) -> io::Result<TcpStream> {
        self.transits[worker].dial(mode, theirs.server())
    }

    /// The same, and takes the connection of the server.
    pub(crate) fn open(&self, mode: AcceptMode, theirs: Family, servers: &TcpListener) -> Pair {
        let client = self.dial(mode, theirs).expect("it is not refused");
        let server = accept(servers);
        Pair { client, server }
    }

    /// Gives it another policy.
    pub(crate) fn adopt(&self, setup: &Setup) {
        for (worker, _) in &self.workers {
            worker.send(Command::Policy {
                policy: setup.policy(),
                generation: 1,
            });
        }
    }

    /// Has its workers end what they have begun, as those of a node that another has replaced.
    pub(crate) fn replace(&self) {
        for (worker, _) in &self.workers {
            worker.send(Command::Replace { deadline: SOON });
        }
    }

    /// One of its counters, over all workers.
    pub(crate) fn count(&self, counter: impl Fn(&Counters) -> u64) -> u64 {
        let each = self.workers.iter();
        each.map(|(worker, _)| counter(&worker.counters)).sum()
    }

    pub(crate) fn relays_opened(&self) -> u64 {
        self.count(|counters| counters.relays_opened.read())
    }

    pub(crate) fn ended(&self, outcome: Outcome) -> u64 {
        self.count(|counters| counters.ended[outcome as usize].read())
    }

    pub(crate) fn denied(&self, denial: Denial) -> u64 {
        self.count(|counters| counters.denied[denial as usize].read())
    }

    /// Waits until a counter, over all workers, has a value.
    pub(crate) fn until_count(&self, value: u64, counter: impl Fn(&Counters) -> u64) {
        let reached = happens(|| self.count(&counter) == value);
        let last = self.count(counter);
        assert!(reached, "{last} and not {value}: {}", self.situation());
    }

    /// Waits until so many relays have ended with an outcome.
    pub(crate) fn until_ended(&self, outcome: Outcome, count: u64) {
        self.until_count(count, |counters| counters.ended[outcome as usize].read());
    }

    /// Waits until so many requests were denied for that reason, and asserts that none were for
    /// others.
    pub(crate) fn until_denied(&self, denial: Denial, count: u64) {
        self.until_count(count, |counters| counters.denied[denial as usize].read());
        let all: u64 = Denial::ALL.iter().map(|denial| self.denied(*denial)).sum();
        assert_eq!(all, count, "{}", self.situation());
        until("all reports", || self.denials().len() as u64 == count);
    }

    /// What it has reported of requests that were denied.
    pub(crate) fn denials(&self) -> Vec<Denied> {
        self.records.0.lock().unwrap().1.clone()
    }

    /// What its first worker knows of others.
    pub(crate) fn known(&self) -> Known {
        self.known_at(0)
    }

    /// What one of its workers knows of others.
    pub(crate) fn known_at(&self, worker: usize) -> Known {
        let (answer, known) = mpsc::channel();
        self.workers[worker].0.send(Command::Peers { answer });
        known.recv().unwrap()
    }

    /// Waits until so many warm hops to its first peer wait for a flow.
    pub(crate) fn until_waiting(&self, count: u32) {
        until("warm hops", || self.known().peers[0].waiting == count);
    }

    /// Waits until as many warm hops to every peer wait as are kept for those without flows.
    pub(crate) fn until_all_waiting(&self) {
        until("warm hops", || {
            let known = self.known();
            known.peers.iter().all(|peer| peer.waiting == peer.wanted)
        });
    }

    /// Its only relay, with both connections.
    pub(crate) fn relay(&self) -> RelayDetail {
        let (answer, relays) = mpsc::channel();
        self.workers[0].0.send(Command::List { limit: 2, answer });
        let relays = relays.recv().unwrap();
        assert_eq!(relays.len(), 1, "{relays:?}");
        let (answer, relay) = mpsc::channel();
        self.workers[0].0.send(Command::Show {
            id: relays[0].id,
            answer,
        });
        relay.recv().unwrap().expect("it is still there")
    }

    /// Waits until all relays have ended, asserts that each was counted and reported once, and
    /// returns how many there were.
    pub(crate) fn settle(&self) -> u64 {
        self.until_count(0, |counters| counters.relays.read());
        assert_eq!(self.count(|counters| counters.half_open.read()), 0);
        assert_eq!(self.count(|counters| counters.missed_relays.read()), 0);
        let opened = self.relays_opened();
        let ended: u64 = Outcome::ALL
            .iter()
            .map(|outcome| self.ended(*outcome))
            .sum();
        assert_eq!(ended, opened, "{}", self.situation());
        until("all reports", || {
            self.records.0.lock().unwrap().0.len() as u64 == opened
        });
        opened
    }

    /// What it has counted and reported.
    fn situation(&self) -> String {
        let counted = |(worker, _): &(Handle, _)| {
            let each = worker.counters.each();
            let each = each.filter(|(.., value)| *value > 0);
            let each = each.map(|(name, .., value)| format!("{name} {value}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let counted: Vec<String> = self.workers.iter().map(counted).collect();
        let records = self.records.0.lock().unwrap();
        format!("{counted:#?}\n{:#?}\n{:#?}", records.0, records.1)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for (worker, _) in &self.workers {
            worker.send(Command::Drain {
                deadline: Duration::ZERO,
            });
        }
        for (_, thread) in self.workers.drain(..) {
            // A panic has printed its own message, and fails the test.
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "a worker panicked"
            );
        }
    }
}
