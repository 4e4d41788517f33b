// SPDX-License-Identifier: Apache-2.0
//! From the file as written to the configuration as meant.
//!
//! A wrong value is noted and replaced by its default, so that one pass finds
//! every mistake; the result is used only when there was none.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_relay::access::Access;
use posthaste_relay::chain::Chains;
use posthaste_relay::policy::{
    AcceptMode, Action, HalfOpenLimits, Match, Policy, Rule, SideOptions, SourceAddress, Timeouts,
};
use toml::{Spanned, Value};

use super::host::Capacity;
use super::problem::{self, Problem};
use super::value::{self, Reading};
use super::{ADMIN_SOCKET, Config, Node, Transparent, file};

/// Only this version of the file format exists.
const VERSION: u32 = 1;
/// Bound on `[[rule]]` sections; the redirect program's table has that many.
const RULES_MAX: usize = 1024;
/// Bound on worker threads.
const WORKERS_MAX: u32 = 256;
/// Bound on relays of a node; one worker's table has 2^24 slots.
const RELAYS_MAX: u32 = 1 << 24;
/// Descriptors of the process that are not a relay's: maps, rings, pipes, logs.
const FILES_APART: u64 = 512;
/// A relay holds two sockets.
const FILES_PER_RELAY: u64 = 2;
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// The kernel's bound on TCP_KEEPIDLE and TCP_KEEPINTVL.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);
/// TCP_USER_TIMEOUT is an int of milliseconds.
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 86_400);
const GIBIBYTE: u32 = 1 << 30;

/// Problems with line and column.
pub(super) type Located = Vec<(Option<(usize, usize)>, String)>;

/// The configuration that `text` describes.
pub(super) fn from_text(text: &str, capacity: &Capacity) -> Result<Config, Located> {
    let file: file::File = toml::from_str(text)
        .map_err(|error| problem::locate(text, vec![problem::from_toml(text, &error)]))?;
    let mut reader = Reader::new(*capacity);
    let config = reader.config(&file);
    if reader.problems.is_empty() {
        return Ok(config);
    }
    Err(problem::locate(text, reader.problems))
}

/// The configuration when there is no file.
pub(super) fn without_file(capacity: &Capacity) -> Config {
    let version = Some(Spanned::new(0..0, Value::Integer(VERSION.into())));
    Reader::new(*capacity).config(&file::File {
        version,
        ..file::File::default()
    })
}

