// SPDX-License-Identifier: Apache-2.0
//! Order statistics over samples. Pure; knows nothing of units.

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

#[cfg(test)]
mod tests {
    use super::*;

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
