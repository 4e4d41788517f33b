// SPDX-License-Identifier: Apache-2.0
//! `[[listener]]` and `[access]`: where clients and peers ask for a relay, and
//! who may.

use std::net::SocketAddr;

use posthaste_relay::access::Access;
use posthaste_relay::chain::Peer;
use posthaste_relay::policy::{Policy, Rule, SourceAddress};
use posthaste_wire::header::NodeId;
use toml::Spanned;

use super::super::{file, value};
use super::Reader;

/// Bound on `[[listener]]` sections: each worker holds a socket for each.
const LISTENERS_MAX: usize = 64;
/// Where a listener listens that does not say: nobody but the host itself
/// reaches it.
const LISTENER: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    4480,
));

impl Reader {
    pub(super) fn listeners(&mut self, sections: &[Spanned<file::Listener>]) -> Vec<SocketAddr> {
        self.at_most(LISTENERS_MAX, "listener", sections);
        let listeners = sections.iter().map(|section| {
            let section = section.get_ref();
            self.get("listener.mode", &section.mode, (), value::listener_mode);
            let (key, field) = ("listener.address", &section.address);
            self.get(key, field, LISTENER, value::listener)
        });
        let listeners: Vec<_> = listeners.collect();
        for (index, address) in listeners.iter().enumerate() {
            let earlier = listeners[..index].iter().position(|other| other == address);
            let Some(first) = earlier else { continue };
            let what = format!(
                "listener.address = \"{address}\": is the address of listener {} already: expected a different address",
                first + 1
            );
            let section = &sections[index];
            let field = section.get_ref().address.as_ref();
            let at = field.map_or_else(|| section.span(), Spanned::span).start;
            self.note(Some(at), what);
        }
        listeners
    }

    pub(super) fn access(&mut self, section: &file::Access) -> Access {
        Access {
            clients: self.list("access.clients", &section.clients, value::prefix),
            destinations: self.list("access.destinations", &section.destinations, value::prefix),
            cookies: self.get("access.cookies", &section.cookies, false, value::switch),
            look_up: Vec::new(),
        }
    }

    /// The peers that may have ways looked up here.
    pub(super) fn look_up(&mut self, section: &file::Access, peers: &[Peer]) -> Vec<NodeId> {
        let key = "access.look_up";
        self.named_once(key, &section.look_up);
        let mut found = Vec::new();
        for item in section.look_up.iter().flatten() {
            let name = match value::name(item.get_ref()) {
                Ok(name) => name,
                Err(form) => {
                    self.reject(key, item, &form);
                    continue;
                }
            };
            match peers.iter().find(|peer| *peer.name == *name) {
                Some(peer) => found.push(peer.id),
                None => self.reject(key, item, "expected names of [[peer]] sections"),
            }
        }
        found
    }

    /// Warns of rules whose flows cannot open where nothing is intercepted.
    pub(super) fn strayed_answers(&mut self, rules: &[Rule]) {
        let clients = |rule: &&Rule| rule.source_address == SourceAddress::Client;
        for rule in rules.iter().filter(clients) {
            self.warnings.push(format!(
                "rule \"{}\": source_address = \"client\": with transparent.enabled = false, what servers answer to a client's address does not come to this node",
                rule.name
            ));
        }
    }

    /// Warns of listeners that everybody is turned away from.
    pub(super) fn lonely_listeners(&mut self, listeners: &[SocketAddr], policy: &Policy) {
        if !listeners.is_empty()
            && policy.chains.peers.is_empty()
            && policy.access.clients.is_empty()
        {
            let what = "nobody may use the explicit listeners: there is no [[peer]], and access.clients is empty";
            self.warnings.push(what.into());
        }
    }
}
