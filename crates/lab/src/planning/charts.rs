// SPDX-License-Identifier: Apache-2.0
//! The charts of `planning`.

use super::quality::{Other, Quality};
use super::runtime::Times;
use crate::chart::{Across, Chart, Series, Spacing};
use crate::stats::median;

/// The chart's points: how much longer a transfer takes, in percent.
const EXCESSES: [f64; 9] = [0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0];

/// A pair counts as equal up to this difference in percent, which the costs of needless nodes
/// cause.
pub(super) const SAME_PERCENT: f64 = 0.1;

/// The paper's figure: the share of pairs by how much longer their transfers take at most.
pub(super) fn distribution(
    rounds: u64,
    kilobytes: &str,
    graphs: usize,
    quality: &Quality,
) -> Chart {
    let series = |other: Other| {
        let excess = &quality.excess[&other];
        let share = |most: &f64| {
            let within = excess
                .iter()
                .filter(|excess| **excess <= most + SAME_PERCENT);
            Some(within.count() as f64 / excess.len() as f64 * 100.0)
        };
        Series {
            name: other.name().to_owned(),
            values: EXCESSES.iter().map(share).collect(),
            ..Series::default()
        }
    };
    Chart {
        title: format!(
            "What other ways to choose cost: {kilobytes}, {rounds} round{}",
            plural(rounds)
        ),
        subtitle: format!(
            "{graphs} graphs, all ordered pairs of nodes, by the model of MOSTO's section III-B"
        ),
        across_label: "longer than over the best chain, %".to_owned(),
        value_label: "pairs with no more than that, %".to_owned(),
        across: Across::Numbers(EXCESSES.to_vec(), Spacing::Linear),
        series: Other::ALL.into_iter().map(series).collect(),
        model_name: String::new(),
        note: format!("Computed; no packet was sent. Within {SAME_PERCENT} % counts as 0."),
    }
}

fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Planning time by the number of nodes.
pub(super) fn times(all: &[Times]) -> Chart {
    let kind =
        |name: &str| -> Vec<&Times> { all.iter().filter(|times| times.matrix == name).collect() };
    let (circles, detours) = (kind("great circles"), kind("detours"));
    let series = |name: &str, of: &[&Times], values: fn(&Times) -> &Vec<f64>| Series {
        name: name.to_owned(),
        values: of
            .iter()
            .map(|times| median(values(times)).map(|ms| ms / 1e3))
            .collect(),
        ..Series::default()
    };
    Chart {
        title: "Time to plan".to_owned(),
        subtitle: "synthetic matrices, one thread".to_owned(),
        across_label: "nodes".to_owned(),
        value_label: "processor time, s".to_owned(),
        across: Across::Numbers(circles.iter().map(|times| times.nodes as f64).collect(), Spacing::Logarithmic),
        series: vec![
            series("sweep, great circles", &circles, |times| &times.sweep_ms),
            series("sweep, detours", &detours, |times| &times.sweep_ms),
            series("all chains, great circles", &circles, |times| &times.chains_ms),
            series("all chains, detours", &detours, |times| &times.chains_ms),
        ],
        model_name: String::new(),
        note: "Great circles: no link is worse than a way around it. Detours: most links are. Medians.".to_owned(),
    }
}
