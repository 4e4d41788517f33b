// SPDX-License-Identifier: Apache-2.0
//! The places of a fleet's nodes, and the distances between them. Pure.

use std::time::Duration;

use crate::regions::{Place, distances};

/// Round-trip times between all nodes, in microseconds, never 0.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    rtts_us: Vec<Vec<u32>>,
}

impl Topology {
    /// Nodes at random places on earth. Links have detours, as real ones do, so that some are
    /// longer than a route around them.
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        let update = distances(&Place::random(nodes, seed), true, seed);
        let update = update
            .iter()
            .map(|row| row.iter().map(|ms| micros(*ms)).collect());
        Self {
            rtts_us: update.collect(),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.rtts_us.len()
    }

    pub(super) fn rtt_us(&self, from: usize, to: usize) -> u32 {
        self.rtts_us[from][to]
    }

    /// Scales the link by `factor`, in both directions.
    pub(super) fn stretch(&mut self, one: usize, other: usize, factor: f64) {
        let rtt_us = micros(f64::from(self.rtts_us[one][other]) * factor / 1e3);
        self.rtts_us[one][other] = rtt_us;
        // Both directions, as a round trip has no direction.
        self.rtts_us[other][one] = rtt_us;
    }
}

/// Microseconds of so many milliseconds, never 0.
fn micros(ms: f64) -> u32 {
    let micros = Duration::from_secs_f64(ms / 1e3).as_micros();
    u32::try_from(micros).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_links_by_seed() {
        let mut topology = Topology::new(20, 3);
        let same = Topology::new(20, 3);
        let other = Topology::new(20, 4);
        let pairs = || (0..20).flat_map(|one| (0..one).map(move |two| (one, two)));
        assert!(pairs().all(|(one, two)| {
            let rtt_us = topology.rtt_us(one, two);
            // Twice around half of the earth, with detours.
            (300..2_000_000).contains(&rtt_us)
                && rtt_us == topology.rtt_us(two, one)
                && rtt_us == same.rtt_us(one, two)
        }));
        assert!(pairs().any(|(one, two)| topology.rtt_us(one, two) != other.rtt_us(one, two)));
        let before = topology.rtt_us(1, 2);
        topology.stretch(1, 2, 2.0);
        assert_eq!(
            (topology.rtt_us(1, 2), topology.rtt_us(2, 1)),
            (2 * before, 2 * before)
        );
    }
}