/// Defaults that rules start from.
struct Defaults {
    accept: AcceptMode,
    source_address: SourceAddress,
    downstream: SideOptions,
    upstream: SideOptions,
    timeouts: Timeouts,
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
        self.problems.push(Problem { at, what });
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
        let metrics = self.metrics(&file.metrics);
        let transparent = self.transparent(&file.transparent);
        let policy = self.policy(file, &node);
        Config {
            node,
            admin_socket,
            metrics,
            transparent,
            policy,
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
        for (index, item) in field.iter().flatten().enumerate() {
            let earlier = field.iter().flatten().take(index);
            if earlier
                .into_iter()
                .any(|other| other.get_ref() == item.get_ref())
            {
                self.reject(key, item, "is named twice");
            }
        }
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
            suspect_for: self.get(
                "defaults.suspect_for",
                &file.defaults.suspect_for,
                SECOND * 60,
                |v| value::duration(v, Duration::ZERO..=MONTH),
            ),
            relays_max: share(node.relays_max, node.workers),
            chains: Chains::default(),
            access: Access::default(),
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

    fn defaults(&mut self, section: &file::Defaults) -> Defaults {
        let side = SideOptions::default();
        Defaults {
            accept: self.get(
                "defaults.accept",
                &section.accept,
                AcceptMode::Early,
                value::accept,
            ),
            source_address: self.get(
                "defaults.source_address",
                &section.source_address,
                SourceAddress::Client,
                value::source_address,
            ),
            downstream: self.side("defaults.downstream", &section.downstream, &side),
            upstream: self.side("defaults.upstream", &section.upstream, &side),
            timeouts: self.timeouts("defaults.timeouts", &section.timeouts, Timeouts::default()),
        }
    }

    fn side(&mut self, path: &str, section: &file::Side, base: &SideOptions) -> SideOptions {
        let key = |name: &str| format!("{path}.{name}");
        let buffer = |v: &Value| value::or_auto(v, |v| value::size(v, 4096..=GIBIBYTE));
        let window = |v: &Value| value::or_auto(v, |v| value::number(v, 1..=1000));
        SideOptions {
            congestion: self.congestion(&key("congestion"), &section.congestion, &base.congestion),
            initial_window: self.get(
                &key("initial_window"),
                &section.initial_window,
                base.initial_window,
                window,
            ),
            send_buffer_bytes: self.get(
                &key("send_buffer"),
                &section.send_buffer,
                base.send_buffer_bytes,
                buffer,
            ),
            receive_buffer_bytes: self.get(
                &key("receive_buffer"),
                &section.receive_buffer,
                base.receive_buffer_bytes,
                buffer,
            ),
            notsent_lowat_bytes: self.get(
                &key("notsent_lowat"),
                &section.notsent_lowat,
                base.notsent_lowat_bytes,
                |v| value::size(v, 1..=GIBIBYTE),
            ),
            keepalive_idle: self.get(
                &key("keepalive_idle"),
                &section.keepalive_idle,
                base.keepalive_idle,
                |v| zero_or(v, SECOND, KEEPALIVE_MAX),
            ),
            keepalive_interval: self.get(
                &key("keepalive_interval"),
                &section.keepalive_interval,
                base.keepalive_interval,
                |v| value::duration(v, SECOND..=KEEPALIVE_MAX),
            ),
            user_timeout: self.get(
                &key("user_timeout"),
                &section.user_timeout,
                base.user_timeout,
                |v| zero_or(v, SECOND, USER_TIMEOUT_MAX),
            ),
        }
    }

    fn congestion(
        &mut self,
        key: &str,
        field: &file::Scalar,
        base: &Option<String>,
    ) -> Option<String> {
        let list = self.capacity.congestion;
        self.get(key, field, base.clone(), |v| {
            let name = v.as_str().unwrap_or_default();
            let known = if name == "auto" { Vec::new() } else { list() };
            if name == "auto" {
                Ok(None)
            } else if known.iter().any(|known| known == name) {
                Ok(Some(name.into()))
            } else {
                Err(format!(
                    "expected \"auto\" or a congestion control of this host: {}",
                    known.join(", ")
                ))
            }
        })
    }

    fn timeouts(&mut self, path: &str, section: &file::Timeouts, base: Timeouts) -> Timeouts {
        let mut get = |name: &str, field: &file::Scalar, base: Duration, most: Duration| {
            let key = format!("{path}.{name}");
            self.get(&key, field, base, |v| {
                value::duration(v, MILLISECOND * 10..=most)
            })
        };
        Timeouts {
            connect: get("connect", &section.connect, base.connect, SECOND * 600),
            idle: get("idle", &section.idle, base.idle, MONTH),
            client_fin: get("client-fin", &section.client_fin, base.client_fin, MONTH),
            server_fin: get("server-fin", &section.server_fin, base.server_fin, MONTH),
        }
    }

    fn rules(&mut self, sections: &[Spanned<file::Rule>], defaults: &Defaults) -> Vec<Rule> {
        if sections.is_empty() {
            return vec![relay_all(defaults)];
        }
        if let Some(first_over) = sections.get(RULES_MAX) {
            let at = first_over.span().start;
            self.note(
                Some(at),
                format!("{} rules: expected at most {RULES_MAX}", sections.len()),
            );
        }
        let rules: Vec<Rule> = sections
            .iter()
            .map(|section| self.rule(section, defaults))
            .collect();
        self.duplicate_names(sections, &rules);
        rules
    }

    fn duplicate_names(&mut self, sections: &[Spanned<file::Rule>], rules: &[Rule]) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, (section, rule)) in sections.iter().zip(rules).enumerate() {
            let Some(field) = &section.get_ref().name else {
                continue;
            };
            if let Some(first) = seen.insert(&rule.name, index) {
                let form = format!(
                    "is the name of rule {} already: expected a different name",
                    first + 1
                );
                self.reject("rule.name", field, &form);
            }
        }
    }

    fn rule(&mut self, spanned: &Spanned<file::Rule>, defaults: &Defaults) -> Rule {
        let section = spanned.get_ref();
        if section.name.is_none() {
            let what = "rule.name is missing: expected a name such as name = \"web\"";
            self.note(Some(spanned.span().start), what.into());
        }
        let name = self.get("rule.name", &section.name, String::new(), value::rule_name);
        let path = if name.is_empty() {
            "rule".to_owned()
        } else {
            format!("rule \"{name}\"")
        };
        let key = |name: &str| format!("{path}: {name}");
        Rule {
            matches: Match {
                destinations: self.list(&key("destinations"), &section.destinations, value::prefix),
                sources: self.list(&key("sources"), &section.sources, value::prefix),
                ports: self.list(&key("ports"), &section.ports, value::ports),
            },
            action: self.get(
                &key("action"),
                &section.action,
                Action::Relay,
                value::action,
            ),
            accept: self.get(
                &key("accept"),
                &section.accept,
                defaults.accept,
                value::accept,
            ),
            source_address: self.get(
                &key("source_address"),
                &section.source_address,
                defaults.source_address,
                value::source_address,
            ),
            downstream: self.side(
                &key("downstream"),
                &section.downstream,
                &defaults.downstream,
            ),
            upstream: self.side(&key("upstream"), &section.upstream, &defaults.upstream),
            timeouts: self.timeouts(&key("timeouts"), &section.timeouts, defaults.timeouts),
            name,
        }
    }
}

/// One worker's share of the relays.
pub(super) fn share(relays_max: u32, workers: usize) -> u32 {
    relays_max.div_ceil(u32::try_from(workers).unwrap_or(WORKERS_MAX))
}

/// Zero (off), or a duration within bounds.
fn zero_or(value: &Value, least: Duration, most: Duration) -> Reading<Duration> {
    if value.as_str() == Some("0s") {
        return Ok(Duration::ZERO);
    }
    value::duration(value, least..=most).map_err(|form| format!("{form}, or \"0s\" for off"))
}

/// The rule of a file without rules.
fn relay_all(defaults: &Defaults) -> Rule {
    Rule {
        name: "all".into(),
        matches: Match::default(),
        action: Action::Relay,
        accept: defaults.accept,
        source_address: defaults.source_address,
        downstream: defaults.downstream.clone(),
        upstream: defaults.upstream.clone(),
        timeouts: defaults.timeouts,
    }
}
