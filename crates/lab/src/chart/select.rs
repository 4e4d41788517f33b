// SPDX-License-Identifier: Apache-2.0
//! Selects the samples of a chart. Pure.

use super::{Across, Chart, Curve, Drawing, Point, Series};
use crate::record::Samples;
use crate::stats::Spread;

/// The points of a curve of shares.
const STEPS: u32 = 100;

/// The values that a chart shows. Curves without samples are left out.
pub(super) fn drawing<'a>(chart: &'a Chart, samples: &[Samples]) -> Drawing<'a> {
    let mut rows = Vec::new();
    let selected: Vec<(&Curve, Vec<&Samples>)> = chart
        .curves
        .iter()
        .map(|curve| (curve, of(curve, samples)))
        // A subject that is not installed, or a load that was not requested, has none.
        .filter(|(_, own)| !own.is_empty())
        .collect();
    let largest = selected.iter().flat_map(|(_, own)| own);
    let largest = largest.flat_map(|one| &one.values).copied();
    // Above zero, as the axis would have no length otherwise.
    let largest = largest.fold(0.1, f64::max);
    let mut series = Vec::new();
    for (curve, own) in selected {
        let points = match &chart.across {
            Across::Rows(labels) => medians(&own, |one| Some(row(&mut rows, one, labels) as f64)),
            Across::Label(label) => medians(&own, |one| one.labels.get(label)?.parse().ok()),
            Across::Share(up_to) => shares(&own, up_to.unwrap_or(largest)),
            Across::Map => Vec::new(),
        };
        series.push(Series {
            name: curve.name.clone(),
            points,
        });
    }
    Drawing {
        chart,
        rows,
        series,
    }
}

/// The samples of a curve.
pub(super) fn of<'a>(curve: &Curve, samples: &'a [Samples]) -> Vec<&'a Samples> {
    let own = samples
        .iter()
        .filter(|one| one.are(&curve.quantity, &curve.labels));
    own.collect()
}

/// The index of the row of samples, which is added if it is new.
fn row(rows: &mut Vec<String>, samples: &Samples, labels: &[String]) -> usize {
    let name = samples.values_of(labels).join(", ");
    rows.iter().position(|row| *row == name).unwrap_or_else(|| {
        rows.push(name);
        rows.len() - 1
    })
}

fn medians(own: &[&Samples], mut at: impl FnMut(&Samples) -> Option<f64>) -> Vec<Point> {
    let point = |one: &&Samples| {
        let spread = Spread::of(&one.values)?;
        Some(Point {
            at: at(one)?,
            value: spread.median,
            spread: Some((spread.low, spread.high)),
            model: one.model,
        })
    };
    let mut points: Vec<Point> = own.iter().filter_map(point).collect();
    // A line must not go back and forth when samples are in another order.
    points.sort_by(|a, b| a.at.total_cmp(&b.at));
    points
}

/// The share of the values that are no larger, in percent.
fn shares(own: &[&Samples], up_to: f64) -> Vec<Point> {
    let values: Vec<f64> = own.iter().flat_map(|one| one.values.clone()).collect();
    let point = |step| {
        // In this order the last step is the largest value exactly, and the line reaches 100 %.
        let at = up_to * (f64::from(step) / f64::from(STEPS));
        let within = values.iter().filter(|value| **value <= at).count();
        Point {
            at,
            value: within as f64 / values.len().max(1) as f64 * 100.0,
            spread: None,
            model: None,
        }
    };
    (0..=STEPS).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn points(across: Across, quantity: &str) -> Vec<(f64, f64)> {
        let mut record = Record::start("test", 1);
        record.sample("took", "s", &[("event", "cut")], vec![2.0, 4.0]);
        record.sample("took", "s", &[("event", "none")], vec![9.0]);
        let chart = Chart {
            file: String::new(),
            title: String::new(),
            subtitle: String::new(),
            across_label: String::new(),
            value_label: String::new(),
            across,
            curves: vec![
                Curve::new("cut", quantity, &[("event", "cut")]),
                Curve::new("absent", quantity, &[("event", "absent")]),
            ],
            note: String::new(),
        };
        let drawing = drawing(&chart, &record.samples);
        assert_eq!(drawing.series.len(), 1);
        let points = drawing.series[0].points.iter();
        points.map(|point| (point.at, point.value)).collect()
    }

    #[test]
    fn shares_end_at_all() {
        let all = points(Across::Share(None), "took");
        assert_eq!(
            (all[0], all[50], all[100]),
            ((0.0, 0.0), (2.0, 50.0), (4.0, 100.0))
        );
        assert_eq!(points(Across::Share(Some(3.0)), "took")[100], (3.0, 50.0));
    }
}
