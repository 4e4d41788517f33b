// SPDX-License-Identifier: Apache-2.0
//! The node's configuration: one TOML file, checked in full before use.
//!
//! `keys` has a row for every key. Reading has two steps: `document` sorts the
//! text by that table (unknown keys are errors), `build` gives it meaning and
//! collects every mistake with its line. What comes out, [`Config`], is
//! complete: no later step has a default of its own. Nothing here touches
//! sockets, maps or routes.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_relay::policy::{Policy, Rule};

use crate::groups::Group;

mod build;
mod control_client;
pub mod controller;
mod document;
pub mod groups;
mod host;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod keys;
mod measure;
mod observe;
mod problem;
mod shadow;
mod show;
#[cfg(test)]
mod tests;
mod value;

pub use control_client::{Follow, Secret};
pub use host::{Capacity, KeyFile, cpus};
use keys::Reload;
pub use measure::{Measure, Schedule};
pub use observe::Observe;
pub use problem::Error;
pub use show::ports as ports_word;
pub use value::{Word, prefix_text, transfer_size};

/// The default path of the admin socket.
pub const ADMIN_SOCKET: &str = "/run/posthaste/admin.sock";

/// The `[packet]` section: bounds of the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Entries of the flow table. The kernel holds all of them from the start.
    pub flows: u32,
    /// How long a flow may be quiet until both its ends are probed.
    pub idle: Duration,
}

/// The whole configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Settings of the process.
    pub node: Node,
    /// Path of the admin socket.
    pub admin_socket: PathBuf,
    /// The group whose members may use it, besides the node's own user.
    pub admin_group: Option<Group>,
    /// Where metrics are served; `None` when switched off.
    pub metrics: Option<SocketAddr>,
    /// How flows are intercepted.
    pub transparent: Transparent,
    /// What has to be seen of destinations first.
    pub observe: Observe,
    /// Bounds of the packet path.
    pub packet: Packet,
    /// Where clients and peers request a relay (RFC 8803), besides.
    pub explicit: Vec<SocketAddr>,
    /// Which of the explicit and fixed listeners accept Multipath TCP.
    pub multipath_listeners: Vec<SocketAddr>,
    /// The listeners that have a destination of their own.
    pub fixed: Vec<Fixed>,
    /// What is done with flows.
    pub policy: Policy,
    /// How links to peers are measured.
    pub measure: Measure,
    /// Whose plans it follows, if any.
    pub follow: Option<Follow>,
    /// What the file contains and the policy has no need of.
    pub spelling: Spelling,
    /// What is allowed but probably not meant, one sentence each.
    pub warnings: Vec<String>,
}

/// The `[node]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Worker threads.
    pub workers: usize,
    /// Relays of the whole node; [`Policy::relays_max`] is one worker's share.
    pub relays_max: u32,
    /// How long a drain waits for open relays.
    pub drain_timeout: Duration,
    /// How long open relays may go on once another process has taken the node's place.
    pub upgrade_timeout: Duration,
    /// Whether each ended relay becomes a line on stdout.
    pub log_connections: bool,
}

/// A `[[listener]]` whose connections all go to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
}

/// What the file contains about other nodes and the policy has no need of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// By peer.
    pub key_files: Vec<KeyFiles>,
}

/// The files that the keys of a peer are in; `None` when a key is in the configuration itself, or there
/// is no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFiles {
    /// That of the key in use.
    pub own: Option<PathBuf>,
    /// That of the other key.
    pub other: Option<PathBuf>,
}

/// The `[transparent]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transparent {
    /// Whether flows are intercepted. Otherwise the node serves its explicit
    /// listeners alone; what servers answer is held back all the same until
    /// clients are validated.
    pub enabled: bool,
    /// Interfaces to intercept on; empty means every interface except `lo`.
    pub interfaces: Vec<String>,
    /// The one fwmark bit of redirected packets.
    pub mark: u32,
    /// The one fwmark bit of the node's own sockets.
    pub socket_mark: u32,
    /// Number of the routing table that delivers redirected packets locally.
    pub table: u32,
}

impl Transparent {
    /// Whether to attach the programs to the interface of this name.
    pub fn wants(&self, interface: &str) -> bool {
        match self.interfaces.as_slice() {
            // No forwarded packet passes lo.
            [] => interface != "lo",
            names => names.iter().any(|name| name == interface),
        }
    }
}

impl Default for Transparent {
    /// As [`Config::default`] has it.
    fn default() -> Self {
        Config::default().transparent
    }
}

impl Default for Config {
    /// What a node does without a file: relay what this host forwards.
    fn default() -> Self {
        build::without_file(&Capacity::of_host())
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::unreadable(path, &source))?;
        let mut config = Self::parse(path, &text, &Capacity::of_host())?;
        // Key files are checked one by one; a key in this file makes its mode count.
        let peers = config.policy.chains.peers.iter();
        let mut peers = peers.zip(&config.spelling.key_files);
        let has_keys = peers.any(|(peer, files)| {
            files.own.is_none() || peer.other_key.is_some() && files.other.is_none()
        });
        if has_keys && std::fs::metadata(path).is_ok_and(|file| host::is_for_all(&file)) {
            let what = format!(
                "there are keys in it and others may read or write it: chmod o= {}",
                path.display()
            );
            config.warnings.push(what);
        }
        Ok(config)
    }

    /// Reads and checks the file, or takes the defaults when there is none.
    pub fn load_or_default(path: Option<&Path>) -> Result<Self, Error> {
        path.map_or_else(|| Ok(Self::default()), Self::load)
    }

    /// Checks `text`; `path` only names it in errors.
    pub fn parse(path: &Path, text: &str, capacity: &Capacity) -> Result<Self, Error> {
        build::from_text(text, capacity).map_err(|problems| Error::new(path, problems))
    }

    /// Whether to attach the programs to the interface of this name. Without transparency
    /// they serve requests: the server's answer is held until their client is validated.
    pub fn watches(&self, interface: &str) -> bool {
        let needed = self.transparent.enabled || !self.explicit.is_empty();
        needed && self.transparent.wants(interface)
    }

    /// Whether packets for other hosts may be delivered to this one: to sockets of the node, or to
    /// be reset. The routing rule that they need makes every route look-up of the host longer.
    pub fn relays(&self) -> bool {
        let transit = self.transparent.enabled && self.policy.rules.iter().any(Rule::uses_sockets);
        let requested = !self.explicit.is_empty() || !self.fixed.is_empty();
        transit || requested || self.follow.is_some() || !self.policy.chains.peers.is_empty()
    }

    /// `next` as far as a running node can take it on, and the keys in which it
    /// differs but that take effect only at the next start.
    pub fn adopt(&self, mut next: Self) -> (Self, Vec<String>) {
        let waiting = keys::waiting(keys::NODE, |reload| match reload {
            Reload::NodeKeeps(keep) => keep(self, &mut next),
            Reload::Applies | Reload::ControllerKeeps(_) => true,
        });
        // Of the workers that run, whose number a reload does not change.
        next.policy.relays_max = build::share(next.node.relays_max, self.node.workers);
        (next, waiting)
    }

    /// The configuration as a JSON document in the shape of the file.
    pub fn to_json(&self) -> serde_json::Result<String> {
        show::config(self).to_json()
    }
}

impl fmt::Display for Config {
    /// The complete configuration as a file that means the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(&show::config(self)).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}
