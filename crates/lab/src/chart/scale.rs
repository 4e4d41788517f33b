// SPDX-License-Identifier: Apache-2.0
//! Mapping of values to positions on the page, and where to put ticks.

/// How distances on an axis relate to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    /// Equal steps for equal differences.
    Linear,
    /// Equal steps for equal ratios; all values must be positive.
    Logarithmic,
}

/// One axis: values `low..=high` laid over positions `start..=end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) spacing: Spacing,
}

impl Scale {
    /// The position of `value`.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match self.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.start + (self.end - self.start) * part
    }
}

/// Round values from zero to at least `most`, about `count` of them.
pub(super) fn ticks(most: f64, count: usize) -> Vec<f64> {
    // An axis without values still needs a length.
    let most = if most > 0.0 { most } else { 1.0 };
    let raw = most / count as f64;
    let decade = 10f64.powf(raw.log10().floor());
    // A hair less, as rounding must not add a step.
    let fits = |factor: &&f64| **factor * decade >= raw * (1.0 - 1e-9);
    let step = decade * [1.0, 2.0, 5.0, 10.0].iter().find(fits).unwrap_or(&10.0);
    let mut values = vec![0.0];
    // Multiples instead of sums, so that no rounding error adds up in a label.
    while values[values.len() - 1] < most * (1.0 - 1e-9) {
        values.push(values.len() as f64 * step);
    }
    values
}

/// Powers of ten that enclose all from `least` to `most`, both positive.
pub(super) fn decades(least: f64, most: f64) -> Vec<f64> {
    let mut values = vec![10f64.powf(least.log10().floor())];
    // One decade at least, or the axis would have no length.
    while values.len() < 2 || values[values.len() - 1] < most * (1.0 - 1e-9) {
        values.push(values[values.len() - 1] * 10.0);
    }
    values
}

/// `value` as a tick label: no trailing zeros.
pub(super) fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        assert_eq!(ticks(203.0, 5), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        assert_eq!(
            ticks(1.0, 5)
                .iter()
                .map(|&tick| plain(tick))
                .collect::<Vec<_>>(),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(ticks(0.0, 2), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn scales_map_their_ends() {
        let scale = Scale {
            low: 10.0,
            high: 1000.0,
            start: 0.0,
            end: 100.0,
            spacing: Spacing::Logarithmic,
        };
        assert!((scale.at(100.0) - 50.0).abs() < 1e-9);
        let scale = Scale {
            spacing: Spacing::Linear,
            ..scale
        };
        assert!((scale.at(505.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn decades_enclose() {
        assert_eq!(decades(2.0, 950.0), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(decades(1.0, 10.0), [1.0, 10.0]);
    }

    #[test]
    fn labels() {
        assert_eq!(plain(1500.0), "1500");
    }
}
