// SPDX-License-Identifier: Apache-2.0
//! The shortest chains of so many hops over the links so far, and their log.

use std::iter::repeat;

use super::lengths::{Lengths, Shape};
use super::near::{self, Near, NearNodes};
use super::{Edge, Found, SETTLED};

/// Marks the end of a chain's nodes.
pub(crate) const NO_NODE: u16 = u16::MAX;

/// Nodes of chains, with a fixed number of slots per chain, padded with [`NO_NODE`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) room: usize,
    pub(crate) all: Vec<u16>,
}

impl Nodes {
    pub(crate) fn set(&mut self, place: usize, nodes: impl Iterator<Item = u16>) {
        let slots = &mut self.all[place * self.room..][..self.room];
        for (slot, node) in slots.iter_mut().zip(nodes.chain(repeat(NO_NODE))) {
            *slot = node;
        }
    }

    fn push(&mut self, nodes: impl Iterator<Item = u16>) {
        self.all
            .extend(nodes.chain(repeat(NO_NODE)).take(self.room));
    }

    /// All slots of a chain.
    pub(crate) fn get(&self, place: usize) -> &[u16] {
        &self.all[place * self.room..][..self.room]
    }
}

/// The chains found from one node, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) found: Vec<Found>,
    /// For each chain in order, all nodes between its ends. Empty without a bound of hops.
    pub(crate) nodes: Nodes,
}

/// The shortest chains over the links so far, of at most so many hops.
#[derive(Debug)]
pub(super) struct Layer {
    shape: Shape,
    /// By first node, then by last.
    rows: Lengths,
    /// By last node, then by first. `None` if that is the same matrix.
    columns: Option<Lengths>,
    /// By first node, then by last: the nodes between, or without a bound of hops the last of them.
    /// Empty if not needed.
    between: Nodes,
    /// By first node. Empty if not needed.
    log: Vec<Log>,
}

/// Chains to a link, the link, and chains from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joint<'a> {
    pub(super) edge: &'a Edge,
    pub(super) sources: &'a [Near],
    pub(super) targets: &'a [Near],
    /// The layers of the chains, if they have hops.
    pub(super) to_link: Option<&'a Layer>,
    pub(super) from_link: Option<&'a Layer>,
}

/// Initial capacity of a log, in chains per node: growing it takes time, and unused memory is never
/// touched.
const FOUND: usize = 8;

/// Chains checked together, unless there are more targets.
const ROOM: usize = 4096;

/// Working memory.
#[derive(Debug, Default)]
pub(super) struct Room {
    chain: Vec<u16>,
    shorter: Vec<(u16, u16)>,
}

impl Joint<'_> {
    /// Writes the nodes between the ends of a chain.
    fn write(&self, source: &Near, target: &Near, chain: &mut Vec<u16>) {
        chain.clear();
        if let Some(chains) = self.to_link {
            chain.extend(chains.between(source.node, self.edge.from));
        }
        // An end of the link may be an end of the chain, which its nodes do not include.
        chain.extend([self.edge.from].iter().filter(|end| **end != source.node));
        chain.extend([self.edge.to].iter().filter(|end| **end != target.node));
        if let Some(chains) = self.from_link {
            chain.extend(chains.between(self.edge.to, target.node));
        }
    }
}

impl Layer {
    /// The chains of `hops` hops out of at most so many; all chains without a bound.
    pub(super) fn new(shape: Shape, hops: Option<(usize, usize)>, both_ways: bool) -> Self {
        let is_last = hops.is_none_or(|(hops, most)| hops == most);
        // The last layer needs no nodes, except those of the chains before.
        let between = match hops {
            Some((hops, _)) if !is_last => hops - 1,
            Some(_) => 0,
            None => 1,
        };
        let log = |_| Log {
            found: Vec::with_capacity(shape.nodes * FOUND),
            nodes: Nodes {
                room: hops.map_or(0, |(hops, _)| hops - 1),
                all: Vec::new(),
            },
        };
        let logs = if is_last { shape.nodes } else { 0 };
        Self {
            shape,
            rows: Lengths::new(shape),
            columns: (!both_ways).then(|| Lengths::new(shape)),
            between: Nodes {
                room: between,
                all: vec![NO_NODE; shape.nodes * shape.stride * between],
            },
            log: (0..logs).map(log).collect(),
        }
    }

    /// The logs, by first node.
    pub(super) fn into_log(self) -> Vec<Log> {
        self.log
    }

    fn place(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.shape.stride + usize::from(to)
    }

    /// The length of the chain from one node to another.
    pub(super) fn length(&self, from: u16, to: u16) -> i32 {
        self.rows.row(from.into())[usize::from(to)]
    }

    /// The nodes between, if all are stored.
    fn between(&self, from: u16, to: u16) -> impl Iterator<Item = &u16> {
        let nodes = self.between.get(self.place(from, to)).iter();
        nodes.take_while(|node| **node != NO_NODE)
    }

    fn columns(&self) -> &Lengths {
        self.columns.as_ref().unwrap_or(&self.rows)
    }

    /// Checks the chains from all sources over the link to all targets, of any number of hops.
    /// These are exact: there is no slack.
    pub(super) fn join_any(&mut self, key: u32, sources: &[Near], targets: &[Near]) {
        for source in sources {
            let from = usize::from(source.node);
            let start = from * self.shape.stride;
            let row = self.rows.row_mut(from);
            let before = &mut self.between.all[start..][..self.shape.stride];
            let log = &mut self.log[from].found;
            for target in targets {
                let (to, length) = (usize::from(target.node), source.length + target.length);
                if length < row[to] {
                    row[to] = length;
                    before[to] = target.next & !SETTLED;
                    if let Some(columns) = &mut self.columns {
                        columns.set(to, from, length);
                    }
                    log.push(Found {
                        to: target.node,
                        before: target.next,
                        key,
                        length: length.cast_unsigned(),
                    });
                }
            }
        }
    }

