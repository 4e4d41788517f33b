// SPDX-License-Identifier: Apache-2.0
//! Charts of records as SVG: dots on named rows (Cleveland's dot plot), lines and maps, each value with
//! the model's prediction beside it. A [`Chart`] is part of its record and selects samples of it, so
//! that it can be drawn again.
//!
//! The axis of values starts at zero, or is logarithmic where the smallest value would lie on zero;
//! percentages end at 100. Series differ in colour, for colour-blind readers (Okabe and Ito's set),
//! and in shape. Deterministic: the same chart gives the same bytes.

mod dots;
mod lines;
pub(crate) mod map;
mod scale;
mod select;
mod svg;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::{self, Record, Samples};
use scale::{Scale, decades, ticks};
use svg::{Font, START, Svg, text_width};

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
const GRID: &str = "#e3e3e3";

/// How many series a chart can show.
pub const SERIES_MAX: usize = 10;

/// Grey for the reference, which is first, then colours that readers with any of the common colour
/// deficiencies can distinguish.
const PALETTE: [&str; SERIES_MAX] = [
    "#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#332288",
    "#b8a800", "#222222",
];

const TITLE: Font = (18.0, "bold", INK);
const SUBTITLE: Font = (13.0, "normal", SOFT);
const LABEL: Font = (13.0, "normal", INK);
const TICK: Font = (12.0, "normal", INK);
const NOTE: Font = (11.0, "normal", SOFT);

/// The other axis of a chart, which determines its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// A row for each combination of these labels, with a dot per curve: medians.
    Rows(Vec<String>),
    /// The number in this label, logarithmic, with a line per curve: medians.
    Label(String),
    /// The values themselves, up to this one or the largest, with a line per curve: the share of
    /// the samples that are no larger, in percent.
    Share(Option<f64>),
    /// A map of the record's parameter `places`, with the label `way` of a curve's samples.
    Map,
}

/// Samples that share a colour and a legend entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// The legend's text.
    pub name: String,
    /// Their quantity.
    pub quantity: String,
    /// The labels that all of them have.
    pub labels: BTreeMap<String, String>,
}

impl Curve {
    pub(crate) fn new(name: impl Into<String>, quantity: &str, labels: &[(&str, &str)]) -> Self {
        Self {
            name: name.into(),
            quantity: quantity.to_owned(),
            labels: record::labels(labels),
        }
    }
}

/// Room beyond the largest value.
const HEADROOM: f64 = 1.03;

/// From this ratio of the largest value to the smallest the axis is logarithmic.
const DECADES_MIN: f64 = 30.0;

/// Which samples of a record a chart shows, and its texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The end of the file's name, without extension; empty for the record's only chart.
    pub file: String,
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
    /// At most [`SERIES_MAX`] with samples, in the order of the legend.
    pub curves: Vec<Curve>,
    /// Small print, at the foot.
    pub note: String,
}

/// The drawn values of a curve.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<Point>,
}

/// A drawn value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// The number of its row, or its place on the other axis.
    at: f64,
    value: f64,
    /// The ends of a whisker through the value.
    spread: Option<(f64, f64)>,
    /// The model's prediction.
    model: Option<f64>,
}

/// A chart with the values to draw.
struct Drawing<'a> {
    chart: &'a Chart,
    /// The names of the rows; none of numbers.
    rows: Vec<String>,
    series: Vec<Series>,
}

impl Chart {
    /// The extension of the file of its picture.
    pub(crate) fn extension(&self) -> String {
        format!("{}.svg", self.file)
            .trim_start_matches('.')
            .to_owned()
    }

    /// Whether one of its curves has samples.
    pub(crate) fn has_samples(&self, samples: &[Samples]) -> bool {
        let has_some = |curve| !select::of(curve, samples).is_empty();
        self.curves.iter().any(has_some)
    }

    /// The chart of a record as SVG text.
    ///
    /// Panics when there are more curves than colours.
    pub fn svg(&self, record: &Record) -> String {
        let mut svg = Svg::default();
        svg.text((20.0, 30.0), START, TITLE, &self.title);
        svg.text((20.0, 50.0), START, SUBTITLE, &self.subtitle);
        let bottom = if self.across == Across::Map {
            map::draw(&mut svg, self, record)
        } else {
            select::drawing(self, &record.samples).draw(&mut svg)
        };
        let foot = (20.0, bottom + FOOT - 10.0);
        svg.text(foot, START, NOTE, &self.small_print());
        svg.finish(bottom + FOOT)
    }

    fn small_print(&self) -> String {
        match self.across {
            Across::Rows(_) | Across::Label(_) => {
                format!("Medians; whiskers: quartiles. {}", self.note)
            }
            // Curves of all values and maps show no medians.
            _ => self.note.clone(),
        }
    }
}

