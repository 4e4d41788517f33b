// SPDX-License-Identifier: Apache-2.0
//! Three real nodes and their controller, on a network with two ways between the outer nodes.
//!
//! ```text
//!            client ---- one ------- 60 ms ------- three ---- server
//!                       |   \                       /
//!             controller     --- 10 ms --- two -----
//! ```
//!
//! Times are round trips, and not named where they are short. One is on the path of its clients, three
//! is next to the server, and two on no path. Destinations at the server are three's.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use posthaste_control::message::NodeNumber;
use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use super::routes::{CONTROL, join};
use crate::clock::WrongClock;
use crate::controller::testbed::{STREAMS, Testbed, secret};
use crate::requests::{ALLOWED, LISTENER_PORT};
use crate::support::{PORT, Pair, SOON, binary, listen, relay_of, until};
use crate::watch::http_get;

/// Where metrics of nodes are.
const METRICS: u16 = 9464;
/// The nodes.
pub(super) const NUMBERS: [NodeNumber; 3] = [1, 2, 3];
/// Networks of servers.
pub(super) const SERVERS: [&str; 2] = ["10.0.2.0/24", "fd00:0:0:2::/64"];
/// Who carries connections by the plan, while all is well.
pub(super) const CHAIN: [NodeNumber; 3] = [1, 2, 3];
/// And by the hop without nodes between.
pub(super) const HOP: [NodeNumber; 2] = [1, 3];
/// And without a plan.
pub(super) const DIRECT: [NodeNumber; 1] = [1];

/// How a scene differs from the usual one.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The family of hops and of the streams to the controller.
    pub(super) hops: Family,
    /// What the controller's configuration has besides.
    pub(super) controller: String,
    /// Nodes on the controller's list.
    pub(super) listed: Vec<NodeNumber>,
    /// Keepalive interval of streams, in seconds.
    pub(super) keepalive_s: u32,
    /// The round trip between one and two.
    pub(super) beside: Duration,
    /// Who carries connections first.
    pub(super) encapsulations: Vec<NodeNumber>,
    /// What a connection is taken to carry.
    pub(super) transfer_size: &'static str,
    /// Nodes that go by clocks of their own; 0 is the controller.
    pub(super) clocks: BTreeMap<NodeNumber, WrongClock>,
}

impl Settings {
    pub(super) fn of(hops: Family) -> Self {
        Self {
            hops,
            controller: String::new(),
            listed: vec![1, 2, 3],
            keepalive_s: 2,
            beside: Duration::from_millis(10),
            encapsulations: CHAIN.to_vec(),
            transfer_size: "64KiB",
            clocks: BTreeMap::new(),
        }
    }
}

/// All of it, running.
pub(super) struct Fixture {
    pub(super) network: Arc<Network>,
    pub(super) testbed: Testbed,
    /// Nothing in the place of one that was killed.
    nodes: [Option<Node>; 3],
    states: Scratch,
    hops: Family,
    transfer_size: &'static str,
    clocks: BTreeMap<NodeNumber, WrongClock>,
}

impl Fixture {
    /// Starts all, and waits until one takes the chain by two to three.
    pub(super) fn start(settings: &Settings) -> Self {
        let network = Network::line([
            Link::Veth,
            Link::delay(Duration::from_millis(30)),
            Link::Veth,
        ])
        .beside(0, Link::delay(settings.beside / 2))
        .build()
        .expect("root can build a network of namespaces");
        let mut testbed = Testbed::hurried(&settings.listed, settings.keepalive_s);
        join(&network, &testbed.host);
        testbed.more = format!(
            "{}\n[measure]\ninterval = \"1s\"\ninterval_in_use = \"300ms\"\n\
             [[prefix]]\ndestinations = {SERVERS:?}\nnode = \"n3\"\n",
            settings.controller
        );
        // Some of it counts from the start only.
        testbed.end(Signal::SIGTERM);
        testbed.write_config();
        testbed.clock = settings.clocks.get(&0).cloned();
        testbed.start();
        let mut fixture = Self {
            network: Arc::new(network),
            testbed,
            nodes: [None, None, None],
            states: Scratch::new().expect("a directory"),
            hops: settings.hops,
            transfer_size: settings.transfer_size,
            clocks: settings.clocks.clone(),
        };
        for number in NUMBERS {
            fixture.start_node(number);
        }
        fixture.until_carried(&settings.encapsulations);
        fixture
    }

    pub(super) fn node(&self, number: NodeNumber) -> &Node {
        self.nodes[place(number)].as_ref().expect("it runs")
    }

    /// The host of a node.
    pub(super) fn host(&self, number: NodeNumber) -> &Namespace {
        match number {
            2 => self.network.aside(0),
            _ => self.network.node(place(number) / 2),
        }
    }

    /// Starts a node, which may have run before: its plan is kept.
    pub(super) fn start_node(&mut self, number: NodeNumber) {
        let config = self.config(number);
        let builder = Node::builder(self.host(number), binary())
            .relaying()
            .config(&config)
            .metrics(METRICS);
        let node = match self.clocks.get(&number) {
            Some(clock) => builder.start_by(|name, command| clock.spawn(name, command)),
            None => builder.start(),
        };
        let node = node.expect("the node becomes ready");
        self.nodes[place(number)] = Some(node);
    }

