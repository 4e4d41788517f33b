// SPDX-License-Identifier: Apache-2.0
//! Mapping of values to positions on the page, and where to put ticks.

use super::svg::{MIDDLE, Svg};
use super::{GRID, TICK};

/// One axis: values `low..=high` laid over positions `start..=end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    /// Equal steps for equal ratios, instead of differences.
    pub(super) is_logarithmic: bool,
}

impl Scale {
    /// From zero on.
    pub(super) fn linear(high: f64, start: f64, end: f64) -> Self {
        Self {
            low: 0.0,
            high,
            start,
            end,
            is_logarithmic: false,
        }
    }

    /// All values must be positive.
    pub(super) fn logarithmic(low: f64, high: f64, start: f64, end: f64) -> Self {
        Self {
            low,
            is_logarithmic: true,
            ..Self::linear(high, start, end)
        }
    }

    /// Draws upright lines at the ticks, and their labels below.
    pub(super) fn draw_across(&self, svg: &mut Svg, ticks: &[f64], top: f64, bottom: f64) {
        for &tick in ticks {
            let x = self.at(tick);
            svg.line(&[(x, top), (x, bottom)], GRID, 1.0);
            svg.text((x, bottom + 19.0), MIDDLE, TICK, &plain(tick));
        }
    }

    /// The position of `value`.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match self.is_logarithmic {
            false => (value - self.low) / (self.high - self.low),
            true => (value / self.low).ln() / (self.high / self.low).ln(),
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

/// `value` as a tick label, without the error of its last digits.
pub(super) fn plain(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
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
        let scale = Scale::logarithmic(10.0, 1000.0, 0.0, 100.0);
        assert!((scale.at(100.0) - 50.0).abs() < 1e-9);
        let scale = Scale::linear(1000.0, 0.0, 100.0);
        assert!((scale.at(505.0) - 50.5).abs() < 1e-9);
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
