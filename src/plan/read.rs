// SPDX-License-Identifier: Apache-2.0
//! Files of links: which nodes there are, and what was measured between them. `docs/plan.md`
//! describes the formats.
//!
//! Readers are handed text and touch no file. What is wrong is named with its line. What was not
//! measured is left out: nothing is guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use posthaste_plan::matrix::{NODES_MAX, TIME_MAX_US};
use posthaste_plan::{Link, Matrix};

mod csv;
#[cfg(any(test, fuzzing))]
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

    /// The format that goes with the name of a file: JSON if it ends so.
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
    /// The nodes whose cost the file tells, 0 included.
    pub(crate) costed: BTreeSet<usize>,
    /// The links without delay that the file tells, which attract every chain.
    free: Free,
}

/// Measured links of 0 ms: more likely such that were not measured.
#[derive(Clone, Debug, Default, PartialEq)]
struct Free {
    /// The first of them.
    named: Vec<Problem>,
    /// How many there are besides.
    more: usize,
}

impl Free {
    /// Takes note of a link if it is free: where the file tells it, and its name there.
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
    /// Nodes and links of a file that tells no costs.
    fn without_costs(names: Vec<String>, matrix: Matrix) -> Self {
        Self {
            names,
            matrix,
            costed: BTreeSet::new(),
            free: Free::default(),
        }
    }

    /// The number of a node.
    pub(crate) fn node(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }
}

/// What is wrong with a file, and in which line, counted from 1.
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

    /// The problem with the name of its file before it.
    pub(crate) fn of_file(&self, file: impl fmt::Display) -> String {
        match self.line {
            Some(line) => format!("{file}:{line}: {}", self.what),
            None => format!("{file}: {}", self.what),
        }
    }
}

/// Free links that are named one by one; of the others only the number is told.
const FREE_NAMED_MAX: usize = 8;

/// What is allowed in a file but probably not meant, one sentence each.
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

/// Numbers for names, in the order in which they come.
#[derive(Debug, Default)]
struct Names {
    names: Vec<String>,
    numbers: BTreeMap<String, usize>,
}

impl Names {
    /// The number of a name, a new one if it has none.
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

/// The lines that say something, with their numbers: not empty, and no comments.
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

/// Parts in a million from per cent.
fn loss_ppm(percent: f64) -> Result<u32, String> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(format!(
            "{percent} is not a loss: expected per cent from 0 to 100"
        ));
    }
    Ok(whole((percent * 1e4).round()))
}

/// Bits per second from megabits.
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

/// Sets a link that must not be there yet.
fn add(matrix: &mut Matrix, ends: (usize, usize), link: Link) -> Result<(), String> {
    let (from, to) = ends;
    if from == to {
        return Err("a node cannot have a link to itself".to_owned());
    }
    if matrix.link(from, to).is_some() {
        return Err("this link was told before".to_owned());
    }
    matrix
        .set(from, to, Some(link))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What reading says is wrong.
    fn problem(text: &str, format: Format) -> String {
        read(text, format).unwrap_err().of_file("f")
    }

    #[test]
    fn endings_tell_formats() {
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
                "f:3: this link was told before",
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
