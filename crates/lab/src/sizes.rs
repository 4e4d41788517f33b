// SPDX-License-Identifier: Apache-2.0
//! Sizes of objects as on web servers. Pure.
//!
//! The distribution is that of Barford and Crovella, "Generating Representative Web Workloads for
//! Network and Server Performance Evaluation", SIGMETRICS 1998: a lognormal body (mu 9.357, sigma
//! 1.318) for 93 of 100 files and a Pareto tail (alpha 1.1) from 133 KB on. The tail is cut at
//! [`LARGEST`]: without a cut one object in a million would dominate a second of load.

use statrs::distribution::{ContinuousCDF, Normal};

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
pub(crate) fn web_like() -> Vec<u64> {
    let quantile = |index: u32| (f64::from(index) + 0.5) / f64::from(COUNT);
    let ordered: Vec<u64> = (0..COUNT)
        .map(|index| web_like_at(quantile(index)))
        .collect();
    // In ascending order a window would get only small or only large objects.
    shuffled(&ordered, SEED, 0)
}

/// The size in bytes below which a share `p` of the sizes lies, from 0 to 1, exclusive of both.
pub(crate) fn web_like_at(p: f64) -> u64 {
    bytes(size(p))
}

/// The same as a real number.
fn size(p: f64) -> f64 {
    if p < BODY {
        // The body is the lognormal below the tail, so `p` is relative to that part.
        let normal = Normal::standard();
        let below = normal.cdf((TAIL_FROM.ln() - MU) / SIGMA);
        return (MU + SIGMA * normal.inverse_cdf(p / BODY * below)).exp();
    }
    let in_tail = (p - BODY) / (1.0 - BODY);
    (TAIL_FROM * (1.0 - in_tail).powf(-1.0 / ALPHA)).min(LARGEST)
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
    fn body_is_lognormal() {
        // The tail begins at 1.852 sigma, below which 96.8 % of the lognormal lie.
        assert!((size(0.5) - 12_390.0).abs() < 100.0, "{}", size(0.5));
        assert!(size(BODY - 1e-9) < TAIL_FROM && size(BODY) >= TAIL_FROM);
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
