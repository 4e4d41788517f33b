// SPDX-License-Identifier: Apache-2.0
//! Mending the plan at once when links die or become much worse: new tables take seconds at a thousand
//! nodes.
//!
//! The RIB chooses anew for the pairs with routes over such links, and for no others: among the chains that
//! the pair has or had recently, the direct hop, and a few chains of two hops. The next tables replace what is slower than
//! their choice.

use super::apply::PlanUpdate;
use super::choose::{Chooser, Ranking};
use super::detours::Detours;
use super::pairs::bit;
use super::times::Times;
use super::{Network, Rib};
use crate::message::NodeNumber;

/// What a repair came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Pairs of nodes for which it was chosen anew.
    pub pairs: usize,
    /// Whether anything is another than before, in which case there is a new version.
    pub changed: bool,
}

impl Rib {
    /// Sees to it that no way leads over a link that the network does not have, and chooses anew where ways
    /// lead over one of those that became `worse`, whose ends come in any order. What has no ways gets none.
    /// Panics as [`Rib::plan`] does.
    pub fn repair(&mut self, network: &Network, worse: &[(NodeNumber, NodeNumber)]) -> Repaired {
        assert!(network.is_sound(), "nodes by their places in the matrix");
        if !self.is_planned {
            return Repaired::default();
        }
        let settings = self.settings.clone();
        let times = Times::new(&network.matrix, &settings.model, &settings.classes);
        let mut turn = self.turn(network);
        let links = self.failed_links(network, worse, &turn);
        let pairs = self.pairs_over(&links);
        let mut tools = RepairTools {
            chooser: Chooser::new(times, settings.rules),
            detours: Detours::default(),
            ranking: Ranking::default(),
            takes_detours: settings.hops_max > 1,
        };
        let mut repaired = Repaired::default();
        for (last, first) in pairs {
            // The ways of nodes that are gone go with them, below.
            if let Some(places) = turn.place(first).zip(turn.place(last)) {
                self.repair_pair((first, last), places, &mut tools, &mut turn);
                repaired.pairs += 1;
            }
        }
        self.leave_out(&mut turn);
        repaired.changed = self.end(&turn);
        repaired
    }

    /// Chooses anew for a pair, whose ends have these places in the matrix.
    fn repair_pair(
        &mut self,
        (first, last): (u16, u16),
        (from, to): (u16, u16),
        tools: &mut RepairTools<'_>,
        turn: &mut PlanUpdate,
    ) {
        let (chooser, ranking) = (&mut tools.chooser, &mut tools.ranking);
        let ends = (usize::from(from), usize::from(to));
        // New tables take seconds at a thousand nodes; two hops can be searched in one pass over
        // the nodes.
        let found = tools.detours.find(chooser.times(), ends.0, ends.1);
        let found = found.iter().filter(|_| tools.takes_detours);
        chooser.start(ends, found.map(std::slice::from_ref));
        let mut pair = std::mem::take(&mut self.pairs[usize::from(first)][usize::from(last)]);
        turn.offer(&pair, chooser);
        turn.offer_recent(&pair, chooser);
        chooser.rank(ranking);
        chooser.choose(|| ranking.offers(), |class| turn.in_use(class));
        self.set_pair((first, last), &mut pair, chooser, turn);
        self.pairs[usize::from(first)][usize::from(last)] = pair;
    }

    /// The links that there are not, or that became worse.
    fn failed_links(
        &self,
        network: &Network,
        worse: &[(NodeNumber, NodeNumber)],
        turn: &PlanUpdate,
    ) -> Links {
        let mut links = Links {
            count: self.indexes.len(),
            are: vec![true; self.indexes.len() * self.indexes.len()],
        };
        for (from, to, _) in network.matrix.links() {
            links.set((turn.indexes[from], turn.indexes[to]), false);
        }
        for &(one, other) in worse {
            if let Some((one, other)) = self.indexes.of(one).zip(self.indexes.of(other)) {
                links.set((one, other), true);
                links.set((other, one), true);
            }
        }
        links
    }

    /// The pairs with routes over any of these links, the last node first, ascending.
    fn pairs_over(&self, links: &Links) -> Vec<(u16, u16)> {
        let ends = self.busy_ends(links);
        let bits = ends.iter().fold(0, |bits, end| bits | bit(*end));
        let mut is_end = vec![false; self.indexes.len()];
        ends.iter().for_each(|end| is_end[usize::from(*end)] = true);
        let order = self.indexes.order();
        let mut pairs = Vec::new();
        for &from in order {
            for &to in order {
                let pair = &self.pairs[usize::from(from)][usize::from(to)];
                // There are a million pairs, and most are left without a look at their chains.
                let may_pass = pair.passes & bits != 0;
                let has_end = is_end[usize::from(from)] || is_end[usize::from(to)];
                if !may_pass && !has_end && !links.has((from, to)) {
                    continue;
                }
                let mut chains = pair.routes.iter().flat_map(|routes| &routes.chains);
                if chains.any(|chain| chain.hops((from, to)).any(|hop| links.has(hop))) {
                    pairs.push((to, from));
                }
            }
        }
        // By the last node, for which `Detours` keeps its column.
        pairs.sort_unstable();
        pairs
    }

    /// Nodes so that each of these links that chains lead over has one of them as an end: of a node that
    /// failed that node, not all that it had links to.
    fn busy_ends(&self, links: &Links) -> Vec<u16> {
        let (order, mut used) = (self.indexes.order(), Vec::new());
        let mut degrees = vec![0_u32; self.indexes.len()];
        for (place, &one) in order.iter().enumerate() {
            let near = &self.parts[usize::from(one)].near;
            for &other in &order[..place] {
                // The matrix may have a link in one direction only.
                let is_either = links.has((one, other)) || links.has((other, one));
                if is_either && near[usize::from(other)] > 0 {
                    used.push((one, other));
                    degrees[usize::from(one)] += 1;
                    degrees[usize::from(other)] += 1;
                }
            }
        }
        let busier = |(one, other): (u16, u16)| {
            let [of_one, of_other] = [one, other].map(|node| degrees[usize::from(node)]);
            if of_one < of_other { other } else { one }
        };
        let mut nodes: Vec<u16> = used.into_iter().map(busier).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// What it takes to choose for one pair after the other.
struct RepairTools<'a> {
    chooser: Chooser<'a>,
    detours: Detours,
    ranking: Ranking,
    /// Chains may have two hops.
    takes_detours: bool,
}

/// Some links, by the slots of their ends.
#[derive(Debug)]
struct Links {
    count: usize,
    are: Vec<bool>,
}

impl Links {
    fn has(&self, (from, to): (u16, u16)) -> bool {
        self.are[usize::from(from) * self.count + usize::from(to)]
    }

    fn set(&mut self, (from, to): (u16, u16), is: bool) {
        self.are[usize::from(from) * self.count + usize::from(to)] = is;
    }
}
