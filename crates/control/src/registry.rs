// SPDX-License-Identifier: Apache-2.0
//! Nodes and links as reported to the controller. Pure: callers pass the reports and the time.
//!
//! A link is in the plan when both of its ends report it as up. What is unknown is absent. Where the
//! ends differ the longer round trip counts: a node that lies attracts nothing by it. It can make its own
//! links look bad, or withhold them. Each end reports the shortest round trip of late, so an accident at one
//! end does not make a link long.
//!
//! What cannot be checked: whether two ends that agree both lie about the link between them, and whether
//! a link is shorter than light could be, as the positions of nodes are unknown. That a link is shorter than a
//! way around it, or much longer, is no contradiction: such links are what chains are made for.

mod report;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use posthaste_plan::Matrix;

pub use report::{Agreed, RejectedReports};

use crate::message::{Hello, Link, LinkState, Member, NodeNumber};
use crate::rib::Network;

/// How long a node is kept in the plan after its stream has ended: it may be back at once.
pub const AWAY: Duration = Duration::from_secs(10);

/// Most addresses that a node may have of each kind.
pub const ADDRESSES_MAX: usize = 16;

/// Longest name of a program that a node may have, in bytes.
pub const SOFTWARE_MAX: usize = 64;

/// Why a node may not stay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It is not on the list.
    #[error("node {0} is not known here")]
    Unknown(NodeNumber),
    /// It has no number for chain headers, or too many addresses, or too long a name.
    #[error("the report of node {0} about itself is invalid")]
    Implausible(NodeNumber),
}

/// A node that may register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name, for people.
    pub name: String,
    /// What chains pay for it, in microseconds.
    pub cost_us: u32,
}

/// A node that has registered.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its first message.
    pub hello: Hello,
    /// Its stream has ended, then.
    pub away_since: Option<Duration>,
    /// It has reported all its links since its stream began.
    pub has_reported: bool,
    links: BTreeMap<NodeNumber, LinkState>,
}

/// All nodes and their reports of links.
#[derive(Debug, Default)]
pub struct Registry {
    listed: BTreeMap<NodeNumber, Listed>,
    nodes: BTreeMap<NodeNumber, Node>,
    rejected_reports: RejectedReports,
    /// Links that are disputed; nothing when something was reported since they were counted.
    disputed: Option<u64>,
    /// Hops are taken to be open when flows come.
    warm: bool,
}

/// What became of links by a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Something is not as it was.
    pub changed: bool,
    /// A link is not there any more.
    pub death: bool,
    /// The other ends of links that are believed to be much longer than before, or to lose much more.
    pub worse: Vec<NodeNumber>,
}

impl Registry {
    /// Whether plans are made for hops that are open when flows come, or for such as are opened for them.
    pub fn set_warm(&mut self, warm: bool) {
        self.warm = warm;
    }

    /// Nodes that may register from now on. Those that may not any more are forgotten, and returned.
    pub fn set_listed(&mut self, listed: BTreeMap<NodeNumber, Listed>) -> Vec<NodeNumber> {
        self.listed = listed;
        let nodes = self.nodes.keys().copied();
        let removed: Vec<NodeNumber> = nodes
            .filter(|node| !self.listed.contains_key(node))
            .collect();
        removed.iter().for_each(|node| self.forget(*node));
        removed
    }

    /// A node began a stream. Its former reports of links are forgotten: it reports all of them.
    ///
    /// # Errors
    /// It is not on the list, or what it reports of itself cannot be.
    pub fn hello(&mut self, hello: Hello) -> Result<(), Denied> {
        let number = hello.number;
        if !self.listed.contains_key(&number) {
            return Err(Denied::Unknown(number));
        }
        let is_plausible = number != 0
            && hello.listeners.len() <= ADDRESSES_MAX
            && hello.reflectors.len() <= ADDRESSES_MAX
            && hello.software.len() <= SOFTWARE_MAX;
        if !is_plausible {
            return Err(Denied::Implausible(number));
        }
        // Links stay as they were until it reports them: a node that starts again is not a death.
        let links = self.nodes.remove(&number).map(|node| node.links);
        let node = Node {
            hello,
            away_since: None,
            has_reported: false,
            links: links.unwrap_or_default(),
        };
        self.nodes.insert(number, node);
        Ok(())
    }

