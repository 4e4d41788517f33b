// SPDX-License-Identifier: Apache-2.0
//! Charts of measurements as SVG: dots on named rows (Cleveland's dot plot) and lines, each value
//! with the model's prediction beside it.
//!
//! The axis of values starts at zero, or is logarithmic where the smallest value would lie on zero;
//! percentages end at 100. Series differ in colour, for colour-blind readers (Okabe and Ito's set),
//! and in shape. Deterministic: the same chart gives the same bytes.

mod dots;
mod lines;
mod marker;
mod scale;
pub(crate) mod svg;

pub use scale::Spacing;
use scale::{Scale, decades, ticks};
use svg::{Anchor, Font, Svg, text_width};

const WIDTH: f64 = 800.0;
/// Height of a chart with lines; one with rows is as high as they need.
const HEIGHT: f64 = 480.0;
/// Below the plotting area: labels of the axis and the note.
const FOOT: f64 = 76.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = WIDTH - 24.0;
const LEGEND_ROW: f64 = 22.0;

const INK: &str = "#222222";
const SOFT: &str = "#555555";
pub(crate) const GRID: &str = "#e3e3e3";

/// How many series a chart can show.
pub const SERIES_MAX: usize = 10;

/// Grey for the reference, which is first, then colours that readers with any of the common colour
/// deficiencies can distinguish.
pub(crate) const PALETTE: [&str; SERIES_MAX] = [
    "#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#332288",
    "#b8a800", "#222222",
];

pub(crate) const TITLE: Font = Font::new(18.0, true, INK);
pub(crate) const SUBTITLE: Font = Font::new(13.0, false, SOFT);
pub(crate) const LABEL: Font = Font::new(13.0, false, INK);
pub(crate) const TICK: Font = Font::new(12.0, false, INK);
pub(crate) const NOTE: Font = Font::new(11.0, false, SOFT);

/// The categories of the values, which determine the kind of chart.
#[derive(Clone, Debug)]
pub enum Across {
    /// Names: a row for each, with a dot per series.
    Rows(Vec<String>),
    /// Ascending numbers along the x axis: one line per series.
    Numbers(Vec<f64>, Spacing),
}

/// Values that share a colour and a legend entry: one per row or number,
/// `None` where there is none.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The legend's text.
    pub name: String,
    /// The measured values.
    pub values: Vec<Option<f64>>,
    /// Low and high end of a whisker through the value; may be empty.
    pub spread: Vec<Option<(f64, f64)>>,
    /// The model's predictions; may be empty.
    pub model: Vec<Option<f64>>,
}

/// Room beyond the largest value.
const HEADROOM: f64 = 1.03;

/// From this ratio of the largest value to the smallest the axis is logarithmic.
const DECADES_MIN: f64 = 60.0;

/// The content and the labels of a chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// Conditions, under the heading.
    pub subtitle: String,
    /// The meaning of the rows or numbers, with unit.
    pub across_label: String,
    /// The meaning of the values, with unit.
    pub value_label: String,
    /// The rows or numbers.
    pub across: Across,
    /// At most [`SERIES_MAX`], in the order of the legend.
    pub series: Vec<Series>,
    /// The legend's name of the model's marks, for example `model`.
    pub model_name: String,
    /// The meaning of whiskers and other small print, at the foot.
    pub note: String,
}

impl Chart {
    /// The chart as SVG text.
    ///
    /// Panics when a series does not fit the rows or numbers, or there are more series
    /// than colours.
    pub fn svg(&self) -> String {
        self.check();
        let mut svg = Svg::new(WIDTH);
        svg.text((20.0, 30.0), Anchor::Start, TITLE, &self.title);
        svg.text((20.0, 50.0), Anchor::Start, SUBTITLE, &self.subtitle);
        let top = self.legend(&mut svg, 74.0) + 14.0;
        let bottom = match &self.across {
            Across::Rows(names) => dots::draw(&mut svg, top, names, self),
            Across::Numbers(values, spacing) => {
                lines::draw(&mut svg, top, (values, *spacing), self)
            }
        };
        svg.text(
            (20.0, bottom + FOOT - 10.0),
            Anchor::Start,
            NOTE,
            &self.note,
        );
        svg.finish(bottom + FOOT)
    }

