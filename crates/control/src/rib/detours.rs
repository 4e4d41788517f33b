// SPDX-License-Identifier: Apache-2.0
//! Chains of two hops, found without tables: what may do until there are new ones. Pure.

use super::times::{ABSENT, Times};

/// How much the longer hop counts beside the length of both: transfers of a few bytes do not wait for it,
/// the largest for many of its round trips.
const WEIGHTS: [u64; 3] = [0, 2, 8];

/// Looks for the best nodes between two others, for one pair after the other. Pairs with the same last node
/// are to follow each other.
#[derive(Debug, Default)]
pub(super) struct Detours {
    /// The last node, and the round trips of links to it.
    to: Option<usize>,
    rtts_us: Vec<u32>,
    found: Vec<u16>,
}

impl Detours {
    /// The best nodes between two others, by round trips alone; none where no chain of two hops leads.
    pub(super) fn find(&mut self, times: &Times<'_>, from: usize, to: usize) -> &[u16] {
        let there = times.rtts_from(from);
        // A column of the matrix is spread over its rows: it is copied once for all pairs to the
        // same node.
        if self.to != Some(to) {
            self.to = Some(to);
            self.rtts_us.clear();
            let rtts = (0..there.len()).map(|node| times.rtts_from(node)[to]);
            self.rtts_us.extend(rtts);
        }
        // A link that is absent is longer than any sum of others.
        let mut best = [(u64::from(ABSENT), 0); WEIGHTS.len()];
        for (node, (&one, &two)) in (0..).zip(there.iter().zip(&self.rtts_us)) {
            let length = u64::from(one) + u64::from(two);
            let length = length + u64::from(times.node_us(usize::from(node)));
            let longest = u64::from(one.max(two));
            for (best, weight) in best.iter_mut().zip(WEIGHTS) {
                *best = (*best).min((length + weight * longest, node));
            }
        }
        self.found.clear();
        for (time, node) in best {
            if time < u64::from(ABSENT) && !self.found.contains(&node) {
                self.found.push(node);
            }
        }
        &self.found
    }
}

#[cfg(test)]
mod tests {
    use posthaste_plan::table::Classes;
    use posthaste_plan::{Link, Matrix, Model};

    use super::*;

    #[test]
    fn short_detours_found() {
        let mut matrix = Matrix::new(6).unwrap();
        for (node, hops) in (1..).zip([[10, 80], [50, 51], [45, 60]]) {
            for (other, ms) in [0, 5].into_iter().zip(hops) {
                let link = Some(Link::of_rtt(ms * 1000));
                matrix.set_both(node, other, link).unwrap();
            }
        }
        // The shortest of all, but for a link.
        matrix.set(0, 4, Some(Link::of_rtt(1))).unwrap();
        let (model, classes) = (Model::default(), Classes::new(&[1], &[0]).unwrap());
        let mut detours = Detours::default();
        let times = Times::new(&matrix, &model, &classes);
        assert_eq!(detours.find(&times, 0, 5), [1, 2]);
        assert_eq!(detours.find(&times, 5, 0), [1, 2]);
        assert_eq!(detours.find(&times, 0, 4), [] as [u16; 0]);
        assert_eq!(detours.find(&times, 1, 2), [0]);
        matrix.set_cost(1, 12_000).unwrap();
        let times = Times::new(&matrix, &model, &classes);
        let mut detours = Detours::default();
        assert_eq!(detours.find(&times, 0, 5), [2]);
    }
}