    /// A node's stream has ended.
    pub fn away(&mut self, number: NodeNumber, now: Duration) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.away_since.get_or_insert(now);
        }
    }

    /// A node is not to be planned with.
    pub fn forget(&mut self, number: NodeNumber) {
        self.disputed = None;
        self.nodes.remove(&number);
    }

    /// Nodes that have been away for too long are forgotten, and returned.
    pub fn expire(&mut self, now: Duration) -> Vec<NodeNumber> {
        let over = |node: &Node| node.away_since.is_some_and(|since| since + AWAY <= now);
        let nodes = self.nodes.iter().filter(|(_, node)| over(node));
        let removed: Vec<NodeNumber> = nodes.map(|(number, _)| *number).collect();
        removed.iter().for_each(|node| self.forget(*node));
        removed
    }

    /// When the next node is to be forgotten.
    pub fn deadline(&self) -> Option<Duration> {
        let away = self.nodes.values().filter_map(|node| node.away_since);
        away.min().map(|since| since + AWAY)
    }

    /// A node reports its links. The first time after it began it reports all of them. What cannot be is
    /// counted, and taken for not measured.
    pub fn links(&mut self, from: NodeNumber, links: &[Link]) -> News {
        let Some(node) = self.nodes.get_mut(&from) else {
            return News::default();
        };
        self.disputed = None;
        let is_first = !std::mem::replace(&mut node.has_reported, true);
        // Kept beside the new ones, so that the same reports after a reconnect are no news.
        let before = if is_first {
            std::mem::take(&mut node.links)
        } else {
            BTreeMap::new()
        };
        let (mut news, mut changed) = (News::default(), Vec::new());
        for link in links {
            if link.to == from || !self.listed.contains_key(&link.to) {
                self.rejected_reports.unauthorized += 1;
                continue;
            }
            let state = report::possible(link.state).unwrap_or_else(|| {
                self.rejected_reports.impossible += 1;
                LinkState::Unmeasured
            });
            let old = node.links.insert(link.to, state);
            let old = old.or_else(|| before.get(&link.to).copied());
            news.note(old, state);
            if let Some(old) = old.filter(|old| *old != state) {
                changed.push((link.to, old, state));
            }
        }
        let sent = &node.links;
        // A full report without a link withdraws it.
        for (_, old) in before.iter().filter(|(to, _)| !sent.contains_key(to)) {
            news.note(Some(*old), LinkState::Unmeasured);
        }
        let worse = changed.into_iter().filter(|(to, old, new)| {
            // Worse as both ends agree: the longer round trip may be that of the other end already.
            let back = self.reported(*to, from);
            back.is_some_and(|back| {
                report::is_much_worse(Agreed::of(*old, back), Agreed::of(*new, back))
            })
        });
        news.worse = worse.map(|(to, ..)| to).collect();
        news
    }

    /// The report of a link from one node to another.
    pub fn reported(&self, from: NodeNumber, to: NodeNumber) -> Option<LinkState> {
        self.nodes.get(&from)?.links.get(&to).copied()
    }

    /// What both ends of a link come to, if both have registered.
    pub fn agreed(&self, one: NodeNumber, other: NodeNumber) -> Agreed {
        self.agree(self.reported(one, other), self.reported(other, one))
    }

    fn agree(&self, there: Option<LinkState>, back: Option<LinkState>) -> Agreed {
        let reported = there.zip(back);
        let mut agreed =
            reported.map_or_else(Agreed::default, |(there, back)| Agreed::of(there, back));
        if let Some(link) = agreed.link.as_mut().filter(|_| self.warm) {
            // What it may send at once is what its ends take it to bear, if that is more.
            link.window = Some(NonZeroU32::MIN);
        }
        agreed
    }

    /// What to plan for: all nodes that have registered, and the links that both ends report as up.
    pub fn network(&self) -> Network {
        let nodes: Vec<NodeNumber> = self.nodes.keys().copied().collect();
        let count = nodes.len();
        let reported = self.all_reported();
        let mut matrix = Matrix::new(count).expect("the list is no longer than a matrix");
        for (place, node) in nodes.iter().enumerate() {
            let cost_us = self.listed.get(node).map_or(0, |listed| listed.cost_us);
            // A cost that the matrix does not take is not the node's fault: it is the list's.
            let _ = matrix.set_cost(place, cost_us.min(posthaste_plan::matrix::TIME_MAX_US));
            for before in 0..place {
                let (there, back) = (
                    reported[place * count + before],
                    reported[before * count + place],
                );
                let set = matrix.set_both(place, before, self.agree(there, back).link);
                set.expect("what was agreed is possible");
            }
        }
        Network { nodes, matrix }
    }

    /// The report of every node of the link to every other, by row: half a million links are not looked up one
    /// by one.
    fn all_reported(&self) -> Vec<Option<LinkState>> {
        let count = self.nodes.len();
        let mut reported = vec![None; count * count];
        for (row, node) in reported.chunks_mut(count.max(1)).zip(self.nodes.values()) {
            let mut links = node.links.iter().peekable();
            for (known, number) in row.iter_mut().zip(self.nodes.keys()) {
                while links.next_if(|(to, _)| *to < number).is_some() {}
                let link = links.next_if(|(to, _)| *to == number);
                *known = link.map(|(_, state)| *state);
            }
        }
        reported
    }

    /// Whether every node on the list has reported its links: nothing more is to be waited for.
    pub fn is_complete(&self) -> bool {
        let has_reported = |number| self.nodes.get(number).is_some_and(|node| node.has_reported);
        self.listed.keys().all(has_reported)
    }

    /// The nodes that have registered, by number.
    pub fn nodes(&self) -> &BTreeMap<NodeNumber, Node> {
        &self.nodes
    }

    /// Whether a node may register.
    pub fn is_listed(&self, number: NodeNumber) -> bool {
        self.listed.contains_key(&number)
    }

    /// What other nodes receive of a node.
    pub fn member(&self, number: NodeNumber) -> Option<Member> {
        let (node, listed) = (self.nodes.get(&number)?, self.listed.get(&number)?);
        Some(Member {
            number,
            name: listed.name.clone(),
            exchange: node.hello.exchange,
            listeners: node.hello.listeners.clone(),
            reflectors: node.hello.reflectors.clone(),
        })
    }

    /// How many reports were not believed. Looks at every pair of nodes, if there was a report since the last
    /// call.
    pub fn rejected_reports(&mut self) -> RejectedReports {
        let disputed = self.disputed.unwrap_or_else(|| self.count_disputed());
        self.disputed = Some(disputed);
        RejectedReports {
            disputed,
            ..self.rejected_reports
        }
    }

    fn count_disputed(&self) -> u64 {
        let count = self.nodes.len();
        let reported = self.all_reported();
        let pairs = (0..count).flat_map(|one| (0..one).map(move |two| (one, two)));
        let disputed = pairs.filter(|(one, two)| {
            let (there, back) = (reported[one * count + two], reported[two * count + one]);
            self.agree(there, back).is_disputed
        });
        disputed.count() as u64
    }
}

impl News {
    fn note(&mut self, old: Option<LinkState>, new: LinkState) {
        let was_up = matches!(old, Some(LinkState::Up { .. }));
        let is_up = matches!(new, LinkState::Up { .. });
        self.death |= was_up && !is_up;
        self.changed |= old != Some(new) && (was_up || is_up);
    }
}

#[cfg(test)]
mod tests;