    /// Checks the chains from all sources over the link to all targets, with all nodes stored.
    pub(super) fn join(&mut self, joint: &Joint<'_>, room: &mut Room) {
        let at_once = (ROOM / joint.targets.len()).max(1);
        for sources in joint.sources.chunks(at_once) {
            let shorter = self.find_shorter(sources, joint.targets, &mut room.shorter);
            for (one, other) in &room.shorter[..shorter] {
                let source = &sources[usize::from(*one)];
                let target = &joint.targets[usize::from(*other)];
                let found = Found {
                    to: target.node,
                    before: NO_NODE,
                    key: joint.edge.key,
                    length: (source.length + target.length).cast_unsigned(),
                };
                joint.write(source, target, &mut room.chain);
                self.shorten(source.node, &found, &room.chain);
                self.log(source.node, found, &room.chain);
            }
        }
    }

    /// Finds chains that are shorter than the existing ones, by the places of their ends. Returns
    /// their number. Checks many before any is processed, as most of the time is spent waiting for
    /// memory.
    fn find_shorter(
        &self,
        sources: &[Near],
        targets: &[Near],
        shorter: &mut Vec<(u16, u16)>,
    ) -> usize {
        // One more slot, for values that do not count.
        let room = sources.len() * targets.len() + 1;
        if shorter.len() < room {
            shorter.resize(room, (0, 0));
        }
        let mut count = 0;
        for (one, source) in (0u16..).zip(sources) {
            let row = self.rows.row(source.node.into());
            for (other, target) in (0u16..).zip(targets) {
                // Written in any case and kept by the count: a branch would be mispredicted.
                shorter[count] = (one, other);
                let known = row[usize::from(target.node)];
                let is_shorter = source.length + target.length < self.shape.slack.off(known);
                count += usize::from(is_shorter);
            }
        }
        count
    }

    /// Stores a chain with all its nodes.
    fn shorten(&mut self, from: u16, found: &Found, chain: &[u16]) {
        let (to, length) = (found.to, found.length.cast_signed());
        let (there, back) = (self.place(from, to), self.place(to, from));
        self.rows.set(from.into(), to.into(), length);
        self.between.set(there, chain.iter().copied());
        if let Some(columns) = &mut self.columns {
            columns.set(to.into(), from.into(), length);
        } else {
            // One matrix serves as rows and columns, so it stays symmetric.
            self.rows.set(to.into(), from.into(), length);
            self.between.set(back, chain.iter().rev().copied());
        }
    }

    /// Logs it if this layer does. A chain for both directions is logged at the end with the lower
    /// place.
    fn log(&mut self, from: u16, mut found: Found, chain: &[u16]) {
        let is_turned = self.columns.is_none() && found.to < from;
        let first = if is_turned { found.to } else { from };
        let Some(log) = self.log.get_mut(usize::from(first)) else {
            return;
        };
        if is_turned {
            found.to = from;
            log.nodes.push(chain.iter().rev().copied());
        } else {
            log.nodes.push(chain.iter().copied());
        }
        log.found.push(found);
    }
}

/// Collects the nodes that reach the link's far end sooner over the link: by `chains` to its near
/// end, than by `compared`.
pub(super) fn collect_sources(
    chains: &Layer,
    compared: &Layer,
    edge: &Edge,
    sources: &mut NearNodes,
) {
    let (from, to) = (usize::from(edge.from), usize::from(edge.to));
    let (near, far) = (chains.columns().row(from), compared.columns().row(to));
    sources.collect(near, far, edge.length, chains.shape.slack);
}

/// Collects the nodes that are reached sooner over the link: by `chains` from its far end, than by
/// `compared` from the near one.
pub(super) fn collect_targets(
    chains: &Layer,
    compared: &Layer,
    edge: &Edge,
    targets: &mut NearNodes,
) {
    let (from, to) = (usize::from(edge.from), usize::from(edge.to));
    let (near, far) = (chains.rows.row(to), compared.rows.row(from));
    targets.collect(near, far, edge.length, chains.shape.slack);
    for target in targets.all_mut() {
        // The link is in the lengths of sources: a chain must not count it twice.
        target.length -= edge.length;
    }
}

/// Both at once, for chains that equal their reverses: the nodes that reach either end sooner over
/// the link. These are exact: there is no slack.
pub(super) fn collect_both(
    chains: &Layer,
    edge: &Edge,
    sources: &mut NearNodes,
    targets: &mut NearNodes,
) {
    let (near, far) = (
        chains.rows.row(edge.from.into()),
        chains.rows.row(edge.to.into()),
    );
    near::collect_both(near, far, edge.length, sources, targets);
}

/// Sets the neighbours of the nodes that a link brings nearer, by chains without a bound of hops.
pub(super) fn note_next(
    chains: &Layer,
    edge: &Edge,
    sources: &mut NearNodes,
    targets: &mut NearNodes,
) {
    let sources = if chains.columns.is_none() {
        sources.all_mut()
    } else {
        &mut []
    };
    let ends = [
        (edge.from, edge.to, sources),
        (edge.to, edge.from, targets.all_mut()),
    ];
    for (end, other, all) in ends {
        for near in all {
            let known = chains.between.get(chains.place(end, near.node))[0];
            near.next = if near.node == end {
                other | SETTLED
            } else {
                known
            };
        }
    }
}
