// SPDX-License-Identifier: Apache-2.0
//! Lines with markers, the model's dashed.

use super::scale::{Scale, Spacing, plain, ticks};
use super::svg::{Anchor, Svg};
use super::{Frame, GRID, LEFT, PALETTE, RIGHT, SOFT, Series, TICK};

const DASHED: &str = " stroke-dasharray=\"5 4\"";

/// Numbers that can each have a label.
const POINTS_MAX: usize = 20;

/// Draws one line per series over the ascending `values`.
pub(super) fn draw(
    svg: &mut Svg,
    frame: &Frame,
    values: &[f64],
    spacing: Spacing,
    series: &[Series],
) {
    let scale = across(values, spacing);
    // So many numbers are a curve: they have neither labels nor markers of their own.
    let is_curve = values.len() > POINTS_MAX && spacing == Spacing::Linear;
    let labels = if is_curve {
        let last = values[values.len() - 1];
        ticks(last, 8)
            .into_iter()
            .filter(|tick| *tick <= last)
            .collect()
    } else {
        values.to_vec()
    };
    for value in labels {
        let x = scale.at(value);
        svg.line((x, frame.top), (x, frame.bottom), GRID, 1.0, "");
        svg.text(
            (x, frame.bottom + 19.0),
            Anchor::Middle,
            TICK,
            &plain(value),
        );
    }
    for (order, series) in series.iter().enumerate() {
        let points = |of: &[Option<f64>]| place(frame, &scale, values, of);
        let model = points(&series.model);
        if !model.is_empty() {
            svg.polyline(&model, PALETTE[order], 1.5, DASHED);
            model
                .iter()
                .for_each(|&point| marker(svg, point, order, "#ffffff"));
        }
        draw_spread(svg, frame, &scale, values, series, order);
        let measured = points(&series.values);
        svg.polyline(&measured, PALETTE[order], 2.2, "");
        let marked = measured.iter().filter(|_| !is_curve);
        marked.for_each(|&point| marker(svg, point, order, PALETTE[order]));
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

fn place(frame: &Frame, scale: &Scale, values: &[f64], of: &[Option<f64>]) -> Vec<(f64, f64)> {
    let pairs = values.iter().zip(of);
    pairs
        .filter_map(|(x, y)| Some((scale.at(*x), frame.y.at((*y)?))))
        .collect()
}

fn draw_spread(
    svg: &mut Svg,
    frame: &Frame,
    scale: &Scale,
    values: &[f64],
    series: &Series,
    order: usize,
) {
    for (value, spread) in values.iter().zip(&series.spread) {
        let Some((low, high)) = spread else { continue };
        let x = scale.at(*value);
        svg.line(
            (x, frame.y.at(*low)),
            (x, frame.y.at(*high)),
            PALETTE[order],
            1.2,
            "",
        );
    }
}

/// A marker whose shape, too, tells the series.
fn marker(svg: &mut Svg, at: (f64, f64), order: usize, fill: &str) {
    let stroke = PALETTE[order];
    let (x, y) = at;
    let around = |corners: &[(f64, f64)]| {
        corners
            .iter()
            .map(|(dx, dy)| (x + dx, y + dy))
            .collect::<Vec<_>>()
    };
    match order % 4 {
        0 => svg.circle(at, 4.0, fill, stroke),
        1 => svg.polygon(
            &around(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
            fill,
            stroke,
        ),
        2 => svg.polygon(
            &around(&[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)]),
            fill,
            stroke,
        ),
        _ => svg.polygon(
            &around(&[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)]),
            fill,
            stroke,
        ),
    }
}

/// The legend's sample of a series.
pub(super) fn key(svg: &mut Svg, x: f64, y: f64, order: usize) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), PALETTE[order], 2.2, "");
    marker(svg, (x + 12.0, y - 4.0), order, PALETTE[order]);
}

/// The legend's sample of the model's lines.
pub(super) fn model_key(svg: &mut Svg, x: f64, y: f64) {
    svg.line((x, y - 4.0), (x + 24.0, y - 4.0), SOFT, 1.5, DASHED);
    svg.circle((x + 12.0, y - 4.0), 4.0, "#ffffff", SOFT);
}
