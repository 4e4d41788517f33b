// SPDX-License-Identifier: Apache-2.0
//! A first node that holds no plan: another looks the way up for each of its flows.

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::requests::{ALLOWED, explicit, peer, start_all, syn_option_peers};
use crate::support::{MODES, PORT, Pair, counter, listen, until_ended};

use super::line_of;

/// What is the same for all nodes of a test.
#[derive(Clone, Copy)]
struct Manner {
    accept: &'static str,
    hops: Family,
    warm: bool,
    option: bool,
    /// The second node accepts look-ups of the first.
    allowed: bool,
}

impl Manner {
    fn new(accept: &'static str) -> Self {
        Self {
            accept,
            hops: Family::V4,
            warm: false,
            option: false,
            allowed: true,
        }
    }

    fn node(&self, node: usize, access: &str) -> String {
        let (id, accept) = (node + 1, self.accept);
        format!("[node]\nid = {id}\n{ALLOWED}{access}[defaults]\naccept = \"{accept}\"\n")
    }

    fn peer(&self, network: &Network, node: usize) -> String {
        let mut text = peer(network, node, self.hops);
        if self.option {
            text += &syn_option_peers(network, node);
        }
        if !self.warm {
            text += "pool_max = 0\n";
        }
        text
    }

    /// The first node requests look-ups from the second, which sends flows over a third.
    fn configs(&self, network: &Network) -> [String; 3] {
        let access = match self.allowed {
            true => "allow_lookup = [\"node-0\"]\n",
            false => "",
        };
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

fn opened(nodes: &[Node]) -> Vec<u64> {
    let opened = nodes.iter().map(|node| counter(node, "relays_opened"));
    opened.collect()
}

// promise: K13
#[test]
fn lookup_by_peer() {
    let network = line_of(3);
    let modes = MODES.map(Manner::new);
    let others = [
        Manner {
            warm: true,
            ..Manner::new("early")
        },
        Manner {
            option: true,
            ..Manner::new("strict")
        },
    ];
    for manner in modes.into_iter().chain(others) {
        for hops in Family::ALL {
            if manner.option && hops == Family::V6 {
                continue;
            }
            let nodes = Manner { hops, ..manner }.start(&network);
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
}

// promise: K13
#[test]
fn forbidden_lookup_goes_direct() {
    let network = line_of(3);
    for hops in Family::ALL {
        let refusing = Manner {
            allowed: false,
            hops,
            ..Manner::new("strict")
        };
        let nodes = refusing.start(&network);
        for family in Family::ALL {
            check(&network, family);
        }
        until_ended(&nodes[0], "finished", 2);
        assert_eq!(opened(&nodes), [2, 0, 0], "{hops}");
        // Each worker tries once, and not again immediately.
        assert!((1..=2).contains(&counter(&nodes[0], "hops_cold")));
    }
}

// promise: K13
#[test]
fn failed_lookup_goes_direct() {
    let network = line_of(3);
    for accept in MODES {
        for hops in Family::ALL {
            let manner = Manner {
                hops,
                ..Manner::new(accept)
            };
            let mut nodes = manner.start(&network);
            check(&network, Family::V4);
            until_ended(&nodes[0], "finished", 1);
            nodes[1].kill().expect("it dies");
            for family in Family::ALL {
                check(&network, family);
            }
            until_ended(&nodes[0], "finished", 3);
            assert_eq!(counter(&nodes[2], "relays_opened"), 1, "{accept} {hops}");
        }
    }
}

// promise: K13
#[test]
fn mutual_lookup_ends() {
    let network = line_of(2);
    let manner = Manner::new("early");
    let config = |node: usize| {
        let other = 1 - node;
        let requester = format!("[controller]\nlookup = \"node-{other}\"\n");
        let access = format!("allow_lookup = [\"node-{other}\"]\n");
        manner.node(node, &access) + &manner.peer(&network, other) + &requester
    };
    let configs = [config(0), config(1) + &explicit(&network, 1)];
    let nodes = start_all(&network, configs.into_iter());
    for (count, family) in (1..).zip(Family::ALL) {
        check(&network, family);
        for node in &nodes {
            until_ended(node, "finished", count);
        }
        assert_eq!(opened(&nodes), [count, count]);
        assert_eq!(counter(&nodes[1], "hops_cold"), 0);
    }
}
