// SPDX-License-Identifier: Apache-2.0
//! From a controller's file as written to the configuration as meant.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_control::identity::{Identity, PublicKey};
use posthaste_control::rib::HOPS_MAX;
use posthaste_plan::Model;
use posthaste_plan::table::{CLASSES_MAX, Classes};
use posthaste_relay::policy::Prefix;
use toml::{Spanned, Value};

use super::super::controller::{Api, Controller, Node, Plan, Server, Token};
use super::super::file::{self, controller as written};
use super::super::value::{self, Reading};
use super::super::{Capacity, document, problem};
use super::{Located, MONTH, Reader, SECOND};

/// Bound on `[[node]]` sections: planning is known to be quick enough for as many.
const NODES_MAX: usize = 1024;
/// Bound on `[[prefix]]` sections, and on the prefixes of each.
const PREFIXES_MAX: usize = 4096;
/// Letters of a token: as many as nobody guesses.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 200;
const API: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    9465,
));
const MILLISECOND: Duration = Duration::from_millis(1);

/// The configuration that `text` describes.
pub(in super::super) fn from_text(text: &str, capacity: &Capacity) -> Result<Controller, Located> {
    let build = |file: &written::File| {
        let mut reader = Reader::new(*capacity);
        let config = reader.controller(file);
        (config, reader.problems)
    };
    document::read(text, build).map_err(|problems| problem::locate(text, problems))
}

impl Reader {
    /// Nothing without an identity, in which case a problem was noted.
    fn controller(&mut self, file: &written::File) -> Option<Controller> {
        self.version(&file.version);
        let server = self.server(&file.server);
        let api = self.api(&file.api);
        let plan = self.plan(&file.plan);
        let nodes = self.nodes(&file.node);
        let prefixes = self.prefixes(&file.prefix, &nodes);
        let bounds = MILLISECOND * 100..=SECOND * 3600;
        let get = |reader: &mut Self, key, field, default| {
            reader.get(key, field, default, |v| value::duration(v, bounds.clone()))
        };
        let measure = &file.measure;
        let interval = get(self, "measure.interval", &measure.interval, SECOND * 10);
        let in_use = interval.min(SECOND);
        let key = "measure.interval_in_use";
        let interval_in_use = get(self, key, &measure.interval_in_use, in_use);
        if nodes.is_empty() {
            self.warnings
                .push("there is no [[node]]: nobody may come".to_owned());
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

    fn server(&mut self, section: &written::Server) -> Option<Server> {
        let key = "server.listen";
        let listen = self.list(key, &section.listen, value::listener);
        self.named_once(key, &section.listen);
        if listen.is_empty() {
            let form = "expected the addresses and ports that nodes come to, such as [\"0.0.0.0:4490\", \"[::]:4490\"]";
            self.note(None, format!("{key} is missing: {form}"));
        }
        let identity = self.identity("server.identity_file", &section.identity_file);
        let store = PathBuf::from("/var/lib/posthaste/controller.redb");
        let (identity_file, identity) = identity?;
        Some(Server {
            listen,
            identity_file,
            identity,
            store: self.get("server.store", &section.store, store, value::key_path),
            keepalive: self.get("server.keepalive", &section.keepalive, SECOND * 10, |v| {
                value::duration(v, SECOND..=SECOND * 300)
            }),
        })
    }

    pub(super) fn identity(
        &mut self,
        key: &str,
        field: &file::Scalar,
    ) -> Option<(PathBuf, Identity)> {
        let Some(field) = field else {
            let form = "expected the path of a file that posthaste keys identity made";
            self.note(None, format!("{key} is missing: {form}"));
            return None;
        };
        let (file, text) = self.key_text(key, field)?;
        let identity = Identity::from_hex(&text);
        if identity.is_none() {
            let form =
                "expected 64 hexadecimal digits in it, as posthaste keys identity writes them";
            self.reject(key, field, form);
        }
        Some((file, identity?))
    }

    /// The text of the file that a value names, and that file. What is said of it never has the text
    /// in it.
    fn key_text(&mut self, key: &str, field: &Spanned<Value>) -> Option<(PathBuf, String)> {
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
                if found.for_all {
                    let file = file.display();
                    let what =
                        format!("{key} = \"{file}\": others may read or write it: chmod o= {file}");
                    self.warnings.push(what);
                }
                Some((file, found.text.trim().to_owned()))
            }
        }
    }

