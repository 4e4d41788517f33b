// SPDX-License-Identifier: Apache-2.0
//! From the file as written to the configuration as meant.
//!
//! A wrong value is noted and replaced by its default, so that one pass finds
//! every mistake; the result is used only when there was none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use posthaste_relay::policy::{HalfOpenLimits, Match, Policy};
use toml::{Spanned, Value};

use super::host::Capacity;
use super::problem::{self, Problem};
use super::value::{self, Reading};
use super::{ADMIN_SOCKET, Config, Node, Transparent, document, file};

mod chains;
mod control_client;
mod controller;
mod explicit;
mod measure;
mod observe;
mod peers;
mod rules;

pub(super) use controller::from_text as controller_from_text;

/// Only this version of the file format exists.
const VERSION: u32 = 1;
/// Bound on worker threads.
const WORKERS_MAX: u32 = 256;
/// Bound on relays of a node; one worker's table has 2^24 slots.
const RELAYS_MAX: u32 = 1 << 24;
/// Descriptors of the process that are not a relay's: maps, rings, pipes, logs.
const FILES_APART: u64 = 512;
/// A relay holds two sockets.
const FILES_PER_RELAY: u64 = 2;
const SECOND: Duration = Duration::from_secs(1);
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// Problems with line and column.
pub(super) type Located = Vec<(Option<(usize, usize)>, String)>;

/// The configuration that `text` describes.
pub(super) fn from_text(text: &str, capacity: &Capacity) -> Result<Config, Located> {
    let build = |file: &file::File| {
        let mut reader = Reader::new(*capacity);
        let config = reader.config(file);
        (Some(config), reader.problems)
    };
    document::read(text, build).map_err(|problems| problem::locate(text, problems))
}

/// The configuration when there is no file.
pub(super) fn without_file(capacity: &Capacity) -> Config {
    let version = Some(Spanned::new(0..0, Value::Integer(VERSION.into())));
    Reader::new(*capacity).config(&file::File {
        version,
        ..file::File::default()
    })
}

/// Reads values and notes what is wrong with them.
struct Reader {
    capacity: Capacity,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Reader {
    fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn note(&mut self, at: Option<usize>, what: String) {
        self.problems.push(Problem {
            at,
            what,
            key: None,
        });
    }

    /// The value of `key`, or `default` when it is absent or wrong.
    fn get<T>(
        &mut self,
        key: &str,
        field: &file::Scalar,
        default: T,
        read: impl FnOnce(&Value) -> Reading<T>,
    ) -> T {
        let Some(field) = field else { return default };
        read(field.get_ref()).unwrap_or_else(|form| {
            self.reject(key, field, &form);
            default
        })
    }

    /// The values of the list `key`, less the wrong ones.
    fn list<T>(&mut self, key: &str, field: &file::List, read: fn(&Value) -> Reading<T>) -> Vec<T> {
        let mut values = Vec::new();
        for item in field.iter().flatten() {
            match read(item.get_ref()) {
                Ok(value) => values.push(value),
                Err(form) => self.reject(key, item, &form),
            }
        }
        values
    }

    /// Rejects what a list has twice.
    fn named_once(&mut self, key: &str, field: &file::List) {
        let items = || field.iter().flatten();
        for (index, item) in items().enumerate() {
            let mut earlier = items().take(index);
            if earlier.any(|other| other.get_ref() == item.get_ref()) {
                self.reject(key, item, "is named twice");
            }
        }
    }

    /// Rejects values of `key` that an earlier section of this kind has too.
    /// Values that cannot be read are rejected elsewhere.
    fn unique<'a, T: Eq + Hash>(
        &mut self,
        kind: &str,
        key: &str,
        fields: impl Iterator<Item = &'a file::Scalar>,
        read: impl Fn(&Value) -> Reading<T>,
    ) {
        let mut seen = HashMap::new();
        for (index, field) in fields.enumerate() {
            let Some(field) = field else { continue };
            let Ok(value) = read(field.get_ref()) else {
                continue;
            };
            match seen.entry(value) {
                Entry::Vacant(entry) => drop(entry.insert(index)),
                Entry::Occupied(first) => {
                    let first = first.get() + 1;
                    let form = format!(
                        "is the {key} of {kind} {first} already: expected a different {key}"
                    );
                    self.reject(&format!("{kind}.{key}"), field, &form);
                }
            }
        }
    }

