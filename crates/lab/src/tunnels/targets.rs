// SPDX-License-Identifier: Apache-2.0
//! What the product's own congestion controls should reach.

use super::loads::{Load, Outcome};
use super::{DROPS, Path, Subject, TIME, WIRE};
use crate::record::Record;
use crate::stats::Spread;
use crate::target::{Bound, Target};

/// Adds the targets of a load over a link.
pub(super) fn enter(
    record: &mut Record,
    (path, subject): (Path, Subject),
    load: Load,
    outcomes: &[Outcome],
) {
    let mut add = |what: &str, most: f64, unit: &str, of: fn(&Outcome) -> f64| {
        let values: Vec<f64> = outcomes.iter().map(of).collect();
        record.targets.push(Target {
            what: format!(
                "{}: {what}, {}, {} Mbit/s, {} %",
                subject.name(),
                load.name,
                path.rate,
                path.loss
            ),
            measured: Spread::of(&values),
            bound: Bound::AtMost(most),
            unit: unit.to_owned(),
        });
    };
    let is_lossy = path.loss >= 5.0;
    match load.name {
        // By repair symbols.
        "100 KB" if matches!(subject, Subject::Quic | Subject::Auto) && is_lossy => {
            add(TIME, 0.2, "s", |one| one.seconds)
        }
        "5 MB" if path.rate == 100 && is_lossy => add(TIME, 1.0, "s", |one| one.seconds),
        "16 x 5 MB" if path.rate == 100 && (is_lossy || path.loss == 0.0) => {
            let (time, wire) = if is_lossy { (7.2, 1.17) } else { (6.9, 1.08) };
            add(TIME, time, "s", |one| one.seconds);
            add(WIRE, wire, "", |one| one.wire);
            add(DROPS, 0.0, "packets", |one| one.drops);
        }
        "1 MB" | "4 x 1 MB" | "16 x 1 MB" | "64 x 1 MB" if is_lossy => {
            let ideal = load.ideal(path).unwrap_or(0.0);
            add(TIME, 1.15 * (ideal + 0.15), "s", |one| one.seconds);
        }
        "100 KB beside 8 x 40 MB" => add(TIME, 0.4, "s", |one| one.seconds),
        _ => {}
    }
}
