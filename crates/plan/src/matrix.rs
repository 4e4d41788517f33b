// SPDX-License-Identifier: Apache-2.0
//! The measured links between nodes.
//!
//! A link that was not measured is absent. It never counts as a link without delay, which would
//! attract every chain.

use std::num::{NonZeroU32, NonZeroU64};

/// Bound on the nodes of a matrix. It bounds the memory of a plan, some 10 GB in the worst case.
pub const NODES_MAX: usize = 4096;

/// Longest round trip of a link, and largest cost of a node, in microseconds: one minute. The sum
/// of a few still fits the arithmetic of the sweep.
pub const TIME_MAX_US: u32 = 60_000_000;

/// Assumed bandwidth of a path between two nodes before a flow has shown more, in bytes per second:
/// 100 Mbit/s.
pub const INITIAL_BANDWIDTH: NonZeroU32 = NonZeroU32::new(12_500_000).expect("it is not zero");

/// A directed link: the path of a TCP connection from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// Round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Lost data packets per million.
    pub loss_ppm: u32,
    /// Rate of the link in bits per second. `None`: high enough not to matter.
    pub rate: Option<NonZeroU64>,
    /// The window, in segments, of an open connection over the link. `None`: a connection is opened
    /// for the flow.
    pub window: Option<NonZeroU32>,
    /// Assumed bandwidth in bytes per second: the ends send at that rate from the first round trip
    /// on. `None`: they begin with a fixed window.
    pub assumed: Option<NonZeroU32>,
}

impl Link {
    /// A link with a round-trip time only.
    pub fn of_rtt(rtt_us: u32) -> Self {
        Self {
            rtt_us,
            ..Self::default()
        }
    }

    /// A link between two of our nodes with no other measurements: flows on it begin with
    /// [`INITIAL_BANDWIDTH`].
    pub fn of_nodes(rtt_us: u32) -> Self {
        Self {
            assumed: Some(INITIAL_BANDWIDTH),
            ..Self::of_rtt(rtt_us)
        }
    }
}

/// Why a matrix was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are too many nodes.
    #[error("{0} nodes are more than {NODES_MAX}")]
    TooMany(usize),
    /// There is no such node.
    #[error("there is no node {node}: there are {nodes}")]
    NoNode {
        /// The index.
        node: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A node has no link to itself.
    #[error("node {0} cannot have a link to itself")]
    Itself(usize),
    /// The time is beyond [`TIME_MAX_US`].
    #[error("{0} us are more than a minute")]
    TooLong(u32),
    /// More than a million lost in a million.
    #[error("{0} lost packets in a million are too many")]
    TooLossy(u32),
}

/// The links between nodes, and the cost of each node in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    nodes: usize,
    links: Vec<Option<Link>>,
    costs_us: Vec<u32>,
}

impl Matrix {
    /// `nodes` nodes without cost, and no links.
    pub fn new(nodes: usize) -> Result<Self, Error> {
        if nodes > NODES_MAX {
            return Err(Error::TooMany(nodes));
        }
        Ok(Self {
            nodes,
            links: vec![None; nodes * nodes],
            costs_us: vec![0; nodes],
        })
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Sets the link from one node to another; `None` removes it.
    pub fn set(&mut self, from: usize, to: usize, link: Option<Link>) -> Result<(), Error> {
        self.check_node(from)?;
        self.check_node(to)?;
        if from == to {
            return Err(Error::Itself(from));
        }
        match link {
            Some(link) if link.rtt_us > TIME_MAX_US => return Err(Error::TooLong(link.rtt_us)),
            Some(link) if link.loss_ppm > 1_000_000 => return Err(Error::TooLossy(link.loss_ppm)),
            _ => {}
        }
        self.links[from * self.nodes + to] = link;
        Ok(())
    }

    /// Sets the link in both directions.
    pub fn set_both(&mut self, one: usize, other: usize, link: Option<Link>) -> Result<(), Error> {
        self.set(one, other, link)?;
        self.set(other, one, link)
    }

    /// Sets the cost of a node in a chain, in microseconds: the time it needs to open the next hop
    /// and to pass bytes on, and a penalty that keeps chains short.
    pub fn set_cost(&mut self, node: usize, cost_us: u32) -> Result<(), Error> {
        self.check_node(node)?;
        if cost_us > TIME_MAX_US {
            return Err(Error::TooLong(cost_us));
        }
        self.costs_us[node] = cost_us;
        Ok(())
    }

    /// Sets the assumed bandwidth of all links, in bytes per second ([`Link::assumed`]).
    pub fn assume(&mut self, rate: Option<NonZeroU32>) {
        for link in self.links.iter_mut().flatten() {
            link.assumed = rate;
        }
    }

    /// The link from one node to another, if measured. Panics for a node that does not exist.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        // A larger `to` would read a link of a later row, without a panic.
        assert!(to < self.nodes, "there is no node {to}");
        self.links[from * self.nodes + to].as_ref()
    }

