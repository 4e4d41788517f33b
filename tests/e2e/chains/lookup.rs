// SPDX-License-Identifier: Apache-2.0
//! A first node that holds no plan: another looks the way up for each of its flows.

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::requests::{ALLOWED, explicit, peer, start_all, syn_option_peers};
use crate::support::{PORT, Pair, counter, listen, until_ended};

use super::line_of;

/// What is the same for all nodes of a test.
#[derive(Clone, Copy)]
struct Manner {
    accept: &'static str,
    option: bool,
}

impl Manner {
    fn new(accept: &'static str) -> Self {
        Self {
            accept,
            option: false,
        }
    }

    fn node(&self, node: usize, access: &str) -> String {
        let (id, accept) = (node + 1, self.accept);
        format!("[node]\nid = {id}\n{ALLOWED}{access}[defaults]\naccept = \"{accept}\"\n")
    }

    fn peer(&self, network: &Network, node: usize) -> String {
        let mut text = peer(network, node, Family::V4);
        if self.option {
            text += &syn_option_peers(network, node);
        }
        text + "pool_max = 0\n"
    }

    /// The first node requests look-ups from the second, which sends flows over a third.
    fn configs(&self, network: &Network) -> [String; 3] {
        let access = "allow_lookup = [\"node-0\"]\n";
        let first = self.node(0, "") + &self.peer(network, 1);
        let second = self.node(1, access) + &self.peer(network, 0) + &self.peer(network, 2);
        let third = self.node(2, "") + &self.peer(network, 1);
        let way =
            "[[chain]]\nname = \"far\"\nnodes = [\"node-2\"]\n[[route]]\nchains = [\"far\"]\n";
        [
            first + "[controller]\nlookup = \"node-1\"\n",
            second + way + &explicit(network, 1),
            third + &explicit(network, 2),
        ]
    }

    fn start(&self, network: &Network) -> Vec<Node> {
        start_all(network, self.configs(network).into_iter())
    }
}

/// Opens a connection that works.
fn check(network: &Network, family: Family) {
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(network, family, &listener);
    pair.check();
    pair.close_client_first();
}

// promise: K13
#[test]
fn lookup_by_peer() {
    let network = line_of(3);
    let by_option = Manner {
        option: true,
        ..Manner::new("strict")
    };
    for manner in [Manner::new("early"), by_option] {
        let nodes = manner.start(&network);
        for (count, family) in (1..).zip(Family::ALL) {
            check(&network, family);
            for node in &nodes {
                until_ended(node, "finished", count);
                assert_eq!(counter(node, "relays_opened"), count, "{}", manner.accept);
            }
        }
        let requested_in_syn = u64::from(manner.option);
        assert_eq!(counter(&nodes[1], "syn_options_opened"), requested_in_syn);
    }
}
