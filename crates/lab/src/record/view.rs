// SPDX-License-Identifier: Apache-2.0
//! Tables of samples and of targets. Pure.

use super::Samples;
use crate::stats::{Spread, deviation_percent, median};
use crate::table::Table;
use crate::target::Target;

/// A row for each different combination of the labels `rows`, in the order of the samples. A column
/// for each of these labels and for each quantity, with the model's value beside it if there is one.
/// Columns without a value are left out.
pub(super) fn table<'a>(
    title: &str,
    samples: impl Iterator<Item = &'a Samples>,
    rows: &[&str],
    quantities: &[&str],
) -> Table {
    let samples: Vec<&Samples> = samples.collect();
    let key = |one: &Samples| one.values_of(rows);
    let mut keys: Vec<Vec<String>> = Vec::new();
    for one in &samples {
        let key = key(one);
        // Other quantities may have more labels, and would add rows without cells.
        if quantities.contains(&one.quantity.as_str()) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    let columns: Vec<Column<'_>> = quantities
        .iter()
        .filter_map(|quantity| Column::new(quantity, &samples))
        .collect();
    let headings: Vec<String> = columns.iter().flat_map(Column::headings).collect();
    let names = rows.iter().copied();
    let names: Vec<&str> = names.chain(headings.iter().map(String::as_str)).collect();
    let mut table = Table::new(title, &names);
    for row in keys {
        let cells = columns.iter().flat_map(|column| {
            let of = column.samples.iter().find(|one| key(one) == row);
            column.cells(of.copied())
        });
        let cells: Vec<String> = cells.collect();
        table.push(row.into_iter().chain(cells));
    }
    // Not every experiment has a model, or a label for each row.
    table.drop_empty_columns();
    table
}

/// A quantity in a table.
struct Column<'a> {
    quantity: &'a str,
    samples: Vec<&'a Samples>,
    has_model: bool,
}

impl<'a> Column<'a> {
    /// `None` without samples.
    fn new(quantity: &'a str, samples: &[&'a Samples]) -> Option<Self> {
        let own = samples.iter().filter(|one| one.quantity == quantity);
        let samples: Vec<&Samples> = own.copied().collect();
        (!samples.is_empty()).then(|| Self {
            quantity,
            has_model: samples.iter().any(|one| one.model.is_some()),
            samples,
        })
    }

    fn headings(&self) -> Vec<String> {
        let unit = match self.samples[0].unit.as_str() {
            "" => String::new(),
            unit => format!(", {unit}"),
        };
        let mut headings = vec![format!("{}{unit}", self.quantity)];
        if self.has_model {
            headings.extend(["model", "off"].map(str::to_owned));
        }
        headings
    }

    fn cells(&self, one: Option<&Samples>) -> Vec<String> {
        let spread = one.and_then(|one| Spread::of(&one.values));
        let mut cells = vec![spread.map_or_else(dash, |spread| spread.to_string())];
        if self.has_model {
            let model = one.and_then(|one| one.model);
            // A handshake with a node beside the client takes no time in the model.
            let base = model.filter(|model| *model > 0.0);
            let off = one.and_then(|one| Some(deviation_percent(median(&one.values)?, base?)));
            let model = model.and_then(|model| Spread::of(&[model]));
            cells.push(model.map_or_else(dash, Spread::brief));
            cells.push(off.map_or_else(dash, |off| format!("{off:+.1} %")));
        }
        cells
    }
}

/// A row for each target.
pub(super) fn targets(targets: &[Target]) -> Table {
    let met = targets.iter().filter(|target| target.is_met()).count();
    let title = format!("Targets: {met} of {} are met", targets.len());
    let mut table = Table::new(title, &["figure", "measured", "target", "verdict"]);
    for target in targets {
        let in_unit = |text: String| format!("{text} {}", target.unit).trim_end().to_owned();
        table.push([
            target.what.clone(),
            target
                .measured
                .map_or_else(dash, |measured| in_unit(measured.to_string())),
            in_unit(target.bound.to_string()),
            target.verdict().to_owned(),
        ]);
    }
    table
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::target::Bound;

    #[test]
    fn rows_by_labels_columns_by_quantity() {
        let mut record = Record::start("test", 1);
        for (subject, model) in [("early", Some(100.0)), ("late", None)] {
            let labels = [("size", "10"), ("subject", subject)];
            record.sample("time", "ms", &labels, vec![109.0, 110.0, 111.0]);
            record.model(model);
            let count = (subject == "late").then_some(7.0);
            record.sample("flows", "", &labels, count.into_iter().collect());
            record.sample("absent", "s", &labels, Vec::new());
        }
        let rows = ["size", "way", "subject"];
        let quantities = ["time", "absent", "flows"];
        let table = table("Times", record.samples.iter(), &rows, &quantities);
        let columns = ["size", "subject", "time, ms", "model", "off", "flows"];
        assert_eq!(table.columns, columns);
        let time = "110.0 (109.5 to 110.5)";
        assert_eq!(table.rows[0], ["10", "early", time, "100", "+10.0 %", "-"]);
        assert_eq!(table.rows[1], ["10", "late", time, "-", "-", "7"]);
    }

    #[test]
    fn targets_and_verdicts() {
        let target = |value| Target::once("time", value, Bound::AtMost(2.0), "ms");
        let table = targets(&[Some(1.5), Some(2.5), None].map(target));
        assert_eq!(table.title, "Targets: 1 of 3 are met");
        assert_eq!(table.rows[0], ["time", "1.50 ms", "<= 2 ms", "met"]);
        assert_eq!(table.rows[1][3], "MISSED");
        assert_eq!(table.rows[2], ["time", "-", "<= 2 ms", "UNCLEAR"]);
    }
}
