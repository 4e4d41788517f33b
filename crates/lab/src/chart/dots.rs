// SPDX-License-Identifier: Apache-2.0
//! Dots on named rows: a band for each name, in it a line for each series.

use super::svg::{At, END, MIDDLE, START, Svg, text_width};
use super::{Drawing, FOOT, GRID, INK, LABEL, PALETTE, RIGHT, TICK};

/// Between the lines of two series.
const LINE: f64 = 11.0;
/// Between two bands.
const GAP: f64 = 12.0;
/// Half of a model's mark.
const HALF_MARK: f64 = 6.0;

/// Draws all below `top` and returns where the plotting area ends.
pub(super) fn draw(svg: &mut Svg, top: f64, drawing: &Drawing<'_>) -> f64 {
    let (chart, names) = (drawing.chart, &drawing.rows);
    let widths = names.iter().map(|name| text_width(name, TICK));
    let left = 32.0 + widths.fold(0.0, f64::max);
    let band = LINE * drawing.series.len() as f64 + GAP;
    let bottom = top + band * names.len() as f64;
    let (scale, ticks) = drawing.value_axis(left, RIGHT - 8.0);
    svg.text((20.0, top - 8.0), START, LABEL, &chart.across_label);
    scale.draw_across(svg, &ticks, top, bottom);
    let under = (f64::midpoint(left, RIGHT), bottom + FOOT - 34.0);
    svg.text(under, MIDDLE, LABEL, &chart.value_label);
    for (index, name) in names.iter().enumerate() {
        let above = top + band * index as f64;
        svg.line(&[(20.0, above), (RIGHT, above)], GRID, 1.0);
        let middle = above + band / 2.0 + 4.0;
        svg.text((left - 12.0, middle), END, TICK, name);
    }
    for (order, series) in drawing.series.iter().enumerate() {
        for point in &series.points {
            // Each series has a line of its own in the band, so that close values do not cover each
            // other.
            let y = top + band * point.at + GAP / 2.0 + LINE * (order as f64 + 0.5);
            let at = |value| (scale.at(value), y);
            // Below the dot, so that a model that is met does not hide the measurement.
            if let Some(model) = point.model {
                model_mark(svg, at(model));
            }
            if let Some((low, high)) = point.spread {
                svg.line(&[at(low), at(high)], PALETTE[order], 1.5);
            }
            svg.marker(at(point.value), order);
        }
    }
    svg.line(&[(20.0, bottom), (RIGHT, bottom)], INK, 1.0);
    bottom
}

/// An upright line with a white halo, so that it shows on and off the dot.
pub(super) fn model_mark(svg: &mut Svg, (x, y): At) {
    let ends = [(x, y - HALF_MARK), (x, y + HALF_MARK)];
    svg.line(&ends, "#ffffff", 5.0);
    svg.line(&ends, INK, 2.2);
}
