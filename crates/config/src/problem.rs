// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a configuration file, with all that is needed to repair it:
//! file, line, key, value and the accepted form.

use std::fmt;
use std::path::{Path, PathBuf};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Where in the text, in bytes; `None` when something is missing.
    pub(super) at: Option<usize>,
    /// What is wrong: the key, the value, and what was expected.
    pub(super) what: String,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    file: PathBuf,
    /// Line and column from 1, when known, and the sentence.
    problems: Vec<(Option<(usize, usize)>, String)>,
}

impl Error {
    pub(super) fn unreadable(file: &Path, source: &std::io::Error) -> Self {
        Self {
            file: file.into(),
            problems: vec![(None, format!("cannot be read: {source}"))],
        }
    }

    pub(super) fn new(file: &Path, located: Vec<(Option<(usize, usize)>, String)>) -> Self {
        Self {
            file: file.into(),
            problems: located,
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (place, what)) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}", self.file.display())?;
            if let Some((line, column)) = place {
                write!(f, ":{line}:{column}")?;
            }
            write!(f, ": {what}")?;
        }
        Ok(())
    }
}

/// The problems with their places as line and column, in the order of the text.
pub(super) fn locate(
    text: &str,
    mut problems: Vec<Problem>,
) -> Vec<(Option<(usize, usize)>, String)> {
    // What is missing has no place and comes first: `None` is less than any place.
    problems.sort_by_key(|problem| problem.at);
    let located = problems.into_iter().map(|problem| {
        let place = problem.at.map(|at| line_and_column(text, at));
        (place, problem.what)
    });
    located.collect()
}

/// Line and column, both from 1; the column counts characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    // An offset within a character has no line of its own: the end of the text then.
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        assert_eq!(line_and_column("a\nüü x", 7), (2, 4));
    }
}
