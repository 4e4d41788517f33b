// SPDX-License-Identifier: Apache-2.0
//! Grouped bars.

use super::scale::short;
use super::svg::{Anchor, Svg};
use super::{Frame, INK, LEFT, PALETTE, RIGHT, SOFT, Series, TICK, VALUE};

/// Share of a group's width that its bars fill.
const FILLED: f64 = 0.78;
/// Wider bars look like blocks.
const WIDEST: f64 = 56.0;
/// Bars at least this wide carry their value upright, slimmer ones turned.
const UPRIGHT: f64 = 27.0;

/// Draws a group of bars per name, one bar per series.
pub(super) fn draw(svg: &mut Svg, frame: &Frame, names: &[String], series: &[Series]) {
    let group = (RIGHT - LEFT) / names.len() as f64;
    let bar = (group * FILLED / series.len() as f64).min(WIDEST);
    for (index, name) in names.iter().enumerate() {
        let centre = LEFT + group * (index as f64 + 0.5);
        svg.text((centre, frame.bottom + 19.0), Anchor::Middle, TICK, name);
        let left = centre - bar * series.len() as f64 / 2.0;
        for (order, series) in series.iter().enumerate() {
            draw_bar(
                svg,
                frame,
                (left + bar * order as f64, bar),
                series,
                index,
                order,
            );
        }
    }
}

/// Draws the bar of one value: its box, whisker, model mark and number.
/// `span` is its left edge and its width with the gap to the next bar.
fn draw_bar(
    svg: &mut Svg,
    frame: &Frame,
    span: (f64, f64),
    series: &Series,
    index: usize,
    order: usize,
) {
    let Some(value) = series.values[index] else {
        return;
    };
    let (left, width) = (span.0 + span.1 * 0.04, span.1 * 0.92);
    let top = frame.y.at(value);
    let mut highest = top;
    svg.rectangle((left, top), (width, frame.bottom - top), PALETTE[order]);
    if let Some(Some((low, high))) = series.spread.get(index) {
        let x = left + width / 2.0;
        svg.line((x, frame.y.at(*low)), (x, frame.y.at(*high)), INK, 1.2, "");
        highest = highest.min(frame.y.at(*high));
    }
    if let Some(Some(model)) = series.model.get(index) {
        let y = frame.y.at(*model);
        model_mark(svg, (left - 1.0, y), width + 2.0);
        highest = highest.min(y);
    }
    write_value(svg, (left + width / 2.0, highest), width, value);
}

fn write_value(svg: &mut Svg, at: (f64, f64), width: f64, value: f64) {
    if width >= UPRIGHT {
        svg.text((at.0, at.1 - 6.0), Anchor::Middle, VALUE, &short(value));
    } else if width >= VALUE.size {
        svg.rotated_text(
            (at.0 + 4.0, at.1 - 6.0),
            Anchor::Start,
            VALUE,
            -90.0,
            &short(value),
        );
    }
}

/// A level line with a white halo, so that it shows on and off the bar.
pub(super) fn model_mark(svg: &mut Svg, from: (f64, f64), width: f64) {
    let to = (from.0 + width, from.1);
    svg.line(from, to, "#ffffff", 5.0, "");
    svg.line(from, to, INK, 2.2, "");
}

/// The legend's sample of a series.
pub(super) fn key(svg: &mut Svg, x: f64, y: f64, order: usize) {
    svg.rectangle((x + 6.0, y - 11.0), (14.0, 14.0), PALETTE[order]);
    svg.line((x + 6.0, y + 3.0), (x + 20.0, y + 3.0), SOFT, 0.5, "");
}
