// SPDX-License-Identifier: Apache-2.0
//! An overlay: places with nodes, a controller, clients, servers and reverse proxies.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::topology::{Pair, Topology};
use super::{ACCESS_MS, Args, CONGESTION, KB, RATE};
use crate::chain;
use crate::controller::{self, Controller, Member};
use crate::link::Link;
use crate::mesh::{Beside, Mesh, address, prefix};
use crate::model::Hops;
use crate::netns::Namespace;
use crate::nginx::Nginx;
use crate::node::Node;
use crate::process::wait_for;
use crate::scratch::Scratch;
use crate::transfer;
use crate::web::{origin, reverse_proxy};

/// Hosts beside a place.
pub(super) const CLIENT: u8 = 1;
pub(super) const SERVER: u8 = 2;
const REVERSE_PROXY: u8 = 3;

/// The first port of the server for transfers over nodes, and of the one for transfers around them;
/// one port per size.
const THROUGH: u16 = 8000;
const AROUND: u16 = 9000;
/// The server's port for the long transfer.
pub(super) const LONG: u16 = 8900;
/// The first port of a reverse proxy; one for each place with a server.
const FRONTS: u16 = 8000;

/// How long nodes may take to measure all links and to get a plan of them.
const PATIENCE: Duration = Duration::from_secs(120);

/// An overlay. Dropped in the order of its fields.
#[derive(Debug)]
pub(super) struct Testbed {
    nodes: Vec<Node>,
    controller: Controller,
    /// The controller's place.
    center: usize,
    _web: Vec<Nginx>,
    _long: Vec<transfer::Server>,
    _secrets: Scratch,
    pub(super) mesh: Mesh,
    topology: Topology,
    sizes: Vec<u64>,
}

impl Testbed {
    /// Builds one, and waits until all nodes follow a plan of all links.
    pub(super) fn new(args: &Args, topology: &Topology, hops: Hops) -> Result<Self> {
        let mesh = make_mesh(topology, args.common.seed)?;
        let places = topology.places();
        for place in 0..places {
            chain::prepare(mesh.place(place))?;
        }
        let binary = args.binary.find()?;
        let center = topology.center();
        // Files of the lab: nodes read their secrets at the start, and store their plans beside
        // them.
        let secrets = Scratch::new()?;
        let members = (0..places).map(|place| Member {
            number: number(place),
            name: name(place),
            prefix: prefix(place, args.family),
        });
        let members: Vec<Member> = members.collect();
        let kind = if hops == Hops::Warm { "warm" } else { "cold" };
        let config = format!("[plan]\nhops = \"{kind}\"\n");
        let controller = Controller::start(mesh.place(center), &binary, &members, &config)?;
        let mut testbed = Self {
            nodes: Vec::new(),
            controller,
            center,
            _web: web(args, topology, &mesh)?,
            _long: Vec::new(),
            _secrets: secrets,
            mesh,
            topology: topology.clone(),
            sizes: args.sizes.clone(),
        };
        for pair in topology.servers() {
            let host = testbed.mesh.host(pair, SERVER)?;
            let server = transfer::Server::start(host, LONG, CONGESTION)?;
            testbed._long.push(server);
        }
        // The controller is ready by then, so that nodes need not dial twice.
        for place in 0..places {
            let config = testbed.node_config(args, place, hops)?;
            let builder = Node::builder(testbed.mesh.place(place), &binary).relaying();
            let node = builder.config(&config).start();
            let node = node.with_context(|| format!("start the node of {}", topology.name(place)));
            testbed.nodes.push(node?);
        }
        // Until then flows take direct ways, which would be measured as chains.
        testbed.wait_until_whole()?;
        Ok(testbed)
    }

    fn node_config(&self, args: &Args, place: usize, hops: Hops) -> Result<String> {
        let number = number(place);
        let secret = self._secrets.path().join(format!("{number}.key"));
        fs::write(&secret, controller::secret_text(number)).context("write a node's secret")?;
        let state = self._secrets.path().join(format!("{number}.state"));
        let is_access = self.topology.pairs.iter().any(|pair| pair.client == place);
        let listener = SocketAddr::new(address(place, 0, args.family), chain::PORT);
        let controller = SocketAddr::new(address(self.center, 0, args.family), controller::PORT);
        let key = self.controller.key();
        let mut toml = format!(
            "[node]\nid = {number}\n[transparent]\nenabled = {is_access}\n\
             [[listener]]\nmode = \"explicit\"\naddress = \"{listener}\"\n\
             [access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
             [controller]\naddress = \"{controller}\"\nkey = \"{key}\"\n\
             identity_file = {secret:?}\nstate = {state:?}\n"
        );
        toml.push_str(&rules(&self.sizes));
        if hops == Hops::Cold {
            // A node's own configuration of a peer takes precedence over the controller's.
            for other in (0..self.topology.places()).filter(|other| *other != place) {
                toml.push_str(&peer(args, place, other));
            }
        }
        Ok(toml)
    }

