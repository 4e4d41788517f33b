// SPDX-License-Identifier: Apache-2.0
//! `[defaults]` and `[[rule]]`: what is done with flows, and by which sockets.

use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::policy::{Action, Match, Policy, Rule, SideOptions, SourceAddress, Timeouts};
use toml::{Spanned, Value};

use super::super::file;
use super::super::shadow::{self, Shadowed};
use super::super::value::{self, Reading};
use super::{MONTH, Reader, SECOND};

/// Bound on `[[rule]]` sections; the redirect program's table has that many.
const RULES_MAX: usize = 1024;
/// What goes before a rule is named, up to so many.
const SHADOWS_NAMED_MAX: usize = 3;
const MILLISECOND: Duration = Duration::from_millis(1);
/// The kernel's bound on TCP_KEEPIDLE and TCP_KEEPINTVL.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);
/// The kernel's bound on TCP_KEEPCNT.
const KEEPALIVE_PROBES_MAX: u32 = 127;
/// Workers look at connections once a second whether their windows are closed.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// TCP_USER_TIMEOUT is an int of milliseconds.
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 86_400);
const GIBIBYTE: u32 = 1 << 30;

/// Defaults that rules start from.
pub(super) struct Defaults {
    accept: AcceptMode,
    observe: bool,
    source_address: SourceAddress,
    downstream: SideOptions,
    upstream: SideOptions,
    timeouts: Timeouts,
}

impl Reader {
    pub(super) fn defaults(&mut self, section: &file::Defaults) -> Defaults {
        let side = SideOptions::default();
        Defaults {
            accept: self.get(
                "defaults.accept",
                &section.accept,
                AcceptMode::EARLY,
                value::accept,
            ),
            observe: self.get("defaults.observe", &section.observe, true, value::switch),
            source_address: self.get(
                "defaults.source_address",
                &section.source_address,
                SourceAddress::Auto,
                value::source_address,
            ),
            downstream: self.side("defaults.downstream", &section.downstream, &side),
            upstream: self.side("defaults.upstream", &section.upstream, &side),
            timeouts: self.timeouts("defaults.timeouts", &section.timeouts, Timeouts::default()),
        }
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

    pub(super) fn side(
        &mut self,
        path: &str,
        section: &file::Side,
        base: &SideOptions,
    ) -> SideOptions {
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
            keepalive_probes: self.get(
                &key("keepalive_probes"),
                &section.keepalive_probes,
                base.keepalive_probes,
                |v| value::number(v, 1..=KEEPALIVE_PROBES_MAX),
            ),
            user_timeout: self.get(
                &key("user_timeout"),
                &section.user_timeout,
                base.user_timeout,
                |v| zero_or(v, USER_TIMEOUT_MIN, USER_TIMEOUT_MAX),
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

    pub(super) fn rules(
        &mut self,
        sections: &[Spanned<file::Rule>],
        defaults: &Defaults,
    ) -> Vec<Rule> {
        if sections.is_empty() {
            return vec![relay_all(defaults)];
        }
        self.at_most(RULES_MAX, "rule", sections);
        let names = sections.iter().map(|section| &section.get_ref().name);
        self.unique("rule", "name", names, value::name);
        let rules = sections.iter();
        rules.map(|section| self.rule(section, defaults)).collect()
    }

    /// Warns of rules and routes that can never apply.
    pub(super) fn shadowed(&mut self, policy: &Policy) {
        let rules = &policy.rules;
        let name = |index: usize| format!("rule \"{}\"", rules[index].name);
        self.warn_of_shadowed(rules.iter().map(|rule| &rule.matches), &name);
        let routes = policy.chains.routes.iter().map(|route| &route.matches);
        self.warn_of_shadowed(routes, &|index: usize| format!("route {}", index + 1));
    }

    fn warn_of_shadowed<'a>(
        &mut self,
        all: impl Iterator<Item = &'a Match>,
        name: &dyn Fn(usize) -> String,
    ) {
        for Shadowed { index, by } in shadow::shadowed(all) {
            let own = name(index);
            let mut shown: Vec<String> = by
                .iter()
                .take(SHADOWS_NAMED_MAX)
                .map(|by| name(*by))
                .collect();
            if by.len() > SHADOWS_NAMED_MAX {
                shown.push(format!("{} more", by.len() - SHADOWS_NAMED_MAX));
            }
            self.warnings.push(match shown.as_slice() {
                [] => format!("{own} can never apply: its destinations and sources are of different families"),
                _ => format!(
                    "{own} can never apply: {} goes first for every connection (the longest destination prefix wins, then the longest source prefix, then the narrowest port range, then the order of the file)",
                    shown.join(", ")
                ),
            });
        }
    }

    fn rule(&mut self, spanned: &Spanned<file::Rule>, defaults: &Defaults) -> Rule {
        let section = spanned.get_ref();
        let (name, path) = self.name("rule", spanned.span(), &section.name);
        let key = |name: &str| format!("{path}: {name}");
        let lists = [&section.destinations, &section.sources, &section.ports];
        Rule {
            matches: self.matches(&path, lists),
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
            observe: self.get(
                &key("observe"),
                &section.observe,
                defaults.observe,
                value::switch,
            ),
            source_address: self.get(
                &key("source_address"),
                &section.source_address,
                defaults.source_address,
                value::source_address,
            ),
            proxy_protocol: self.get(
                &key("proxy_protocol"),
                &section.proxy_protocol,
                false,
                value::switch,
            ),
            transfer_bytes: self.get(&key("transfer_size"), &section.transfer_size, None, |v| {
                value::transfer_size(v).map(Some)
            }),
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
        observe: defaults.observe,
        source_address: defaults.source_address,
        proxy_protocol: false,
        transfer_bytes: None,
        downstream: defaults.downstream.clone(),
        upstream: defaults.upstream.clone(),
        timeouts: defaults.timeouts,
    }
}
