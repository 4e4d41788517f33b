// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about other nodes.

use serde::{Deserialize, Serialize};

/// `GET /chains`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chains {
    /// The number of the node that answers.
    pub(crate) id: Option<u64>,
    /// Its explicit listeners.
    pub(crate) listeners: Vec<String>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) routes: Vec<Route>,
    /// Whether a worker was too busy to say what it knows.
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
    /// Until the last worker sends it options again that it did not accept.
    pub(crate) option_paused_ms: u64,
    /// Warm hops that wait, of all workers.
    pub(crate) waiting: u64,
    /// Warm hops that are being opened, of all workers.
    pub(crate) dialing: u64,
    /// How many are to wait, at all workers together.
    pub(crate) wanted: u64,
    /// The shortest round trip time to it, in microseconds.
    pub(crate) rtt_us: Option<u64>,
    /// Flows that were given a warm hop, and those that asked for one in vain.
    pub(crate) taken: u64,
    pub(crate) missed: u64,
    /// Dials that became a warm hop, and those that did not.
    pub(crate) dialed: u64,
    pub(crate) failed: u64,
    /// Warm hops that ended while they waited.
    pub(crate) lost: u64,
    /// Why the last dial that failed did.
    pub(crate) failure: Option<String>,
    pub(crate) health: Health,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) number: u32,
    /// The nodes after the first, by name.
    pub(crate) nodes: Vec<String>,
    pub(crate) health: Health,
}

/// What the workers know of a peer or a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Whether there is a worker that sends flows there, or tries.
    pub(crate) usable: bool,
    /// Workers that know anything.
    pub(crate) known_to: usize,
    /// Workers that send no flow there, because it failed.
    pub(crate) down_at: usize,
    /// Until the last of them tries again.
    pub(crate) down_for_ms: u64,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// Its place in the configuration, from 1.
    pub(crate) number: usize,
    pub(crate) destinations: Vec<String>,
    pub(crate) sources: Vec<String>,
    pub(crate) ports: Vec<String>,
    pub(crate) next_hops: NextHops,
}

/// The ways that a flow can take, the best first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextHops {
    pub(crate) candidates: Vec<Candidate>,
    /// Which of them a flow would take now, from 0; none when there are none,
    /// and it is refused.
    pub(crate) taken: Option<usize>,
}

/// One way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    /// The chain; none for the way straight to the destination.
    pub(crate) chain: Option<String>,
    /// Its nodes after this one, by name, where one flow is asked about.
    #[serde(default)]
    pub(crate) nodes: Vec<String>,
    /// The first of its nodes.
    pub(crate) peer: Option<String>,
    pub(crate) usable: bool,
    /// Warm hops to the peer that wait.
    pub(crate) waiting: u64,
    /// What carries the chain header when none does: `convert` or `option`.
    pub(crate) header_in: Option<String>,
    /// Why that is not the option, though the peer takes it.
    pub(crate) no_option: Option<String>,
}

/// `GET /chains/explain?destination=ADDRESS:PORT&from=ADDRESS&bytes=NUMBER`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) destination: String,
    /// The client that was asked about.
    pub(crate) client: Option<String>,
    /// What is done with the flow where it is intercepted.
    pub(crate) rule: Option<AppliedRule>,
    /// Every route that is for the flow, the one that it takes first.
    pub(crate) routes: Vec<AppliedRoute>,
    /// How much it is taken to carry; none where no way depends on that.
    pub(crate) size: Option<Size>,
    /// What the controller's plan says of it; none without a controller.
    pub(crate) plan: Option<AppliedPlan>,
    pub(crate) next_hops: NextHops,
    pub(crate) access: Access,
    /// Whether workers answered; otherwise nothing is known of how peers and
    /// chains are.
    pub(crate) workers_queried: bool,
}

/// The rule for a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedRule {
    pub(crate) name: String,
    pub(crate) action: String,
}

/// A route that is for a flow, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedRoute {
    /// Its place in the configuration, from 1.
    pub(crate) number: usize,
    /// The longest of its prefixes that the destination is in; none when the
    /// route is for all. Likewise the others.
    pub(crate) destination: Option<String>,
    pub(crate) source: Option<String>,
    /// The narrowest of its ranges that the port is in.
    pub(crate) ports: Option<String>,
}

/// Whether the flow would be let in at an explicit listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    /// What is special about the destination, for which it is denied.
    pub(crate) denied: Option<String>,
    /// Whether the client may ask without a key; unknown when none was named.
    pub(crate) client_admitted: Option<bool>,
}

/// How much a flow is taken to carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Who says so: `asked`, `route N`, `rule "NAME"`, `learned` or `default`.
    pub(crate) source: String,
    /// On how many recent transfers what was learned rests, and of which destinations.
    pub(crate) transfers: Option<u32>,
    pub(crate) prefix: Option<String>,
    /// The size class of the plan, from 0, and the largest transfer in it.
    pub(crate) class: Option<usize>,
    pub(crate) class_bytes: Option<u64>,
}

/// What a controller's plan says of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedPlan {
    /// Which plan; none without one.
    pub(crate) epoch: Option<u64>,
    pub(crate) version: Option<u64>,
    /// Since the controller last said that it stands; none if that cannot be told.
    pub(crate) age_ms: Option<u64>,
    /// Whether flows go by it.
    pub(crate) in_force: bool,
    /// Whose the destination is, and by which prefix.
    pub(crate) egress: Option<String>,
    pub(crate) prefix: Option<String>,
    /// How far it is from that node, if that has it for being the nearest, and from this one.
    pub(crate) rtt_us: Option<u32>,
    pub(crate) own_rtt_us: Option<u32>,
    /// What follows, in words.
    pub(crate) why: String,
}
