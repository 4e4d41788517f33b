// SPDX-License-Identifier: Apache-2.0
//! Orders that look random and can be repeated.

use crate::link::scramble;

/// The items in an order given by the seed and the round (Fisher and Yates' shuffle).
pub(crate) fn shuffled<T: Clone>(items: &[T], seed: u64, round: u32) -> Vec<T> {
    let mut items = items.to_vec();
    let mut state = scramble(seed) ^ u64::from(round);
    for end in (1..items.len()).rev() {
        state = scramble(state);
        let chosen = usize::try_from(state % (end as u64 + 1)).unwrap_or(end);
        items.swap(end, chosen);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_loses_nothing_and_follows_the_seed() {
        let all: Vec<u32> = (0..60).collect();
        let once = shuffled(&all, 1, 0);
        assert_ne!(once, all);
        assert_eq!(once, shuffled(&all, 1, 0));
        assert_ne!(once, shuffled(&all, 1, 1));
        assert_ne!(once, shuffled(&all, 2, 0));
        let mut sorted = once;
        sorted.sort_unstable();
        assert_eq!(sorted, all);
    }
}
