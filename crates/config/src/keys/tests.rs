// SPDX-License-Identifier: Apache-2.0
//! The table, the reader and the page of the documents agree on every key.

use std::path::Path;

use super::super::invariants::HOST;
use super::*;

const PAGE: &str = "docs/configuration.md";
/// The least that a file with a section of each kind may have.
const NODE_MINIMUM: &str = include_str!("minimum/node.toml");
const CONTROLLER_MINIMUM: &str = include_str!("minimum/controller.toml");
const FULL: &str = include_str!("../../../../fuzz/seeds/config/full.toml");
const CONTROLLER_FULL: &str = include_str!("../../../../fuzz/seeds/config/controller.toml");

/// A key, the section of it, and whether it takes effect at the next start only.
type Row = (&'static str, &'static Key, bool);

/// Each key of a table, in each section that has it.
fn all(table: Table) -> Vec<Row> {
    let waits = |reload: Reload| !matches!(reload, Reload::Applies);
    let mut all = Vec::new();
    for rows in table {
        for section in rows.sections {
            let keys = rows.keys.iter();
            all.extend(keys.map(|key| (*section, key, waits(key.reload) || waits(rows.reload))));
        }
    }
    all
}

/// What a file of this kind means, shown; or its mistakes.
fn shown(table: Table, text: &str) -> Result<String, String> {
    let path = Path::new("file");
    let shown = if std::ptr::eq(table, CONTROLLER) {
        Controller::parse(path, text, &HOST).map(|config| config.to_string())
    } else {
        Config::parse(path, text, &HOST).map(|config| config.to_string())
    };
    shown.map_err(|error| error.to_string())
}

