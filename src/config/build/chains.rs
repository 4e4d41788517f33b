// SPDX-License-Identifier: Apache-2.0
//! `[[chain]]` and `[[route]]`: which nodes carry a flow, and which flows.

use posthaste_relay::chain::{Chain, Chains, Path, Peer, Route};
use posthaste_wire::header::NodeId;
use posthaste_wire::segments::SEGMENTS_MAX;
use toml::Spanned;

use super::super::{Spelling, file, value};
use super::Reader;

/// Bound on `[[chain]]` sections.
const CHAINS_MAX: usize = 4096;
/// Bound on `[[route]]` sections: every flow is compared with each.
const ROUTES_MAX: usize = 1024;
/// Nodes of a chain after the first: the header names those behind the second.
const NODES_MAX: usize = SEGMENTS_MAX + 1;

impl Reader {
    /// All that is said of other nodes.
    pub(super) fn chains(&mut self, file: &file::File) -> (Chains, Spelling) {
        let me = self.node_id(file);
        let (peers, key_files) = self.peers(&file.peer, me);
        self.at_most(CHAINS_MAX, "chain", &file.chain);
        let all = || file.chain.iter().map(Spanned::get_ref);
        self.unique("chain", "name", all().map(|chain| &chain.name), value::name);
        let chains = file
            .chain
            .iter()
            .map(|section| self.chain(section, (me, &peers)));
        let mut chains: Vec<Chain> = chains.collect();
        let routes = self.routes(&file.route, &chains);
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
    fn looked_up_by(&mut self, file: &file::File, peers: &[Peer]) -> Option<usize> {
        let section = file.controller.as_ref()?.get_ref();
        let (key, field) = ("controller.lookup", &section.lookup);
        let given = field.as_ref()?;
        let name = self.get(key, field, String::new(), value::name);
        let place = peers.iter().position(|peer| *peer.name == *name);
        if place.is_none_or(|place| peers[place].key.is_none()) {
            let form = "expected the name of a [[peer]] with a key";
            self.reject(key, given, form);
            return None;
        }
        place
    }

    fn chain(
        &mut self,
        spanned: &Spanned<file::Chain>,
        (me, peers): (Option<NodeId>, &[Peer]),
    ) -> Chain {
        let (section, place) = (spanned.get_ref(), spanned.span());
        let (name, path) = self.name("chain", place.clone(), &section.name);
        let key = format!("{path}: nodes");
        let count = section.nodes.as_ref().map_or(0, Vec::len);
        if !(1..=NODES_MAX).contains(&count) {
            let what = format!(
                "{path}: nodes has {count} entries: expected 1 to {NODES_MAX}, from the second node of the chain to the last"
            );
            self.note(Some(place.start), what);
        }
        let mut nodes: Vec<NodeId> = Vec::new();
        for (place, item) in section.nodes.iter().flatten().enumerate() {
            let is_peer = |id| peers.iter().any(|peer| peer.id == id);
            match node(item.get_ref(), peers) {
                Err(form) => self.reject(&key, item, &form),
                Ok(id) if me == Some(id) => self.reject(&key, item, "is this node itself"),
                Ok(id) if nodes.contains(&id) => self.reject(&key, item, "is named twice"),
                Ok(id) if place == 0 && !is_peer(id) => {
                    self.reject(&key, item, "is no peer: the first node has to be one");
                }
                Ok(id) => nodes.push(id),
            }
        }
        Chain {
            name: name.into(),
            path: Path::over(nodes).unwrap_or_else(|| Path::to(value::any_node_id())),
        }
    }

    fn routes(&mut self, sections: &[Spanned<file::Route>], chains: &[Chain]) -> Vec<Route> {
        self.at_most(ROUTES_MAX, "route", sections);
        let routes = (1..).zip(sections);
        routes
            .map(|(number, section)| self.route(number, section, chains))
            .collect()
    }

    /// The route of this number, counted from 1: it has no name.
    fn route(&mut self, number: usize, spanned: &Spanned<file::Route>, chains: &[Chain]) -> Route {
        let section = spanned.get_ref();
        let path = format!("route {number}");
        let lists = [&section.destinations, &section.sources, &section.ports];
        let direct = format!("{path}: direct");
        let size = format!("{path}: transfer_size");
        if let Some(field) = section.transfer_size.as_ref()
            && (section.chains.is_some() || section.direct.is_some())
        {
            let form = "expected neither chains nor direct beside it: the plan says which chains";
            self.reject(&size, field, form);
        }
        let route = Route {
            matches: self.matches(&path, lists),
            chains: self.route_chains(&format!("{path}: chains"), section, chains),
            direct: self.get(&direct, &section.direct, true, value::switch),
            transfer_bytes: self.get(&size, &section.transfer_size, None, |v| {
                value::transfer_size(v).map(Some)
            }),
        };
        if section.chains.as_ref().is_none_or(Vec::is_empty) && !route.direct {
            let what = format!(
                "{path} leads nowhere: expected chains, or direct = true (a rule with action = \"reject\" refuses flows)"
            );
            self.note(Some(spanned.span().start), what);
        }
        route
    }

    fn route_chains(&mut self, key: &str, section: &file::Route, chains: &[Chain]) -> Vec<usize> {
        self.named_once(key, &section.chains);
        let mut found = Vec::new();
        for item in section.chains.iter().flatten() {
            let name = match value::name(item.get_ref()) {
                Ok(name) => name,
                Err(form) => {
                    self.reject(key, item, &form);
                    continue;
                }
            };
            let Some(index) = chains.iter().position(|chain| *chain.name == *name) else {
                let known: Vec<&str> = chains.iter().map(|chain| &*chain.name).collect();
                let form = match known.as_slice() {
                    [] => "expected the name of a [[chain]], and there is none".to_owned(),
                    known => format!("expected the name of a chain: {}", known.join(", ")),
                };
                self.reject(key, item, &form);
                continue;
            };
            found.push(index);
        }
        found
    }
}

/// The node that a chain names: a peer, or any node by its number.
fn node(value: &toml::Value, peers: &[Peer]) -> Result<NodeId, String> {
    if value.is_integer() {
        return value::node_id(value);
    }
    let name = value::name(value)?;
    let peer = peers.iter().find(|peer| *peer.name == *name);
    let form = "is no peer: expected the name of a [[peer]], or the number of a node";
    peer.map(|peer| peer.id).ok_or_else(|| form.into())
}
