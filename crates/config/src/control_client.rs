// SPDX-License-Identifier: Apache-2.0
//! The `[controller]` section: whose plans a node follows.

use std::net::SocketAddr;
use std::path::PathBuf;

use posthaste_control::identity::{Identity, PublicKey};
use posthaste_relay::policy::SideOptions;

/// Whose plans a node follows, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// Where the controller is.
    pub address: SocketAddr,
    /// The key that it shows.
    pub key: PublicKey,
    /// The file that this node's secret is in.
    pub identity_file: PathBuf,
    /// That secret; nothing while the file has mistakes.
    pub secret: Option<Secret>,
    /// The directory that the last plan is kept in.
    pub state: PathBuf,
    /// The assumed size of a transfer without other information, in bytes.
    pub transfer_bytes: u32,
    /// Settings of the sockets of hops to the controller's members.
    pub socket: SideOptions,
}

/// A secret that is never shown.
#[derive(Clone, Debug)]
pub struct Secret(pub Identity);

impl PartialEq for Secret {
    /// Of two secrets with one public key there is one.
    fn eq(&self, other: &Self) -> bool {
        self.0.public() == other.0.public()
    }
}

impl Eq for Secret {}