/// The mistakes of a file that gives one key this value, as far as they are about it.
fn mistakes(table: Table, section: &str, key: &str, value: &str) -> String {
    let top = section.split('.').next().unwrap_or_default();
    let is_one = |(name, kind): &(&str, Kind)| *name == top && *kind == Kind::One;
    let header = match section {
        "" => String::new(),
        _ if inner(table, "").iter().any(is_one) => format!("[{section}]\n"),
        _ if section == top => format!("[[{top}]]\n"),
        _ => format!("[[{top}]]\n[{section}]\n"),
    };
    let version = if key == "version" {
        ""
    } else {
        "version = 1\n"
    };
    let text = format!("{version}{header}{key} = {value}\n");
    let place = format!("file:{}:", text.lines().count());
    let errors = shown(table, &text).err().unwrap_or_default();
    let about = errors.lines().filter(|line| line.starts_with(&place));
    let about = about.filter(|line| line.contains(key) && !line.contains("is missing"));
    about.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_key_is_read() {
    for table in [NODE, CONTROLLER] {
        for (section, key, _) in all(table) {
            let wrong = if key.is_list { "[{}]" } else { "{}" };
            let mistakes = mistakes(table, section, key.name, wrong);
            let is_read = !mistakes.is_empty() && !mistakes.contains("unknown key");
            assert!(is_read, "nothing reads {section}.{}: {mistakes}", key.name);
        }
        for rows in table {
            let mistakes = mistakes(table, rows.sections[0], "zzzzzzzz", "1");
            assert!(mistakes.contains("unknown key"), "{rows:?}: {mistakes}");
        }
    }
}

#[test]
fn every_shown_key_has_a_row() {
    for (table, text) in [(NODE, FULL), (CONTROLLER, CONTROLLER_FULL)] {
        let shown: toml::Table = shown(table, text).unwrap().parse().unwrap();
        has_rows(table, "", &shown);
    }
}

fn has_rows(table: Table, section: &str, shown: &toml::Table) {
    for (name, value) in shown {
        let path = format!("{section}.{name}");
        let path = path.trim_start_matches('.');
        match value {
            Value::Table(inner) => has_rows(table, path, inner),
            Value::Array(all) if all.first().is_some_and(Value::is_table) => {
                let inner = all.iter().filter_map(Value::as_table);
                inner.for_each(|inner| has_rows(table, path, inner));
            }
            _ => assert!(find(table, section, name).is_some(), "{path} has no row"),
        }
    }
}

#[test]
fn stated_defaults_are_in_force() {
    for (table, text) in [(NODE, NODE_MINIMUM), (CONTROLLER, CONTROLLER_MINIMUM)] {
        let shown: toml::Table = shown(table, text).unwrap().parse().unwrap();
        for (section, key, _) in all(table) {
            let Some(stated) = key.usual() else { continue };
            // Rules are shown with what they take from `[defaults]`.
            let section = match section.strip_prefix("defaults") {
                Some(rest) if key.name != "strict_after_failure" => format!("rule{rest}"),
                _ => section.to_owned(),
            };
            let mut at = Some(&shown);
            for part in section.split('.') {
                let inner = at.and_then(|table| table.get(part));
                let first = |value: &'_ Value| value.as_array().is_some();
                at = inner.and_then(|value| match first(value) {
                    true => value.get(0)?.as_table(),
                    false => value.as_table(),
                });
            }
            let value = at.and_then(|table| table.get(key.name)).cloned();
            let same = value.as_ref().map(canonical) == Some(canonical(&stated));
            assert!(same, "{section}.{}: {stated}, shown as {value:?}", key.name);
        }
    }
}

/// A value with durations in one form.
fn canonical(given: &Value) -> Value {
    match value::duration(given, Duration::ZERO..=Duration::MAX) {
        Ok(length) => value::show_duration(length).into(),
        Err(_) => given.clone(),
    }
}

/// Values that a key must accept, and values just beyond.
fn samples(accepted: Accepted) -> (Vec<String>, Vec<String>) {
    let quoted = |text: String| format!("\"{text}\"");
    match accepted {
        Accepted::Number(least, most) | Accepted::Size(least, most) => {
            let beyond = [i64::from(least) - 1, i64::from(most) + 1];
            let within = [least, most].map(|number| number.to_string());
            (
                within.into(),
                beyond.map(|number| number.to_string()).into(),
            )
        }
        Accepted::Duration(least, most) => {
            let within = [least, most].map(|length| quoted(value::show_duration(length)));
            let step = Duration::from_millis(1);
            let beyond = [least.checked_sub(step), Some(most + step)]
                .into_iter()
                .flatten();
            (
                within.into(),
                beyond
                    .map(|length| quoted(value::show_duration(length)))
                    .collect(),
            )
        }
        Accepted::Switch => (vec!["true".into(), "false".into()], vec!["1".into()]),
        Accepted::Words(words) => {
            let within = words.iter().map(|word| quoted((*word).to_owned()));
            (within.collect(), vec![quoted("other".into())])
        }
        Accepted::Form(_) => (Vec::new(), Vec::new()),
        Accepted::Or(accepted, other) => {
            let (mut within, beyond) = samples(*accepted);
            within.push(quoted(other.to_owned()));
            (within, beyond)
        }
    }
}

#[test]
fn stated_bounds_are_in_force() {
    for table in [NODE, CONTROLLER] {
        for (section, key, _) in all(table) {
            let (within, mut beyond) = samples(key.accepted);
            // Zero is the other text of these.
            beyond.retain(|value| value != "\"0s\"" || !matches!(key.accepted, Accepted::Or(..)));
            // Without anything to intercept a node needs a listener, which is not about the value.
            let alone = "expected a [[listener]] as well";
            for value in within {
                let mistakes = mistakes(table, section, key.name, &value);
                let is_taken = mistakes.is_empty() || mistakes.contains(alone);
                assert!(is_taken, "{section}.{} = {value}: {mistakes}", key.name);
            }
            for value in beyond {
                let mistakes = mistakes(table, section, key.name, &value);
                assert!(
                    mistakes.contains("expected"),
                    "{section}.{} = {value}",
                    key.name
                );
            }
        }
    }
}

/// Where a reader of the page is: tables of keys stand below headings that name their sections.
#[derive(Default)]
struct Place {
    sections: Vec<String>,
    is_of_keys: bool,
    /// The heading states for all of them that they take effect at the next start.
    is_at_start: bool,
}

impl Place {
    fn pass(&mut self, line: &str) {
        if line.starts_with('#') {
            let named = line.split('`').skip(1).step_by(2);
            let named = named.map(|name| name.trim_matches(['[', ']']).to_owned());
            self.sections = named.collect();
            self.is_at_start = line.contains("**R**");
        }
        self.is_of_keys &= line.starts_with('|');
        self.is_of_keys |= line.starts_with("| key |");
    }

    /// A line as the table has it. The keys that it is about are taken off `left`.
    fn row(&self, line: &str, left: &mut Vec<Row>) -> Result<String, String> {
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).splitn(4, " | ").collect();
        let name = cells[0].split('`').nth(1).unwrap_or_default();
        let is_meant = |(section, key, _): &Row| {
            let own = name.strip_prefix(&format!("{section}.")).unwrap_or(name);
            key.name == own && self.sections.iter().any(|named| named == section)
        };
        let first = left.iter().copied().find(is_meant);
        let Some((_, key, waits)) = first else {
            return Err(format!("{line}: no key without a row yet"));
        };
        left.retain(|row| !is_meant(row) || !std::ptr::eq(row.1, key));
        let text = cells.get(3).copied().unwrap_or_default();
        if !text.starts_with(key.help) {
            return Err(format!(
                "{line}: expected a text that begins with {}",
                key.help
            ));
        }
        let mark = if waits && !self.is_at_start {
            " **R**"
        } else {
            ""
        };
        let (default, accepted) = (key.default, key.accepted);
        Ok(format!(
            "| `{name}`{mark} | {default} | {accepted} | {text} |"
        ))
    }
}

