// SPDX-License-Identifier: Apache-2.0
//! From the file as written to the configuration as meant.
//!
//! A wrong value is noted and replaced by its default, so that one pass finds
//! every mistake; the result is used only when there was none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use posthaste_relay::policy::{HalfOpenLimits, Match, Policy};
use toml::{Spanned, Value};

use super::document::{self, Section};
use super::host::Capacity;
use super::keys::{NODE, RELAYS_MAX, Table, WORKERS_MAX};
use super::problem::{self, Problem};
use super::value::{self, Meaning, Reading};
use super::{Config, Node, Observe, Packet, Transparent};

mod chains;
mod control_client;
mod controller;
mod explicit;
mod measure;
mod peers;
mod rules;

pub(super) use controller::from_text as controller_from_text;

/// Descriptors of the process that are not a relay's: maps, rings, pipes, logs.
const FILES_APART: u64 = 512;
/// A relay holds two sockets.
const FILES_PER_RELAY: u64 = 2;
/// Of half-open connections, kept for known clients.
const RESERVE: u32 = 1024;
/// Problems with line and column.
pub(super) type Located = Vec<(Option<(usize, usize)>, String)>;

/// The configuration that `text` describes.
pub(super) fn from_text(text: &str, capacity: &Capacity) -> Result<Config, Located> {
    read(text, NODE, capacity, |reader, file| {
        Some(reader.config(file))
    })
}

/// The configuration when there is no file.
pub(super) fn without_file(capacity: &Capacity) -> Config {
    from_text("version = 1", capacity).expect("every other key has a default")
}

/// What `build` makes of a file, or every mistake in it. `build` notes the mistakes that it finds; of
/// a file with others its result is not used.
fn read<T>(
    text: &str,
    table: Table,
    capacity: &Capacity,
    build: impl FnOnce(&mut Reader, &Section) -> Option<T>,
) -> Result<T, Located> {
    // A text that is not TOML has no sections in which more mistakes could be found.
    let (file, problems) =
        document::read(text, table).map_err(|problem| problem::locate(text, vec![problem]))?;
    let mut reader = Reader {
        capacity: *capacity,
        problems,
        warnings: Vec::new(),
    };
    match build(&mut reader, &file) {
        // All or nothing: wrong values were replaced by defaults, which nobody chose.
        Some(built) if reader.problems.is_empty() => Ok(built),
        _ => Err(problem::locate(text, reader.problems)),
    }
}

