// SPDX-License-Identifier: Apache-2.0
//! A network with its server and its nodes, and transfers over it.

use std::time::Duration;

use anyhow::Result;

use super::way::{Carriage, PACKET_OPENED, Way};
use super::{Args, CONGESTION, RTT};
use crate::chain::{self, Chain, Member, Transport};
use crate::link::Link;
use crate::netns::Namespace;
use crate::network::Network;
use crate::node::Node;
use crate::transfer::{Request, Server, Timing, fetch_at_once};

/// Timeout of one transfer; the slowest takes less than a second when it is alone.
const DEADLINE: Duration = Duration::from_secs(30);

/// The port of the server.
const PORT: u16 = 8001;

/// Idle warm hops of a worker while no other flow needs one.
const POOL: u32 = 2;

/// The parts that transfers of one layout need. Dropped in the order of its fields.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) nodes: Vec<Node>,
    chain: Option<Chain>,
    _server: Server,
    pub(super) network: Network,
}

/// Index of the access node and of the router of a network with a node beside the path, in the
/// line.
const ACCESS: usize = 0;
const ROUTER: usize = 1;

impl Testbed {
    pub(super) fn new(args: &Args, layout: Way) -> Result<Self> {
        let network = network(args, layout)?;
        let server = Server::start(network.server(), PORT, CONGESTION)?;
        let (namespaces, members) = members(&network, layout);
        let chain = layout.carriage.is_chain().then(|| Chain {
            nodes: members,
            pool: pool(args, layout.carriage),
            transport: Transport::Tcp(CONGESTION.to_owned()),
        });
        let mut nodes = Vec::new();
        for (place, namespace) in namespaces.into_iter().enumerate() {
            let mut config = node_config(layout);
            if let Some(chain) = &chain {
                chain::prepare(namespace)?;
                config.push_str(&chain.config_with(place, of_node(layout)));
            }
            let node = Node::builder(namespace, args.binary.find()?).relaying();
            nodes.push(node.config(&config).start()?);
        }
        Ok(Self {
            nodes,
            chain,
            _server: server,
            network,
        })
    }

    /// Runs as many transfers at once as there are clients.
    pub(super) fn fetch(&self, args: &Args, way: Way, bytes: u64) -> Result<Vec<Timing>> {
        if let Some(chain) = self.chain.as_ref().filter(|chain| chain.pool > 0) {
            chain.wait_until_full(&self.nodes)?;
            if way.carriage == Carriage::EmptyEnds {
                // Takes all warm hops: a transfer of a byte takes slightly more than a round trip,
                // and replacing a hop takes two.
                self.fetch_now(args, way, 1)?;
            }
        }
        self.fetch_now(args, way, bytes)
    }

    /// How many flows the nodes have carried packet by packet; the least of all nodes.
    pub(super) fn translated(&self) -> Result<u64> {
        let counts = self.nodes.iter().map(|node| node.counter(PACKET_OPENED));
        let counts = counts.collect::<Result<Vec<_>>>()?;
        Ok(counts.into_iter().min().unwrap_or(0))
    }

    fn fetch_now(&self, args: &Args, way: Way, bytes: u64) -> Result<Vec<Timing>> {
        let server = self.network.server_address(way.family);
        let request = Request {
            deadline: DEADLINE,
            ..Request::new(server, PORT, bytes)
        };
        fetch_at_once(self.network.client(), &request, args.clients)
    }
}

/// Links whose queues never drop: slow start must not end before the transfer does.
fn network(args: &Args, layout: Way) -> Result<Network> {
    let link = |delay| {
        Link::delay(delay)
            .rate(args.bits_per_second())
            .queue(50_000_000)
    };
    let builder = match layout.carriage {
        Carriage::OffPath => {
            // The direct path is unchanged: the node is behind its own link.
            let quarter = RTT / 4;
            let line = Network::line([Link::Veth, link(quarter), link(quarter)]);
            line.beside(ROUTER, link(layout.aside - quarter))
        }
        _ => Network::line(layout.delays().into_iter().map(link)),
    };
    let builder = builder.seed(args.common.seed);
    builder.congestion(CONGESTION).build()
}

/// The namespaces of the nodes and their addresses, in the order of a chain.
fn members(network: &Network, layout: Way) -> (Vec<&Namespace>, Vec<Member>) {
    // The source address of hops is fixed, because peers identify each other by it.
    let on_path = |node| Member {
        listener: network.node_address(node, layout.family),
        source_addresses: network.calling_address(node, layout.family),
    };
    if layout.carriage == Carriage::OffPath {
        let address = network.aside_address(0, layout.family);
        let aside = Member {
            listener: address,
            source_addresses: address,
        };
        let namespaces = vec![network.node(ACCESS), network.aside(0)];
        return (namespaces, vec![on_path(ACCESS), aside]);
    }
    let nodes = network.nodes();
    (
        nodes.iter().collect(),
        (0..nodes.len()).map(on_path).collect(),
    )
}

/// Warm hops that each worker keeps open.
fn pool(args: &Args, carriage: Carriage) -> u16 {
    match carriage {
        // One hop for the one worker, which a transfer of a byte takes.
        Carriage::EmptyEnds => 1,
        // All clients may reach the same worker.
        carriage if carriage.has_pool() => {
            u16::try_from(args.clients.max(POOL)).unwrap_or(u16::MAX)
        }
        _ => 0,
    }
}

/// The settings of a layout's nodes: one worker has all hops, if they are to be taken.
fn of_node(layout: Way) -> &'static str {
    match layout.carriage {
        Carriage::EmptyEnds => "workers = 1\n",
        _ => "",
    }
}

fn node_config(layout: Way) -> String {
    if layout.carriage == Carriage::Packet {
        // No sockets, and so no congestion control of the node.
        return "[defaults]\ndata_path = \"packet\"\n".to_owned();
    }
    ["downstream", "upstream"]
        .map(|side| {
            format!("[defaults.{side}]\ncongestion = {CONGESTION:?}\ninitial_window = 10\n")
        })
        .concat()
}