    /// The name of a section of this kind, which it must have, and the words
    /// for it in what is said of its other keys.
    fn name(
        &mut self,
        kind: &str,
        section: Range<usize>,
        field: &file::Scalar,
    ) -> (String, String) {
        let key = format!("{kind}.name");
        self.require(&key, section, field, "a name such as name = \"web\"");
        let name = self.get(&key, field, String::new(), value::name);
        let path = if name.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind} \"{name}\"")
        };
        (name, path)
    }

    /// Notes that the section lacks a key without a default.
    fn require(&mut self, key: &str, section: Range<usize>, field: &file::Scalar, form: &str) {
        if field.is_none() {
            let what = format!("{key} is missing: expected {form}");
            self.note(Some(section.start), what);
        }
    }

    /// Notes that there are more sections of a kind than there may be.
    fn at_most<T>(&mut self, most: usize, kind: &str, sections: &[Spanned<T>]) {
        if let Some(first_over) = sections.get(most) {
            let what = format!("{} {kind}s: expected at most {most}", sections.len());
            self.note(Some(first_over.span().start), what);
        }
    }

    /// What a rule or a route is for. `path` are the words for it.
    fn matches(&mut self, path: &str, [destinations, sources, ports]: [&file::List; 3]) -> Match {
        let key = |name: &str| format!("{path}: {name}");
        Match {
            destinations: self.list(&key("destinations"), destinations, value::prefix),
            sources: self.list(&key("sources"), sources, value::prefix),
            ports: self.list(&key("ports"), ports, value::ports),
        }
    }

    fn reject(&mut self, key: &str, value: &Spanned<Value>, form: &str) {
        self.note(
            Some(value.span().start),
            format!("{key} = {}: {form}", value.get_ref()),
        );
    }

    fn config(&mut self, file: &file::File) -> Config {
        self.version(&file.version);
        let node = self.node(&file.node);
        let admin_socket = self.get(
            "admin.socket",
            &file.admin.socket,
            ADMIN_SOCKET.into(),
            value::socket_path,
        );
        let find = self.capacity.group;
        let admin_group = self.get("admin.group", &file.admin.group, None, |v| {
            value::group(v, find).map(Some)
        });
        let metrics = self.metrics(&file.metrics);
        let transparent = self.transparent(&file.transparent);
        let observe = self.observe(&file.observe);
        let (explicit, fixed) = self.listeners(&file.listener);
        if !transparent.enabled && explicit.is_empty() && fixed.is_empty() {
            let at = file.transparent.enabled.as_ref();
            let what = "transparent.enabled = false: expected a [[listener]] as well, or the node has nothing to relay";
            self.note(at.map(|value| value.span().start), what.into());
        }
        let (chains, spelling) = self.chains(file);
        let mut policy = self.policy(file, &node);
        policy.access.resolve = self.resolve(&file.access, &chains.peers);
        policy.chains = Arc::new(chains);
        if !transparent.enabled {
            self.strayed_answers(&policy.rules);
        }
        if file.controller.is_none() {
            self.lonely_listeners(&explicit, &policy);
        }
        self.shadowed(&policy);
        self.shared_port(&explicit, &fixed, metrics);
        let measure = self.measure(file, &explicit, &policy.chains.peers);
        let follow = self.follow(file, policy.chains.me);
        Config {
            node,
            admin_socket,
            admin_group,
            metrics,
            transparent,
            observe,
            explicit,
            fixed,
            policy,
            measure,
            follow,
            spelling,
            warnings: std::mem::take(&mut self.warnings),
        }
    }

    fn version(&mut self, field: &file::Scalar) {
        if field.is_none() {
            self.note(
                None,
                "version is missing: expected \"version = 1\" at the top of the file".into(),
            );
        }
        self.get("version", field, VERSION, |v| {
            value::number(v, VERSION..=VERSION)
                .map_err(|_| "expected 1, the only version there is".into())
        });
    }

    fn node(&mut self, section: &file::Node) -> Node {
        let cpus = u32::try_from(self.capacity.cpus)
            .unwrap_or(WORKERS_MAX)
            .clamp(1, WORKERS_MAX);
        let workers = self.get("node.workers", &section.workers, cpus, |v| {
            value::number(v, 1..=WORKERS_MAX)
        });
        let room = self.capacity.files.saturating_sub(FILES_APART) / FILES_PER_RELAY;
        let room = u32::try_from(room)
            .unwrap_or(RELAYS_MAX)
            .clamp(16, RELAYS_MAX);
        let relays_max = self.get("node.relays_max", &section.relays_max, room, |v| {
            value::number(v, 1..=RELAYS_MAX)
        });
        if relays_max > room {
            let files = self.capacity.files;
            self.warnings.push(format!(
                "node.relays_max = {relays_max}: the limit of {files} open files (RLIMIT_NOFILE) suffices for {room}, and no more are relayed"
            ));
        }
        Node {
            workers: workers as usize,
            relays_max: relays_max.min(room),
            drain_timeout: self.get(
                "node.drain_timeout",
                &section.drain_timeout,
                SECOND * 30,
                |v| value::duration(v, Duration::ZERO..=MONTH),
            ),
            upgrade_timeout: self.get(
                "node.upgrade_timeout",
                &section.upgrade_timeout,
                SECOND * 3600,
                |v| value::duration(v, Duration::ZERO..=MONTH),
            ),
            log_connections: self.get(
                "node.log_connections",
                &section.log_connections,
                true,
                value::switch,
            ),
        }
    }

    fn metrics(&mut self, section: &file::Metrics) -> Option<std::net::SocketAddr> {
        let local = Some(([127, 0, 0, 1], 9464).into());
        let listen = self.get("metrics.listen", &section.listen, local, value::listen);
        if let Some(address) = listen.filter(|address| !address.ip().is_loopback()) {
            self.warnings.push(format!(
                "metrics.listen = \"{address}\": metrics are readable by anyone who reaches this address"
            ));
        }
        listen
    }

    fn transparent(&mut self, section: &file::Transparent) -> Transparent {
        let default = Transparent::default();
        let read = Transparent {
            enabled: self.get(
                "transparent.enabled",
                &section.enabled,
                default.enabled,
                value::switch,
            ),
            interfaces: self.interfaces(&section.interfaces),
            mark: self.get("transparent.mark", &section.mark, default.mark, value::mark),
            socket_mark: self.get(
                "transparent.socket_mark",
                &section.socket_mark,
                default.socket_mark,
                value::mark,
            ),
            table: self.get(
                "transparent.table",
                &section.table,
                default.table,
                value::table,
            ),
        };
        if read.mark == read.socket_mark {
            let at = section.socket_mark.as_ref().or(section.mark.as_ref());
            let what = format!(
                "transparent.mark and transparent.socket_mark are both {:#x}: expected two different bits",
                read.mark
            );
            self.note(at.map(|value| value.span().start), what);
        }
        read
    }

    fn interfaces(&mut self, field: &file::List) -> Vec<String> {
        let key = "transparent.interfaces";
        let names = self.list(key, field, value::interface);
        self.named_once(key, field);
        if field.as_ref().is_some_and(Vec::is_empty) {
            self.note(
                None,
                format!("{key} = []: expected interface names; leave the key out for every interface except lo"),
            );
        }
        names
    }

    fn policy(&mut self, file: &file::File, node: &Node) -> Policy {
        let defaults = self.defaults(&file.defaults);
        Policy {
            rules: self.rules(&file.rule, &defaults),
            half_open: self.half_open(&file.half_open),
            strict_after_failure: self.get(
                "defaults.strict_after_failure",
                &file.defaults.strict_after_failure,
                SECOND * 60,
                |v| value::duration(v, Duration::ZERO..=MONTH),
            ),
            relays_max: share(node.relays_max, node.workers),
            chains: Arc::default(),
            access: self.access(&file.access),
        }
    }

    fn half_open(&mut self, section: &file::HalfOpen) -> HalfOpenLimits {
        let default = HalfOpenLimits::default();
        let number = |v: &Value| value::number(v, 0..=RELAYS_MAX);
        let total = self.get("half_open.total", &section.total, default.total, number);
        let spare = default.reserve.min(total / 4);
        let reserve = self.get("half_open.reserve", &section.reserve, spare, number);
        if let Some(field) = section.reserve.as_ref().filter(|_| reserve > total) {
            let form = format!("expected at most half_open.total, which is {total}");
            self.reject("half_open.reserve", field, &form);
        }
        HalfOpenLimits {
            total,
            reserve,
            per_prefix: self.get(
                "half_open.per_prefix",
                &section.per_prefix,
                default.per_prefix,
                number,
            ),
            expiry: self.get("half_open.expiry", &section.expiry, default.expiry, |v| {
                value::duration(v, SECOND..=SECOND * 300)
            }),
        }
    }
}

/// One worker's share of the relays.
pub(super) fn share(relays_max: u32, workers: usize) -> u32 {
    relays_max.div_ceil(u32::try_from(workers).unwrap_or(WORKERS_MAX))
}
