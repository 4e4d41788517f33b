// SPDX-License-Identifier: Apache-2.0
//! The controller's configuration: one TOML file, read with the same care and by the same reader as a
//! node's.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_control::identity::{Identity, PublicKey};
use posthaste_plan::table::Classes;
use posthaste_relay::policy::Prefix;

use super::keys::{self, Reload};
use super::{Capacity, Error, build};

mod show;
#[cfg(test)]
mod tests;

/// The whole configuration of a controller.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The streams of nodes, and what the controller keeps.
    pub server: Server,
    /// The API; `None` when switched off.
    pub api: Option<Api>,
    /// How plans are made.
    pub plan: Plan,
    /// Between two probes of a link that no chain uses.
    pub interval: Duration,
    /// Between two probes of a link that chains use.
    pub interval_in_use: Duration,
    /// The nodes that may come.
    pub nodes: Vec<Node>,
    /// Whose destinations are whose, by node number.
    pub prefixes: Vec<(Prefix, u64)>,
    /// What is allowed but probably not meant, one sentence each.
    pub warnings: Vec<String>,
}

/// The `[server]` section.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where nodes come to.
    pub listen: Vec<SocketAddr>,
    /// The file with the controller's secret.
    pub identity_file: PathBuf,
    /// The key pair in that file.
    pub identity: Identity,
    /// What must survive the controller.
    pub store: PathBuf,
    /// How often either end of a stream sends something.
    pub keepalive: Duration,
}

/// The `[api]` section.
#[derive(Clone)]
pub struct Api {
    /// The address on which HTTP is served.
    pub listen: SocketAddr,
    /// For reading; without it every client that reaches the address may read.
    pub read_token: Option<Token>,
    /// For changes as well; without it no client may change anything.
    pub operate_token: Option<Token>,
}

/// A word that opens the API, and the file that it is in.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The file, as the configuration names it.
    pub file: PathBuf,
    /// What a client sends; `Debug` does not show it.
    pub word: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(in {})", self.file.display())
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Api({})", self.listen)
    }
}

/// The `[plan]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The life of a plan after its last lease renewal.
    pub ttl: Duration,
    /// Hops are taken to be open when flows come.
    pub warm: bool,
    /// The most hops of a chain.
    pub hops_max: u8,
    /// A chain must be faster than the direct hop by this part of its time.
    pub margin_percent: u32,
    /// A chain in use is replaced by one that is better by this part of its time ...
    pub switch_gain_percent: u32,
    /// ... and by this time.
    pub better_by: Duration,
    /// A chain is also replaced when it takes so much longer than when it was chosen.
    pub switch_loss_percent: u32,
    /// The transfer sizes that plans distinguish.
    pub classes: Classes,
}

/// One `[[node]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What the configuration and the API call it.
    pub name: String,
    /// Its number in chain headers, unique among the nodes.
    pub id: u64,
    /// The public key that it must prove to hold.
    pub key: PublicKey,
}

impl Controller {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::unreadable(path, &source))?;
        Self::parse(path, &text, &Capacity::of_host())
    }

    /// Checks `text`; `path` only names it in errors.
    pub fn parse(path: &Path, text: &str, capacity: &Capacity) -> Result<Self, Error> {
        build::controller_from_text(text, capacity).map_err(|problems| Error::new(path, problems))
    }

    /// Whether a text is meant for a controller: a node's has no `[server]`.
    pub fn is_meant_by(text: &str) -> bool {
        toml::de::DeTable::parse(text)
            .is_ok_and(|table| table.get_ref().keys().any(|key| key.get_ref() == "server"))
    }

    /// `next` as far as a running controller can take it on, and the keys in which it differs but that
    /// take effect only at the next start.
    pub fn adopt(&self, mut next: Self) -> (Self, Vec<String>) {
        let waiting = keys::waiting(keys::CONTROLLER, |reload| match reload {
            Reload::ControllerKeeps(keep) => keep(self, &mut next),
            Reload::Applies | Reload::NodeKeeps(_) => true,
        });
        (next, waiting)
    }

    /// The configuration as a JSON document in the shape of the file.
    pub fn to_json(&self) -> serde_json::Result<String> {
        show::config(self).to_json()
    }
}

impl fmt::Display for Controller {
    /// The complete configuration as a file that means the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(&show::config(self)).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}
