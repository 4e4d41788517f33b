// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about other nodes.

use serde::{Deserialize, Serialize};

use super::packets::DataPath;

/// `GET /chains`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chains {
    /// The number of this node.
    pub(crate) id: Option<u64>,
    /// Its explicit listeners.
    pub(crate) listeners: Vec<String>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) routes: Vec<Route>,
    /// Whether a worker did not answer in time.
    pub(crate) incomplete: bool,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) address: String,
    /// Bounds on warm hops at each worker.
    pub(crate) pool_min: u16,
    pub(crate) pool_max: u16,
    /// What carries chain headers over cold hops to it: `convert` or `option`.
    pub(crate) header_in: String,
    /// Time until the last worker resumes sending it options, after ignored ones.
    pub(crate) option_paused_ms: u64,
    /// What carries hops to it, by the configuration, and now.
    pub(crate) transport: String,
    #[serde(default)]
    pub(crate) carried_by: Option<Carrier>,
    /// Tunnels to it over which flows may begin, of all workers.
    #[serde(default)]
    pub(crate) tunnels: u64,
    /// Of a million segments of hops over TCP, how many were lost of late at the worker with most.
    #[serde(default)]
    pub(crate) lost_in_million: Option<u32>,
    /// Idle warm hops, of all workers.
    pub(crate) waiting: u64,
    /// Warm hops that are being opened, of all workers.
    pub(crate) dialing: u64,
    /// Idle hops wanted, by all workers together.
    pub(crate) wanted: u64,
    /// The shortest round trip time to it, in microseconds.
    pub(crate) rtt_us: Option<u64>,
    /// Flows that got a hop that was open, a warm one or a stream of a tunnel, and flows that found no warm hop.
    pub(crate) taken: u64,
    pub(crate) missed: u64,
    /// Dials that became a warm hop, and dials that failed.
    pub(crate) dialed: u64,
    pub(crate) failed: u64,
    /// Warm hops that ended while idle.
    pub(crate) lost: u64,
    /// Error of the last failed dial.
    pub(crate) failure: Option<String>,
    pub(crate) health: Health,
}

/// What carries a hop, and why if there is a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carrier {
    /// `tcp`, `mptcp`, `quic`, or `none` without the tunnel that it needs.
    pub(crate) transport: String,
    pub(crate) why: Option<String>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    pub(crate) name: String,
    /// The nodes after the first, by name.
    pub(crate) nodes: Vec<String>,
    pub(crate) health: Health,
}

/// The workers' knowledge of a peer or a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Whether a worker sends flows there, or tries to.
    pub(crate) usable: bool,
    /// Workers with any knowledge.
    pub(crate) known_to: usize,
    /// Workers that send no flow there because of a failure.
    pub(crate) down_at: usize,
    /// Time until the last of them tries again.
    pub(crate) down_for_ms: u64,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// Its position in the configuration, from 1.
    pub(crate) number: usize,
    pub(crate) destinations: Vec<String>,
    pub(crate) sources: Vec<String>,
    pub(crate) ports: Vec<String>,
    pub(crate) next_hops: NextHops,
}

/// The routes that a flow can take, the best first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextHops {
    pub(crate) candidates: Vec<Candidate>,
    /// Index of the candidate that a flow would take now, from 0; absent when there is none and the
    /// flow is refused.
    pub(crate) taken: Option<usize>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    /// The chain; absent for the direct connection.
    pub(crate) chain: Option<String>,
    /// Its nodes after this one, by name, if the request names a flow.
    #[serde(default)]
    pub(crate) nodes: Vec<String>,
    /// The first node of the chain.
    pub(crate) peer: Option<String>,
    pub(crate) usable: bool,
    /// What would carry the flow to the peer now, if a node was queried.
    #[serde(default)]
    pub(crate) carried_by: Option<Carrier>,
    /// Idle warm hops to the peer.
    pub(crate) waiting: u64,
    /// What carries the chain header over a cold hop: `convert` or `option`.
    pub(crate) header_in: Option<String>,
    /// Why that is not the option although the peer accepts it.
    pub(crate) no_option: Option<String>,
}

/// `GET /chains/explain?destination=ADDRESS:PORT&from=ADDRESS&bytes=NUMBER`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) destination: String,
    /// The client of the request.
    pub(crate) client: Option<String>,
    /// What is done with the flow where it is intercepted.
    pub(crate) rule: Option<AppliedRule>,
    /// How its segments would reach the server where it is intercepted; absent if no rule relays it.
    #[serde(default)]
    pub(crate) data_path: Option<DataPath>,
    /// Every route that matches the flow, the one that applies first.
    pub(crate) routes: Vec<AppliedRoute>,
    /// The assumed size; absent where no candidate depends on it.
    pub(crate) size: Option<Size>,
    /// The controller's plan for it; absent without a controller.
    pub(crate) plan: Option<AppliedPlan>,
    pub(crate) next_hops: NextHops,
    pub(crate) access: Access,
    /// Whether workers answered; otherwise the state of peers and chains is unknown.
    pub(crate) workers_queried: bool,
}

/// The rule that matches the flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedRule {
    pub(crate) name: String,
    pub(crate) action: String,
}

/// A route that matches a flow, and by which prefixes and ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedRoute {
    /// Its position in the configuration, from 1.
    pub(crate) number: usize,
    /// The longest of its prefixes that contains the destination; absent when the route matches
    /// all. The same for the others.
    pub(crate) destination: Option<String>,
    pub(crate) source: Option<String>,
    /// The narrowest of its ranges that contains the port.
    pub(crate) ports: Option<String>,
}

/// Whether an explicit listener would accept the flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    /// The class of the destination for which it is denied.
    pub(crate) denied: Option<String>,
    /// Whether the client may connect without a key; absent when the request names none.
    pub(crate) client_admitted: Option<bool>,
}

/// The assumed size of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Its source: `given`, `route N`, `rule "NAME"`, `learned` or `default`.
    pub(crate) source: String,
    /// For a learned size: the number of recent transfers, and the prefix of their destinations.
    pub(crate) transfers: Option<u32>,
    pub(crate) prefix: Option<String>,
    /// The size class of the plan, from 0, and the largest transfer in it.
    pub(crate) class: Option<usize>,
    pub(crate) class_bytes: Option<u64>,
}

/// The controller's plan for a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedPlan {
    /// Identifies the plan; absent without one.
    pub(crate) epoch: Option<u64>,
    pub(crate) version: Option<u64>,
    /// Since the controller last confirmed it; absent if unknown.
    pub(crate) age_ms: Option<u64>,
    /// Whether flows follow it.
    pub(crate) in_force: bool,
    /// The node that owns the destination, and by which prefix.
    pub(crate) egress: Option<String>,
    pub(crate) prefix: Option<String>,
    /// The round trip from that node, if it owns the destination for being nearest, and from this
    /// node.
    pub(crate) rtt_us: Option<u32>,
    pub(crate) own_rtt_us: Option<u32>,
    /// The conclusion, in words.
    pub(crate) why: String,
}