    /// Waits until all nodes follow a plan of all links.
    fn wait_until_whole(&self) -> Result<()> {
        let places = self.topology.places() as u64;
        let mut plan = Value::Null;
        let whole = wait_for(PATIENCE, || {
            plan = self.query("/v1/plan")?;
            let is = |name: &str, number: u64| plan[name].as_u64() == Some(number);
            // Both directions of a link count: either end measures it.
            let is_whole = is("links", places * (places - 1)) && is("followed_by", places);
            Ok(is_whole.then_some(()))
        })?;
        whole.with_context(|| format!("no plan of all links: {plan}"))
    }

    /// A document of the controller's API.
    pub(super) fn query(&self, target: &str) -> Result<Value> {
        let host = self.mesh.place(self.center);
        host.run_in(|| controller::query(target))
    }

    /// The places of the chain for a transfer of so many bytes.
    pub(super) fn chain(&self, pair: Pair, bytes: u64) -> Result<Vec<usize>> {
        let (from, to) = (name(pair.client), name(pair.server));
        let answer = self.query(&format!("/v1/explain?from={from}&to={to}&bytes={bytes}"))?;
        let best = &answer["routes"][0]["nodes"];
        let Some(names) = best.as_array() else {
            return Ok(vec![pair.client, pair.server]);
        };
        let places = names.iter().map(|name| {
            let number: Option<usize> = name.as_str().and_then(|name| name[1..].parse().ok());
            Ok(number.context("the name of a node")? - 1)
        });
        places.collect()
    }

    pub(super) fn client(&self, pair: Pair) -> Result<&Namespace> {
        self.mesh.host(pair.client, CLIENT)
    }

    /// The number of all nodes' flows over warm hops, and over cold ones.
    pub(super) fn hops_taken(&self) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for node in &self.nodes {
            let chains = node.admin_json("chains")?;
            let peers = chains["peers"].as_array().context("a list of peers")?;
            let total =
                |name: &str| -> u64 { peers.iter().filter_map(|peer| peer[name].as_u64()).sum() };
            sum.0 += total("taken");
            sum.1 += total("missed");
        }
        Ok(sum)
    }

    /// By the client's address of each connection, the places whose nodes relayed it, by their
    /// logs.
    pub(super) fn passed(&self) -> HashMap<SocketAddr, BTreeSet<usize>> {
        let mut passed: HashMap<SocketAddr, BTreeSet<usize>> = HashMap::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let log = node.process().stdout();
            let relays = log.lines().filter(|line| line.contains(" msg=relay "));
            let fields = relays.flat_map(|line| line.split(' '));
            let clients = fields.filter_map(|field| field.strip_prefix("client=")?.parse().ok());
            clients.for_each(|client| {
                passed.entry(client).or_default().insert(place);
            });
        }
        passed
    }
}

/// The carrier of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The server, bypassing all nodes.
    Direct,
    /// The server; its node selects the chain.
    Chain(Hops),
    /// The reverse proxy beside the client's place.
    ReverseProxy,
}

impl Kind {
    /// The kinds of a pair, the reference first.
    pub(super) const ALL: [Self; 4] = [
        Self::Direct,
        Self::Chain(Hops::Cold),
        Self::Chain(Hops::Warm),
        Self::ReverseProxy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Chain(Hops::Warm) => "chain, warm",
            Self::Chain(_) => "chain, cold",
            Self::ReverseProxy => "reverse proxy",
        }
    }

    /// The overlay it belongs to.
    pub(super) fn hops(self) -> Hops {
        match self {
            Self::Chain(hops) => hops,
            Self::Direct | Self::ReverseProxy => Hops::Warm,
        }
    }
}

