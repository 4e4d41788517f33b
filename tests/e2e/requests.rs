// SPDX-License-Identifier: Apache-2.0
//! Nodes that receive explicit requests, and what the tests of their clients share: valid, foreign
//! and hostile ones.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{counter, dial, network, start_relaying_in, until};
use crate::watch::{Accounts, http_get};

/// The port of explicit listeners.
pub(crate) const LISTENER_PORT: u16 = 4480;
/// What nodes of the tests share.
pub(crate) const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// The networks of the tests, which are private ones.
pub(crate) const ALLOWED: &str = "[access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n";
/// The port of metrics on the loopback address of a node's host.
const METRICS: u16 = 9464;

/// Client, an explicit node, a router and the server.
pub(crate) fn fixture() -> Network {
    network([Link::Veth, Link::Veth, Link::Veth])
}

/// The explicit listener of node `node` of a network.
pub(crate) fn listener(network: &Network, node: usize, family: Family) -> SocketAddr {
    SocketAddr::new(network.node_address(node, family), LISTENER_PORT)
}

/// A node that relays explicit requests only.
pub(crate) fn explicit(network: &Network, node: usize) -> String {
    let listeners = Family::ALL.map(|family| {
        let address = listener(network, node, family);
        format!("[[listener]]\naddress = \"{address}\"\n")
    });
    format!("[transparent]\nenabled = false\n{}", listeners.concat())
}

/// The configuration of a peer, which shares [`KEY`].
pub(crate) fn peer(network: &Network, node: usize, family: Family) -> String {
    let address = listener(network, node, family);
    format!(
        "[[peer]]\nname = \"node-{node}\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n",
        id = node + 1,
    )
}

/// The configuration of a peer with SYN options on its hops, which connects to further nodes from
/// another address than that of its listener.
pub(crate) fn syn_option_peers(network: &Network, node: usize) -> String {
    let calling = network.calling_address(node, Family::V4);
    let listening = network.node_address(node, Family::V4);
    format!("header_in = \"syn-option\"\nsource_addresses = [\"{calling}\", \"{listening}\"]\n")
}

/// All that came over a connection until its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    /// It ended by a reset, and not in order.
    pub(crate) reset: bool,
}

impl Received {
    pub(crate) fn and_closed(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            reset: false,
        }
    }

    pub(crate) fn only_a_reset() -> Self {
        Self {
            bytes: Vec::new(),
            reset: true,
        }
    }
}

/// Reads a connection to its end.
pub(crate) fn receive_all(stream: &mut TcpStream) -> Received {
    let mut received = Received::and_closed(&[]);
    let mut piece = [0; 2048];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return received,
            Ok(count) => received.bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                received.reset = true;
                return received;
            }
        }
    }
}

/// Connects to a node and sends bytes.
pub(crate) fn send_to(network: &Network, node: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(network.client(), node).expect("a node accepts");
    stream.write_all(bytes).expect("it can be sent");
    stream
}

/// Reads so many bytes.
pub(crate) fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("they arrive");
    bytes
}

/// An explicit node, and its counters before any request.
pub(crate) struct ExplicitNode {
    pub(crate) node: Node,
    accounts: Accounts,
}

impl ExplicitNode {
    /// Starts the first node of a network.
    pub(crate) fn start(network: &Network, config: &str) -> Self {
        let node = Node::builder(network.node(0), crate::support::binary())
            .relaying()
            .config(config)
            .metrics(METRICS)
            .start()
            .expect("the node becomes ready");
        let accounts = Accounts::of(&node);
        Self { node, accounts }
    }

    /// Requests denied for a reason, from the metrics.
    pub(crate) fn denied(&self, network: &Network, reason: &str) -> u64 {
        let (code, page) = http_get(network.node(0), METRICS, "/metrics");
        assert_eq!(code, 200);
        let name = format!("posthaste_requests_denied_total{{reason=\"{reason}\"}} ");
        let lines = page.lines();
        let values = lines.filter_map(|line| line.strip_prefix(&name));
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    }

    /// Waits until so many requests were denied for that reason, and asserts that none were for others.
    pub(crate) fn until_denied(&self, network: &Network, reason: &str, count: u64) {
        until(reason, || self.denied(network, reason) == count);
        let (_, page) = http_get(network.node(0), METRICS, "/metrics");
        let denied = page.lines().filter(|line| {
            line.starts_with("posthaste_requests_denied_total") && !line.ends_with(" 0")
        });
        assert_eq!(denied.count(), usize::from(count > 0), "{page}");
    }

    /// Waits until no state of the requests remains, and returns the number of relays.
    pub(crate) fn settle(&self) -> u64 {
        self.accounts.settle_any(&self.node);
        counter(&self.node, "relays_opened")
    }
}

/// Starts a node on each of the first hosts, with these configurations: the first one last, so that its
/// dials find the others.
pub(crate) fn start_all(
    network: &Network,
    configs: impl DoubleEndedIterator<Item = String> + ExactSizeIterator,
) -> Vec<Node> {
    let hosts = network.nodes()[..configs.len()].iter().rev();
    let pairs = hosts.zip(configs.rev());
    let mut nodes: Vec<_> = pairs
        .map(|(host, config)| start_relaying_in(host, &config))
        .collect();
    nodes.reverse();
    nodes
}
