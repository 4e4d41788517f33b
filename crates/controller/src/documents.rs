// SPDX-License-Identifier: Apache-2.0
//! The documents of the controller's API: what the server sends and the client reads. Times are
//! microseconds where their names end in `us`.

use posthaste_control::message::PlanVersion;
use serde::{Deserialize, Serialize};

/// `GET /v1/status`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The version of the software.
    pub version: String,
    /// Since the start.
    pub uptime_seconds: f64,
    /// The controller's public key.
    pub key: String,
    /// Nodes of the configuration.
    pub nodes: usize,
    /// How many of them have a stream.
    pub connected: usize,
    /// The newest plan.
    pub plan: Plan,
}

/// `GET /v1/plan`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Which one it is.
    pub plan_version: PlanVersion,
    /// Since the last plan was made; nothing before the first since the start.
    pub age_seconds: Option<f64>,
    /// How long it took to make.
    pub took_seconds: Option<f64>,
    /// Nodes that were planned with.
    pub nodes: usize,
    /// Links that were planned with, in one direction.
    pub links: usize,
    /// Chains that some route uses, with nodes between their ends.
    pub chains: usize,
    /// Nodes with a stream that follow this plan.
    pub followed_by: usize,
}

/// `GET /v1/nodes`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Nodes {
    /// In the order of the configuration.
    pub nodes: Vec<Node>,
}

/// A node of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name in the configuration.
    pub name: String,
    /// Its number.
    pub id: u64,
    /// Its public key, in hexadecimal.
    pub key: String,
    /// `connected`, `away` for a while, or `absent`.
    pub state: String,
    /// Age of its stream.
    pub connected_seconds: Option<f64>,
    /// The remote address of its stream.
    pub from: Option<String>,
    /// Name and version of its software.
    pub software: Option<String>,
    /// Where it accepts hops.
    pub listeners: Vec<String>,
    /// Where it answers probes.
    pub reflectors: Vec<String>,
    /// The plan that it follows.
    pub holds: Option<PlanVersion>,
    /// How far its host's clock is ahead of the controller's, as it reports; nothing until it does.
    pub clock_offset_seconds: Option<f64>,
}

/// `GET /v1/links`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Links {
    /// Each once.
    pub links: Vec<Link>,
    /// There are more than the limit of the request.
    pub incomplete: bool,
}

/// The link between two nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The name of one node.
    pub from: String,
    /// The name of the other.
    pub to: String,
    /// What `from` reports: `up`, `dead`, `unmeasured`; nothing before its first report.
    pub reported: Option<String>,
    /// What `to` reports.
    pub reported_back: Option<String>,
    /// The round trip that is planned with, if the link is.
    pub rtt_us: Option<u32>,
    /// The loss that is planned with, lost probes per million.
    pub loss_ppm: Option<u32>,
    /// The ends report round trips that differ too much.
    pub disputed: bool,
}

/// `GET /v1/plan/NODE`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Routes {
    pub(crate) from: String,
    pub(crate) plan_version: PlanVersion,
    pub(crate) routes: Vec<Route>,
}

/// The ways to one node, for the largest transfers over the shortest access links.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) to: String,
    /// Each the names of its nodes, the best first.
    pub(crate) chains: Vec<Vec<String>>,
}

/// `GET /v1/explain`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    pub(crate) access_us: u32,
    pub(crate) plan_version: PlanVersion,
    /// The largest transfer and access link of the class that this is in.
    pub(crate) class_bytes: u64,
    pub(crate) class_access_us: u32,
    /// The routes that nodes receive, the best first.
    pub(crate) routes: Vec<Choice>,
    /// The hop without nodes between, if there is a link.
    pub(crate) direct_us: Option<u64>,
    /// In words.
    pub(crate) why: String,
}

/// A chain that may be taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// All its nodes; two for the hop without nodes between.
    pub(crate) nodes: Vec<String>,
    /// How long such a transfer takes, as links are now; nothing if one of them is not there.
    pub(crate) time_us: Option<u64>,
}

/// `PUT /v1/prefixes`: all that the API sets, in place of what it set before.
#[derive(Clone, Debug, Serialize, Deserialize)]
// The table replaces the one before: a misspelt field must not be dropped quietly.
#[serde(deny_unknown_fields)]
pub(crate) struct PrefixTable {
    pub(crate) prefixes: Vec<PrefixEntry>,
}

/// Whose destinations are whose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrefixEntry {
    pub(crate) prefix: String,
    pub(crate) node: String,
}

/// `GET /v1/prefixes`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Prefixes {
    /// By the configuration.
    pub(crate) configured: Vec<PrefixEntry>,
    /// By the API, which goes first where prefixes are equal.
    pub(crate) set: Vec<PrefixEntry>,
    /// What nodes receive: these, as far as their nodes are there, and what nodes have measured.
    pub(crate) in_force: Vec<PrefixEntry>,
}