    fn api(&mut self, section: &written::Api) -> Option<Api> {
        let key = "api.listen";
        let listen = self.get(key, &section.listen, Some(API), value::listen);
        let read_token = self.token("api.read_token_file", &section.read_token_file);
        let key = "api.operate_token_file";
        let operate_token = self.token(key, &section.operate_token_file);
        let listen = listen?;
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

    fn token(&mut self, key: &str, field: &file::Scalar) -> Option<Token> {
        let field = field.as_ref()?;
        let (file, word) = self.key_text(key, field)?;
        let lengths = TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX;
        if !lengths.contains(&word.len()) || !word.chars().all(|c| c.is_ascii_graphic()) {
            let form = format!(
                "expected {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} letters and digits in it, as posthaste keys generate writes them"
            );
            self.reject(key, field, &form);
        }
        Some(Token { file, word })
    }

    fn plan(&mut self, section: &written::Plan) -> Plan {
        let percent = |v: &Value| value::number(v, 0..=90);
        let hops_max = self.get("plan.hops_max", &section.hops_max, 4, |v| {
            value::number(v, 1..=HOPS_MAX.into())
        });
        Plan {
            ttl: self.get("plan.ttl", &section.ttl, SECOND * 900, |v| {
                value::duration(v, SECOND * 2..=MONTH)
            }),
            warm: self.get("plan.hops", &section.hops, false, value::is_warm),
            hops_max: u8::try_from(hops_max).unwrap_or(u8::MAX),
            margin_percent: self.get("plan.margin_percent", &section.margin_percent, 10, percent),
            switch_gain_percent: self.get(
                "plan.switch_gain_percent",
                &section.switch_gain_percent,
                5,
                percent,
            ),
            better_by: self.get("plan.better_by", &section.better_by, MILLISECOND * 2, |v| {
                value::duration(v, Duration::ZERO..=SECOND * 10)
            }),
            switch_loss_percent: self.get(
                "plan.switch_loss_percent",
                &section.switch_loss_percent,
                10,
                |v| value::number(v, 0..=1000),
            ),
            classes: self.classes(section),
        }
    }

    fn classes(&mut self, section: &written::Plan) -> Classes {
        let usual = Classes::by_rounds(&Model::default());
        let mut sizes = self.list("plan.sizes", &section.sizes, bytes);
        let mut access = self.list("plan.access", &section.access, access_us);
        if section.sizes.is_none() {
            sizes = usual.sizes().to_vec();
        }
        if section.access.is_none() {
            access = usual.access_us().to_vec();
        }
        Classes::new(&sizes, &access).unwrap_or_else(|_| {
            let lists = [&section.sizes, &section.access];
            let first = lists.into_iter().flatten().flatten().next();
            let what = format!(
                "plan.sizes and plan.access: expected ascending values, and 1 to {CLASSES_MAX} combinations of them"
            );
            self.note(first.map(|value| value.span().start), what);
            usual
        })
    }

    fn nodes(&mut self, sections: &[Spanned<written::Node>]) -> Vec<Node> {
        self.at_most(NODES_MAX, "node", sections);
        let all = || sections.iter().map(Spanned::get_ref);
        self.unique("node", "name", all().map(|node| &node.name), value::name);
        self.unique("node", "id", all().map(|node| &node.id), value::node_id);
        self.unique("node", "key", all().map(|node| &node.key), public_key);
        sections
            .iter()
            .map(|section| self.node_that_may_come(section))
            .collect()
    }

    fn node_that_may_come(&mut self, spanned: &Spanned<written::Node>) -> Node {
        let (section, place) = (spanned.get_ref(), spanned.span());
        let (name, path) = self.name("node", place.clone(), &section.name);
        let key = |name: &str| format!("{path}: {name}");
        let form = "the node's number, its node.id";
        self.require(&key("id"), place.clone(), &section.id, form);
        self.require(&key("key"), place, &section.key, KEY_FORM);
        let id = self.get(&key("id"), &section.id, None, |v| {
            value::node_id(v).map(Some)
        });
        Node {
            name,
            id: id.unwrap_or_else(value::any_node_id).into(),
            key: self.get(&key("key"), &section.key, PublicKey([0; 32]), public_key),
        }
    }

    fn prefixes(
        &mut self,
        sections: &[Spanned<written::Prefixes>],
        nodes: &[Node],
    ) -> Vec<(Prefix, u64)> {
        self.at_most(PREFIXES_MAX, "prefix", sections);
        let mut all: Vec<(Prefix, u64)> = Vec::new();
        for spanned in sections {
            let (section, place) = (spanned.get_ref(), spanned.span().start);
            let named = |v: &Value| {
                let node = nodes.iter().find(|node| v.as_str() == Some(&node.name));
                let form = "expected the name of a [[node]]";
                node.map(|node| Some(node.id))
                    .ok_or_else(|| form.to_owned())
            };
            self.require(
                "prefix.node",
                spanned.span(),
                &section.node,
                "the name of a [[node]]",
            );
            let node = self.get("prefix.node", &section.node, None, named);
            if section.destinations.as_ref().is_none_or(Vec::is_empty) {
                let form = "expected prefixes such as [\"198.51.100.0/24\"]";
                self.note(
                    Some(place),
                    format!("prefix.destinations is missing: {form}"),
                );
            }
            for item in section.destinations.iter().flatten() {
                match value::prefix(item.get_ref()) {
                    Ok(prefix) if all.iter().any(|(other, _)| *other == prefix) => {
                        self.reject("prefix.destinations", item, "is named twice");
                    }
                    Ok(prefix) => all.extend(node.map(|node| (prefix, node))),
                    Err(form) => self.reject("prefix.destinations", item, &form),
                }
            }
        }
        if all.len() > PREFIXES_MAX {
            let what = format!("{} prefixes: expected at most {PREFIXES_MAX}", all.len());
            self.note(None, what);
        }
        all
    }
}

const KEY_FORM: &str = "64 hexadecimal digits, as posthaste keys public prints them";

fn public_key(value: &Value) -> Reading<PublicKey> {
    let key = value.as_str().and_then(PublicKey::from_hex);
    key.ok_or_else(|| format!("expected {KEY_FORM}"))
}

fn bytes(value: &Value) -> Reading<u64> {
    value::size(value, 1..=u32::MAX).map(Into::into)
}

fn access_us(value: &Value) -> Reading<u32> {
    let length = value::duration(value, Duration::ZERO..=SECOND * 10)?;
    Ok(u32::try_from(length.as_micros()).unwrap_or(u32::MAX))
}
