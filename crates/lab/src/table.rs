// SPDX-License-Identifier: Apache-2.0
//! A table only formats; its creator chooses units and digits.

use serde::{Deserialize, Serialize};

/// A titled table. Every row has one cell per column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What the table shows, with units.
    pub title: String,
    /// Column headings.
    pub columns: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row. Panics when it does not have one cell per column.
    pub fn push<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(
            row.len(),
            self.columns.len(),
            "cells in a row of {:?}",
            self.title
        );
        self.rows.push(row);
    }

    /// Removes the columns in which every cell is a dash.
    pub(crate) fn drop_empty_columns(&mut self) {
        let is_used = |column: &usize| self.rows.iter().any(|row| row[*column] != "-");
        let used: Vec<usize> = (0..self.columns.len()).filter(is_used).collect();
        let kept = |cells: &[String]| used.iter().map(|&column| cells[column].clone()).collect();
        self.columns = kept(&self.columns);
        self.rows = self.rows.iter().map(|row| kept(row)).collect();
    }

    /// The table as GitHub-flavoured Markdown, the title in bold above it.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let rule: Vec<String> = (0..widths.len())
            .map(|column| self.rule(column, widths[column]))
            .collect();
        let mut text = format!("**{}**\n\n", self.title);
        let mut line = |cells: &[String]| {
            let padded: Vec<String> = (0..cells.len())
                .map(|column| self.pad(column, &escaped(&cells[column]), widths[column]))
                .collect();
            text.push_str(&format!("| {} |\n", padded.join(" | ")));
        };
        line(&self.columns);
        line(&rule);
        self.rows.iter().for_each(|row| line(row));
        text
    }

    fn rule(&self, column: usize, width: usize) -> String {
        let dashes = "-".repeat(width.max(3) - 1);
        if self.is_numeric(column) {
            format!("{dashes}:")
        } else {
            format!("{dashes}-")
        }
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            let lengths = cells
                .chain([&self.columns[column]])
                .map(|cell| escaped(cell).chars().count());
            lengths.max().unwrap_or(0).max(3)
        };
        (0..self.columns.len()).map(width).collect()
    }

    /// Whether a column is right-aligned: every cell in it is a number, optionally with a sign and
    /// a unit, or a dash for "none".
    fn is_numeric(&self, column: usize) -> bool {
        self.rows.iter().all(|row| is_number(&row[column]))
    }

    fn pad(&self, column: usize, cell: &str, width: usize) -> String {
        if self.is_numeric(column) {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    }
}

fn is_number(cell: &str) -> bool {
    // Quartiles may follow in brackets.
    let cell = cell.split(" (").next().unwrap_or_default();
    let mut words = cell.split(' ');
    let first = words.next().unwrap_or_default();
    let unit = words.next().is_none_or(|unit| unit.len() <= 4);
    cell == "-" || (first.parse::<f64>().is_ok() && unit && words.next().is_none())
}

/// A bar in a cell would end the cell.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Table {
        let mut table = Table::new("Times, ms", &["subject", "connect"]);
        table.push(["direct", "100.25"]);
        table.push(["1 | node", "-"]);
        table
    }

    #[test]
    fn markdown_escapes_and_aligns() {
        let expected = "**Times, ms**\n\n\
                        | subject   | connect |\n\
                        | --------- | ------: |\n\
                        | direct    |  100.25 |\n\
                        | 1 \\| node |       - |\n";
        assert_eq!(times().markdown(), expected);
    }

    #[test]
    fn signed_numbers_with_units() {
        for number in ["1", "-0.5", "+1.2 %", "3 ms", "2 (1 to 3)", "-"] {
            assert!(is_number(number), "{number}");
        }
        for text in ["", "40/10", "1 worker, IPv4", "2 workers", "kept"] {
            assert!(!is_number(text), "{text}");
        }
    }

    #[test]
    fn columns_of_dashes_dropped() {
        let mut table = Table::new("times", &["way", "model", "time"]);
        table.push(["direct", "-", "1"]);
        table.push(["-", "-", "2"]);
        table.drop_empty_columns();
        assert_eq!(table.columns, ["way", "time"]);
        assert_eq!(table.rows, [["direct", "1"], ["-", "2"]]);
    }

    #[test]
    #[should_panic(expected = "cells in a row")]
    fn a_short_row_is_refused() {
        times().push(["direct"]);
    }
}