/// Reads values and notes what is wrong with them.
struct Reader {
    capacity: Capacity,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Reader {
    fn note(&mut self, at: Option<usize>, what: String) {
        self.problems.push(Problem { at, what });
    }

    /// The value of a key, or its default in the table when it is absent or wrong.
    fn get<T: Meaning>(&mut self, section: &Section, name: &str) -> T {
        self.read(section, name, |value| T::of(value, section.key(name)))
    }

    /// The same, of a key with a form of its own.
    fn read<T>(&mut self, section: &Section, name: &str, read: impl Fn(&Value) -> Reading<T>) -> T {
        let given = self.optional(section, name, &read);
        given.unwrap_or_else(|| {
            // Read like a value of the file, so that the documented default and the used one cannot
            // differ.
            let usual = section.key(name).usual().expect("the table has a default");
            read(&usual).expect("defaults are read")
        })
    }

    /// The value of a key; nothing when it is absent or wrong.
    fn optional<T>(
        &mut self,
        section: &Section,
        name: &str,
        read: impl Fn(&Value) -> Reading<T>,
    ) -> Option<T> {
        let value = section.value(name)?;
        // A wrong value counts as absent: one mistake must not cause messages about others.
        let rejected = |form: String| self.reject(&section.path(name), value, &form);
        read(value.get_ref()).map_err(rejected).ok()
    }

    /// The value of a key with a default that the table cannot have.
    fn get_or<T: Meaning>(&mut self, section: &Section, name: &str, default: T) -> T {
        let given = self.optional(section, name, |value| T::of(value, section.key(name)));
        given.unwrap_or(default)
    }

    /// The value of a key, or that of the section that this one takes absent keys from.
    fn inherit<T: Meaning>(&mut self, section: &Section, name: &str, base: Option<T>) -> T {
        match base {
            Some(base) => self.get_or(section, name, base),
            None => self.get(section, name),
        }
    }

    /// The items of a list, less the wrong ones.
    fn list<T>(
        &mut self,
        section: &Section,
        name: &str,
        read: impl Fn(&Value) -> Reading<T>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for item in section.items(name) {
            match read(item.get_ref()) {
                Ok(value) => values.push(value),
                Err(form) => self.reject(&section.path(name), item, &form),
            }
        }
        values
    }

    /// Rejects what a list has twice.
    fn named_once(&mut self, section: &Section, name: &str) {
        let items = section.items(name);
        for (index, item) in items.iter().enumerate() {
            // Compared one by one: TOML values have floats, hence no hash.
            let mut earlier = items[..index].iter();
            if earlier.any(|other| other.get_ref() == item.get_ref()) {
                self.reject(&section.path(name), item, "is named twice");
            }
        }
    }

    /// Rejects values of `key` that an earlier section of this kind has too.
    /// Values that cannot be read are rejected elsewhere.
    fn unique<T: Eq + Hash>(
        &mut self,
        kind: &str,
        key: &str,
        sections: &[Section],
        read: impl Fn(&Value) -> Reading<T>,
    ) {
        let mut seen = HashMap::new();
        for (index, section) in sections.iter().enumerate() {
            let Some(field) = section.value(key) else {
                continue;
            };
            // By meaning: one value can be spelled in several ways.
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

    /// The name of a section, which it must have.
    fn name(&mut self, section: &Section) -> String {
        self.require(section, "name");
        let name = self.optional(section, "name", value::name);
        name.unwrap_or_default()
    }

    /// Notes that the section lacks a key without a default.
    fn require(&mut self, section: &Section, name: &str) {
        if !section.has(name) {
            let key = section.key(name);
            let (path, accepted) = (section.path(name), key.accepted);
            let what = format!("{path} is missing ({}): expected {accepted}", key.help);
            let what = what.replace('`', "");
            self.note(section.at, what);
        }
    }

    /// Notes that there are more sections of a kind than there may be.
    fn at_most(&mut self, most: usize, kind: &str, sections: &[Section]) {
        if let Some(first_over) = sections.get(most) {
            let what = format!("{} {kind}s: expected at most {most}", sections.len());
            self.note(first_over.at, what);
        }
    }

    /// What a rule or a route is for.
    fn matches(&mut self, section: &Section) -> Match {
        Match {
            destinations: self.list(section, "destinations", value::prefix),
            sources: self.list(section, "sources", value::prefix),
            ports: self.list(section, "ports", value::ports),
        }
    }

    fn reject(&mut self, key: &str, value: &Spanned<Value>, form: &str) {
        self.note(
            Some(value.span().start),
            format!("{key} = {}: {form}", value.get_ref()),
        );
    }

    fn config(&mut self, file: &Section) -> Config {
        self.version(file);
        let node = self.node(file.one("node"));
        let admin = file.one("admin");
        // Copied: the closure below must not borrow the reader, which notes mistakes.
        let find = self.capacity.group;
        let transparent = self.transparent(file.one("transparent"));
        let metrics = self.metrics(file.one("metrics"));
        let (explicit, fixed) = self.listeners(file.all("listener"));
        if !transparent.enabled && explicit.is_empty() && fixed.is_empty() {
            let at = file.one("transparent").value("enabled");
            let what = "transparent.enabled = false: expected a [[listener]] as well, or the node has nothing to relay";
            self.note(at.map(|value| value.span().start), what.into());
        }
        // Before access, which names the peers that are read here.
        let (chains, spelling) = self.chains(file);
        let mut policy = self.policy(file, &node);
        policy.access.resolve = self.resolve(file.one("access"), &chains.peers);
        policy.chains = Arc::new(chains);
        if !transparent.enabled {
            self.strayed_answers(&policy.rules);
        }
        // With a controller the peers are its members, which the file does not have.
        if file.one("controller").at.is_none() {
            self.lonely_listeners(&explicit, &policy);
        }
        // Checks across sections come last, when all sections are read.
        self.shadowed(&policy);
        self.shared_port(&explicit, &fixed, metrics);
        let measure = self.measure(file, &explicit, &policy.chains.peers);
        Config {
            node,
            admin_socket: self.read(admin, "socket", value::socket_path),
            admin_group: self.optional(admin, "group", |v| value::group(v, find)),
            metrics,
            transparent,
            observe: self.observe(file.one("observe")),
            packet: self.packet(file.one("packet")),
            explicit,
            fixed,
            multipath_listeners: self.multipath_listeners(file.all("listener")),
            measure,
            follow: self.follow(file, policy.chains.me),
            policy,
            spelling,
            warnings: std::mem::take(&mut self.warnings),
        }
    }

    fn version(&mut self, file: &Section) {
        if !file.has("version") {
            let what = "version is missing: expected \"version = 1\" at the top of the file";
            self.note(None, what.into());
        }
        let key = file.key("version");
        self.optional(file, "version", |v| {
            let form = |_| "expected 1, the only version there is".to_owned();
            key.accepted.number(v).map_err(form)
        });
    }

    fn node(&mut self, section: &Section) -> Node {
        // By affinity: a worker without a CPU of its own would only share another's.
        let cpus = u32::try_from(self.capacity.cpus)
            .unwrap_or(WORKERS_MAX)
            .clamp(1, WORKERS_MAX);
        let workers = self.get_or(section, "workers", cpus);
        let room = self.capacity.files.saturating_sub(FILES_APART) / FILES_PER_RELAY;
        // A relay that finds no descriptor would fail; one too many is forwarded instead.
        let room = u32::try_from(room)
            .unwrap_or(RELAYS_MAX)
            .clamp(16, RELAYS_MAX);
        let relays_max = self.get_or(section, "relays_max", room);
        if relays_max > room {
            let files = self.capacity.files;
            self.warnings.push(format!(
                "node.relays_max = {relays_max}: the limit of {files} open files (RLIMIT_NOFILE) suffices for {room}, and no more are relayed"
            ));
        }
        Node {
            workers: workers as usize,
            relays_max: relays_max.min(room),
            drain_timeout: self.get(section, "drain_timeout"),
            upgrade_timeout: self.get(section, "upgrade_timeout"),
            log_connections: self.get(section, "log_connections"),
        }
    }

    fn metrics(&mut self, section: &Section) -> Option<std::net::SocketAddr> {
        let listen = self.read(section, "listen", value::listen);
        if let Some(address) = listen.filter(|address| !address.ip().is_loopback()) {
            self.warnings.push(format!(
                "metrics.listen = \"{address}\": metrics are readable by anyone who reaches this address"
            ));
        }
        listen
    }

    fn transparent(&mut self, section: &Section) -> Transparent {
        let read = Transparent {
            enabled: self.get(section, "enabled"),
            interfaces: self.interfaces(section),
            mark: self.read(section, "mark", value::mark),
            socket_mark: self.read(section, "socket_mark", value::mark),
            table: self.read(section, "table", value::table),
        };
        // The node's own packets would match the rule for redirected ones, and be delivered to the
        // node.
        if read.mark == read.socket_mark {
            let marks = ["socket_mark", "mark"];
            let at = marks.into_iter().find_map(|key| section.value(key));
            let what = format!(
                "transparent.mark and transparent.socket_mark are both {:#x}: expected two different bits",
                read.mark
            );
            self.note(at.map(|value| value.span().start), what);
        }
        read
    }

    fn interfaces(&mut self, section: &Section) -> Vec<String> {
        let key = "interfaces";
        let names = self.list(section, key, value::interface);
        self.named_once(section, key);
        if section.is_empty_list(key) {
            // Refused: in `Transparent` an empty list means every interface.
            let what = "transparent.interfaces = []: expected interface names; leave the key out for every interface except lo";
            self.note(None, what.into());
        }
        names
    }

    fn policy(&mut self, file: &Section, node: &Node) -> Policy {
        let section = file.one("defaults");
        let defaults = self.defaults(section);
        Policy {
            rules: self.rules(file.all("rule"), &defaults),
            half_open: self.half_open(file.one("half_open")),
            strict_after_failure: self.get(section, "strict_after_failure"),
            relays_max: share(node.relays_max, node.workers),
            chains: Arc::default(),
            access: self.access(file.one("access")),
        }
    }

    fn half_open(&mut self, section: &Section) -> HalfOpenLimits {
        let total = self.get(section, "total");
        let number = |v: &Value| value::at_most(v, "half_open.total", total);
        let reserve = self.optional(section, "reserve", number);
        // A small total stays usable for clients without a completed handshake.
        let reserve = reserve.unwrap_or_else(|| RESERVE.min(total / 4));
        HalfOpenLimits {
            total,
            reserve,
            per_prefix: self.get(section, "per_prefix"),
            expiry: self.get(section, "expiry"),
        }
    }

    fn packet(&mut self, section: &Section) -> Packet {
        Packet {
            flows: self.get(section, "flows"),
            idle: self.get(section, "idle"),
        }
    }

    fn observe(&mut self, section: &Section) -> Observe {
        Observe {
            profiles_max: self.get(section, "profiles_max"),
            ttl: self.get(section, "ttl"),
            bypass_for: self.get(section, "bypass_for"),
            gain_min: self.get(section, "gain_min"),
        }
    }
}

/// One worker's share of the relays.
pub(super) fn share(relays_max: u32, workers: usize) -> u32 {
    // Rounded up: with fewer relays than workers, the share would be 0.
    relays_max.div_ceil(u32::try_from(workers).unwrap_or(WORKERS_MAX))
}
