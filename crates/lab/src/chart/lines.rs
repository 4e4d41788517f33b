// SPDX-License-Identifier: Apache-2.0
//! Lines with markers, the model's dashed.

use super::scale::{Scale, plain, ticks};
use super::svg::{END, MIDDLE, START, Svg};
use super::{
    Across, Drawing, FOOT, GRID, HEIGHT, INK, LABEL, LEFT, PALETTE, Point, RIGHT, SOFT, Series,
    TICK,
};

/// Room beyond the last number of a linear axis.
const ROOM: f64 = 1.04;

/// Draws one line per series below `top` and returns where the plotting area ends.
pub(super) fn draw(svg: &mut Svg, top: f64, drawing: &Drawing<'_>) -> f64 {
    let bottom = HEIGHT - FOOT;
    let (y, y_ticks) = drawing.value_axis(bottom, top);
    let (x, x_ticks) = drawing.across_axis();
    for tick in y_ticks {
        let y = y.at(tick);
        svg.line(&[(LEFT, y), (RIGHT, y)], GRID, 1.0);
        svg.text((LEFT - 8.0, y + 4.0), END, TICK, &plain(tick));
    }
    x.draw_across(svg, &x_ticks, top, bottom);
    svg.line(&[(LEFT, bottom), (RIGHT, bottom)], INK, 1.0);
    svg.text((20.0, top - 8.0), START, LABEL, &drawing.chart.value_label);
    let under = (f64::midpoint(LEFT, RIGHT), bottom + 42.0);
    svg.text(under, MIDDLE, LABEL, &drawing.chart.across_label);
    for (order, series) in drawing.series.iter().enumerate() {
        draw_series(svg, (&x, &y), series, order, drawing.has_markers());
    }
    bottom
}

impl Drawing<'_> {
    /// Whether each point has a marker, and its number a label: so many that they are a curve have
    /// neither.
    pub(super) fn has_markers(&self) -> bool {
        matches!(self.chart.across, Across::Label(_))
    }

    /// The other axis, and its ticks, with some room at both ends. It starts at zero when linear, so
    /// that distances mean what they seem to.
    fn across_axis(&self) -> (Scale, Vec<f64>) {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut places: Vec<f64> = points.map(|point| point.at).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let (first, last) = (places[0], places[places.len() - 1]);
        if self.has_markers() {
            let room = (last / first).powf(0.05).max(1.01);
            let scale = Scale::logarithmic(first / room, last * room, LEFT, RIGHT);
            return (scale, places);
        }
        let mut labels = ticks(last, 8);
        labels.retain(|tick| *tick <= last * ROOM);
        (Scale::linear(last * ROOM, LEFT, RIGHT), labels)
    }
}

fn draw_series(
    svg: &mut Svg,
    (x, y): (&Scale, &Scale),
    series: &Series,
    order: usize,
    has_markers: bool,
) {
    let (points, colour) = (&series.points, PALETTE[order]);
    let at = |point: &Point, value: f64| (x.at(point.at), y.at(value));
    let models = points.iter();
    let models = models.filter_map(|point| Some(at(point, point.model?)));
    let models: Vec<_> = models.collect();
    if !models.is_empty() {
        // Below the measurements, which matter more.
        svg.dashed(&models, colour);
        for &place in &models {
            svg.filled_marker(place, order, "#ffffff");
        }
    }
    for point in points {
        if let Some((low, high)) = point.spread {
            svg.line(&[at(point, low), at(point, high)], colour, 1.2);
        }
    }
    let measured = points.iter().map(|point| at(point, point.value));
    let measured: Vec<_> = measured.collect();
    svg.line(&measured, colour, 2.2);
    let marked = measured.iter().filter(|_| has_markers);
    marked.for_each(|&place| svg.marker(place, order));
}

/// The legend's sample of a series.
pub(super) fn key(svg: &mut Svg, x: f64, y: f64, order: usize, has_markers: bool) {
    svg.line(&[(x, y), (x + 24.0, y)], PALETTE[order], 2.2);
    if has_markers {
        svg.marker((x + 12.0, y), order);
    }
}

/// The legend's sample of the model's lines.
pub(super) fn model_key(svg: &mut Svg, x: f64, y: f64) {
    svg.dashed(&[(x, y), (x + 24.0, y)], SOFT);
    svg.circle((x + 12.0, y), "#ffffff", SOFT);
}
