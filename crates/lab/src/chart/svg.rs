// SPDX-License-Identifier: Apache-2.0
//! A writer of SVG text: shapes in, markup out. Same calls, same bytes.

use std::fmt::Write;

use super::{PALETTE, WIDTH};

/// A position on the page, in pixels from its upper left corner.
pub(super) type At = (f64, f64);

/// Fonts in order of preference; the last always exists.
const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// Where text sits relative to its position: values of the attribute `text-anchor`.
pub(super) const START: &str = "start";
pub(super) const MIDDLE: &str = "middle";
pub(super) const END: &str = "end";

/// How text looks: size, weight, colour.
pub(super) type Font = (f64, &'static str, &'static str);

/// A chart in the making.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// A line through `points`.
    pub(super) fn line(&mut self, points: &[At], stroke: &str, width: f64) {
        self.polyline(points, stroke, width, "");
    }

    /// A dashed line through `points`.
    pub(super) fn dashed(&mut self, points: &[At], stroke: &str) {
        self.polyline(points, stroke, 1.5, " stroke-dasharray=\"5 4\"");
    }

    fn polyline(&mut self, points: &[At], stroke: &str, width: f64, style: &str) {
        self.element(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{style}/>",
            path(points)
        ));
    }

    /// A closed shape with `points` as corners.
    fn polygon(&mut self, points: &[At], fill: &str, stroke: &str) {
        self.element(&format!(
            "<polygon points=\"{}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>",
            path(points)
        ));
    }

    /// A small circle.
    pub(super) fn circle(&mut self, (x, y): At, fill: &str, stroke: &str) {
        let (x, y) = (number(x), number(y));
        self.element(&format!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>"
        ));
    }

    /// The marker of series number `order`: each has a colour and a shape.
    pub(super) fn marker(&mut self, at: At, order: usize) {
        self.filled_marker(at, order, PALETTE[order]);
    }

    /// The same shape, with another colour inside.
    pub(super) fn filled_marker(&mut self, at: At, order: usize, fill: &str) {
        let stroke = PALETTE[order];
        let corners: &[At] = match order % 4 {
            0 => return self.circle(at, fill, stroke),
            1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
            2 => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
            _ => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
        };
        let points = corners.iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy));
        self.polygon(&points.collect::<Vec<_>>(), fill, stroke);
    }

    /// Text on one line, its baseline at `at`.
    pub(super) fn text(&mut self, (x, y): At, anchor: &str, font: Font, text: &str) {
        let (x, y, (size, weight, colour)) = (number(x), number(y), font);
        // The ampersand first, or it would escape the other escapes.
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let text = text.replace('>', "&gt;");
        self.element(&format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             font-weight=\"{weight}\" fill=\"{colour}\">{text}</text>"
        ));
    }

    /// The finished chart, `height` pixels high, on white.
    pub(super) fn finish(self, height: f64) -> String {
        let height = number(height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"{FONTS}\">\n<rect width=\"{WIDTH}\" height=\"{height}\" \
             fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }

    fn element(&mut self, markup: &str) {
        writeln!(self.body, "{markup}").expect("a String takes all text");
    }
}

/// About how wide `text` is in a proportional font.
pub(super) fn text_width(text: &str, (size, ..): Font) -> f64 {
    // An estimate: the viewer chooses the font.
    text.chars().count() as f64 * size * 0.56
}

fn path(points: &[At]) -> String {
    let corner = |(x, y): &At| format!("{},{}", number(*x), number(*y));
    points.iter().map(corner).collect::<Vec<_>>().join(" ")
}

/// `value` with at most two decimals: a hundredth of a pixel is not visible, and longer numbers
/// double the file.
fn number(value: f64) -> f64 {
    // Adding zero removes the sign that rounding leaves of small negative numbers.
    (value * 100.0).round() / 100.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, -0.001, 1.5, 100.0, 2.0 / 3.0].map(|value| number(value).to_string()),
            ["0", "0", "1.5", "100", "0.67"]
        );
    }

    #[test]
    fn text_cannot_break_the_markup() {
        let mut svg = Svg::default();
        svg.text((1.0, 2.0), END, (9.0, "bold", "#000"), "a<b & c");
        let text = svg.finish(20.0);
        assert!(text.contains(">a&lt;b &amp; c</text>"), "{text}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
