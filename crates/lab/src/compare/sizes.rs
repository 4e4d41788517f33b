// SPDX-License-Identifier: Apache-2.0
//! Sizes of objects as on web servers. Pure.
//!
//! The distribution is that of Barford and Crovella, "Generating Representative Web Workloads for
//! Network and Server Performance Evaluation", SIGMETRICS 1998: a lognormal body (mu 9.357, sigma
//! 1.318) for 93 of 100 files and a Pareto tail (alpha 1.1) from 133 KB on. The tail is cut at
//! [`LARGEST`]: without a cut one object in a million would dominate a second of load.

use crate::rng::shuffled;

/// How many sizes there are before they repeat.
const COUNT: u32 = 1000;

/// Mean and standard deviation of the natural logarithm of sizes in the body.
const MU: f64 = 9.357;
const SIGMA: f64 = 1.318;

/// Where the tail begins, in bytes, and how fast it falls.
const TAIL_FROM: f64 = 133_000.0;
const ALPHA: f64 = 1.1;

/// The share of sizes that are in the body.
const BODY: f64 = 0.93;

/// No object is larger, in bytes.
const LARGEST: f64 = 4_194_304.0;

/// Any number; the order must be the same for all subjects.
const SEED: u64 = 1998;

/// Sizes in bytes, one at the middle of each of as many equally likely parts of the distribution,
/// shuffled.
pub(super) fn web_like() -> Vec<u64> {
    let quantile = |index: u32| (f64::from(index) + 0.5) / f64::from(COUNT);
    let ordered: Vec<u64> = (0..COUNT)
        .map(|index| bytes(size(quantile(index))))
        .collect();
    shuffled(&ordered, SEED, 0)
}

/// The size below which a share `p` of the sizes lies.
fn size(p: f64) -> f64 {
    if p < BODY {
        // The body is the lognormal below the tail, so `p` is relative to that part.
        let below = normal_share((TAIL_FROM.ln() - MU) / SIGMA);
        return (MU + SIGMA * normal_quantile(p / BODY * below)).exp();
    }
    let in_tail = (p - BODY) / (1.0 - BODY);
    (TAIL_FROM * (1.0 - in_tail).powf(-1.0 / ALPHA)).min(LARGEST)
}

/// The share of a standard normal distribution below `x`, by Simpson's rule.
fn normal_share(x: f64) -> f64 {
    const STEPS: u32 = 100;
    const FROM: f64 = -8.0;
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let step = (x - FROM) / f64::from(STEPS);
    let weight = |index: u32| match index {
        0 | STEPS => 1.0,
        index if index % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let terms = (0..=STEPS).map(|index| weight(index) * density(FROM + step * f64::from(index)));
    terms.sum::<f64>() * step / 3.0
}

/// The `x` below which a share `p` lies, by bisection.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if normal_share(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// A size in whole bytes, at least one.
fn bytes(size: f64) -> u64 {
    // Sizes lie between 1 and `LARGEST`.
    format!("{:.0}", size.max(1.0)).parse().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_distribution_values() {
        for (x, share) in [(0.0, 0.5), (1.0, 0.841_345), (-1.96, 0.024_998)] {
            assert!((normal_share(x) - share).abs() < 1e-5, "{x}");
            assert!((normal_quantile(share) - x).abs() < 1e-3, "{share}");
        }
    }

    #[test]
    fn sizes_follow_the_distribution() {
        let mut sizes = web_like();
        assert_ne!(sizes.windows(2).filter(|pair| pair[0] > pair[1]).count(), 0);
        sizes.sort_unstable();
        // exp(mu) = 11.6 KB is the median of the whole lognormal; the body lacks its tail.
        assert!((8_000..13_000).contains(&sizes[500]), "{}", sizes[500]);
        let tail = sizes.iter().filter(|&&size| size > 133_000).count();
        assert_eq!(tail, 70);
        assert_eq!(sizes[999], 4_194_304);
    }
}
