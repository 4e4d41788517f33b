// SPDX-License-Identifier: Apache-2.0
//! Promises and their tests.
//!
//! `SPECIFICATION.md` has the promises that operators rely on, `promises.tsv` beside this crate the
//! others, and commands other than tests that check one: id, sentence, commands. A test names what
//! it checks by a comment above it, `// promise: T1, T2`. `docs/promises.md` is made of all three.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::tree;

const PAGE: &str = "docs/promises.md";
const HEAD: &str = "# Promises and their tests\n\n\
    Written by `UPDATE=1 cargo test -p posthaste-documents`; do not edit. The sentences are those of \
    [SPECIFICATION.md](../SPECIFICATION.md) and of `crates/documents/promises.tsv`.\n";

/// A letter or two and a number: the order of a page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id(String, u32);

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| c.is_ascii_digit())?;
        let (letters, number) = text.split_at(digits);
        let is_upper = !letters.is_empty() && letters.chars().all(|c| c.is_ascii_uppercase());
        is_upper.then_some(Self(letters.into(), number.parse().ok()?))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

#[derive(Debug, Default)]
struct Promise {
    sentence: String,
    commands: String,
    /// Path and name of each test.
    tests: Vec<(String, String)>,
}

/// The rows `| ID | sentence |` of a document.
fn rows(text: &str) -> impl Iterator<Item = (Id, &str)> {
    text.lines().filter_map(|line| {
        let (id, sentence) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((Id::parse(id)?, sentence.strip_suffix(" |")?))
    })
}

/// The ids that comments of a source name, each with the function below.
fn tags(text: &str) -> Vec<(Id, String)> {
    let mut found = Vec::new();
    let mut named: Vec<Id> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(ids) = line.strip_prefix("// promise: ") {
            let ids = ids.split(", ");
            named = ids
                .map(|id| Id::parse(id).unwrap_or_else(|| panic!("{line}: no id")))
                .collect();
        } else if let Some(rest) = line.split_once("fn ").map(|(_, rest)| rest)
            && !line.starts_with("//")
        {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            found.extend(named.drain(..).map(|id| (id, name.clone())));
        }
    }
    assert!(named.is_empty(), "{named:?}: no test follows");
    found
}

fn promises() -> BTreeMap<Id, Promise> {
    let mut all = BTreeMap::new();
    for line in tree::read("crates/documents/promises.tsv").lines() {
        let mut parts = line.split('\t').map(str::to_owned);
        let id = parts.next().and_then(|id| Id::parse(&id));
        let promise = Promise {
            sentence: parts.next().unwrap_or_default(),
            commands: parts.next().unwrap_or_default(),
            tests: Vec::new(),
        };
        let id = id.unwrap_or_else(|| panic!("promises.tsv: {line}: no id"));
        assert!(
            all.insert(id, promise).is_none(),
            "promises.tsv: {line}: twice"
        );
    }
    for (id, sentence) in rows(&tree::read("SPECIFICATION.md")) {
        let promise: &mut Promise = all.entry(id.clone()).or_default();
        let is_new = promise.sentence.is_empty();
        assert!(
            is_new,
            "{id} is in SPECIFICATION.md and has a sentence in promises.tsv"
        );
        sentence.clone_into(&mut promise.sentence);
    }
    all
}

fn page(promises: &BTreeMap<Id, Promise>) -> String {
    let mut page = String::from(HEAD);
    for (id, promise) in promises {
        let _ = write!(page, "\n**{id}** {}\n", promise.sentence);
        for (path, name) in &promise.tests {
            let _ = writeln!(page, "- `{path}`: `{name}`");
        }
        if !promise.commands.is_empty() {
            let _ = writeln!(page, "- {}", promise.commands);
        }
    }
    page
}

#[test]
fn promises_have_tests() {
    let mut promises = promises();
    let mut wrong = Vec::new();
    for file in tree::files(&[".rs"]) {
        if file.path.starts_with("crates/documents/") {
            continue;
        }
        for (id, name) in tags(&file.text) {
            match promises.get_mut(&id) {
                Some(promise) => promise.tests.push((file.path.clone(), name)),
                None => wrong.push(format!("{}: {name}: there is no promise {id}", file.path)),
            }
        }
    }
    let untested = promises
        .iter()
        .filter(|(_, promise)| promise.tests.is_empty() && promise.commands.is_empty());
    wrong.extend(untested.map(|(id, _)| format!("{id} has no test with `// promise: {id}`")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let page = page(&promises);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(tree::root().join(PAGE), &page).expect("the page can be written");
    }
    let is_same = tree::read(PAGE) == page;
    assert!(
        is_same,
        "{PAGE} is out of date: UPDATE=1 cargo test -p posthaste-documents writes it anew"
    );
}

#[test]
fn promises_for_operators() {
    let count = rows(&tree::read("SPECIFICATION.md")).count();
    assert!(
        (35..=60).contains(&count),
        "{count}: SPECIFICATION.md is for operators"
    );
}

#[test]
fn tags_and_rows() {
    let source = "// promise: T1, K15\n#[test]\nfn one() {}\nfn two() {}\n";
    let id = |letters: &str, number| Id(letters.into(), number);
    assert_eq!(
        tags(source),
        [(id("T", 1), "one".into()), (id("K", 15), "one".into())]
    );
    let text = "| | promise |\n|---|---|\n| T1 | It works. |\n| no | id |\n";
    assert!(rows(text).eq([(id("T", 1), "It works.")]));
}
