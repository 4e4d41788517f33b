// SPDX-License-Identifier: Apache-2.0
//! `[controller]`: whose plans this node follows.

use std::path::PathBuf;

use posthaste_control::identity::PublicKey;
use posthaste_relay::policy::SideOptions;
use posthaste_wire::header::NodeId;

use super::super::control_client::{Follow, Secret};
use super::super::document::Section;
use super::super::value::{self, HIDDEN};
use super::Reader;

const NO_KEY: PublicKey = PublicKey([0; 32]);

impl Reader {
    pub(super) fn follow(&mut self, file: &Section, me: Option<NodeId>) -> Option<Follow> {
        let section = file.one("controller");
        let place = section.at?;
        if section.has("lookup") {
            self.lonely_lookup(section);
            return None;
        }
        // Of an id that is wrong the mistake was noted already.
        if me.is_none() && !file.one("node").has("id") {
            let what = "node.id is missing: a node with a controller needs a number of its own, such as id = 7 in [node]";
            self.note(Some(place), what.to_owned());
        }
        self.require(section, "address");
        self.require(section, "key");
        let key = self.optional(section, "key", value::public_key);
        let (identity_file, secret) = self.own_secret(section);
        let nowhere = ([0, 0, 0, 0], 0).into();
        let address = self.optional(section, "address", value::remote);
        Some(Follow {
            address: address.unwrap_or(nowhere),
            key: key.unwrap_or(NO_KEY),
            identity_file,
            secret,
            state: self.read(section, "state", value::directory),
            transfer_bytes: self.get(section, "transfer_size"),
            socket: SideOptions::of_hops(),
        })
    }

    /// A node that looks up each route at another has no controller.
    fn lonely_lookup(&mut self, section: &Section) {
        for field in section.values().filter(|(name, _)| *name != "lookup") {
            let (name, field) = field;
            let what = format!(
                "controller.{name} is beside controller.lookup: expected one of them, as a node with a lookup node holds no plan"
            );
            self.note(Some(field.span().start), what);
        }
    }

    /// The file of the secret, and the secret in it. No message contains the secret.
    fn own_secret(&mut self, section: &Section) -> (PathBuf, Option<Secret>) {
        let key = "identity_file";
        // A secret in place of a path: the message about it would print the secret.
        if let Some(field) = section.value(key)
            && value::key(field.get_ref()).is_some()
        {
            let what = format!("controller.{key} = {HIDDEN}: is a secret, not a path");
            self.note(Some(field.span().start), what);
            return (PathBuf::new(), None);
        }
        let found = self.identity(section, key);
        found.map_or_else(Default::default, |(path, identity)| {
            (path, Some(Secret(identity)))
        })
    }
}
