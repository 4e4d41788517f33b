// SPDX-License-Identifier: Apache-2.0
//! A writer of SVG text: shapes in, markup out. Same calls, same bytes.

use std::fmt::Write;

/// Fonts in order of preference; the last always exists.
const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// Where text sits relative to its position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// How text looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Font {
    pub(crate) size: f64,
    bold: bool,
    colour: &'static str,
}

impl Font {
    pub(crate) const fn new(size: f64, bold: bool, colour: &'static str) -> Self {
        Self { size, bold, colour }
    }
}

/// A chart in the making.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    body: String,
}

impl Svg {
    /// An empty chart, `width` pixels wide.
    pub(crate) fn new(width: f64) -> Self {
        Self {
            width,
            body: String::new(),
        }
    }

    /// A straight line. `style` holds more attributes.
    pub(crate) fn line(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        stroke: &str,
        width: f64,
        style: &str,
    ) {
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        let width = number(width);
        self.element(&format!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{stroke}\" stroke-width=\"{width}\"{style}/>"
        ));
    }

    /// An open line through `points`.
    pub(crate) fn polyline(
        &mut self,
        points: &[(f64, f64)],
        stroke: &str,
        width: f64,
        style: &str,
    ) {
        let list = path(points);
        let width = number(width);
        self.element(&format!(
            "<polyline points=\"{list}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{style}/>"
        ));
    }

    /// A closed shape with `points` as corners.
    pub(crate) fn polygon(&mut self, points: &[(f64, f64)], fill: &str, stroke: &str) {
        let list = path(points);
        self.element(&format!(
            "<polygon points=\"{list}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>"
        ));
    }

    /// A circle around `centre`.
    pub(crate) fn circle(&mut self, centre: (f64, f64), radius: f64, fill: &str, stroke: &str) {
        let (x, y, radius) = (number(centre.0), number(centre.1), number(radius));
        self.element(&format!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>"
        ));
    }

    /// Text on one line, its baseline at `at`.
    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, font: Font, text: &str) {
        self.rotated_text(at, anchor, font, 0.0, text);
    }

    /// Text turned by `degrees` around `at`.
    pub(crate) fn rotated_text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        font: Font,
        degrees: f64,
        text: &str,
    ) {
        let (x, y) = (number(at.0), number(at.1));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if font.bold {
            " font-weight=\"bold\""
        } else {
            ""
        };
        let turn = match degrees {
            0.0 => String::new(),
            _ => format!(" transform=\"rotate({} {x} {y})\"", number(degrees)),
        };
        self.element(&format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"{}\" fill=\"{}\"{weight}{turn}>{}</text>",
            number(font.size),
            font.colour,
            escaped(text)
        ));
    }

    /// The finished chart, `height` pixels high, on white.
    pub(crate) fn finish(self, height: f64) -> String {
        let (width, height) = (number(self.width), number(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"{FONTS}\">\n<rect width=\"{width}\" height=\"{height}\" \
             fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }

    fn element(&mut self, markup: &str) {
        self.body.push_str(markup);
        self.body.push('\n');
    }
}

/// About how wide `text` is in a proportional font of `size`.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    // An estimate: the viewer chooses the font.
    text.chars().count() as f64 * size * 0.56
}

fn path(points: &[(f64, f64)]) -> String {
    let mut list = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let space = if index == 0 { "" } else { " " };
        write!(list, "{space}{},{}", number(*x), number(*y)).expect("a String takes all text");
    }
    list
}

/// `value` with at most two decimals: short, and the same on every machine.
fn number(value: f64) -> String {
    // A hundredth of a pixel is not visible, and longer numbers double the file.
    let text = format!("{value:.2}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        // Rounding leaves a sign of small negative numbers.
        "-0" | "" => "0".to_string(),
        trimmed => trimmed.to_string(),
    }
}

fn escaped(text: &str) -> String {
    // The ampersand first, or it would escape the other escapes.
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, -0.001, 1.5, 100.0, 2.0 / 3.0].map(number),
            ["0", "0", "1.5", "100", "0.67"]
        );
    }

    #[test]
    fn text_cannot_break_the_markup() {
        let mut svg = Svg::new(10.0);
        svg.text(
            (1.0, 2.0),
            Anchor::End,
            Font {
                size: 9.0,
                bold: true,
                colour: "#000",
            },
            "a<b & c",
        );
        let text = svg.finish(20.0);
        assert!(text.contains(">a&lt;b &amp; c</text>"), "{text}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
