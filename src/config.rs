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

use posthaste_relay::policy::Policy;

use crate::groups::Group;

mod build;
mod control_client;
pub(crate) mod controller;
mod document;
mod host;
#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;
mod keys;
mod measure;
mod observe;
mod problem;
mod shadow;
mod show;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use control_client::Follow;
pub(crate) use host::Capacity;
use keys::Reload;
pub(crate) use measure::{Measure, Schedule};
pub(crate) use observe::Observe;
pub(crate) use problem::Error;
pub(crate) use show::{Matches, action as action_word, ports as ports_word};
pub(crate) use value::{prefix_text, transfer_size};

/// Where the admin socket is unless the configuration says otherwise.
pub(crate) const ADMIN_SOCKET: &str = "/run/posthaste/admin.sock";

/// Everything a node was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Settings of the process.
    pub(crate) node: Node,
    /// Path of the admin socket.
    pub(crate) admin_socket: PathBuf,
    /// The group whose members may use it, besides the node's own user.
    pub(crate) admin_group: Option<Group>,
    /// Where metrics are served; `None` when switched off.
    pub(crate) metrics: Option<SocketAddr>,
    /// How flows are intercepted.
    pub(crate) transparent: Transparent,
    /// What has to be seen of destinations first.
    pub(crate) observe: Observe,
    /// Where clients and peers ask for a relay (RFC 8803), besides.
    pub(crate) explicit: Vec<SocketAddr>,
    /// The listeners that have a destination of their own.
    pub(crate) fixed: Vec<Fixed>,
    /// What is done with flows.
    pub(crate) policy: Policy,
    /// How links to peers are measured.
    pub(crate) measure: Measure,
    /// Whose plans it follows, if any.
    pub(crate) follow: Option<Follow>,
    /// What the file says and the policy has no need of.
    pub(crate) spelling: Spelling,
    /// What is allowed but probably not meant, one sentence each.
    pub(crate) warnings: Vec<String>,
}

/// The `[node]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Worker threads.
    pub(crate) workers: usize,
    /// Relays of the whole node; [`Policy::relays_max`] is one worker's share.
    pub(crate) relays_max: u32,
    /// How long a drain waits for open relays.
    pub(crate) drain_timeout: Duration,
    /// How long open relays may go on once another process has taken the node's place.
    pub(crate) upgrade_timeout: Duration,
    /// Whether each ended relay becomes a line on stdout.
    pub(crate) log_connections: bool,
}

/// A `[[listener]]` whose connections all go to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Where they go.
    pub(crate) destination: SocketAddr,
}

/// What the file says of other nodes and the policy has no need of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// By peer: the file that its key is in; `None` when the key is in the
    /// configuration itself.
    pub(crate) key_files: Vec<Option<PathBuf>>,
}

/// The `[transparent]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transparent {
    /// Whether flows are intercepted. Otherwise the node serves its explicit
    /// listeners alone; what servers answer is held back all the same until
    /// clients are validated.
    pub(crate) enabled: bool,
    /// Interfaces to intercept on; empty means every interface except `lo`.
    pub(crate) interfaces: Vec<String>,
    /// The one fwmark bit of redirected packets.
    pub(crate) mark: u32,
    /// The one fwmark bit of the node's own sockets.
    pub(crate) socket_mark: u32,
    /// Number of the routing table that delivers redirected packets locally.
    pub(crate) table: u32,
}

impl Transparent {
    /// Whether to attach the programs to the interface of this name.
    pub(crate) fn wants(&self, interface: &str) -> bool {
        match self.interfaces.as_slice() {
            [] => interface != "lo",
            names => names.iter().any(|name| name == interface),
        }
    }
}

#[cfg(test)]
impl Default for Transparent {
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
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::unreadable(path, &source))?;
        let mut config = Self::parse(path, &text, &Capacity::of_host())?;
        let has_keys = config.spelling.key_files.contains(&None);
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
    pub(crate) fn load_or_default(path: Option<&Path>) -> Result<Self, Error> {
        path.map_or_else(|| Ok(Self::default()), Self::load)
    }

    /// Checks `text`; `path` only names it in errors.
    pub(crate) fn parse(path: &Path, text: &str, capacity: &Capacity) -> Result<Self, Error> {
        build::from_text(text, capacity).map_err(|problems| Error::new(path, problems))
    }

    /// Whether to attach the programs to the interface of this name. Without transparency
    /// they are there for those who ask: what a server answers waits for their proof.
    pub(crate) fn watches(&self, interface: &str) -> bool {
        let needed = self.transparent.enabled || !self.explicit.is_empty();
        needed && self.transparent.wants(interface)
    }

    /// `next` as far as a running node can take it on, and the keys in which it
    /// differs but that take effect only at the next start.
    pub(crate) fn adopt(&self, mut next: Self) -> (Self, Vec<String>) {
        let waiting = keys::waiting(keys::NODE, |reload| match reload {
            Reload::NodeKeeps(keep) => keep(self, &mut next),
            Reload::Applies | Reload::ControllerKeeps(_) => true,
        });
        next.policy.relays_max = build::share(next.node.relays_max, self.node.workers);
        (next, waiting)
    }

    /// The configuration as a JSON document in the shape of the file.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&show::Effective::of(self))
    }
}

impl fmt::Display for Config {
    /// The complete configuration as a file that means the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(&show::Effective::of(self)).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}
