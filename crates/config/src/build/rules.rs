// SPDX-License-Identifier: Apache-2.0
//! `[defaults]` and `[[rule]]`: what is done with flows, and by which sockets.

use posthaste_relay::policy::{Action, Match, OWN_CONGESTION, Policy, Rule, SideOptions, Timeouts};

use super::super::document::Section;
use super::super::shadow::{self, Shadowed};
use super::super::value;
use super::Reader;

/// Bound on `[[rule]]` sections; the redirect program's table has that many.
const RULES_MAX: usize = 1024;
/// What goes before a rule is named, up to so many.
const SHADOWS_NAMED_MAX: usize = 3;

impl Reader {
    /// What rules start from: the rule of a file without rules, which relays all.
    pub(super) fn defaults(&mut self, section: &Section) -> Rule {
        Rule {
            name: "all".into(),
            matches: Match::default(),
            action: Action::Relay,
            proxy_protocol: false,
            transfer_bytes: None,
            accept: self.get(section, "accept"),
            observe: self.get(section, "observe"),
            data_path: self.get(section, "data_path"),
            bypass: self.get(section, "bypass"),
            multipath: self.get(section, "multipath"),
            upstream_multipath: self.get(section, "upstream_multipath"),
            source_address: self.get(section, "source_address"),
            downstream: self.side(section.one("downstream"), None),
            upstream: self.side(section.one("upstream"), None),
            timeouts: self.timeouts(section.one("timeouts"), None),
        }
    }

    /// Timeouts, by those of `[defaults]` for a rule.
    fn timeouts(&mut self, given: &Section, base: Option<Timeouts>) -> Timeouts {
        Timeouts {
            connect: self.inherit(given, "connect", base.map(|b| b.connect)),
            idle: self.inherit(given, "idle", base.map(|b| b.idle)),
            client_fin: self.inherit(given, "client-fin", base.map(|b| b.client_fin)),
            server_fin: self.inherit(given, "server-fin", base.map(|b| b.server_fin)),
        }
    }

    /// Socket settings; absent ones are those of `base`, if there is one.
    pub(super) fn side(&mut self, given: &Section, base: Option<&SideOptions>) -> SideOptions {
        // Keys that are absent in `given`.
        macro_rules! or_base {
            ($key:literal, $field:ident) => {
                self.inherit(given, $key, base.map(|base| base.$field))
            };
        }
        SideOptions {
            congestion: self.congestion(given, base),
            initial_window: or_base!("initial_window", initial_window),
            send_buffer_bytes: or_base!("send_buffer", send_buffer_bytes),
            receive_buffer_bytes: or_base!("receive_buffer", receive_buffer_bytes),
            notsent_lowat_bytes: or_base!("notsent_lowat", notsent_lowat_bytes),
            keepalive_idle: or_base!("keepalive_idle", keepalive_idle),
            keepalive_interval: or_base!("keepalive_interval", keepalive_interval),
            keepalive_probes: or_base!("keepalive_probes", keepalive_probes),
            user_timeout: or_base!("user_timeout", user_timeout),
        }
    }

    fn congestion(&mut self, section: &Section, base: Option<&SideOptions>) -> Option<String> {
        let list = self.capacity.congestion;
        let given = self.optional(section, "congestion", |v| {
            let name = v.as_str().unwrap_or_default();
            // Listing takes a look at all modules of the kernel, which the default does not need.
            let is_own = name == OWN_CONGESTION;
            let known = if name == "auto" || is_own { Vec::new() } else { list() };
            if name == "auto" {
                Ok(None)
            } else if is_own || known.iter().any(|known| known == name) {
                Ok(Some(name.into()))
            } else {
                Err(format!(
                    "expected \"auto\", \"{OWN_CONGESTION}\" or a congestion control of this host: {}",
                    known.join(", ")
                ))
            }
        });
        given.unwrap_or_else(|| base.and_then(|base| base.congestion.clone()))
    }

    pub(super) fn rules(&mut self, sections: &[Section], defaults: &Rule) -> Vec<Rule> {
        if sections.is_empty() {
            // Only without any rule: with rules, a flow that none matches is forwarded.
            return vec![defaults.clone()];
        }
        self.at_most(RULES_MAX, "rule", sections);
        self.unique("rule", "name", sections, value::name);
        let rules = sections.iter();
        rules.map(|section| self.rule(section, defaults)).collect()
    }

    /// Warns of rules and routes that can never apply.
    pub(super) fn shadowed(&mut self, policy: &Policy) {
        // Warned of, not refused: the file is clear about what happens to each flow.
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

    fn rule(&mut self, section: &Section, defaults: &Rule) -> Rule {
        let (down, up) = (section.one("downstream"), section.one("upstream"));
        Rule {
            name: self.name(section),
            matches: self.matches(section),
            action: self.get(section, "action"),
            accept: self.get_or(section, "accept", defaults.accept),
            observe: self.get_or(section, "observe", defaults.observe),
            data_path: self.get_or(section, "data_path", defaults.data_path),
            bypass: self.get_or(section, "bypass", defaults.bypass),
            multipath: self.get_or(section, "multipath", defaults.multipath),
            upstream_multipath: self.get_or(
                section,
                "upstream_multipath",
                defaults.upstream_multipath,
            ),
            source_address: self.get_or(section, "source_address", defaults.source_address),
            proxy_protocol: self.get(section, "proxy_protocol"),
            transfer_bytes: self.optional(section, "transfer_size", value::transfer_size),
            downstream: self.side(down, Some(&defaults.downstream)),
            upstream: self.side(up, Some(&defaults.upstream)),
            timeouts: self.timeouts(section.one("timeouts"), Some(defaults.timeouts)),
        }
    }
}