impl Drawing<'_> {
    /// Draws the legend and the values, and returns where the plotting area ends.
    fn draw(&self, svg: &mut Svg) -> f64 {
        assert!(self.series.len() <= SERIES_MAX, "more series than colours");
        let top = self.legend(svg, 74.0) + 28.0;
        match &self.chart.across {
            Across::Rows(_) => dots::draw(svg, top, self),
            _ => lines::draw(svg, top, self),
        }
    }

    /// The axis of values, from `start` to `end` on the page, and its ticks.
    fn value_axis(&self, start: f64, end: f64) -> (Scale, Vec<f64>) {
        let (smallest, largest) = self.range();
        // Shares of different charts are compared by eye, which needs the same axis.
        let is_share = self.chart.value_label.ends_with('%') && largest <= 100.0;
        let most = if is_share { 100.0 } else { largest * HEADROOM };
        // Negative values and zero have no logarithm.
        if smallest > 0.0 && largest / smallest >= DECADES_MIN {
            let ticks = decades(smallest, most);
            let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
            return (Scale::logarithmic(low, high, start, end), ticks);
        }
        let ticks = ticks(most, 6);
        (Scale::linear(ticks[ticks.len() - 1], start, end), ticks)
    }

    /// The smallest and the largest drawn value.
    fn range(&self) -> (f64, f64) {
        let of = |point: &Point| {
            let (low, high) = point.spread.unwrap_or((point.value, point.value));
            [point.value, low, high, point.model.unwrap_or(point.value)]
        };
        let all = self.series.iter().flat_map(|series| &series.points);
        all.flat_map(of)
            .fold((f64::INFINITY, 0.0), |(low, high), value| {
                (low.min(value), value.max(high))
            })
    }

    /// Draws the legend from `y` on and returns the y of its last row.
    fn legend(&self, svg: &mut Svg, mut y: f64) -> f64 {
        let is_line = !matches!(self.chart.across, Across::Rows(_));
        let mut points = self.series.iter().flat_map(|series| &series.points);
        let has_model = points.any(|point| point.model.is_some());
        let model = has_model.then_some(("model", None));
        let named = self
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| (series.name.as_str(), Some(index)));
        let mut x = 20.0;
        for (name, index) in named.chain(model) {
            let width = 30.0 + text_width(name, LABEL) + 22.0;
            // The first entry of a row stays there even if it is too wide.
            if x + width > RIGHT && x > 20.0 {
                (x, y) = (20.0, y + LEGEND_ROW);
            }
            let middle = y - 4.0;
            match (index, is_line) {
                (Some(index), false) => svg.marker((x + 12.0, middle), index),
                (None, false) => dots::model_mark(svg, (x + 12.0, middle)),
                (Some(index), true) => lines::key(svg, x, middle, index, self.has_markers()),
                (None, true) => lines::model_key(svg, x, middle),
            }
            svg.text((x + 30.0, y), START, LABEL, name);
            x += width;
        }
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of two subjects for two delays, 5 % around the numbers; the first has a model.
    fn record(values: [[f64; 2]; 2]) -> Record {
        let mut record = Record::start("test", 1);
        for (subject, values) in ["direct", "early"].into_iter().zip(values) {
            for (delay, value) in ["10", "500"].into_iter().zip(values) {
                let labels = [("subject", subject), ("delay", delay)];
                let values = vec![value * 0.95, value, value * 1.05];
                record.sample("time", "ms", &labels, values);
                record.model((subject == "direct").then_some(200.0));
            }
        }
        record
    }

    fn usual() -> Record {
        record([[201.0, 202.0], [151.0, 152.0]])
    }

    fn chart(across: Across) -> Chart {
        let curve = |name: &str| Curve::new(name, "time", &[("subject", name)]);
        Chart {
            file: String::new(),
            title: "Time to first byte".to_string(),
            subtitle: "RTT 100 ms".to_string(),
            across_label: "delay, ms".to_string(),
            value_label: "ms".to_string(),
            across,
            curves: ["direct", "early"].map(curve).to_vec(),
            note: "Two delays.".to_string(),
        }
    }

    fn rows() -> Across {
        Across::Rows(vec!["delay".to_string()])
    }

    #[test]
    fn dots_and_predictions() {
        let svg = chart(rows()).svg(&usual());
        let count = |what: &str| svg.matches(what).count();
        assert_eq!(count("<circle"), 2 + 1, "values and legend of the first");
        assert_eq!(
            count("stroke=\"#ffffff\""),
            2 + 1,
            "halos of model marks and legend"
        );
        assert!(svg.contains(">500</text>") && svg.contains(">model</text>"));
        assert!(svg.contains("whiskers: quartiles. Two delays."));
    }

    #[test]
    fn value_axis_fits_values() {
        let axis = |label: &str, values| {
            let mut chart = chart(rows());
            chart.value_label = label.to_string();
            let record = record(values);
            let (scale, ticks) = select::drawing(&chart, &record.samples).value_axis(0.0, 100.0);
            (scale.is_logarithmic, ticks)
        };
        let (is_logarithmic, ticks) = axis("ms", [[201.0, 202.0], [2.0, 152.0]]);
        assert!(is_logarithmic);
        assert_eq!(ticks, [1.0, 10.0, 100.0, 1000.0]);
        let (is_logarithmic, ticks) = axis("share, %", [[201.0, 202.0], [150.0, 152.0]]);
        assert_eq!((is_logarithmic, ticks.last()), (false, Some(&250.0)));
        let mut shares = usual();
        shares.samples.iter_mut().for_each(|one| one.model = None);
        shares
            .samples
            .iter_mut()
            .for_each(|one| one.values = vec![50.0, 90.0]);
        let mut chart = chart(rows());
        chart.value_label = "share, %".to_string();
        let (_, ticks) = select::drawing(&chart, &shares.samples).value_axis(0.0, 100.0);
        assert_eq!(ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn lines_and_models() {
        let svg = chart(Across::Label("delay".to_string())).svg(&usual());
        assert_eq!(
            svg.matches("stroke-dasharray").count(),
            1 + 1,
            "the model's line and its key"
        );
    }

    #[test]
    fn chart_is_deterministic() {
        let draw = || chart(rows()).svg(&usual());
        assert_eq!(draw(), draw());
    }

    #[test]
    #[should_panic(expected = "more series than colours")]
    fn colours_must_suffice() {
        let mut many = chart(rows());
        many.curves = vec![many.curves[0].clone(); SERIES_MAX + 1];
        many.svg(&usual());
    }
}
