// SPDX-License-Identifier: Apache-2.0
//! Every key of a configuration file: its default, what it accepts, and what a reload does with it.
//!
//! The reader takes defaults and bounds from these rows, unknown keys are those without a row, and
//! `docs/configuration.md` is checked against them. A key is in one row for all the sections that
//! have it.

use std::fmt;
use std::time::Duration;

use toml::Value;

use super::Config;
use super::controller::Controller;
use super::value::{self, Reading};

mod controller;
mod node;
#[cfg(test)]
mod tests;

pub(super) use controller::CONTROLLER;
pub(super) use node::{INTERVAL_MIN, NODE, RELAYS_MAX, SECOND, WORKERS_MAX};

/// All rows of a kind of file.
pub(super) type Table = &'static [Rows];

/// Keys that these sections have. A section may be in several of them.
#[derive(Debug)]
pub(super) struct Rows {
    /// Dotted names; the top of the file has none.
    pub(super) sections: &'static [&'static str],
    /// That of the sections whose first rows these are.
    pub(super) kind: Kind,
    pub(super) keys: &'static [Key],
    /// Of all of them, which then are one key for a reload.
    pub(super) reload: Reload,
}

/// How often a section may be in a file, and how messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Once: `node.`
    One,
    /// Several times, each with its own `name`: `rule "web": `
    Named,
    /// By their order: `route 2: `
    Numbered,
    /// Not at all: `listener.`
    Many,
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) default: Usual,
    pub(super) accepted: Accepted,
    pub(super) is_list: bool,
    /// What it is for, in a sentence.
    pub(super) help: &'static str,
    pub(super) reload: Reload,
}

/// What an absent key means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Usual {
    /// This value, as a file would have it.
    Is(&'static str),
    /// What these words describe, decided by the reader.
    Computed(&'static str),
    /// A mistake.
    Required,
}

/// What a key accepts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Accepted {
    Number(u32, u32),
    Duration(Duration, Duration),
    /// Bytes.
    Size(u32, u32),
    Switch,
    Words(&'static [&'static str]),
    /// What these words describe, checked by the reader.
    Form(&'static str),
    /// That, or this text.
    Or(&'static Self, &'static str),
}

/// What a reload does with a changed value. The functions return whether a value is the same, and
/// give the next configuration the former one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reload {
    Applies,
    NodeKeeps(fn(&Config, &mut Config) -> bool),
    ControllerKeeps(fn(&Controller, &mut Controller) -> bool),
}

/// Keeps one field of a configuration.
macro_rules! keep {
    ($variant:ident, $($field:ident).+) => {
        Reload::$variant(|now, next| {
            let is_same = now.$($field).+ == next.$($field).+;
            next.$($field).+.clone_from(&now.$($field).+);
            is_same
        })
    };
}
use keep;

const fn rows(sections: &'static [&'static str], kind: Kind, keys: &'static [Key]) -> Rows {
    Rows {
        sections,
        kind,
        keys,
        reload: Reload::Applies,
    }
}

const fn key(name: &'static str, default: Usual, accepted: Accepted, help: &'static str) -> Key {
    Key {
        name,
        default,
        accepted,
        is_list: false,
        help,
        reload: Reload::Applies,
    }
}

impl Rows {
    const fn at_start(mut self, reload: Reload) -> Self {
        self.reload = reload;
        self
    }
}

impl Key {
    const fn at_start(mut self, reload: Reload) -> Self {
        self.reload = reload;
        self
    }

    const fn list(mut self) -> Self {
        self.is_list = true;
        self
    }
}

/// The rows of a section.
fn of<'a>(table: Table, section: &'a str) -> impl Iterator<Item = &'static Rows> + use<'a> {
    let rows = table.iter();
    rows.filter(move |rows| rows.sections.contains(&section))
}

/// The key of a section.
pub(super) fn find(table: Table, section: &str, name: &str) -> Option<&'static Key> {
    let mut keys = of(table, section).flat_map(|rows| rows.keys);
    keys.find(|key| key.name == name)
}

/// The sections directly in a section, once each, by their own names.
pub(super) fn inner(table: Table, section: &str) -> Vec<(&'static str, Kind)> {
    let mut found: Vec<(&str, Kind)> = Vec::new();
    for rows in table {
        for name in rows.sections {
            let (outer, own) = name.rsplit_once('.').unwrap_or(("", name));
            if outer == section && !own.is_empty() && found.iter().all(|(other, _)| *other != own) {
                found.push((own, rows.kind));
            }
        }
    }
    found
}

