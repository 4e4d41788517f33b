// SPDX-License-Identifier: Apache-2.0
//! `[controller]`: whose plans this node follows.

use std::path::PathBuf;

use posthaste_control::identity::PublicKey;
use posthaste_wire::header::NodeId;

use super::super::control_client::{Follow, Secret};
use super::super::file;
use super::super::value::{self, HIDDEN};
use super::Reader;

/// Where the last plan is kept: what systemd makes for the service.
const STATE: &str = "/var/lib/posthaste";
/// What a transfer is taken to have: some tens of kilobytes are what most have.
const TRANSFER_BYTES: u32 = 64 << 10;
const NO_KEY: PublicKey = PublicKey([0; 32]);

impl Reader {
    pub(super) fn follow(&mut self, file: &file::File, me: Option<NodeId>) -> Option<Follow> {
        let spanned = file.controller.as_ref()?;
        let (section, place) = (spanned.get_ref(), spanned.span());
        if section.lookup.is_some() {
            self.lonely_lookup(section);
            return None;
        }
        if me.is_none() && file.node.id.is_none() {
            let what = "node.id is missing: a node with a controller needs a number of its own, such as id = 7 in [node]";
            self.note(Some(place.start), what.to_owned());
        }
        let form = "the address and port that the controller listens at";
        self.require("controller.address", place.clone(), &section.address, form);
        let form = "64 hexadecimal digits, as posthaste keys public prints them";
        self.require("controller.key", place, &section.key, form);
        let key = self.get("controller.key", &section.key, NO_KEY, |v| {
            let key = v.as_str().and_then(PublicKey::from_hex);
            key.ok_or_else(|| format!("expected {form}"))
        });
        let (identity_file, secret) = self.own_secret(section);
        let nowhere = ([0, 0, 0, 0], 0).into();
        Some(Follow {
            address: self.get(
                "controller.address",
                &section.address,
                nowhere,
                value::remote,
            ),
            key,
            identity_file,
            secret,
            state: self.get("controller.state", &section.state, STATE.into(), |v| {
                let text = v.as_str().unwrap_or_default();
                let is_path = text.starts_with('/');
                is_path
                    .then(|| text.into())
                    .ok_or_else(|| format!("expected an absolute path such as \"{STATE}\""))
            }),
            transfer_bytes: self.get(
                "controller.transfer_size",
                &section.transfer_size,
                TRANSFER_BYTES,
                value::transfer_size,
            ),
            socket: self.hop_defaults(),
        })
    }

    /// A node that asks another for each way has no controller.
    fn lonely_lookup(&mut self, section: &file::Controller) {
        let file::Controller {
            address,
            key,
            identity_file,
            state,
            transfer_size,
            lookup: _,
        } = section;
        let others = [
            ("address", address),
            ("key", key),
            ("identity_file", identity_file),
            ("state", state),
            ("transfer_size", transfer_size),
        ];
        for (name, field) in others {
            if let Some(field) = field {
                let what = format!(
                    "controller.{name} is beside controller.lookup: expected one of them, as a node with a lookup node holds no plan"
                );
                self.note(Some(field.span().start), what);
            }
        }
    }

    /// The file of the secret, and the secret in it. What is said of it never has it in it.
    fn own_secret(&mut self, section: &file::Controller) -> (PathBuf, Option<Secret>) {
        let key = "controller.identity_file";
        let field = &section.identity_file;
        if let Some(field) = field.as_ref()
            && value::key(field.get_ref()).is_some()
        {
            let what = format!("{key} = {HIDDEN}: is a secret, not a path");
            self.note(Some(field.span().start), what);
            return (PathBuf::new(), None);
        }
        let found = self.identity(key, field);
        found.map_or_else(Default::default, |(path, identity)| {
            (path, Some(Secret(identity)))
        })
    }
}
