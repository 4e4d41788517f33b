// SPDX-License-Identifier: Apache-2.0
//! The controller's configuration file as written.

use serde::Deserialize;
use toml::Spanned;

use super::{List, Scalar};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct File {
    pub(in super::super) version: Scalar,
    pub(in super::super) server: Server,
    pub(in super::super) api: Api,
    pub(in super::super) plan: Plan,
    pub(in super::super) measure: Measure,
    pub(in super::super) node: Vec<Spanned<Node>>,
    pub(in super::super) prefix: Vec<Spanned<Prefixes>>,
}

/// `[server]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Server {
    pub(in super::super) listen: List,
    pub(in super::super) identity_file: Scalar,
    pub(in super::super) store: Scalar,
    pub(in super::super) keepalive: Scalar,
}

/// `[api]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Api {
    pub(in super::super) listen: Scalar,
    pub(in super::super) read_token_file: Scalar,
    pub(in super::super) operate_token_file: Scalar,
}

/// `[plan]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Plan {
    pub(in super::super) ttl: Scalar,
    pub(in super::super) hops: Scalar,
    pub(in super::super) hops_max: Scalar,
    pub(in super::super) margin_percent: Scalar,
    pub(in super::super) switch_gain_percent: Scalar,
    pub(in super::super) better_by: Scalar,
    pub(in super::super) switch_loss_percent: Scalar,
    pub(in super::super) sizes: List,
    pub(in super::super) access: List,
}

/// `[measure]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Measure {
    pub(in super::super) interval: Scalar,
    pub(in super::super) interval_in_use: Scalar,
}

/// One `[[node]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Node {
    pub(in super::super) name: Scalar,
    pub(in super::super) id: Scalar,
    pub(in super::super) key: Scalar,
}

/// One `[[prefix]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Prefixes {
    pub(in super::super) destinations: List,
    pub(in super::super) node: Scalar,
}
