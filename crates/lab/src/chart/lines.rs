// SPDX-License-Identifier: Apache-2.0
//! Lines with markers, the model's dashed.

use super::scale::{Scale, Spacing, plain, ticks};
use super::svg::{Anchor, Svg};
use super::{
    Across, Drawing, FOOT, GRID, HEIGHT, INK, LABEL, LEFT, PALETTE, Point, RIGHT, SOFT, Series,
    TICK, marker,
};

const DASHED: &str = " stroke-dasharray=\"5 4\"";

/// Draws one line per series below `top` and returns where the plotting area ends.
pub(super) fn draw(svg: &mut Svg, top: f64, drawing: &Drawing<'_>) -> f64 {
    let bottom = HEIGHT - FOOT;
    let (y, y_ticks) = drawing.value_axis(bottom, top);
    let mut places: Vec<f64> = drawing.places().collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let has_markers = drawing.has_markers();
    let x = across(&places, has_markers);
    let mut labels = places;
    if !has_markers {
        labels = ticks(x.high / ROOM, 8);
        labels.retain(|tick| *tick <= x.high);
    }
    for tick in y_ticks {
        let y = y.at(tick);
        svg.line((LEFT, y), (RIGHT, y), GRID, 1.0, "");
        svg.text((LEFT - 8.0, y + 4.0), Anchor::End, TICK, &plain(tick));
    }
    for value in labels {
        let x = x.at(value);
        svg.line((x, top), (x, bottom), GRID, 1.0, "");
        svg.text((x, bottom + 19.0), Anchor::Middle, TICK, &plain(value));
    }
    svg.line((LEFT, bottom), (RIGHT, bottom), INK, 1.0, "");
    axis_labels(svg, top, bottom, drawing);
    for (order, series) in drawing.series.iter().enumerate() {
        draw_series(svg, (&x, &y), series, order, has_markers);
    }
    bottom
}

impl Drawing<'_> {
    /// Whether each point has a marker, and its number a label: so many that they are a curve have
    /// neither.
    pub(super) fn has_markers(&self) -> bool {
        matches!(self.chart.across, Across::Label(_))
    }

    /// The places of all points on the other axis.
    fn places(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(|point| point.at)
    }
}

fn axis_labels(svg: &mut Svg, top: f64, bottom: f64, drawing: &Drawing<'_>) {
    let (left, value) = (
        (22.0, f64::midpoint(top, bottom)),
        &drawing.chart.value_label,
    );
    svg.rotated_text(left, Anchor::Middle, LABEL, -90.0, value);
    let under = (f64::midpoint(LEFT, RIGHT), bottom + 42.0);
    svg.text(under, Anchor::Middle, LABEL, &drawing.chart.across_label);
}

fn draw_series(
    svg: &mut Svg,
    (x, y): (&Scale, &Scale),
    series: &Series,
    order: usize,
    has_markers: bool,
) {
    let at = |point: &Point, value: f64| (x.at(point.at), y.at(value));
    let models = series.points.iter();
    let models: Vec<_> = models
        .filter_map(|point| Some(at(point, point.model?)))
        .collect();
    if !models.is_empty() {
        // Below the measurements, which matter more.
        svg.polyline(&models, PALETTE[order], 1.5, DASHED);
        for &place in &models {
            marker::filled(svg, place, order, "#ffffff");
        }
    }
    for point in &series.points {
        let Some((low, high)) = point.spread else {
            continue;
        };
        svg.line(at(point, low), at(point, high), PALETTE[order], 1.2, "");
    }
    let measured = series.points.iter();
    let measured: Vec<_> = measured.map(|point| at(point, point.value)).collect();
    svg.polyline(&measured, PALETTE[order], 2.2, "");
    let marked = measured.iter().filter(|_| has_markers);
    marked.for_each(|&place| marker::draw(svg, place, order));
}

/// Room beyond the last number of a linear axis.
const ROOM: f64 = 1.04;

/// The x axis with some room at both ends. It starts at zero when linear, so that distances mean
/// what they seem to.
fn across(places: &[f64], is_logarithmic: bool) -> Scale {
    let (first, last) = (places[0], places[places.len() - 1]);
    let room = (last / first).powf(0.05).max(1.01);
    let (low, high, spacing) = if is_logarithmic {
        (first / room, last * room, Spacing::Logarithmic)
    } else {
        (0.0, last * ROOM, Spacing::Linear)
    };
    Scale {
        low,
        high,
        start: LEFT,
        end: RIGHT,
        spacing,
    }
}

/// The legend's sample of a series.
pub(super) fn key(svg: &mut Svg, x: f64, y: f64, order: usize, has_markers: bool) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), PALETTE[order], 2.2, "");
    if has_markers {
        marker::draw(svg, (x + 12.0, y - 4.0), order);
    }
}

/// The legend's sample of the model's lines.
pub(super) fn model_key(svg: &mut Svg, x: f64, y: f64) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), SOFT, 1.5, DASHED);
    svg.circle((x + 12.0, y - 4.0), 4.0, "#ffffff", SOFT);
}
