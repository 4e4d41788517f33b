// SPDX-License-Identifier: Apache-2.0
//! A network with its server and its nodes, and transfers over it.

use std::time::Duration;

use anyhow::Result;

use super::way::{Carriage, Layout};
use super::{Args, Configuration, KB};
use crate::chain::{Chain, Member};
use crate::link::Link;
use crate::model::Mode;
use crate::network::Network;
use crate::node::Node;
use crate::transfer::{Request, Server, Timing, fetch_at_once};

/// How long one transfer may take; the slowest takes less than a second when it is alone.
const DEADLINE: Duration = Duration::from_secs(30);

/// Warm hops that a worker has ready when nobody else wants one.
const POOL: u32 = 2;

/// Everything that transfers of one layout need. Dropped in the order of its fields.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) nodes: Vec<Node>,
    chain: Option<Chain>,
    _servers: Vec<Server>,
    pub(super) network: Network,
}

impl Setup {
    pub(super) fn new(args: &Args, layout: Layout) -> Result<Self> {
        // A queue that never drops: slow start must not end before the transfer does.
        let link = |delay| {
            Link::delay(delay)
                .rate(args.bits_per_second())
                .queue(50_000_000)
        };
        let network = Network::line(layout.delays(args).into_iter().map(link))
            .seed(args.seed)
            .congestion(&args.congestion)
            .build()?;
        let serve = |mode: Mode| Server::start(network.server(), port(mode), &args.congestion);
        let servers = Mode::ALL.into_iter().map(serve).collect::<Result<_>>()?;
        let chain =
            (layout.carriage != Carriage::Transparent).then(|| chain_of(args, layout, &network));
        let mut nodes = Vec::new();
        for (place, namespace) in network.nodes().iter().enumerate() {
            let mut config = node_config(args);
            if let Some(chain) = &chain {
                chain.prepare(namespace)?;
                config.push_str(&chain.config_with(place, of_node(layout)));
            }
            let node = Node::builder(namespace, args.binary.find()?);
            nodes.push(node.config(&config).start()?);
        }
        Ok(Self {
            nodes,
            chain,
            _servers: servers,
            network,
        })
    }

    /// Runs as many transfers at once as there are to be clients.
    pub(super) fn fetch(&self, args: &Args, configuration: Configuration) -> Result<Vec<Timing>> {
        if let Some(chain) = self.chain.as_ref().filter(|chain| chain.pool > 0) {
            if args.primer > 0 {
                let primer = Configuration {
                    bytes: args.primer * KB / u64::from(args.clients),
                    ..configuration
                };
                chain.wait_until_full(&self.nodes)?;
                self.fetch_now(args, primer)?;
            }
            chain.wait_until_full(&self.nodes)?;
            if configuration.way.carriage == Carriage::EmptyEnds {
                self.take_all(args, configuration)?;
            }
        }
        self.fetch_now(args, configuration)
    }

    /// Takes all hops that wait: it is over in a bit more than a round trip, and a hop takes two
    /// to replace.
    fn take_all(&self, args: &Args, configuration: Configuration) -> Result<()> {
        let taker = Configuration {
            bytes: 1,
            ..configuration
        };
        self.fetch_now(args, taker).map(drop)
    }

    fn fetch_now(&self, args: &Args, configuration: Configuration) -> Result<Vec<Timing>> {
        let Configuration { way, bytes } = configuration;
        let server = self.network.server_address(way.family);
        let request = Request {
            congestion: args.congestion.clone(),
            deadline: DEADLINE,
            ..Request::new(server, port(way.mode), bytes)
        };
        fetch_at_once(self.network.client(), &request, args.clients)
    }
}

fn chain_of(args: &Args, layout: Layout, network: &Network) -> Chain {
    let member = |node| Member {
        asked_at: network.node_address(node, layout.hops),
        source_addresses: network.calling_address(node, layout.hops),
    };
    // All clients may come to the same worker.
    let pool = u16::try_from(args.clients.max(POOL)).unwrap_or(u16::MAX);
    Chain {
        nodes: (0..network.nodes().len()).map(member).collect(),
        pool: match layout.carriage {
            Carriage::EmptyEnds => 1,
            carriage if carriage.has_pool() => pool,
            _ => 0,
        },
        congestion: args.hop_congestion().to_owned(),
    }
}

/// What a layout wants of its nodes: one worker has all hops, if they are to be taken.
fn of_node(layout: Layout) -> &'static str {
    match layout.carriage {
        Carriage::EmptyEnds => "workers = 1\n",
        _ => "",
    }
}

/// The port whose connections a node accepts in `mode`.
fn port(mode: Mode) -> u16 {
    match mode {
        Mode::Early => 8001,
        Mode::Strict => 8002,
        Mode::Late => 8003,
    }
}

fn node_config(args: &Args) -> String {
    let mut toml = String::new();
    for side in ["downstream", "upstream"] {
        toml.push_str(&format!(
            "[defaults.{side}]\ncongestion = {:?}\ninitial_window = {}\n",
            args.congestion, args.initial_window
        ));
    }
    for mode in Mode::ALL {
        let (name, port) = (mode.name(), port(mode));
        toml.push_str(&format!(
            "[[rule]]\nname = {name:?}\naction = \"relay\"\naccept = {name:?}\nports = [{port}]\n"
        ));
    }
    toml
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer_times::tests::args;

    #[test]
    fn every_mode_has_a_rule() {
        let toml = node_config(&args(&[]));
        for part in [
            "accept = \"strict\"\nports = [8002]",
            "initial_window = 10",
            "[defaults.upstream]",
        ] {
            assert!(toml.contains(part), "{part} in {toml}");
        }
    }
}
