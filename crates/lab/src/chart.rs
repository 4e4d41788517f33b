// SPDX-License-Identifier: Apache-2.0
//! Charts of measurements as SVG: grouped bars and lines, each value with the
//! model's prediction beside it.
//!
//! The y axis always starts at zero, colours are told apart by colour-blind
//! readers (Okabe and Ito's set) and the same chart gives the same bytes.

mod bars;
mod lines;
mod scale;
mod svg;

pub use scale::Spacing;
use scale::{Scale, plain, ticks};
use svg::{Anchor, Font, Svg, text_width};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = WIDTH - 24.0;
const LEGEND_ROW: f64 = 22.0;

const INK: &str = "#222222";
const SOFT: &str = "#555555";
const GRID: &str = "#e3e3e3";

/// Grey for the reference that comes first, then colours that stay apart for
/// readers with any of the common colour deficiencies.
/// How many series a chart can show.
pub const SERIES_MAX: usize = 8;

const PALETTE: [&str; SERIES_MAX] = [
    "#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#332288",
];

const TITLE: Font = Font {
    size: 18.0,
    bold: true,
    colour: INK,
};
const SUBTITLE: Font = Font {
    size: 13.0,
    bold: false,
    colour: SOFT,
};
const LABEL: Font = Font {
    size: 13.0,
    bold: false,
    colour: INK,
};
const TICK: Font = Font {
    size: 12.0,
    bold: false,
    colour: INK,
};
const VALUE: Font = Font {
    size: 11.0,
    bold: false,
    colour: INK,
};
const NOTE: Font = Font {
    size: 11.0,
    bold: false,
    colour: SOFT,
};

/// What lies along the x axis, and with it the kind of chart.
#[derive(Clone, Debug)]
pub enum Across {
    /// Names: groups of bars, one bar per series.
    Groups(Vec<String>),
    /// Ascending numbers: one line per series.
    Numbers(Vec<f64>, Spacing),
}

/// Values that share a colour and a legend entry: one per group or number,
/// `None` where there is none.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The legend's text.
    pub name: String,
    /// The measured values.
    pub values: Vec<Option<f64>>,
    /// Low and high end of a whisker through the value; may be empty.
    pub spread: Vec<Option<(f64, f64)>>,
    /// What the model says; may be empty.
    pub model: Vec<Option<f64>>,
}

/// A chart: what it shows and how it is labelled.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// Conditions, under the heading.
    pub subtitle: String,
    /// What the x axis shows, with unit.
    pub x_label: String,
    /// What the y axis shows, with unit.
    pub y_label: String,
    /// The x axis.
    pub across: Across,
    /// At most [`SERIES_MAX`], in the order of the legend.
    pub series: Vec<Series>,
    /// The legend's word for the model's marks, for example `model`.
    pub model_name: String,
    /// What whiskers mean and other small print, at the foot.
    pub note: String,
}

impl Chart {
    /// The chart as SVG text.
    ///
    /// Panics when a series does not fit the x axis or there are more series
    /// than colours.
    pub fn svg(&self) -> String {
        self.check();
        let mut svg = Svg::new(WIDTH, HEIGHT);
        svg.text((20.0, 30.0), Anchor::Start, TITLE, &self.title);
        svg.text((20.0, 50.0), Anchor::Start, SUBTITLE, &self.subtitle);
        let top = self.legend(&mut svg, 74.0) + 14.0;
        let frame = Frame::new(top, self.largest() * self.headroom());
        frame.draw(&mut svg, &self.x_label, &self.y_label);
        match &self.across {
            Across::Groups(names) => bars::draw(&mut svg, &frame, names, &self.series),
            Across::Numbers(values, spacing) => {
                lines::draw(&mut svg, &frame, values, *spacing, &self.series)
            }
        }
        svg.text((20.0, HEIGHT - 10.0), Anchor::Start, NOTE, &self.note);
        svg.finish()
    }

    fn check(&self) {
        assert!(
            self.series.len() <= PALETTE.len(),
            "more series than colours"
        );
        let places = match &self.across {
            Across::Groups(names) => names.len(),
            Across::Numbers(values, _) => values.len(),
        };
        for series in &self.series {
            let fits = |length: usize| length == places || length == 0;
            assert!(
                series.values.len() == places
                    && fits(series.spread.len())
                    && fits(series.model.len()),
                "series {:?} does not fit the x axis",
                series.name
            );
        }
    }

    /// What to multiply the largest value with so that its number, too, fits
    /// below the top.
    fn headroom(&self) -> f64 {
        match self.across {
            Across::Groups(_) => 1.1,
            Across::Numbers(..) => 1.03,
        }
    }

