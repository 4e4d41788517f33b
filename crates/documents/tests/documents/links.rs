// SPDX-License-Identifier: Apache-2.0
//! Links between documents lead somewhere.

use std::path::{Component, Path, PathBuf};

use super::tree;

/// What the links of a document name: `](target)`, outside of code.
fn targets(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if !in_code {
            let links = line.split("](").skip(1);
            found.extend(links.filter_map(|rest| rest.split_once(')').map(|(target, _)| target)));
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub writes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// A path without `..` in it.
fn resolved(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(result.pop()),
            Component::CurDir => {}
            part => result.push(part),
        }
    }
    result
}

#[test]
fn links_resolve() {
    let mut broken = Vec::new();
    for file in tree::files(&[".md"]) {
        let directory = Path::new(&file.path)
            .parent()
            .unwrap_or_else(|| Path::new(""));
        for target in targets(&file.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => PathBuf::from(&file.path),
                path => resolved(&directory.join(path)),
            };
            let whole = tree::root().join(&path);
            let has_anchor = || {
                let text = std::fs::read_to_string(&whole).unwrap_or_default();
                anchors(&text).iter().any(|found| found == anchor)
            };
            if !whole.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {target}", file.path));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}",
        broken.join("\n")
    );
}

#[test]
fn targets_and_anchors() {
    let text = "[a](b.md#c) and [d](e)\n```\n[no](link)\n```\n## Limits to know, 2\n";
    assert_eq!(targets(text), ["b.md#c", "e"]);
    assert_eq!(anchors(text), ["limits-to-know-2"]);
    assert_eq!(
        resolved(Path::new("docs/design/../run.md")),
        Path::new("docs/run.md")
    );
}

/// The paths of functions and modules that a document has in backticks: `module::name`.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |word: &&str| {
        let parts: Vec<&str> = word.split("::").collect();
        let is_name = |part: &&str| {
            let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            !part.is_empty() && part.chars().all(allowed)
        };
        parts.len() > 1 && parts.iter().all(is_name)
    };
    text.split('`').skip(1).step_by(2).filter(is_path)
}

#[test]
fn named_code_exists() {
    let sources = tree::files(&[".rs"]);
    let is_there = |name: &str| {
        let defined = [
            format!("fn {name}("),
            format!("mod {name};"),
            format!("mod {name} {{"),
        ];
        sources
            .iter()
            .any(|file| defined.iter().any(|words| file.text.contains(words)))
    };
    let mut unknown = Vec::new();
    for file in tree::files(&[".md"]) {
        let names = paths(&file.text).filter_map(|path| path.rsplit("::").next());
        unknown.extend(
            names
                .filter(|name| !is_there(name))
                .map(|name| format!("{}: {name}", file.path)),
        );
    }
    assert!(unknown.is_empty(), "\n{}", unknown.join("\n"));
}

/// The code of a row: a file, and what the row names in it.
fn named_in(row: &str) -> Option<(&str, Vec<&str>)> {
    let mut cells = row.strip_prefix("| `")?.split(" | ");
    let file = cells.next()?.strip_suffix('`')?;
    let names = cells.next()?.split('`').skip(1).step_by(2);
    Some((file, names.collect()))
}

#[test]
fn walk_names_functions() {
    let text = tree::read("docs/internals.md");
    let (_, walk) = text.split_once("## Follow a SYN").unwrap();
    let (walk, _) = walk.split_once("\n## ").unwrap();
    let rows: Vec<_> = walk.lines().filter_map(named_in).collect();
    assert!((2..12).contains(&rows.len()), "{} files", rows.len());
    for (file, names) in rows {
        let source = tree::read(file);
        // A C function has its type before its name, and a space or a star in between.
        let defined = |name| {
            [
                format!("fn {name}("),
                format!("int {name}("),
                format!("bool {name}("),
                format!("__u32 {name}("),
            ]
        };
        for name in names {
            let is_there = defined(name).iter().any(|words| source.contains(words));
            assert!(is_there, "{file} has no {name}");
        }
    }
}
