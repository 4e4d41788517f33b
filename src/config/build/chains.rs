// SPDX-License-Identifier: Apache-2.0
//! `[[chain]]` and `[[route]]`: which nodes carry a flow, and which flows.

use posthaste_relay::chain::{Chain, Chains, Peer, Route};
use posthaste_wire::header::{HOP_LIMIT_INITIAL, RESOLVE};
use toml::Spanned;

use super::super::{Spelling, file, value};
use super::Reader;

/// Bound on `[[chain]]` sections.
const CHAINS_MAX: usize = 4096;
/// Bound on `[[route]]` sections: every flow is compared with each.
const ROUTES_MAX: usize = 1024;
/// Nodes of a chain after the first: their positions have 8 bits.
const NODES_MAX: usize = 254;
/// The numbers of chains have 24 bits, and the last is no chain's.
const NUMBER_MAX: u32 = RESOLVE - 1;

impl Reader {
    /// All that is said of other nodes.
    pub(super) fn chains(&mut self, file: &file::File) -> (Chains, Spelling) {
        let me = self.node_id(file);
        let (peers, key_files) = self.peers(&file.peer, me);
        self.at_most(CHAINS_MAX, "chain", &file.chain);
        let all = || file.chain.iter().map(Spanned::get_ref);
        self.unique("chain", "name", all().map(|chain| &chain.name), value::name);
        let number = |v: &toml::Value| value::number(v, 1..=NUMBER_MAX);
        self.unique("chain", "number", all().map(|chain| &chain.number), number);
        let chains = file.chain.iter().map(|section| self.chain(section, &peers));
        let (mut chains, nodes): (Vec<Chain>, _) = chains.unzip();
        let mut spelling = Spelling { key_files, nodes };
        let routes = self.routes(&file.route, &chains, &spelling);
        let resolve = self.looked_up_by(file, &peers).map(|peer| {
            chains.push(Chain::by_resolve(&peers[peer], peer));
            spelling.nodes.push(vec![peers[peer].name.to_string()]);
            chains.len() - 1
        });
        let chains = Chains {
            is_client: false,
            resolve,
            me,
            peers: peers.into(),
            chains: chains.into(),
            routes,
            planned: None,
        };
        (chains, spelling)
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

    /// A chain, and the names of its nodes.
    fn chain(&mut self, spanned: &Spanned<file::Chain>, peers: &[Peer]) -> (Chain, Vec<String>) {
        let (section, place) = (spanned.get_ref(), spanned.span());
        let (name, path) = self.name("chain", place.clone(), &section.name);
        let key = |name: &str| format!("{path}: {name}");
        let form = "a number that the chain has at all its nodes, such as number = 1";
        self.require(&key("number"), place.clone(), &section.number, form);
        let number = self.get(&key("number"), &section.number, 1, |v| {
            value::number(v, 1..=NUMBER_MAX)
        });
        let nodes = self.list(&key("nodes"), &section.nodes, value::name);
        self.named_once(&key("nodes"), &section.nodes);
        let count = section.nodes.as_ref().map_or(0, Vec::len);
        if !(1..=NODES_MAX).contains(&count) {
            let what = format!(
                "{path}: nodes has {count} names: expected those of 1 to {NODES_MAX} nodes, from the second node of the chain to the last"
            );
            self.note(Some(place.start), what);
        }
        // The last node gets a flow from one that may still pass it on.
        let followed = usize::from(HOP_LIMIT_INITIAL) + 1;
        if count > followed {
            self.warnings.push(format!(
                "{path}: of its {count} nodes a flow reaches {followed} at the most"
            ));
        }
        let known = |node: &String| peers.iter().position(|peer| *peer.name == **node);
        let chain = Chain {
            name: name.into(),
            number,
            nodes: nodes.iter().map(known).collect(),
        };
        (chain, nodes)
    }

    fn routes(
        &mut self,
        sections: &[Spanned<file::Route>],
        chains: &[Chain],
        spelling: &Spelling,
    ) -> Vec<Route> {
        self.at_most(ROUTES_MAX, "route", sections);
        let routes = (1..).zip(sections);
        routes
            .map(|(number, section)| self.route(number, section, chains, spelling))
            .collect()
    }

    /// The route of this number, counted from 1: it has no name.
    fn route(
        &mut self,
        number: usize,
        spanned: &Spanned<file::Route>,
        chains: &[Chain],
        spelling: &Spelling,
    ) -> Route {
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
            chains: self.route_chains(&format!("{path}: chains"), section, chains, spelling),
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

    fn route_chains(
        &mut self,
        key: &str,
        section: &file::Route,
        chains: &[Chain],
        spelling: &Spelling,
    ) -> Vec<usize> {
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
            if let Some(None) = chains[index].nodes.first() {
                let first = spelling.nodes[index].first().map_or("", String::as_str);
                let form = format!(
                    "begins with \"{first}\", which is no peer of this node: expected a chain whose first name is that of a [[peer]]"
                );
                self.reject(key, item, &form);
            }
            found.push(index);
        }
        found
    }
}
