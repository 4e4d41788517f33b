// SPDX-License-Identifier: Apache-2.0
//! The table and the reader say the same of every key.

use std::path::Path;

use super::super::invariants::HOST;
use super::*;

/// The least that a file with a section of each kind may have.
const NODE_MINIMUM: &str = include_str!("minimum/node.toml");
const CONTROLLER_MINIMUM: &str = include_str!("minimum/controller.toml");
const FULL: &str = include_str!("../../../fuzz/seeds/config/full.toml");
const CONTROLLER_FULL: &str = include_str!("../../../fuzz/seeds/config/controller.toml");

/// Each key of a table, in each section that has it.
fn all(table: Table) -> Vec<(&'static str, &'static Key)> {
    let mut all = Vec::new();
    for rows in table {
        for section in rows.sections {
            all.extend(rows.keys.iter().map(|key| (*section, key)));
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
        for (section, key) in all(table) {
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
        for (section, key) in all(table) {
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
        for (section, key) in all(table) {
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
