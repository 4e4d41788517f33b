// SPDX-License-Identifier: Apache-2.0
//! Marks of series: each has a colour and a shape.

use super::PALETTE;
use super::svg::Svg;

/// Draws the mark of series number `order`.
pub(super) fn draw(svg: &mut Svg, at: (f64, f64), order: usize) {
    filled(svg, at, order, PALETTE[order]);
}

/// The same shape, with another colour inside.
pub(super) fn filled(svg: &mut Svg, at: (f64, f64), order: usize, fill: &str) {
    let stroke = PALETTE[order];
    let corners: &[(f64, f64)] = match order % 4 {
        0 => return svg.circle(at, 4.0, fill, stroke),
        1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
        2 => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
        _ => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
    };
    let points = corners.iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy));
    svg.polygon(&points.collect::<Vec<_>>(), fill, stroke);
}