    fn largest(&self) -> f64 {
        let of = |series: &Series| {
            let spread = series.spread.iter().flatten().map(|(_, high)| *high);
            let all = series
                .values
                .iter()
                .chain(&series.model)
                .flatten()
                .copied()
                .chain(spread);
            all.fold(0.0, f64::max)
        };
        self.series.iter().map(of).fold(0.0, f64::max)
    }

    /// Draws the legend from `y` on and returns the y of its last row.
    fn legend(&self, svg: &mut Svg, mut y: f64) -> f64 {
        let is_line = matches!(self.across, Across::Numbers(..));
        let has_model = self
            .series
            .iter()
            .any(|series| series.model.iter().any(Option::is_some));
        let model = has_model.then_some((self.model_name.as_str(), None));
        let named = self
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| (series.name.as_str(), Some(index)));
        let mut x = 20.0;
        for (name, index) in named.chain(model) {
            let width = 30.0 + text_width(name, LABEL.size) + 22.0;
            if x + width > RIGHT && x > 20.0 {
                (x, y) = (20.0, y + LEGEND_ROW);
            }
            match (index, is_line) {
                (Some(index), false) => bars::key(svg, x, y, index),
                (None, false) => bars::model_mark(svg, (x + 2.0, y - 4.0), 20.0),
                (Some(index), true) => lines::key(svg, x, y, index),
                (None, true) => lines::model_key(svg, x, y),
            }
            svg.text((x + 30.0, y), Anchor::Start, LABEL, name);
            x += width;
        }
        y
    }
}

/// The plotting area and its y axis.
#[derive(Debug)]
struct Frame {
    top: f64,
    bottom: f64,
    y: Scale,
    ticks: Vec<f64>,
}

impl Frame {
    fn new(top: f64, highest: f64) -> Self {
        let bottom = HEIGHT - 76.0;
        let ticks = ticks(highest, 6);
        let y = Scale {
            low: 0.0,
            high: ticks[ticks.len() - 1],
            start: bottom,
            end: top,
            spacing: Spacing::Linear,
        };
        Self {
            top,
            bottom,
            y,
            ticks,
        }
    }

    fn draw(&self, svg: &mut Svg, x_label: &str, y_label: &str) {
        for &tick in &self.ticks {
            let y = self.y.at(tick);
            let colour = if tick > 0.0 { GRID } else { INK };
            svg.line((LEFT, y), (RIGHT, y), colour, 1.0, "");
            svg.text((LEFT - 8.0, y + 4.0), Anchor::End, TICK, &plain(tick));
        }
        let middle = f64::midpoint(self.top, self.bottom);
        svg.rotated_text((22.0, middle), Anchor::Middle, LABEL, -90.0, y_label);
        let centre = f64::midpoint(LEFT, RIGHT);
        svg.text((centre, self.bottom + 42.0), Anchor::Middle, LABEL, x_label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64], model: &[f64]) -> Series {
        Series {
            name: name.to_string(),
            values: values.iter().copied().map(Some).collect(),
            spread: values
                .iter()
                .map(|value| Some((value * 0.9, value * 1.1)))
                .collect(),
            model: model.iter().copied().map(Some).collect(),
        }
    }

    fn chart(across: Across) -> Chart {
        Chart {
            title: "Time to first byte".to_string(),
            subtitle: "RTT 100 ms".to_string(),
            x_label: "delay, ms".to_string(),
            y_label: "ms".to_string(),
            across,
            series: vec![
                series("direct", &[201.0, 202.0], &[200.0, 200.0]),
                series("early", &[151.0, 152.0], &[]),
            ],
            model_name: "model".to_string(),
            note: "Whiskers: 10th to 90th percentile.".to_string(),
        }
    }

    fn groups() -> Across {
        Across::Groups(vec!["40/10".to_string(), "10/40".to_string()])
    }

    #[test]
    fn bars_and_predictions() {
        let svg = chart(groups()).svg();
        let count = |what: &str| svg.matches(what).count();
        assert_eq!(count("<rect"), 1 + 4 + 2, "background, bars, legend");
        assert_eq!(
            count("stroke=\"#ffffff\" stroke-width=\"5\""),
            2 + 1,
            "halos of model marks and legend"
        );
        assert!(svg.contains(">40/10</text>") && svg.contains(">model</text>"));
    }

    #[test]
    fn lines_and_models() {
        let svg = chart(Across::Numbers(vec![10.0, 500.0], Spacing::Logarithmic)).svg();
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(
            svg.matches("stroke-dasharray").count(),
            1 + 1,
            "the model's line and its key"
        );
    }

    #[test]
    fn chart_is_deterministic() {
        assert_eq!(chart(groups()).svg(), chart(groups()).svg());
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn series_must_fit_axis() {
        chart(Across::Groups(vec!["one".to_string()])).svg();
    }
}