    /// The axis of values, from `start` to `end` on the page, and its ticks.
    fn value_axis(&self, start: f64, end: f64) -> (Scale, Vec<f64>) {
        let (smallest, largest) = self.range();
        // Shares of different charts are compared by eye, which needs the same axis.
        let is_share = self.value_label.ends_with('%') && largest <= 100.0;
        let most = if is_share { 100.0 } else { largest * HEADROOM };
        let (ticks, spacing) = if smallest > 0.0 && largest / smallest >= DECADES_MIN {
            (decades(smallest, most), Spacing::Logarithmic)
        } else {
            (ticks(most, 6), Spacing::Linear)
        };
        let scale = Scale {
            low: ticks[0],
            high: ticks[ticks.len() - 1],
            start,
            end,
            spacing,
        };
        (scale, ticks)
    }

    fn check(&self) {
        assert!(
            self.series.len() <= PALETTE.len(),
            "more series than colours"
        );
        let places = match &self.across {
            Across::Rows(names) => names.len(),
            Across::Numbers(values, _) => values.len(),
        };
        for series in &self.series {
            let fits = |length: usize| length == places || length == 0;
            assert!(
                series.values.len() == places
                    && fits(series.spread.len())
                    && fits(series.model.len()),
                "series {:?} does not fit the rows or numbers",
                series.name
            );
        }
    }

    /// The smallest and the largest drawn value.
    fn range(&self) -> (f64, f64) {
        let of = |series: &Series| {
            let spread = series.spread.iter().flatten();
            let spread: Vec<f64> = spread.flat_map(|(low, high)| [*low, *high]).collect();
            let values = series.values.iter().chain(&series.model).flatten().copied();
            values.chain(spread).collect::<Vec<_>>()
        };
        let all = self.series.iter().flat_map(of);
        all.fold((f64::INFINITY, 0.0), |(low, high), value| {
            (low.min(value), value.max(high))
        })
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
                (Some(index), false) => marker::draw(svg, (x + 12.0, y - 4.0), index),
                (None, false) => dots::model_mark(svg, (x + 12.0, y - 4.0)),
                (Some(index), true) => lines::key(svg, x, y, index),
                (None, true) => lines::model_key(svg, x, y),
            }
            svg.text((x + 30.0, y), Anchor::Start, LABEL, name);
            x += width;
        }
        y
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
            across_label: "delay, ms".to_string(),
            value_label: "ms".to_string(),
            across,
            series: vec![
                series("direct", &[201.0, 202.0], &[200.0, 200.0]),
                series("early", &[151.0, 152.0], &[]),
            ],
            model_name: "model".to_string(),
            note: "Whiskers: 10th to 90th percentile.".to_string(),
        }
    }

    fn rows() -> Across {
        Across::Rows(vec!["40/10".to_string(), "10/40".to_string()])
    }

    #[test]
    fn dots_and_predictions() {
        let svg = chart(rows()).svg();
        let count = |what: &str| svg.matches(what).count();
        assert_eq!(count("<circle"), 2 + 1, "values and legend of the first");
        assert_eq!(
            count("stroke=\"#ffffff\""),
            2 + 1,
            "halos of model marks and legend"
        );
        assert!(svg.contains(">40/10</text>") && svg.contains(">model</text>"));
    }

    #[test]
    fn value_axis_fits_values() {
        let mut wide = chart(rows());
        wide.series[1].values[0] = Some(2.0);
        let (scale, ticks) = wide.value_axis(0.0, 100.0);
        assert_eq!(scale.spacing, Spacing::Logarithmic);
        assert_eq!(ticks, [1.0, 10.0, 100.0, 1000.0]);
        let mut shares = chart(rows());
        shares.value_label = "share, %".to_string();
        shares.series = vec![series("all", &[50.0, 90.0], &[])];
        let (_, ticks) = shares.value_axis(0.0, 100.0);
        assert_eq!(ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
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
        assert_eq!(chart(rows()).svg(), chart(rows()).svg());
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn series_must_fit_axis() {
        chart(Across::Rows(vec!["one".to_string()])).svg();
    }
}
