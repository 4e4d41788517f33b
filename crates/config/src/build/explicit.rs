// SPDX-License-Identifier: Apache-2.0
//! `[[listener]]` and `[access]`: where clients and peers request a relay, which of them may, and the
//! listeners for all clients, with one destination.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use posthaste_relay::access::{Access, Cookie};
use posthaste_relay::chain::Peer;
use posthaste_relay::policy::{Policy, Rule, SourceAddress};
use posthaste_wire::header::NodeId;

use super::super::document::Section;
use super::super::value::HIDDEN;
use super::super::{Fixed, value};
use super::Reader;

/// Bound on `[[listener]]` sections: each worker holds a socket for each.
const LISTENERS_MAX: usize = 64;
/// Where a listener that is for one destination sends what has none, until the problem
/// is reported.
const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl Reader {
    /// The explicit listeners and the fixed ones.
    pub(super) fn listeners(&mut self, sections: &[Section]) -> (Vec<SocketAddr>, Vec<Fixed>) {
        self.at_most(LISTENERS_MAX, "listener", sections);
        let mut listeners = Vec::new();
        for section in sections {
            let address = self.read(section, "address", value::listener);
            listeners.push((address, self.destination(section)));
        }
        // Not by `unique`, which sees only what the file has: an address may be the default.
        for (index, (address, _)) in listeners.iter().enumerate() {
            let mut earlier = listeners[..index].iter();
            let Some(first) = earlier.position(|(other, _)| other == address) else {
                continue;
            };
            let what = format!(
                "listener.address = \"{address}\": is the address of listener {} already: expected a different address",
                first + 1
            );
            let section = &sections[index];
            let field = section.value("address").map(|field| field.span().start);
            self.note(field.or(section.at), what);
        }
        // Before the two kinds are separated: their addresses can overlap with each other.
        self.overlaps(&listeners);
        self.circles(&listeners, sections);
        let (mut explicit, mut fixed) = (Vec::new(), Vec::new());
        for (address, destination) in listeners {
            match destination {
                None => explicit.push(address),
                Some(destination) => fixed.push(Fixed {
                    address,
                    destination,
                }),
            }
        }
        (explicit, fixed)
    }

    /// The addresses of the listeners that accept Multipath TCP.
    pub(super) fn multipath_listeners(&mut self, sections: &[Section]) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for section in sections {
            if self.get(section, "multipath") {
                addresses.push(self.read(section, "address", value::listener));
            }
        }
        addresses
    }

    /// Where the connections of a fixed listener go.
    fn destination(&mut self, section: &Section) -> Option<SocketAddr> {
        let is_fixed = self.get::<&str>(section, "mode") == "fixed";
        match (is_fixed, section.value("destination")) {
            (false, None) => None,
            (false, Some(destination)) => {
                let what = "listener.destination: is for mode = \"fixed\": a request to an explicit listener names the destination";
                self.note(Some(destination.span().start), what.into());
                None
            }
            (true, None) => {
                let what = "listener.destination is missing: mode = \"fixed\" needs the address and port of a server, such as \"192.0.2.1:443\"";
                self.note(section.at, what.into());
                Some(NOWHERE)
            }
            (true, Some(_)) => {
                let read = self.optional(section, "destination", value::remote);
                Some(read.unwrap_or(NOWHERE))
            }
        }
    }

    /// Warns of listeners on one address where another listens on all.
    fn overlaps(&mut self, listeners: &[(SocketAddr, Option<SocketAddr>)]) {
        // The kernel gives a SYN to the listener of its address, before one of all addresses.
        for (wide, _) in listeners
            .iter()
            .filter(|(wide, _)| wide.ip().is_unspecified())
        {
            let is_in = |narrow: &SocketAddr| {
                narrow != wide && narrow.is_ipv4() == wide.is_ipv4() && narrow.port() == wide.port()
            };
            for (narrow, _) in listeners.iter().filter(|(narrow, _)| is_in(narrow)) {
                self.warnings.push(format!(
                    "listener.address = \"{narrow}\": the listener \"{wide}\" is for this address too, and gets none of its connections"
                ));
            }
        }
    }

    /// Warns of a listener whose port the metrics take.
    pub(super) fn shared_port(
        &mut self,
        explicit: &[SocketAddr],
        fixed: &[Fixed],
        metrics: Option<SocketAddr>,
    ) {
        let Some(metrics) = metrics else { return };
        // An address of all IPv6 is for all IPv4 too where metrics are served.
        let meets = |address: &SocketAddr| {
            let (ours, theirs) = (metrics.ip(), address.ip());
            let all = ours.is_unspecified() && (ours.is_ipv6() || theirs.is_ipv4());
            let wide = theirs.is_unspecified() && ours.is_ipv4() == theirs.is_ipv4();
            metrics.port() == address.port() && (ours == theirs || all || wide)
        };
        let fixed = fixed.iter().map(|fixed| fixed.address);
        for address in explicit.iter().copied().chain(fixed).filter(meets) {
            self.warnings.push(format!(
                "metrics.listen = \"{metrics}\": the listener \"{address}\" takes this port too, and a node cannot start with both: choose another port for one of them"
            ));
        }
    }

    /// Complains of listeners that would connect to listeners.
    fn circles(&mut self, listeners: &[(SocketAddr, Option<SocketAddr>)], sections: &[Section]) {
        // One connection would make the node connect to itself until it has no descriptors left.
        for ((_, destination), section) in listeners.iter().zip(sections) {
            let Some(destination) = destination else {
                continue;
            };
            let is_there = |(address, _): &(SocketAddr, _)| {
                // Other addresses of this host may change while the node runs, so they are not
                // compared.
                let everywhere = address.ip().is_unspecified() && destination.ip().is_loopback();
                address == destination || (everywhere && address.port() == destination.port())
            };
            if listeners.iter().any(is_there) {
                let what = format!(
                    "listener.destination = \"{destination}\": this node listens there itself: expected the address of a server"
                );
                self.note(section.at, what);
            }
        }
    }

    pub(super) fn access(&mut self, section: &Section) -> Access {
        Access {
            clients: self.list(section, "clients", value::prefix),
            destinations: self.list(section, "destinations", value::prefix),
            cookies: self.get(section, "cookies"),
            cookie: self.cookie(section),
            resolve: Vec::new(),
        }
    }

    /// The secret of clients without a key. No message contains it.
    fn cookie(&mut self, section: &Section) -> Option<Cookie> {
        let field = section.value("cookie")?;
        let cookie = field.get_ref().as_str().and_then(Cookie::new);
        if cookie.is_none() {
            let what = format!(
                "access.cookie = {HIDDEN}: expected a text of 1 to {} printable ASCII characters without spaces",
                Cookie::MOST
            );
            self.note(Some(field.span().start), what);
        }
        cookie
    }

    /// The peers that may have ways looked up here.
    pub(super) fn resolve(&mut self, section: &Section, peers: &[Peer]) -> Vec<NodeId> {
        self.named_once(section, "allow_lookup");
        self.list(section, "allow_lookup", |value| {
            let name = value::name(value)?;
            let peer = peers.iter().find(|peer| *peer.name == *name);
            let form = "expected names of [[peer]] sections";
            peer.map(|peer| peer.id).ok_or_else(|| form.to_owned())
        })
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

    /// Warns of listeners that deny every client.
    pub(super) fn lonely_listeners(&mut self, listeners: &[SocketAddr], policy: &Policy) {
        // Requests need the key of a peer, or an address in access.clients.
        if !listeners.is_empty()
            && policy.chains.peers.is_empty()
            && policy.access.clients.is_empty()
        {
            let what = "no client may use the explicit listeners: there is no [[peer]], and access.clients is empty";
            self.warnings.push(what.into());
        }
    }
}
