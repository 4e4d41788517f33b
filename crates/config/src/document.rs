// SPDX-License-Identifier: Apache-2.0
//! From text to the file as written: its values, each with its place, by the sections and keys of a
//! table. `build` decides what the values mean.
//!
//! What does not fit the table is a mistake in the structure of the file. It is noted and left out, so
//! that one pass finds every mistake.

use serde::Deserialize as _;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::keys::{self, Key, Kind, Table};
use super::problem::Problem;
use super::value;

/// Mistakes in the structure of a file that are reported at once.
const PROBLEMS_MAX: usize = 64;

/// A section as written. It may have a secret in it and is not to be shown.
pub(super) struct Section {
    table: Table,
    /// Its dotted name in the table.
    name: String,
    /// What goes before its keys in messages.
    prefix: String,
    /// Where in the text it begins, in bytes; `None` when the file does not have it.
    pub(super) at: Option<usize>,
    given: Vec<(&'static str, Given)>,
    inner: Vec<(&'static str, Vec<Self>)>,
}

enum Given {
    Value(Spanned<Value>),
    List(Vec<Spanned<Value>>),
    /// What was wrong with it is noted.
    Wrong,
}

/// The file as written, and the mistakes in its structure. Of a text that is not TOML only the first
/// mistake is reported.
pub(super) fn read(text: &str, table: Table) -> Result<(Section, Vec<Problem>), Problem> {
    // A tree with places, not types of serde: those would end at the first mistake.
    let document = DeTable::parse(text).map_err(|error| Problem {
        at: error.span().map(|span| span.start),
        // A mistake is one line, so that each begins with the file and its place.
        what: error.message().replace('\n', ", "),
    })?;
    let mut walk = Walk {
        table,
        problems: Vec::new(),
    };
    let file = walk.section("", String::new(), Some((0, document.get_ref())));
    // Before the cut, so that the first mistakes of the text remain.
    walk.problems.sort_by_key(|problem| problem.at);
    // Bounded: a file of another program could have a mistake in every line.
    walk.problems.truncate(PROBLEMS_MAX);
    Ok((file, walk.problems))
}

impl Section {
    /// What the table has of a key.
    ///
    /// # Panics
    /// When the section has no such key: what reads it and the table disagree.
    pub(super) fn key(&self, key: &str) -> &'static Key {
        let found = keys::find(self.table, &self.name, key);
        found.unwrap_or_else(|| panic!("{}.{key} is not in the table of keys", self.name))
    }

    /// A key in messages.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The section in messages.
    pub(super) fn label(&self) -> &str {
        self.prefix.trim_end_matches([':', '.', ' '])
    }

    fn given(&self, key: &str) -> Option<&Given> {
        // `key` panics for a name without a row: a key that `build` spells wrong is found by tests.
        debug_assert!(!self.key(key).name.is_empty());
        let mut given = self.given.iter();
        given.find(|(name, _)| *name == key).map(|(_, given)| given)
    }

    /// Whether the file has the key, with a value that may be wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.given(key).is_some()
    }

    pub(super) fn value(&self, key: &str) -> Option<&Spanned<Value>> {
        match self.given(key)? {
            Given::Value(value) => Some(value),
            Given::List(_) | Given::Wrong => None,
        }
    }

    /// The values that the section has.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &Spanned<Value>)> {
        let given = self.given.iter();
        given.filter_map(|(name, given)| match given {
            Given::Value(value) => Some((*name, value)),
            Given::List(_) | Given::Wrong => None,
        })
    }

    /// The items of a list; none of one that is absent.
    pub(super) fn items(&self, key: &str) -> &[Spanned<Value>] {
        match self.given(key) {
            Some(Given::List(items)) => items,
            _ => &[],
        }
    }

    /// Whether the file has the list, without anything in it.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        matches!(self.given(key), Some(Given::List(items)) if items.is_empty())
    }

    /// The sections of a name in this one, in their order.
    ///
    /// # Panics
    /// When the table has no such section here.
    pub(super) fn all(&self, name: &str) -> &[Self] {
        let mut inner = self.inner.iter();
        let found = inner.find(|(own, _)| *own == name);
        let (_, sections) = found.unwrap_or_else(|| panic!("no section {name} is in the table"));
        sections
    }

    /// The section of a name in this one; one without keys if the file does not have it.
    pub(super) fn one(&self, name: &str) -> &Self {
        &self.all(name)[0]
    }
}

struct Walk {
    table: Table,
    problems: Vec<Problem>,
}

impl Walk {
    fn note(&mut self, at: usize, what: String) {
        let at = Some(at);
        self.problems.push(Problem { at, what });
    }

