// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a configuration file, said so that it can be repaired:
//! file, line, key, value and the accepted form.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Where in the text, in bytes; `None` when something is missing.
    pub(super) at: Option<usize>,
    /// What is wrong: the key, the value, and what was expected.
    pub(super) what: String,
    /// The dotted key, where the structure of the file is wrong.
    pub(super) key: Option<String>,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
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
    problems.sort_by_key(|problem| problem.at);
    let located = problems.into_iter().map(|problem| {
        let place = problem.at.map(|at| line_and_column(text, at));
        (place, problem.what)
    });
    located.collect()
}

/// Line and column, both from 1; the column counts characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// Whether this says that a key is missing which is there, but of a wrong type: `path` leads to it.
pub(super) fn is_echo(problem: &Problem, path: &str) -> bool {
    let key = path.rsplit('.').next().unwrap_or(path);
    let before = problem.what.split_once(&format!("{key} is missing"));
    before.is_some_and(|(before, _)| before.is_empty() || before.ends_with(['.', ' ']))
}

/// A parser's or serde's complaint, with the key it is about.
pub(super) fn from_toml(text: &str, error: &toml::de::Error) -> Problem {
    let span = error.span();
    let path = span.clone().and_then(|span| key_path(text, &span));
    let message = error.message().replace('\n', ", ");
    let value = span
        .clone()
        .and_then(|span| text.get(span))
        .unwrap_or_default();
    let what = match &path {
        Some(path) => unknown_key(&message)
            .map(|sent| format!("{path}: {sent}"))
            .or_else(|| other_type(path, value, &message))
            .unwrap_or_else(|| format!("{path}: {message}")),
        None => message,
    };
    Problem {
        at: span.map(|span| span.start),
        what,
        key: path,
    }
}

/// Serde's words about an unknown key, in ours, with the nearest known key.
fn unknown_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let known: Vec<&str> = quoted.collect();
    let nearest = known.iter().map(|key| (distance(unknown, key), *key)).min();
    let hint = match nearest {
        Some((distance, key)) if distance <= 1 + unknown.chars().count() / 3 => {
            format!("did you mean \"{key}\"?")
        }
        _ => format!("known keys here: {}", known.join(", ")),
    };
    Some(format!("unknown key; {hint}"))
}

/// Serde's words about a value where a list or a section belongs, in ours.
fn other_type(path: &str, value: &str, message: &str) -> Option<String> {
    let (found, wanted) = message
        .strip_prefix("invalid type: ")?
        .split_once(", expected ")?;
    let (is_section, is_top) = (found == "map", !path.contains('.'));
    match wanted {
        "a sequence" if is_section && is_top => Some(format!(
            "{path}: expected [[{path}]], in two brackets: there may be several"
        )),
        "a sequence" if !is_section && !value.contains('\n') => {
            Some(format!("{path} = {value}: expected a list: [{value}]"))
        }
        _ if wanted.starts_with("struct ") => {
            Some(format!("{path} = {value}: expected a section, [{path}]"))
        }
        _ => None,
    }
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The dotted key whose name or value lies at `span`, when the text parses.
fn key_path(text: &str, span: &Range<usize>) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let mut keys = Vec::new();
    descend(document.get_ref(), span, &mut keys);
    (!keys.is_empty()).then(|| keys.join("."))
}

/// Follows the keys whose values hold `span`; says whether it ended at one.
fn descend(table: &DeTable<'_>, span: &Range<usize>, keys: &mut Vec<String>) -> bool {
    for (key, value) in table {
        keys.push(key.get_ref().to_string());
        if key.span() == *span
            || descend_value(value.get_ref(), span, keys)
            || value.span() == *span
        {
            return true;
        }
        keys.pop();
    }
    false
}

fn descend_value(value: &DeValue<'_>, span: &Range<usize>, keys: &mut Vec<String>) -> bool {
    match value {
        DeValue::Table(table) => descend(table, span, keys),
        DeValue::Array(items) => items
            .iter()
            .any(|item| descend_value(item.get_ref(), span, keys) || item.span() == *span),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in [
            ("", "abc", 3),
            ("workers", "wrkers", 1),
            ("idle", "idle", 0),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(line_and_column("a\nüü x", 7), (2, 4));
    }
}
