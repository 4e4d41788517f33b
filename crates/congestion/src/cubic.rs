// SPDX-License-Identifier: Apache-2.0
//! CUBIC's law (RFC 9438) in integers: the window in 1/256 of segments, the time in milliseconds.

use crate::constants::{C_DENOMINATOR, C_NUMERATOR, TIME_MAX};

/// The time in which the window grows by `missing` to where it was at the last congestion.
pub(crate) fn time_to_grow(missing: u64) -> u64 {
    root(missing.saturating_mul(C_DENOMINATOR) / C_NUMERATOR).min(TIME_MAX)
}

/// The window at a time since the start of an epoch whose inflection is `largest` at `k`.
pub(crate) fn window(largest: u64, k: u64, since: u64) -> u64 {
    let off = since.abs_diff(k).min(TIME_MAX);
    let grown = (off * off * off / C_DENOMINATOR).saturating_mul(C_NUMERATOR)
        + off * off * off % C_DENOMINATOR * C_NUMERATOR / C_DENOMINATOR;
    if since < k {
        largest.saturating_sub(grown)
    } else {
        largest + grown
    }
}

/// The cube root, rounded down: bit by bit.
fn root(of: u64) -> u64 {
    let mut root = 0_u64;
    for bit in (0..21).rev() {
        let next = root | 1 << bit;
        if next * next * next <= of {
            root = next;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots() {
        for (of, expected) in [
            (0, 0),
            (1, 1),
            (7, 1),
            (8, 2),
            (999_999_999, 999),
            (1 << 60, 1 << 20),
        ] {
            assert_eq!(root(of), expected, "{of}");
        }
    }

    /// 833 segments lose 30 %: RFC 9438's K is the cube root of 833 * 0.3 / 0.4, 8.55 s.
    #[test]
    fn law_of_the_rfc() {
        let (largest, lowered) = (833 * 256, 583 * 256);
        let k = time_to_grow(largest - lowered);
        assert!((8540..8560).contains(&k), "{k}");
        assert!(window(largest, k, 0).abs_diff(lowered) < 256);
        assert_eq!(window(largest, k, k), largest);
        // A second later by 0.4, ten seconds later by 400 segments.
        assert!((102..=103).contains(&(window(largest, k, k + 1000) - largest)));
        assert_eq!(window(largest, k, k + 10_000) - largest, 400 * 256);
    }
}
