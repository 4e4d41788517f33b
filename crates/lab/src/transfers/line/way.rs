// SPDX-License-Identifier: Apache-2.0
//! The ways of transfers from client to server: nodes, their places, and the hops between them.

use std::time::Duration;

use super::{Args, END, RTT};
use crate::model::{Hops, Path};
use crate::names::{Named, named};
use crate::network::Family;

named! {
    /// Which nodes carry transfers, and over which hops.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
    pub(super) enum Carriage {
        /// Evenly spaced nodes on the path, without configuration of each other
        Transparent = "transparent",
        /// A chain of evenly spaced nodes, by cold hops
        Cold = "cold",
        /// A chain of evenly spaced nodes, by warm hops
        Warm = "warm",
        /// A chain of two nodes near the ends, by a cold hop
        ColdEnds = "cold-ends",
        /// A chain of two nodes near the ends, by a warm hop
        WarmEnds = "warm-ends",
        /// Likewise, but other flows have taken all warm hops
        EmptyEnds = "empty-ends",
        /// A chain of a node beside the client and one beside the path, at several distances
        OffPath = "off-path",
    }
}

impl Carriage {
    /// Whether the nodes are near the ends.
    pub(super) fn is_ends(self) -> bool {
        matches!(self, Self::ColdEnds | Self::WarmEnds | Self::EmptyEnds)
    }

    /// Whether nodes keep hops open.
    pub(super) fn has_pool(self) -> bool {
        self.is_warm() || self == Self::EmptyEnds
    }

    /// Whether transfers use warm hops.
    pub(super) fn is_warm(self) -> bool {
        matches!(self, Self::Warm | Self::WarmEnds)
    }
}

/// The way of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) family: Family,
    pub(super) carriage: Carriage,
    pub(super) nodes: u32,
    /// One-way delay from a node beside the path to either end; zero for other carriages.
    pub(super) aside: Duration,
}

impl Way {
    /// The canonical way with the same effect: one node needs no chain.
    pub(super) fn new(family: Family, carriage: Carriage, nodes: u32) -> Self {
        let nodes = if nodes > 0 && carriage.is_ends() {
            2
        } else {
            nodes
        };
        let carriage = if nodes < 2 {
            Carriage::Transparent
        } else {
            carriage
        };
        Self {
            family,
            carriage,
            nodes,
            aside: Duration::ZERO,
        }
    }

    /// Without any node.
    pub(super) fn direct(family: Family) -> Self {
        Self::new(family, Carriage::Transparent, 0)
    }

    /// With a node beside the path, at this one-way delay from either end.
    pub(super) fn off_path(family: Family, aside: Duration) -> Self {
        Self {
            aside,
            ..Self::new(family, Carriage::OffPath, 2)
        }
    }

    /// The way that stands for its network: only chains have a family of their own, that of their
    /// hops.
    pub(super) fn layout(self) -> Self {
        let is_chain = self.carriage != Carriage::Transparent;
        Self {
            family: if is_chain { self.family } else { Family::V4 },
            ..self
        }
    }

    /// In tables and legends.
    pub(super) fn name(self) -> String {
        match (self.carriage, self.nodes) {
            (_, 0) => "no node".to_owned(),
            (Carriage::ColdEnds, _) => "near the ends, cold".to_owned(),
            (Carriage::WarmEnds, _) => "near the ends, warm".to_owned(),
            (Carriage::EmptyEnds, _) => "near the ends, none left".to_owned(),
            (Carriage::OffPath, _) => format!("{} ms to the ends", self.aside.as_secs_f64() * 1e3),
            (_, 1) => "1 node".to_owned(),
            (_, more) => format!("{more} nodes"),
        }
    }

    /// In the record.
    pub(super) fn labels(self) -> Vec<(&'static str, String)> {
        let named = |name: &str| if self.nodes > 0 { name } else { "none" }.to_owned();
        let mut labels = vec![
            ("family", self.family.to_string()),
            ("nodes", self.nodes.to_string()),
            ("carriage", named(self.carriage.name())),
        ];
        if self.carriage == Carriage::OffPath {
            labels.push(("aside_ms", (self.aside.as_secs_f64() * 1e3).to_string()));
        }
        labels
    }

    /// The path in terms of the model, for each of all transfers: they share the rate.
    pub(super) fn path(self, args: &Args) -> Path {
        // The model has one transfer on a path: each gets its even share.
        let rate = args.bits_per_second() / u64::from(args.clients);
        let between = match self.carriage {
            Carriage::Transparent => Hops::Transparent,
            carriage if carriage.is_warm() => Hops::Warm,
            _ => Hops::Cold,
        };
        Path {
            between,
            ..Path::new(self.layout().delays(), rate, self.family)
        }
    }

    /// One-way delays of the hops.
    pub(super) fn delays(self) -> Vec<Duration> {
        let whole = RTT / 2;
        if self.carriage == Carriage::OffPath {
            // The first node is at the client.
            return vec![Duration::ZERO, self.aside, self.aside];
        }
        if self.carriage.is_ends() {
            return vec![END, whole - END * 2, END];
        }
        vec![whole / (self.nodes + 1); self.nodes as usize + 1]
    }

    /// Counters of a node, and whether they count every flow that passes, or none.
    pub(super) fn counters(self, place: usize) -> Vec<(&'static str, bool)> {
        let has_next = place + 1 < self.nodes as usize;
        let is_chain = self.carriage != Carriage::Transparent;
        let passes_on = is_chain && has_next;
        let is_warm = self.carriage.is_warm();
        let mut counters = vec![
            ("relays_opened", true),
            ("hops_cold", passes_on && !is_warm),
        ];
        // There flows that empty the pool take warm hops, and those measured do not.
        if self.carriage != Carriage::EmptyEnds {
            counters.push(("hops_warm", passes_on && is_warm));
        }
        counters
    }

    pub(super) fn describe(self) -> String {
        let Self {
            nodes, carriage, ..
        } = self;
        format!("{nodes} nodes, {}", carriage.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_chain_needed() {
        let way = |carriage, nodes| Way::new(Family::V4, carriage, nodes);
        let direct = way(Carriage::Warm, 0);
        assert_eq!(direct.carriage, Carriage::Transparent);
        assert_eq!(way(Carriage::Cold, 1).carriage, Carriage::Transparent);
        assert_eq!(way(Carriage::Cold, 2).carriage, Carriage::Cold);
        let ends = way(Carriage::WarmEnds, 1);
        assert_eq!((ends.carriage, ends.nodes), (Carriage::WarmEnds, 2));
        assert_eq!(way(Carriage::WarmEnds, 0), direct);
    }

    #[test]
    fn families_share_network() {
        let of = |family, carriage| Way::new(family, carriage, 2).layout();
        let cold = of(Family::V6, Carriage::Cold);
        assert_ne!(cold, of(Family::V4, Carriage::Cold));
        let plain = of(Family::V6, Carriage::Transparent);
        assert_eq!(plain, of(Family::V4, Carriage::Transparent));
    }
}
