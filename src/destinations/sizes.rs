// SPDX-License-Identifier: Apache-2.0
//! Estimates the size of transfers from one destination by a sketch of their distribution. Pure.
//!
//! The median is the assumed size of a flow. The time over a chain grows with the rounds of slow
//! start, so over many transfers the best chain is that for their mean number of rounds, and rounds
//! are about the logarithm of the size. For sizes that are symmetric around their middle on a
//! logarithmic scale, as most are, the median has the mean logarithm. A few outliers, which a mean
//! would follow, do not move it.

use std::time::Duration;

/// Sizes below 2 to this share one bucket: they take a single round anyway.
const LEAST: u32 = 10;
/// Sizes from 2 to this on share the last buckets.
const MOST: u32 = 31;
/// Two per doubling.
const BUCKETS: usize = 2 * (MOST - LEAST + 1) as usize;
/// Initial weight of a transfer; it is halved as others follow.
const WEIGHT: u16 = 16;
/// After so many transfers all weights are halved, so that recent ones dominate.
const TRANSFERS_MAX: u32 = 128;
/// Fewer transfers give no estimate.
const TRANSFERS_MIN: u32 = 8;
/// All weights are also halved after this time.
const HALF_LIFE: Duration = Duration::from_secs(3600);

/// Weights of recent transfers from one destination, by size.
#[derive(Debug)]
pub(super) struct Sizes {
    weights: [u16; BUCKETS],
    /// Number of half-lives since the start of the clock, at the last halving for age.
    age: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            weights: [0; BUCKETS],
            age: 0,
        }
    }
}

impl Sizes {
    /// Adds a transfer of so many bytes.
    pub(super) fn add(&mut self, bytes: u64, now: Duration) {
        let halvings = self.halvings(now);
        self.shift(halvings);
        self.age += u64::from(halvings);
        self.weights[bucket(bytes)] += WEIGHT;
        if self.total(0) > TRANSFERS_MAX * u32::from(WEIGHT) {
            self.shift(1);
        }
    }

    /// The median in bytes, within a fifth, and the number of recent transfers behind it. `None`
    /// while these are too few.
    pub(super) fn usual(&self, now: Duration) -> Option<(u32, u32)> {
        let halvings = self.halvings(now);
        let total = self.total(halvings);
        let transfers = total / u32::from(WEIGHT);
        if transfers < TRANSFERS_MIN {
            return None;
        }
        let mut below = 0;
        let median = self.weights.iter().position(|weight| {
            below += u32::from(aged(*weight, halvings));
            below * 2 >= total
        });
        Some((middle(median?), transfers))
    }

    fn total(&self, halvings: u32) -> u32 {
        let weights = self.weights.iter();
        weights
            .map(|weight| u32::from(aged(*weight, halvings)))
            .sum()
    }

    fn halvings(&self, now: Duration) -> u32 {
        let age = now.as_secs() / HALF_LIFE.as_secs();
        u32::try_from(age.saturating_sub(self.age)).unwrap_or(u32::MAX)
    }

    fn shift(&mut self, halvings: u32) {
        for weight in &mut self.weights {
            *weight = aged(*weight, halvings);
        }
    }
}

fn aged(weight: u16, halvings: u32) -> u16 {
    weight.checked_shr(halvings).unwrap_or(0)
}

/// The bucket of a size: the number of powers of the square root of two that it has reached.
fn bucket(bytes: u64) -> usize {
    let power = bytes.max(1).ilog2();
    if power < LEAST {
        return 0;
    }
    if power > MOST {
        return BUCKETS - 1;
    }
    // Whether it has reached 2^(power + 1/2), by a comparison of the squares.
    let is_upper = u128::from(bytes) * u128::from(bytes) >= 1 << (2 * power + 1);
    2 * (power - LEAST) as usize + usize::from(is_upper)
}

/// The geometric middle of a bucket, in bytes.
fn middle(bucket: usize) -> u32 {
    let octave = bucket / 2;
    // 2^(1/4) and 2^(3/4).
    let thousandths: u64 = if bucket.is_multiple_of(2) { 1189 } else { 1682 };
    let bytes = (thousandths << LEAST << octave) / 1000;
    u32::try_from(bytes).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use posthaste_relay::rng::Rng;

    use super::*;

    const HOUR: Duration = HALF_LIFE;

    fn usual(sizes: impl IntoIterator<Item = u64>) -> Option<(u32, u32)> {
        let mut sketch = Sizes::default();
        for bytes in sizes {
            sketch.add(bytes, HOUR);
        }
        sketch.usual(HOUR)
    }

    // promise: E2
    #[test]
    fn few_transfers_give_no_size() {
        assert_eq!(usual([]), None);
        assert_eq!(usual([100_000; 7]), None);
        assert_eq!(usual([100_000; 8]).unwrap().1, 8);
    }

    // promise: E2
    #[test]
    fn median_within_a_fifth() {
        let mut rng = Rng::new(3);
        for _ in 0..500 {
            let count = 8 + rng.below(100);
            let power = rng.below(20);
            let spread = 1 + rng.below(1 << power);
            let least = 1024 + rng.below(1 << 24);
            let size = |rng: &mut Rng| (least + rng.below(spread)) as u64;
            let mut all: Vec<u64> = (0..count).map(|_| size(&mut rng)).collect();
            let (median, transfers) = usual(all.iter().copied()).unwrap();
            all.sort_unstable();
            let exact = all[(count - 1) / 2] as f64;
            let off = f64::from(median) / exact;
            assert!((0.84..=1.19).contains(&off), "{median} for {exact}");
            assert_eq!(transfers as usize, count);
        }
    }

    #[test]
    fn extremes_move_nothing() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(1 << 10), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(middle(BUCKETS - 1) < u32::MAX);
        let most = [20_000; 60]
            .into_iter()
            .chain([u64::MAX; 20])
            .chain([0; 20]);
        let (median, _) = usual(most).unwrap();
        assert!((16_000..25_000).contains(&median), "{median}");
        for bytes in 1024..100_000_u64 {
            let middle = f64::from(middle(bucket(bytes)));
            assert!((0.84..1.19).contains(&(middle / bytes as f64)), "{bytes}");
        }
    }

    #[test]
    fn the_last_transfers_decide() {
        let (median, transfers) = usual([1_000; 1000].into_iter().chain([1_000_000; 100])).unwrap();
        assert!((840_000..1_190_000).contains(&median), "{median}");
        assert!(transfers <= TRANSFERS_MAX);
    }

    // promise: E2
    #[test]
    fn old_samples_decay() {
        let mut sketch = Sizes::default();
        for _ in 0..64 {
            sketch.add(1_000_000, HOUR);
        }
        assert_eq!(sketch.usual(HOUR * 2).unwrap().1, 32);
        assert_eq!(sketch.usual(HOUR * 4).unwrap().1, 8);
        assert_eq!(sketch.usual(HOUR * 5), None);
        assert_eq!(sketch.usual(HOUR * 5000), None);
        for _ in 0..17 {
            sketch.add(2_000, HOUR * 3);
        }
        assert!(sketch.usual(HOUR * 3).unwrap().0 < 2_500);
    }
}
