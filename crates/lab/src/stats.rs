// SPDX-License-Identifier: Apache-2.0
//! Order statistics over samples, without units. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The sample below which `percent` per cent of the samples lie, linearly
/// interpolated between neighbours. `None` without samples.
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    assert!(
        (0.0..=100.0).contains(&percent),
        "percent out of range: {percent}"
    );
    let mut sorted = samples.to_vec();
    // Total, so that a NaN sorts last and panics nowhere.
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    // Type 7 of Hyndman and Fan, the default of R and NumPy.
    let rank = percent / 100.0 * last as f64;
    // `skip` needs an integer; rank is in 0..=last.
    let below = (0..=last).rev().find(|&index| index as f64 <= rank)?;
    let above = (below + 1).min(last);
    let part = rank - below as f64;
    Some(sorted[below] + (sorted[above] - sorted[below]) * part)
}

/// The middle sample. `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    percentile(samples, 50.0)
}

/// The arithmetic mean. `None` without samples.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The largest sample. `None` without samples.
pub fn max(samples: &[f64]) -> Option<f64> {
    percentile(samples, 100.0)
}

/// How far `value` lies from `reference`, in per cent of the reference.
pub fn deviation_percent(value: f64, reference: f64) -> f64 {
    (value / reference - 1.0) * 100.0
}

/// Median and quartiles of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The first quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub high: f64,
}

impl Spread {
    /// `None` without values, or with an invalid one.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        // A load without latencies has NaN, and JSON has no infinity.
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        Some(Self {
            low: percentile(values, 25.0)?,
            median: percentile(values, 50.0)?,
            high: percentile(values, 75.0)?,
        })
    }

    /// The ratios of two series, round by round. On a busy machine small values may come out as
    /// zero or less. If that happened to the other series in a few rounds, the result is the ratio
    /// of the medians, as wide as the quartiles allow; if in many, `None`.
    pub(crate) fn of_ratio(values: &[f64], others: &[f64]) -> Option<Self> {
        // A ratio to nothing, or to less, has no meaning.
        let lost = others.iter().filter(|&&other| other <= 0.0).count();
        if lost == 0 {
            let ratios: Vec<f64> = values.iter().zip(others).map(|(a, b)| a / b).collect();
            return Self::of(&ratios);
        }
        if lost * 4 > others.len() {
            return None;
        }
        let (ours, theirs) = (Self::of(values)?, Self::of(others)?);
        (theirs.low > 0.0).then(|| Self {
            low: ours.low / theirs.high,
            median: ours.median / theirs.median,
            high: ours.high / theirs.low,
        })
    }

    /// The median alone.
    pub(crate) fn brief(self) -> String {
        format!("{:.*}", self.digits(), self.median)
    }

    /// Digits behind the point: none for counts, otherwise about three significant ones.
    fn digits(self) -> usize {
        let is_count = [self.low, self.median, self.high].map(f64::fract) == [0.0; 3];
        match self.median.abs() {
            _ if is_count => 0,
            size if size < 10.0 => 2,
            size if size < 1000.0 => 1,
            _ => 0,
        }
    }
}

impl fmt::Display for Spread {
    /// The median, and the quartiles if they differ in the digits that are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        let [low, median, high] =
            [self.low, self.median, self.high].map(|value| format!("{value:.digits$}"));
        if low == high {
            return f.write_str(&median);
        }
        write!(f, "{median} ({low} to {high})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let spread = Spread::of_ratio(&[50.0, 100.0, 30.0], &[100.0, 200.0, 60.0]).unwrap();
        assert_eq!(spread.to_string(), "0.50");
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert_eq!(Spread::of_ratio(&[50.0, 60.0], &[-1.0, 100.0]), None);
        let once = Spread::of_ratio(&[8.0; 5], &[2.0, -1.0, 4.0, 4.0, 8.0]).unwrap();
        assert_eq!(once.to_string(), "2 (2 to 4)");
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(
            Spread::of(&[1.5, 2.5]).unwrap().to_string(),
            "2.00 (1.75 to 2.25)"
        );
    }

    #[test]
    fn nothing_has_no_statistics() {
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn percentiles_interpolate_and_ignore_order() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&samples), Some(2.5));
        assert_eq!(percentile(&samples, 0.0), Some(1.0));
        assert_eq!(max(&samples), Some(4.0));
        assert_eq!(percentile(&[10.0, 20.0], 99.0), Some(19.9));
        assert_eq!(median(&[7.0]), Some(7.0));
    }

    #[test]
    fn mean_and_deviation() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert!((deviation_percent(150.0, 200.0) + 25.0).abs() < 1e-9);
    }
}