/// The message about a key that a section does not have: the nearest key that it has, the sections
/// that do have it, or its keys.
pub(super) fn unknown(table: Table, section: &str, name: &str) -> String {
    let keys = of(table, section).flat_map(|rows| rows.keys.iter().map(|key| key.name));
    let inner = inner(table, section).into_iter().map(|(name, _)| name);
    let known: Vec<&str> = keys.chain(inner).collect();
    let nearest = known.iter().map(|key| (distance(name, key), *key)).min();
    let has_it = |rows: &&Rows| rows.keys.iter().any(|key| key.name == name);
    let others = table.iter().filter(has_it).flat_map(|rows| rows.sections);
    let others: Vec<String> = others.map(|section| format!("[{section}]")).collect();
    match nearest {
        // One slip in a short key, more in a long one; a farther key would mislead.
        Some((distance, key)) if distance <= 1 + name.chars().count() / 3 => {
            format!("unknown key; did you mean \"{key}\"?")
        }
        _ if !others.is_empty() => format!("unknown key here; it is one of {}", others.join(", ")),
        _ => format!("unknown key; known keys here: {}", known.join(", ")),
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

/// The keys in which two configurations differ and that take effect at the next start only; `keeps`
/// restores the former value of one.
pub(super) fn waiting(table: Table, mut keeps: impl FnMut(Reload) -> bool) -> Vec<String> {
    let mut waiting = Vec::new();
    for rows in table {
        let section = rows.sections[0];
        if !keeps(rows.reload) {
            waiting.push(section.to_owned());
        }
        // All are called, in order: each restores its former value in the next configuration.
        let changed = rows.keys.iter().filter(|key| !keeps(key.reload));
        waiting.extend(changed.map(|key| format!("{section}.{}", key.name)));
    }
    waiting
}

impl Key {
    /// The value that an absent key stands for, if it is one for all files.
    pub(super) fn usual(&self) -> Option<Value> {
        match self.default {
            Usual::Is(text) => Some(text.parse().expect("defaults are values")),
            Usual::Computed(_) | Usual::Required => None,
        }
    }
}

impl Accepted {
    pub(super) fn number(&self, value: &Value) -> Reading<u32> {
        match self {
            Self::Number(least, most) => value::number(value, *least..=*most),
            Self::Size(least, most) => value::size(value, *least..=*most),
            other => unreachable!("{other:?} is no number"),
        }
    }

    /// A number, or nothing for the other text.
    pub(super) fn number_or(&self, value: &Value) -> Reading<Option<u32>> {
        match self {
            Self::Or(_, other) if value.as_str() == Some(other) => Ok(None),
            Self::Or(number, other) => number
                .number(value)
                .map(Some)
                .map_err(|form| format!("{form}, or \"{other}\"")),
            number => number.number(value).map(Some),
        }
    }

    pub(super) fn duration(&self, value: &Value) -> Reading<Duration> {
        match self {
            Self::Duration(least, most) => value::duration(value, *least..=*most),
            Self::Or(_, "0s") if value.as_str() == Some("0s") => Ok(Duration::ZERO),
            Self::Or(length, other) => length
                .duration(value)
                .map_err(|form| format!("{form}, or \"{other}\" for off")),
            other => unreachable!("{other:?} is no duration"),
        }
    }

    /// One of the words.
    pub(super) fn word(&self, value: &Value) -> Reading<&'static str> {
        let Self::Words(words) = self else {
            unreachable!("{self:?} has no words")
        };
        let given = value.as_str();
        let found = words.iter().find(|word| given == Some(word));
        found.copied().ok_or_else(|| {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            format!("expected {}", value::one_of(&quoted))
        })
    }
}

impl fmt::Display for Usual {
    /// As documents have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => write!(f, "`{value}`"),
            Self::Computed(words) => f.write_str(words),
            Self::Required => f.write_str("none: required"),
        }
    }
}

impl fmt::Display for Accepted {
    /// As documents have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(least, most) => write!(f, "{least} to {most}"),
            Self::Duration(least, most) => {
                let (least, most) = (value::show_duration(*least), value::show_duration(*most));
                write!(f, "`\"{least}\"` to `\"{most}\"`")
            }
            Self::Size(least, most) => {
                let (least, most) = (value::show_size(*least), value::show_size(*most));
                write!(f, "`\"{least}\"` to `\"{most}\"`")
            }
            Self::Switch => f.write_str("`true`, `false`"),
            Self::Words(words) => write!(f, "`{}`", words.join("`, `")),
            Self::Form(words) => f.write_str(words),
            Self::Or(accepted, other) => write!(f, "{accepted}, or `\"{other}\"`"),
        }
    }
}
