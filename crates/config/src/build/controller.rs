// SPDX-License-Identifier: Apache-2.0
//! From a controller's file as written to the configuration as meant.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_control::identity::{Identity, PublicKey};
use posthaste_plan::Model;
use posthaste_plan::table::{CLASSES_MAX, Classes};
use posthaste_relay::policy::Prefix;
use toml::{Spanned, Value};

use super::super::Capacity;
use super::super::controller::{Api, Controller, Node, Plan, Server, Token};
use super::super::document::Section;
use super::super::keys::{CONTROLLER, SECOND};
use super::super::value::{self, Reading};
use super::{Located, Reader};

/// Bound on `[[node]]` sections: planning is known to be quick enough for as many.
const NODES_MAX: usize = 1024;
/// Bound on `[[prefix]]` sections, and on the prefixes of each.
const PREFIXES_MAX: usize = 4096;
/// Letters of a token: more than can be guessed.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 200;

/// The configuration that `text` describes.
pub(in super::super) fn from_text(text: &str, capacity: &Capacity) -> Result<Controller, Located> {
    super::read(text, CONTROLLER, capacity, Reader::controller)
}

impl Reader {
    /// Nothing without an identity, in which case a problem was noted.
    fn controller(&mut self, file: &Section) -> Option<Controller> {
        self.version(file);
        // Unwrapped last, so that mistakes in other sections are found without an identity, too.
        let server = self.server(file.one("server"));
        let api = self.api(file.one("api"));
        let plan = self.plan(file.one("plan"));
        let nodes = self.nodes(file.all("node"));
        let prefixes = self.prefixes(file.all("prefix"), &nodes);
        let measure = file.one("measure");
        let interval = self.get(measure, "interval");
        let interval_in_use = self.get_or(measure, "interval_in_use", SECOND.min(interval));
        if nodes.is_empty() {
            self.warnings
                .push("there is no [[node]]: no node may connect".to_owned());
        }
        Some(Controller {
            server: server?,
            api,
            plan,
            interval,
            interval_in_use,
            nodes,
            prefixes,
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    fn server(&mut self, section: &Section) -> Option<Server> {
        let listen = self.list(section, "listen", value::listener);
        self.named_once(section, "listen");
        if section.is_empty_list("listen") || !section.has("listen") {
            let form = "expected the addresses and ports that nodes come to, such as [\"0.0.0.0:4490\", \"[::]:4490\"]";
            self.note(None, format!("server.listen is missing: {form}"));
        }
        let identity = self.identity(section, "identity_file");
        let store = self.read(section, "store", value::key_path);
        let keepalive = self.get(section, "keepalive");
        // After all other keys, whose mistakes would be missed otherwise.
        let (identity_file, identity) = identity?;
        Some(Server {
            listen,
            identity_file,
            identity,
            store,
            keepalive,
        })
    }

    pub(super) fn identity(
        &mut self,
        section: &Section,
        name: &str,
    ) -> Option<(PathBuf, Identity)> {
        let key = &section.path(name);
        if !section.has(name) {
            let form = "expected the path of a file that posthaste keys identity made";
            self.note(None, format!("{key} is missing: {form}"));
        }
        let field = section.value(name)?;
        let (file, text) = self.key_text(key, field)?;
        let identity = Identity::from_hex(&text);
        if identity.is_none() {
            let form =
                "expected 64 hexadecimal digits in it, as posthaste keys identity writes them";
            self.reject(key, field, form);
        }
        Some((file, identity?))
    }

    /// The text of the file that a value names, and that file. No message contains the text.
    pub(super) fn key_text(
        &mut self,
        key: &str,
        field: &Spanned<Value>,
    ) -> Option<(PathBuf, String)> {
        let file = match value::key_path(field.get_ref()) {
            Ok(file) => file,
            Err(form) => {
                self.reject(key, field, &form);
                return None;
            }
        };
        match (self.capacity.key_file)(&file) {
            Err(error) => {
                self.reject(key, field, &format!("cannot be read: {error}"));
                None
            }
            Ok(found) => {
                // Not an error: a node must start, also with a file that a package installed so.
                if found.for_all {
                    let file = file.display();
                    let what =
                        format!("{key} = \"{file}\": others may read or write it: chmod o= {file}");
                    self.warnings.push(what);
                }
                // Editors and `echo` end a file with a newline, which belongs to no key.
                Some((file, found.text.trim().to_owned()))
            }
        }
    }

    fn api(&mut self, section: &Section) -> Option<Api> {
        let listen = self.read(section, "listen", value::listen);
        let read_token = self.token(section, "read_token_file");
        let operate_token = self.token(section, "operate_token_file");
        // Only now: token files are checked also where the API is off.
        let listen = listen?;
        // Plans and addresses of all nodes are readable there.
        if read_token.is_none() && !listen.ip().is_loopback() {
            self.warnings.push(format!(
                "api.listen = \"{listen}\": without read_token_file, anyone who reaches this address may look"
            ));
        }
        Some(Api {
            listen,
            read_token,
            operate_token,
        })
    }

    fn token(&mut self, section: &Section, name: &str) -> Option<Token> {
        let (key, field) = (&section.path(name), section.value(name)?);
        let (file, word) = self.key_text(key, field)?;
        let lengths = TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX;
        // A token is sent in an HTTP header (RFC 6750 §2.1), which has no room for spaces or
        // controls.
        if !lengths.contains(&word.len()) || !word.chars().all(|c| c.is_ascii_graphic()) {
            let form = format!(
                "expected {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} letters and digits in it, as posthaste keys generate writes them"
            );
            self.reject(key, field, &form);
        }
        Some(Token { file, word })
    }

    fn plan(&mut self, section: &Section) -> Plan {
        let hops_max: u32 = self.get(section, "hops_max");
        Plan {
            ttl: self.get(section, "ttl"),
            warm: self.get::<&str>(section, "hops") == "warm",
            hops_max: u8::try_from(hops_max).unwrap_or(u8::MAX),
            margin_percent: self.get(section, "margin_percent"),
            switch_gain_percent: self.get(section, "switch_gain_percent"),
            better_by: self.get(section, "better_by"),
            switch_loss_percent: self.get(section, "switch_loss_percent"),
            classes: self.classes(section),
        }
    }

    fn classes(&mut self, section: &Section) -> Classes {
        let usual = Classes::by_rounds(&Model::default());
        let mut sizes = self.list(section, "sizes", bytes);
        let mut access = self.list(section, "access", access_us);
        if !section.has("sizes") {
            // Each list has a default of its own: an operator may set one and leave the other.
            sizes = usual.sizes().to_vec();
        }
        if !section.has("access") {
            access = usual.access_us().to_vec();
        }
        Classes::new(&sizes, &access).unwrap_or_else(|_| {
            let mut lists = section.items("sizes").iter().chain(section.items("access"));
            let first = lists.next();
            let what = format!(
                "plan.sizes and plan.access: expected ascending values, and 1 to {CLASSES_MAX} combinations of them"
            );
            self.note(first.map(|value| value.span().start), what);
            usual
        })
    }

    fn nodes(&mut self, sections: &[Section]) -> Vec<Node> {
        self.at_most(NODES_MAX, "node", sections);
        self.unique("node", "name", sections, value::name);
        self.unique("node", "id", sections, value::node_id);
        self.unique("node", "key", sections, value::public_key);
        let nodes = sections.iter();
        nodes
            .map(|section| self.node_that_may_come(section))
            .collect()
    }

    fn node_that_may_come(&mut self, section: &Section) -> Node {
        let name = self.name(section);
        self.require(section, "id");
        self.require(section, "key");
        let id = self.optional(section, "id", value::node_id);
        let key = self.optional(section, "key", value::public_key);
        Node {
            name,
            id: id.unwrap_or_else(value::any_node_id).into(),
            key: key.unwrap_or(PublicKey([0; 32])),
        }
    }

    fn prefixes(&mut self, sections: &[Section], nodes: &[Node]) -> Vec<(Prefix, u64)> {
        self.at_most(PREFIXES_MAX, "prefix", sections);
        let mut all: Vec<(Prefix, u64)> = Vec::new();
        for section in sections {
            let named = |v: &Value| {
                let node = nodes.iter().find(|node| v.as_str() == Some(&node.name));
                let form = "expected the name of a [[node]]";
                node.map(|node| node.id).ok_or_else(|| form.to_owned())
            };
            self.require(section, "node");
            let node = self.optional(section, "node", named);
            if section.is_empty_list("destinations") || !section.has("destinations") {
                let form = "expected prefixes such as [\"198.51.100.0/24\"]";
                let what = format!("prefix.destinations is missing: {form}");
                self.note(section.at, what);
            }
            for item in section.items("destinations") {
                match value::prefix(item.get_ref()) {
                    // Of one prefix with two nodes, the order of the file would decide.
                    Ok(prefix) if all.iter().any(|(other, _)| *other == prefix) => {
                        self.reject("prefix.destinations", item, "is named twice");
                    }
                    // Without a node only after a mistake that was noted.
                    Ok(prefix) => all.extend(node.map(|node| (prefix, node))),
                    Err(form) => self.reject("prefix.destinations", item, &form),
                }
            }
        }
        // Over all sections: each of them may hold several.
        if all.len() > PREFIXES_MAX {
            let what = format!("{} prefixes: expected at most {PREFIXES_MAX}", all.len());
            self.note(None, what);
        }
        all
    }
}

fn bytes(value: &Value) -> Reading<u64> {
    value::size(value, 1..=u32::MAX).map(Into::into)
}

fn access_us(value: &Value) -> Reading<u32> {
    let length = value::duration(value, Duration::ZERO..=SECOND * 10)?;
    Ok(u32::try_from(length.as_micros()).unwrap_or(u32::MAX))
}
