// SPDX-License-Identifier: Apache-2.0
//! From text to the file as written, past mistakes in its structure.
//!
//! Serde ends at the first key that it does not know and at the first value of another type than it
//! wants. What it complains of is noted and taken out, and the rest is read again, so that one pass
//! finds every mistake.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::problem::{self, Problem};

/// Mistakes in the structure of a file that are told at once.
const PROBLEMS_MAX: usize = 64;

/// What `build` makes of the file as written, or every mistake in it. `build` notes the mistakes that
/// it finds; of a file with others its result is not used.
pub(super) fn read<T: DeserializeOwned, U>(
    text: &str,
    build: impl FnOnce(&T) -> (Option<U>, Vec<Problem>),
) -> Result<U, Vec<Problem>> {
    let (file, mut problems) = parse::<T>(text);
    let Some(file) = file else {
        return Err(problems);
    };
    let (built, mut found) = build(&file);
    let taken = problems.iter().filter_map(|problem| problem.key.as_deref());
    let taken: Vec<&str> = taken.collect();
    found.retain(|problem| !taken.iter().any(|key| problem::is_echo(problem, key)));
    problems.append(&mut found);
    match built {
        Some(built) if problems.is_empty() => Ok(built),
        _ => Err(problems),
    }
}

/// The file, without what is wrong with its structure, and that. Nothing can be told of a text that
/// is not TOML but its first mistake.
fn parse<T: DeserializeOwned>(text: &str) -> (Option<T>, Vec<Problem>) {
    let mut error = match toml::from_str(text) {
        Ok(file) => return (Some(file), Vec::new()),
        Err(error) => error,
    };
    let mut problems = vec![problem::from_toml(text, &error)];
    let Ok(mut document) = DeTable::parse(text) else {
        return (None, problems);
    };
    while problems.len() < PROBLEMS_MAX && take_out(document.get_mut(), &error) {
        match T::deserialize(Deserializer::from(document.clone())) {
            Ok(file) => return (Some(file), problems),
            Err(next) => {
                problems.push(problem::from_toml(text, &next));
                error = next;
            }
        }
    }
    (None, problems)
}

/// Takes out what an error is about; whether it was found.
fn take_out(table: &mut DeTable<'_>, error: &Error) -> bool {
    error.span().is_some_and(|span| remove(table, &span))
}

fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    let is_meant = |key: &Range<usize>, value: &Range<usize>| key == span || value == span;
    let found = table
        .iter()
        .find(|(key, value)| is_meant(&key.span(), &value.span()));
    if let Some(key) = found.map(|(key, _)| key.clone()) {
        return table.remove(&key).is_some();
    }
    let mut values = table.iter_mut();
    values.any(|(_, value)| match value.get_mut() {
        DeValue::Table(table) => remove(table, span),
        DeValue::Array(items) => remove_of_list(items, span),
        _ => false,
    })
}

fn remove_of_list(items: &mut DeArray<'_>, span: &Range<usize>) -> bool {
    if items.iter().any(|item| item.span() == *span) {
        let all = std::mem::replace(items, DeArray::new());
        *items = all
            .into_iter()
            .filter(|item| item.span() != *span)
            .collect();
        return true;
    }
    let mut values = items.iter_mut();
    values.any(|item| match item.get_mut() {
        DeValue::Table(table) => remove(table, span),
        DeValue::Array(items) => remove_of_list(items, span),
        _ => false,
    })
}