    /// The cost of a node, in microseconds.
    pub fn cost_us(&self, node: usize) -> u32 {
        self.costs_us[node]
    }

    /// All links with their ends, by row.
    pub fn links(&self) -> impl Iterator<Item = (usize, usize, &Link)> {
        let place = |(place, link): (usize, _)| (place / self.nodes, place % self.nodes, link);
        let links = self.links.iter().enumerate();
        links
            .filter_map(|(place, link)| Some((place, link.as_ref()?)))
            .map(place)
    }

    /// The common properties of all links, with a round-trip time of 0; `None` if they differ.
    pub fn common(&self) -> Option<Link> {
        let bare = |link: &Link| Link { rtt_us: 0, ..*link };
        let mut links = self.links.iter().flatten().map(bare);
        // Without links nothing differs, and any properties will do.
        let first = links.next().unwrap_or_default();
        links.all(|link| link == first).then_some(first)
    }

    fn check_node(&self, node: usize) -> Result<(), Error> {
        let nodes = self.nodes;
        if node < nodes {
            return Ok(());
        }
        Err(Error::NoNode { node, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_is_absent() {
        let mut matrix = Matrix::new(3).unwrap();
        matrix.set(0, 2, Some(Link::of_rtt(0))).unwrap();
        assert_eq!(matrix.link(0, 2), Some(&Link::of_rtt(0)));
        assert_eq!(matrix.link(2, 0), None);
        assert_eq!(matrix.links().count(), 1);
        matrix.set(0, 2, None).unwrap();
        assert_eq!(matrix.links().count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(
            Matrix::new(NODES_MAX + 1).unwrap_err(),
            Error::TooMany(NODES_MAX + 1)
        );
        let mut matrix = Matrix::new(2).unwrap();
        let link = Some(Link::of_rtt(5));
        assert_eq!(matrix.set(1, 1, link), Err(Error::Itself(1)));
        assert_eq!(
            matrix.set(0, 2, link),
            Err(Error::NoNode { node: 2, nodes: 2 })
        );
        let long = Some(Link::of_rtt(TIME_MAX_US + 1));
        assert_eq!(matrix.set(0, 1, long), Err(Error::TooLong(TIME_MAX_US + 1)));
        assert_eq!(
            matrix.set_cost(1, TIME_MAX_US + 1),
            Err(Error::TooLong(TIME_MAX_US + 1))
        );
        let lossy = Some(Link {
            loss_ppm: 1_000_001,
            ..Link::default()
        });
        assert_eq!(matrix.set(0, 1, lossy), Err(Error::TooLossy(1_000_001)));
        assert_eq!(matrix.links().count(), 0);
    }

    #[test]
    fn assumptions_for_all_links() {
        let mut matrix = Matrix::new(3).unwrap();
        matrix.set_both(0, 1, Some(Link::of_rtt(7))).unwrap();
        matrix.assume(Some(INITIAL_BANDWIDTH));
        assert_eq!(matrix.link(1, 0), Some(&Link::of_nodes(7)));
        assert_eq!(matrix.links().count(), 2);
        matrix.assume(None);
        assert_eq!(matrix.link(0, 1), Some(&Link::of_rtt(7)));
    }

    #[test]
    fn links_compared_without_delay() {
        let mut matrix = Matrix::new(2).unwrap();
        assert_eq!(matrix.common(), Some(Link::default()));
        matrix.set_both(0, 1, Some(Link::of_rtt(7))).unwrap();
        matrix.set(0, 1, Some(Link::of_rtt(9))).unwrap();
        assert_eq!(matrix.common(), Some(Link::default()));
        let lossy = Link {
            loss_ppm: 1,
            ..Link::of_rtt(9)
        };
        matrix.set(0, 1, Some(lossy)).unwrap();
        assert_eq!(matrix.common(), None);
    }
}