/// The address of the target, for objects of a size.
pub(super) fn target(args: &Args, pair: Pair, size: u64, kind: Kind) -> SocketAddr {
    let place = args.sizes.iter().position(|one| *one == size);
    let index = u16::try_from(place.unwrap_or(0)).unwrap_or(0);
    let server = address(pair.server, SERVER, args.family);
    match kind {
        Kind::Direct => SocketAddr::new(server, AROUND + index),
        Kind::Chain(_) => SocketAddr::new(server, THROUGH + index),
        Kind::ReverseProxy => {
            let reverse_proxy = address(pair.client, REVERSE_PROXY, args.family);
            SocketAddr::new(reverse_proxy, front_port(pair.server))
        }
    }
}

fn front_port(server: usize) -> u16 {
    FRONTS + u16::try_from(server).unwrap_or(0)
}

fn number(place: usize) -> u64 {
    place as u64 + 1
}

fn name(place: usize) -> String {
    format!("p{}", number(place))
}

fn make_mesh(topology: &Topology, seed: u64) -> Result<Mesh> {
    // The reverse proxy stands at the place itself, as close to the client as the node is.
    let access = Link::delay(Duration::from_secs_f64(ACCESS_MS / 2e3)).rate(RATE);
    let mut beside = Vec::new();
    let mut add = |place, host, link: &Link| {
        beside.push(Beside {
            place,
            host,
            link: link.clone(),
        });
    };
    for place in topology.clients() {
        add(place, CLIENT, &access);
        add(place, REVERSE_PROXY, &Link::Veth);
    }
    for place in topology.servers() {
        add(place, SERVER, &access);
    }
    let link = |one, other| topology.link(one, other, 1.0);
    let mesh = Mesh::new(topology.places(), &beside, link, CONGESTION, seed)?;
    // Servers and reverse proxies get the same settings as nodes.
    for place in topology.clients() {
        chain::prepare(mesh.host(place, REVERSE_PROXY)?)?;
    }
    for place in topology.servers() {
        chain::prepare(mesh.host(place, SERVER)?)?;
    }
    Ok(mesh)
}

fn web(args: &Args, topology: &Topology, mesh: &Mesh) -> Result<Vec<Nginx>> {
    let mut web = Vec::new();
    let count = u16::try_from(args.sizes.len()).unwrap_or(0);
    let ports: Vec<u16> = (0..count)
        .flat_map(|size| [THROUGH + size, AROUND + size])
        .collect();
    for place in topology.servers() {
        let host = mesh.host(place, SERVER)?;
        web.push(origin(host, &ports, &args.sizes)?);
    }
    // A reverse proxy for each place with clients, which has connections to all its origins.
    for place in topology.clients() {
        let pairs = topology.pairs.iter().filter(|pair| pair.client == place);
        let origins = pairs.map(|pair| {
            let origin = SocketAddr::new(address(pair.server, SERVER, args.family), AROUND);
            (front_port(pair.server), origin)
        });
        let origins: Vec<_> = origins.collect();
        web.push(reverse_proxy(mesh.host(place, REVERSE_PROXY)?, &origins)?);
    }
    Ok(web)
}

/// A rule per size, so that sizes need not be estimated, and one that forwards bypassing flows.
fn rules(sizes: &[u64]) -> String {
    let mut toml = format!(
        "[[rule]]\nname = \"around\"\nports = [\"{AROUND}-{}\"]\naction = \"forward\"\n",
        AROUND + 999
    );
    for (port, size) in (THROUGH..).zip(sizes) {
        let bytes = size * KB;
        toml.push_str(&format!(
            "[[rule]]\nname = \"{size}k\"\nports = [{port}]\ntransfer_size = \"{bytes}B\"\n"
        ));
    }
    toml.push_str("[[rule]]\nname = \"others\"\n");
    toml
}

/// A node's entry for another one, without warm hops. Each pair has its own key, by which a node
/// identifies the sender of a request.
fn peer(args: &Args, me: usize, place: usize) -> String {
    let key = format!(
        "{:064x}",
        1000 * number(me.min(place)) + number(me.max(place))
    );
    let (name, number) = (name(place), number(place));
    let listener = SocketAddr::new(address(place, 0, args.family), chain::PORT);
    format!(
        "[[peer]]\nname = \"{name}\"\nid = {number}\naddress = \"{listener}\"\nkey = \"{key}\"\n\
         pool_min = 0\npool_max = 0\n[peer.socket]\ncongestion = {CONGESTION:?}\n"
    )
}
