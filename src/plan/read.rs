// SPDX-License-Identifier: Apache-2.0
//! Files of links: nodes, and the measurements between them. `docs/plan.md` describes the formats.
//!
//! Readers get text and open no file. Errors have the line number. Missing measurements are left
//! out: nothing is guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use posthaste_plan::matrix::{NODES_MAX, TIME_MAX_US};
use posthaste_plan::{Link, Matrix};

mod csv;
#[cfg(any(test, feature = "invariants"))]
pub(crate) mod invariants;
mod json;

/// The forms that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line for each link, under a heading that names the columns
    Csv,
    /// An object with nodes and links
    Json,
}

impl Format {
    /// All formats by name.
    pub(crate) const ALL: [(&'static str, Self); 2] = [("csv", Self::Csv), ("json", Self::Json)];

    /// The format of a name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let all = Self::ALL.map(|(known, _)| known).join(", ");
            format!("expected one of {all}")
        })
    }

    /// The format for a file name: JSON if it ends in `.json`.
    pub(crate) fn of_name(name: &str) -> Self {
        match name.rsplit('.').next() {
            Some("json") => Self::Json,
            _ => Self::Csv,
        }
    }
}

/// Nodes by name, and their links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    /// In the order of the matrix.
    pub(crate) names: Vec<String>,
    pub(crate) matrix: Matrix,
    /// The nodes with a cost in the file, including 0.
    pub(crate) costed: BTreeSet<usize>,
    /// The links without delay in the file, which attract every chain.
    free: Free,
}

/// Links of 0 ms: more likely unmeasured than measured.
#[derive(Clone, Debug, Default, PartialEq)]
struct Free {
    /// The first ones.
    named: Vec<Problem>,
    /// Number of further ones.
    more: usize,
}

impl Free {
    /// Records a link of 0 ms, with its line and its name.
    fn note(&mut self, link: Link, line: Option<usize>, place: impl FnOnce() -> String) {
        if link.rtt_us != 0 {
            return;
        }
        if self.named.len() == FREE_NAMED_MAX {
            self.more += 1;
            return;
        }
        let what = format!(
            "{} is 0 ms: a link without delay attracts every chain. Leave out what was not \
             measured",
            place()
        );
        self.named.push(Problem { line, what });
    }
}

impl Network {
    /// Nodes and links of a file without costs.
    fn without_costs(names: Vec<String>, matrix: Matrix) -> Self {
        Self {
            names,
            matrix,
            costed: BTreeSet::new(),
            free: Free::default(),
        }
    }

    /// The index of a node.
    pub(crate) fn node(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }
}

/// An error in a file, with its line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    line: Option<usize>,
    what: String,
}

impl Problem {
    fn at(line: usize, what: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            what: what.into(),
        }
    }

    fn whole(what: impl Into<String>) -> Self {
        Self {
            line: None,
            what: what.into(),
        }
    }

    /// The error with the file name before it.
    pub(crate) fn of_file(&self, file: impl fmt::Display) -> String {
        match self.line {
            Some(line) => format!("{file}:{line}: {}", self.what),
            None => format!("{file}: {}", self.what),
        }
    }
}

/// Free links listed one by one; of further ones only the number.
const FREE_NAMED_MAX: usize = 8;

/// Data that is allowed but probably not intended, one sentence each.
pub(crate) fn warnings(network: &Network, file: impl fmt::Display) -> Vec<String> {
    let Free { named, more } = &network.free;
    let named = named.iter().map(|problem| problem.of_file(&file));
    let rest = (*more > 0).then(|| format!("{file}: {more} more links are 0 ms"));
    named.chain(rest).collect()
}

/// Reads the text of a file.
pub(crate) fn read(text: &str, format: Format) -> Result<Network, Problem> {
    match format {
        Format::Csv => csv::read(text),
        Format::Json => json::read(text),
    }
}

/// Indexes of names, in the order of their appearance.
#[derive(Debug, Default)]
struct Names {
    names: Vec<String>,
    numbers: BTreeMap<String, usize>,
}

