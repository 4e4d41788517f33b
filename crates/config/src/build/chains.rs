// SPDX-License-Identifier: Apache-2.0
//! `[[chain]]` and `[[route]]`: which nodes carry a flow, and which flows.

use posthaste_relay::chain::{Chain, Chains, Path, Peer, Route};
use posthaste_wire::header::NodeId;
use posthaste_wire::segments::SEGMENTS_MAX;

use super::super::document::Section;
use super::super::{Spelling, value};
use super::Reader;

/// Bound on `[[chain]]` sections.
const CHAINS_MAX: usize = 4096;
/// Bound on `[[route]]` sections: every flow is compared with each.
const ROUTES_MAX: usize = 1024;
/// Nodes of a chain after the first: the header names those behind the second.
const NODES_MAX: usize = SEGMENTS_MAX + 1;

impl Reader {
    /// The sections about other nodes.
    pub(super) fn chains(&mut self, file: &Section) -> (Chains, Spelling) {
        let me = self.node_id(file);
        let (peers, key_files) = self.peers(file.all("peer"), me);
        let sections = file.all("chain");
        self.at_most(CHAINS_MAX, "chain", sections);
        self.unique("chain", "name", sections, value::name);
        let chains = sections.iter();
        let mut chains: Vec<Chain> = chains
            .map(|section| self.chain(section, (me, &peers)))
            .collect();
        let routes = self.routes(file.all("route"), &chains);
        // Behind those of the file, which routes name by their place.
        let resolve = self.looked_up_by(file, &peers).map(|peer| {
            chains.push(Chain::by_resolve(&peers[peer]));
            chains.len() - 1
        });
        let chains = Chains {
            is_client: false,
            resolve,
            me,
            peers: peers.into(),
            chains,
            routes,
            planned: None,
        };
        (chains, Spelling { key_files })
    }

    /// The place of the peer that looks ways up for this node, which then holds no plan.
    fn looked_up_by(&mut self, file: &Section, peers: &[Peer]) -> Option<usize> {
        let section = file.one("controller");
        let given = section.value("lookup")?;
        let name = self.optional(section, "lookup", value::name)?;
        let place = peers.iter().position(|peer| *peer.name == *name);
        // A look-up without an authentication tag is refused.
        if place.is_none_or(|place| peers[place].key.is_none()) {
            let form = "expected the name of a [[peer]] with a key";
            self.reject("controller.lookup", given, form);
            return None;
        }
        place
    }

    fn chain(&mut self, section: &Section, (me, peers): (Option<NodeId>, &[Peer])) -> Chain {
        let name = self.name(section);
        let (path, key) = (section.label(), &section.path("nodes"));
        let count = section.items("nodes").len();
        let is_list = section.is_empty_list("nodes") || !section.has("nodes");
        if count > NODES_MAX || (count == 0 && is_list) {
            let what = format!(
                "{path}: nodes has {count} entries: expected 1 to {NODES_MAX}, from the second node of the chain to the last"
            );
            self.note(section.at, what);
        }
        let mut nodes: Vec<NodeId> = Vec::new();
        for (place, item) in section.items("nodes").iter().enumerate() {
            let is_peer = |id| peers.iter().any(|peer| peer.id == id);
            match node(item.get_ref(), peers) {
                Err(form) => self.reject(key, item, &form),
                Ok(id) if me == Some(id) => self.reject(key, item, "is this node itself"),
                Ok(id) if nodes.contains(&id) => self.reject(key, item, "is named twice"),
                Ok(id) if place == 0 && !is_peer(id) => {
                    self.reject(key, item, "is no peer: the first node has to be one");
                }
                Ok(id) => nodes.push(id),
            }
        }
        Chain {
            name: name.into(),
            // Only with a mistake that is noted already: the result is not used then.
            path: Path::over(nodes).unwrap_or_else(|| Path::to(value::any_node_id())),
        }
    }

    fn routes(&mut self, sections: &[Section], chains: &[Chain]) -> Vec<Route> {
        self.at_most(ROUTES_MAX, "route", sections);
        let routes = sections.iter();
        routes.map(|section| self.route(section, chains)).collect()
    }

    /// A route: it has no name.
    fn route(&mut self, section: &Section, chains: &[Chain]) -> Route {
        if let Some(field) = section.value("transfer_size")
            && (section.has("chains") || section.has("direct"))
        {
            let form = "expected neither chains nor direct beside it: the plan selects the chains";
            self.reject(&section.path("transfer_size"), field, form);
        }
        let route = Route {
            matches: self.matches(section),
            chains: self.route_chains(section, chains),
            direct: self.get(section, "direct"),
            transfer_bytes: self.optional(section, "transfer_size", value::transfer_size),
        };
        if section.items("chains").is_empty() && !route.direct {
            let what = format!(
                "{} leads nowhere: expected chains, or direct = true (a rule with action = \"reject\" refuses flows)",
                section.label()
            );
            self.note(section.at, what);
        }
        route
    }

    fn route_chains(&mut self, section: &Section, chains: &[Chain]) -> Vec<usize> {
        self.named_once(section, "chains");
        self.list(section, "chains", |value| {
            let name = value::name(value)?;
            let found = chains.iter().position(|chain| *chain.name == *name);
            // By place, which flows look up without a comparison of names.
            found.ok_or_else(|| {
                let known: Vec<&str> = chains.iter().map(|chain| &*chain.name).collect();
                match known.as_slice() {
                    [] => "expected the name of a [[chain]], and there is none".to_owned(),
                    known => format!("expected the name of a chain: {}", known.join(", ")),
                }
            })
        })
    }
}

/// The node that a chain names: a peer, or any node by its number.
fn node(value: &toml::Value, peers: &[Peer]) -> Result<NodeId, String> {
    // Only the first node has to be a peer; others have no name in this file.
    if value.is_integer() {
        return value::node_id(value);
    }
    let name = value::name(value)?;
    let peer = peers.iter().find(|peer| *peer.name == *name);
    let form = "is no peer: expected the name of a [[peer]], or the number of a node";
    peer.map(|peer| peer.id).ok_or_else(|| form.into())
}
