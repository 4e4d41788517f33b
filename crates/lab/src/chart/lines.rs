// SPDX-License-Identifier: Apache-2.0
//! Lines with markers, the model's dashed.

use super::scale::{Scale, Spacing, plain, ticks};
use super::svg::{Anchor, Svg};
use super::{
    Chart, FOOT, GRID, HEIGHT, INK, LABEL, LEFT, PALETTE, RIGHT, SOFT, Series, TICK, marker,
};

const DASHED: &str = " stroke-dasharray=\"5 4\"";

/// Numbers that can each have a label.
const POINTS_MAX: usize = 20;

/// The plotting area: the ascending numbers and both axes.
struct Frame<'a> {
    values: &'a [f64],
    x: Scale,
    y: Scale,
}

/// Draws one line per series below `top` and returns where the plotting area ends.
pub(super) fn draw(
    svg: &mut Svg,
    top: f64,
    (values, spacing): (&[f64], Spacing),
    chart: &Chart,
) -> f64 {
    let bottom = HEIGHT - FOOT;
    let (y, y_ticks) = chart.value_axis(bottom, top);
    let x = across(values, spacing);
    // So many numbers are a curve: they have neither labels nor markers of their own.
    let is_curve = values.len() > POINTS_MAX && spacing == Spacing::Linear;
    let mut labels = values.to_vec();
    if is_curve {
        let last = values[values.len() - 1];
        labels = ticks(last, 8);
        labels.retain(|tick| *tick <= last);
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
    let middle = f64::midpoint(top, bottom);
    svg.rotated_text(
        (22.0, middle),
        Anchor::Middle,
        LABEL,
        -90.0,
        &chart.value_label,
    );
    let centre = f64::midpoint(LEFT, RIGHT);
    svg.text(
        (centre, bottom + 42.0),
        Anchor::Middle,
        LABEL,
        &chart.across_label,
    );
    let frame = Frame { values, x, y };
    for (order, series) in chart.series.iter().enumerate() {
        frame.draw(svg, series, order, is_curve);
    }
    bottom
}

impl Frame<'_> {
    fn draw(&self, svg: &mut Svg, series: &Series, order: usize, is_curve: bool) {
        let model = self.place(&series.model);
        if !model.is_empty() {
            svg.polyline(&model, PALETTE[order], 1.5, DASHED);
            let marks = model.iter();
            marks.for_each(|&point| marker::filled(svg, point, order, "#ffffff"));
        }
        for (value, spread) in self.values.iter().zip(&series.spread) {
            let Some((low, high)) = spread else { continue };
            let x = self.x.at(*value);
            let (from, to) = ((x, self.y.at(*low)), (x, self.y.at(*high)));
            svg.line(from, to, PALETTE[order], 1.2, "");
        }
        let measured = self.place(&series.values);
        svg.polyline(&measured, PALETTE[order], 2.2, "");
        let marked = measured.iter().filter(|_| !is_curve);
        marked.for_each(|&point| marker::draw(svg, point, order));
    }

    fn place(&self, of: &[Option<f64>]) -> Vec<(f64, f64)> {
        let pairs = self.values.iter().zip(of);
        let pairs = pairs.filter_map(|(x, y)| Some((self.x.at(*x), self.y.at((*y)?))));
        pairs.collect()
    }
}

/// The x axis with some room at both ends; starts at zero when linear, so
/// that distances mean what they seem to.
fn across(values: &[f64], spacing: Spacing) -> Scale {
    let (first, last) = (values[0], values[values.len() - 1]);
    let (low, high) = match spacing {
        Spacing::Linear => (0.0, last * 1.04),
        Spacing::Logarithmic => {
            let room = (last / first).powf(0.05).max(1.01);
            (first / room, last * room)
        }
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
pub(super) fn key(svg: &mut Svg, x: f64, y: f64, order: usize) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), PALETTE[order], 2.2, "");
    marker::draw(svg, (x + 12.0, y - 4.0), order);
}

/// The legend's sample of the model's lines.
pub(super) fn model_key(svg: &mut Svg, x: f64, y: f64) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), SOFT, 1.5, DASHED);
    svg.circle((x + 12.0, y - 4.0), 4.0, "#ffffff", SOFT);
}