/// A part of the page with the rows of this table, and what is wrong with it.
fn expected(table: Table, part: &str) -> (String, Vec<String>) {
    let (mut page, mut wrong) = (String::new(), Vec::new());
    let mut left = all(table);
    // The page has the version in its text.
    left.retain(|(section, ..)| !section.is_empty());
    let mut place = Place::default();
    for line in part.split_inclusive('\n') {
        place.pass(line);
        if place.is_of_keys && line.starts_with("| `") {
            let row = place.row(line.trim_end(), &mut left);
            page.push_str(&row.unwrap_or_else(|what| {
                wrong.push(what);
                line.trim_end().to_owned()
            }));
            page.push('\n');
        } else {
            page.push_str(line);
        }
    }
    wrong.extend(
        left.iter()
            .map(|(section, key, _)| format!("{section}.{}: no row", key.name)),
    );
    (page, wrong)
}

#[test]
fn the_page_has_the_keys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let controller = page.find("## The controller's file").unwrap();
    let (node, controller) = page.split_at(controller);
    let (mut whole, mut wrong) = expected(NODE, node);
    let (rest, wrong_there) = expected(CONTROLLER, controller);
    whole.push_str(&rest);
    wrong.extend(wrong_there);
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &whole).unwrap();
    }
    let now = std::fs::read_to_string(&path).unwrap();
    let mut lines = now.lines().zip(whole.lines());
    let differing = lines.find(|(now, expected)| now != expected);
    let how = "UPDATE=1 cargo test -p posthaste-config the_page_has_the_keys writes it anew";
    assert_eq!(differing, None, "{PAGE}, and the table: {how}");
}

#[test]
fn unknown_keys_are_explained() {
    assert_eq!(
        unknown(NODE, "node", "wrkers"),
        "unknown key; did you mean \"workers\"?"
    );
    let elsewhere = unknown(NODE, "node", "source_ports");
    assert_eq!(elsewhere, "unknown key here; it is one of [measure]");
    let known = unknown(NODE, "half_open", "zzzzzz");
    assert_eq!(
        known,
        "unknown key; known keys here: total, reserve, per_prefix, expiry"
    );
}

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