    /// A section, with all that the table has in it, or without keys where the file does not have it.
    fn section(
        &mut self,
        name: &str,
        prefix: String,
        written: Option<(usize, &DeTable<'_>)>,
    ) -> Section {
        let inner = keys::inner(self.table, name);
        let mut section = Section {
            table: self.table,
            name: name.to_owned(),
            prefix,
            at: written.map(|(at, _)| at),
            given: Vec::new(),
            inner: Vec::new(),
        };
        for (key, value) in written.iter().flat_map(|(_, table)| *table) {
            let own = key.get_ref();
            let path = dotted(name, own);
            if let Some(key) = keys::find(self.table, name, own) {
                section
                    .given
                    .push((key.name, self.given(key, &path, value)));
            } else if inner.iter().all(|(section, _)| section != own) {
                let what = keys::unknown(self.table, name, own);
                self.note(key.span().start, format!("{path}: {what}"));
            }
        }
        // By the table, not by the file: `Section::all` needs sections that the file does not have.
        for (own, kind) in inner {
            let value = written.and_then(|(_, table)| table.get(own));
            let sections = self.sections(&dotted(name, own), &section.prefix, kind, value);
            section.inner.push((own, sections));
        }
        section
    }

    fn given(&mut self, key: &Key, path: &str, value: &Spanned<DeValue<'_>>) -> Given {
        if !key.is_list {
            return self.value(path, value).map_or(Given::Wrong, Given::Value);
        }
        if let DeValue::Array(items) = value.get_ref() {
            // A wrong item is noted and left out: the others are checked in the same pass.
            let items = items.iter().filter_map(|item| self.value(path, item));
            return Given::List(items.collect());
        }
        let Some(value) = self.value(path, value) else {
            return Given::Wrong;
        };
        let at = value.span().start;
        // Not shown where it has several lines: a message is one line.
        let shown = value.get_ref().to_string();
        self.note(
            at,
            match shown.contains('\n') {
                true => format!("{path}: expected a list"),
                false => format!("{path} = {shown}: expected a list: [{shown}]"),
            },
        );
        Given::Wrong
    }

    fn value(&mut self, path: &str, value: &Spanned<DeValue<'_>>) -> Option<Spanned<Value>> {
        let read = Value::deserialize(ValueDeserializer::from(value.clone())).ok();
        if read.is_none() {
            // It is not shown: it may be a secret without quotes, such as a key of digits alone.
            let form = "expected a number that fits into 64 bits";
            self.note(value.span().start, format!("{path}: {form}"));
        }
        Some(Spanned::new(value.span(), read?))
    }

    /// The sections of one name in the one that `outer` goes before the keys of.
    fn sections(
        &mut self,
        name: &str,
        outer: &str,
        kind: Kind,
        value: Option<&Spanned<DeValue<'_>>>,
    ) -> Vec<Section> {
        let own = name.rsplit('.').next().unwrap_or(name);
        if kind == Kind::One {
            let table = value.and_then(|value| self.table_of(name, value));
            // Also without a table: `Section::one` relies on one, and its keys have defaults.
            return vec![self.section(name, format!("{outer}{own}."), table)];
        }
        let mut tables = Vec::new();
        match value.map(|value| (value.get_ref(), value.span().start)) {
            None => {}
            Some((DeValue::Array(items), _)) => {
                tables.extend(items.iter().filter_map(|item| self.table_of(name, item)));
            }
            Some((value, at)) => {
                let form = format!("expected [[{name}]], in two brackets: there may be several");
                self.note(at, format!("{name}: {form}"));
                // Read as the only one, so that mistakes in its keys are reported in the same pass.
                tables.extend(value.as_table().map(|table| (at, table)));
            }
        }
        // From 1, as messages number sections that have no name.
        let tables = (1..).zip(tables);
        tables
            .map(|(number, table)| {
                self.section(name, prefix(own, kind, number, table.1), Some(table))
            })
            .collect()
    }

    fn table_of<'a, 'b>(
        &mut self,
        name: &str,
        value: &'a Spanned<DeValue<'b>>,
    ) -> Option<(usize, &'a DeTable<'b>)> {
        let at = value.span().start;
        let table = value.get_ref().as_table();
        if table.is_none() {
            // Of a list of sections nothing is shown: there may be a secret in one.
            let shown = match (value.get_ref(), self.value(name, value)) {
                (DeValue::Array(_), _) | (_, None) => String::new(),
                (_, Some(value)) => format!(" = {}", value.get_ref()),
            };
            self.note(at, format!("{name}{shown}: expected a section, [{name}]"));
        }
        Some((at, table?))
    }
}

fn dotted(outer: &str, own: &str) -> String {
    match outer {
        "" => own.to_owned(),
        outer => format!("{outer}.{own}"),
    }
}

/// What goes before the keys of one of several sections in messages.
fn prefix(own: &str, kind: Kind, number: usize, table: &DeTable<'_>) -> String {
    let name = table.get("name").and_then(|name| name.get_ref().as_str());
    let name = name.map(|name| Value::String(name.to_owned()));
    match (kind, name.and_then(|name| value::name(&name).ok())) {
        // Only a name that is allowed: another may contain a newline or be a misplaced secret.
        (Kind::Named, Some(name)) => format!("{own} \"{name}\": "),
        (Kind::Numbered, _) => format!("{own} {number}: "),
        _ => format!("{own}."),
    }
}