    /// Ends a node in order, so that it stores the last plan that it received.
    pub(super) fn stop_node(&mut self, number: NodeNumber) {
        let mut node = self.nodes[place(number)].take().expect("it runs");
        let status = node.stop(SOON).expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// The address at which a node receives requests.
    pub(super) fn address(&self, number: NodeNumber, family: Family) -> IpAddr {
        match number {
            2 => self.network.aside_address(0, family),
            _ => self.network.node_address(place(number) / 2, family),
        }
    }

    fn config(&self, number: NodeNumber) -> String {
        let path = |name: &str| self.states.path().join(format!("{number}{name}"));
        let identity = path(".key");
        fs::write(&identity, secret(number)).expect("a file");
        let key = self.testbed.key();
        let [_, controller] = CONTROL[usize::from(self.hops == Family::V6)];
        let controller: IpAddr = controller.parse().expect("an address");
        let controller = SocketAddr::new(controller, STREAMS);
        let address = match (number, self.hops) {
            // The others reach it by its address towards the controller.
            (2, Family::V4) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            (2, Family::V6) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => self.address(number, self.hops),
        };
        let listener = SocketAddr::new(address, LISTENER_PORT);
        let transparent = match number {
            1 => format!("[[rule]]\nname = \"servers\"\ndestinations = {SERVERS:?}\n"),
            _ => "[transparent]\nenabled = false\n".to_owned(),
        };
        format!(
            "[node]\nid = {number}\nworkers = 1\n{transparent}{ALLOWED}\
             [measure]\ninterval = \"300ms\"\n\
             [[listener]]\naddress = \"{listener}\"\n\
             [controller]\naddress = \"{controller}\"\nkey = \"{key}\"\n\
             identity_file = {identity:?}\nstate = {state:?}\ntransfer_size = {size:?}\n",
            state = path(""),
            size = self.transfer_size
        )
    }

    /// Connects through node one, sends bytes in both directions, and returns which nodes carried
    /// them.
    pub(super) fn carry(&self, family: Family) -> Vec<NodeNumber> {
        let server = listen(self.network.server(), PORT);
        let (mut pair, encapsulations) = self.open(family, &server);
        pair.check();
        pair.close_client_first();
        encapsulations
    }

    /// Connects through node one, and returns which nodes carry the connection.
    pub(super) fn open(&self, family: Family, server: &TcpListener) -> (Pair, Vec<NodeNumber>) {
        let mut pair = Pair::open(&self.network, family, server);
        pair.check();
        let client = pair.client_address();
        let nodes = NUMBERS.into_iter().zip(&self.nodes);
        let running = nodes.filter_map(|(number, node)| Some((number, node.as_ref()?)));
        let encapsulations = running.filter(|(_, node)| relay_of(node, client).is_some());
        let encapsulations = encapsulations.map(|(number, _)| number).collect();
        (pair, encapsulations)
    }

    /// Waits until new connections of both families are carried by these nodes.
    pub(super) fn until_carried(&self, encapsulations: &[NodeNumber]) {
        for family in Family::ALL {
            let mut last = Vec::new();
            // A busy machine loses probes, which count for a while.
            let reached = wait_until("other carriers", SOON * 3, || {
                last = self.carry(family);
                last == encapsulations
            });
            let plan = self.node(1).admin_json("status");
            assert!(
                reached.is_ok(),
                "{last:?}, not {encapsulations:?}: {plan:#?}"
            );
        }
    }

    /// How a node follows the controller.
    pub(super) fn following(&self, number: NodeNumber) -> Value {
        let status = self.node(number).status().expect("the node answers");
        status["controller"].clone()
    }

    /// Waits until the plan from one to three begins with the direct hop, and one applies it. No
    /// client need connect meanwhile.
    pub(super) fn until_planned_without(&self) {
        until("a plan without two", || {
            let question = "GET /v1/explain?from=n1&to=n3&bytes=65536";
            let (code, answer) = self.testbed.query(question, None, "");
            // Not while a plan is being made.
            let explained: Value = serde_json::from_str(&answer).expect("JSON");
            let best = &explained["routes"][0];
            let newest = self.testbed.document("/v1/plan")["plan_version"]["version"].clone();
            let is_newest = self.following(1)["plan"]["version"] == newest;
            let is_direct = best["nodes"] == serde_json::json!(["n1", "n3"]);
            code == 200 && is_direct && is_newest
        });
    }

    /// Waits until two nodes take the link between them for dead.
    pub(super) fn until_dead(&self, one: NodeNumber, other: NodeNumber) {
        for (node, peer) in [(one, other), (other, one)] {
            until("a dead link", || {
                let links = self.node(node).admin_json("links").expect("an answer");
                let mut links = links["links"].as_array().expect("a list").iter();
                let name = format!("n{peer}");
                links.any(|link| link["peer"] == name && link["state"] == "dead")
            });
        }
    }

    /// The epoch of the plan that one follows.
    pub(super) fn epoch(&self) -> u64 {
        let epoch = &self.following(1)["plan"]["epoch"];
        epoch.as_u64().expect("it follows a plan")
    }

    /// A metric of a node.
    pub(super) fn metric(&self, number: NodeNumber, name: &str) -> Option<f64> {
        let (_, page) = http_get(self.host(number), METRICS, "/metrics");
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok())
    }
}

/// The logs, printed when a test fails.
impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for node in self.nodes.iter().flatten() {
            let log = node.log();
            let dull = |line: &&String| !line.contains("code=--");
            let lines: Vec<_> = log.iter().filter(dull).collect();
            eprintln!("{}: {lines:#?}", node.config_file().display());
            eprintln!("{}", node.admin("links").unwrap_or_default());
        }
        eprintln!("the controller: {}", self.testbed.log());
    }
}

fn place(number: NodeNumber) -> usize {
    usize::try_from(number).expect("a small number") - 1
}