impl Names {
    /// The index of a name, which is added if needed.
    fn number(&mut self, name: &str) -> Result<usize, String> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = self.names.len();
        if number == NODES_MAX {
            return Err(format!("there are more than {NODES_MAX} nodes"));
        }
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        Ok(number)
    }
}

/// The lines with content, with their numbers: not empty, and no comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines().map(str::trim));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// A time in milliseconds as microseconds.
pub(crate) fn micros(milliseconds: f64) -> Result<u32, String> {
    let micros = (milliseconds * 1e3).round();
    if !(0.0..=f64::from(TIME_MAX_US)).contains(&micros) {
        return Err(format!(
            "{milliseconds} is not a time: expected milliseconds from 0 to {}",
            TIME_MAX_US / 1000
        ));
    }
    Ok(whole(micros))
}

/// Percent to parts per million.
fn loss_ppm(percent: f64) -> Result<u32, String> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(format!(
            "{percent} is not a loss: expected per cent from 0 to 100"
        ));
    }
    Ok(whole((percent * 1e4).round()))
}

/// Megabits per second to bits per second.
fn rate(megabits: f64) -> Result<std::num::NonZeroU64, String> {
    let bits = (megabits * 1e6).round();
    if !(1.0..=1e15).contains(&bits) {
        return Err(format!("{megabits} is not a rate: expected Mbit/s above 0"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was compared with its bounds"
    )]
    let bits = bits as u64;
    std::num::NonZeroU64::new(bits).ok_or_else(|| "a rate must be above 0".to_owned())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "callers compare it with bounds"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

/// Adds a link; fails if it exists.
fn add(matrix: &mut Matrix, ends: (usize, usize), link: Link) -> Result<(), String> {
    let (from, to) = ends;
    if from == to {
        return Err("a node cannot have a link to itself".to_owned());
    }
    // Otherwise the later of two measurements would count unnoticed.
    if matrix.link(from, to).is_some() {
        return Err("duplicate link".to_owned());
    }
    matrix
        .set(from, to, Some(link))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a text.
    fn problem(text: &str, format: Format) -> String {
        read(text, format).unwrap_err().of_file("f")
    }

    #[test]
    fn endings_distinguish_formats() {
        assert_eq!(
            ["a.csv", "b.json", "x"].map(Format::of_name),
            [Format::Csv, Format::Json, Format::Csv]
        );
    }

    #[test]
    fn problems_name_file_and_line() {
        let wrong = [
            (
                Format::Csv,
                "from,to,rtt_ms\na,b,5\na,b,6\n",
                "f:3: duplicate link",
            ),
            (
                Format::Csv,
                "from,to,rtt_ms\na,a,5\n",
                "f:2: a node cannot have a link to itself",
            ),
            (
                Format::Csv,
                "from,to,rtt_ms\na,b,-1\n",
                "f:2: rtt_ms: -1 is not a time: expected milliseconds from 0 to 60000",
            ),
            (
                Format::Csv,
                "from,to,delay\n",
                "f:1: there is no column \"delay\": expected from, to, rtt_ms, loss_percent, \
                 rate_mbit, window_segments, both",
            ),
            (
                Format::Csv,
                "from,to\n",
                "f:1: there must be a column rtt_ms",
            ),
            (
                Format::Csv,
                "from,to,rtt_ms\na,b\n",
                "f:2: 2 columns, where the heading has 3",
            ),
            (Format::Csv, "", "f: there is nothing in it"),
        ];
        for (format, text, expected) in wrong {
            assert_eq!(problem(text, format), expected, "{text:?}");
        }
    }

    #[test]
    fn problems_of_other_formats() {
        let wrong = [(
            Format::Json,
            "{\n\"links\": [],\n\"more\": 1\n}",
            "f:3: unknown field `more`, expected `nodes` or `links` at column 6",
        )];
        for (format, text, expected) in wrong {
            assert_eq!(problem(text, format), expected, "{text:?}");
        }
    }
}
