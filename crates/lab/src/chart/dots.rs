// SPDX-License-Identifier: Apache-2.0
//! Dots on named rows: a band for each name, in it a line for each series.

use super::scale::{Scale, plain};
use super::svg::{Anchor, Svg, text_width};
use super::{Drawing, FOOT, GRID, INK, LABEL, PALETTE, Point, RIGHT, TICK, marker};

/// Between the lines of two series.
const LINE: f64 = 11.0;
/// Between two bands.
const GAP: f64 = 12.0;
/// Half of a model's mark.
const HALF_MARK: f64 = 6.0;

/// Draws all below `top` and returns where the plotting area ends.
pub(super) fn draw(svg: &mut Svg, top: f64, drawing: &Drawing<'_>) -> f64 {
    let (chart, names) = (drawing.chart, &drawing.rows);
    let widths = names.iter().map(|name| text_width(name, TICK.size));
    let left = 32.0 + widths.fold(0.0, f64::max);
    let top = top + 14.0;
    let band = LINE * drawing.series.len() as f64 + GAP;
    let bottom = top + band * names.len() as f64;
    let (scale, ticks) = drawing.value_axis(left, RIGHT - 8.0);
    // Above the plotting area, so that a long label takes none of its width.
    svg.text((20.0, top - 8.0), Anchor::Start, LABEL, &chart.across_label);
    for tick in ticks {
        let x = scale.at(tick);
        svg.line((x, top), (x, bottom), GRID, 1.0, "");
        svg.text((x, bottom + 19.0), Anchor::Middle, TICK, &plain(tick));
    }
    let centre = f64::midpoint(left, RIGHT);
    let under = bottom + FOOT - 34.0;
    svg.text((centre, under), Anchor::Middle, LABEL, &chart.value_label);
    for (index, name) in names.iter().enumerate() {
        let above = top + band * index as f64;
        svg.line((20.0, above), (RIGHT, above), GRID, 1.0, "");
        let middle = above + band / 2.0 + 4.0;
        svg.text((left - 12.0, middle), Anchor::End, TICK, name);
    }
    for (order, series) in drawing.series.iter().enumerate() {
        for point in &series.points {
            // Each series has a line of its own in the band, so that close values do not cover each
            // other.
            let y = top + band * point.at + GAP / 2.0 + LINE * (order as f64 + 0.5);
            draw_value(svg, y, &scale, point, order);
        }
    }
    svg.line((20.0, bottom), (RIGHT, bottom), INK, 1.0, "");
    bottom
}

/// One value: whisker, dot and the model's mark.
fn draw_value(svg: &mut Svg, y: f64, scale: &Scale, point: &Point, order: usize) {
    // Below the dot, so that a model that is met does not hide the measurement.
    if let Some(model) = point.model {
        model_mark(svg, (scale.at(model), y));
    }
    if let Some((low, high)) = point.spread {
        svg.line(
            (scale.at(low), y),
            (scale.at(high), y),
            PALETTE[order],
            1.5,
            "",
        );
    }
    marker::draw(svg, (scale.at(point.value), y), order);
}

/// An upright line with a white halo, so that it shows on and off the dot.
pub(super) fn model_mark(svg: &mut Svg, (x, y): (f64, f64)) {
    let (from, to) = ((x, y - HALF_MARK), (x, y + HALF_MARK));
    svg.line(from, to, "#ffffff", 5.0, "");
    svg.line(from, to, INK, 2.2, "");
}
