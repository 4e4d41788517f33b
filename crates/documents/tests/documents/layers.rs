// SPDX-License-Identifier: Apache-2.0
//! The modules of the binary use each other in one direction. Cargo sees to that for crates.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree;

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The modules of the crate that a source names: `crate::name` and `crate::{name, ...}`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split("crate::").skip(1).flat_map(|rest| {
        let list = rest
            .strip_prefix('{')
            .and_then(|list| list.split('}').next());
        let first_words = list.unwrap_or(rest).split(',').map(|item| {
            let item = item.trim_start();
            let end = item.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            &item[..end.unwrap_or(item.len())]
        });
        first_words.take(if list.is_some() { usize::MAX } else { 1 })
    })
}

/// Which top-level modules use which others. Tests may use what they like.
fn uses() -> Uses {
    let mut uses = Uses::new();
    for file in tree::files(&[".rs"]) {
        let Some(path) = file.path.strip_prefix("src/") else {
            continue;
        };
        let module = path.split(['/', '.']).next().unwrap_or_default();
        if !path.contains("tests") {
            let product = file.text.split("#[cfg(test)]\nmod tests").next();
            let others = named(product.unwrap_or_default()).filter(|name| *name != module);
            let others = others.map(str::to_owned);
            uses.entry(module.to_owned()).or_default().extend(others);
        }
    }
    uses
}

/// A chain of modules of which each uses the next, and the last is in it already.
fn cycle(uses: &Uses, chain: &mut Vec<String>) -> bool {
    let last = chain.last().and_then(|last| uses.get(last));
    for next in last.into_iter().flatten() {
        let is_there = chain.contains(next);
        chain.push(next.clone());
        if is_there || cycle(uses, chain) {
            return true;
        }
        chain.pop();
    }
    false
}

#[test]
fn modules_without_cycle() {
    let uses = uses();
    assert!(uses.len() > 10, "these are not all modules: {uses:?}");
    for module in uses.keys() {
        let mut chain = vec![module.clone()];
        assert!(!cycle(&uses, &mut chain), "{}", chain.join(" uses "));
    }
}

#[test]
fn cycle_is_found() {
    let text = "use crate::{\n    a, b::C\n};\nuse crate::d::{e, f};";
    assert_eq!(named(text).collect::<Vec<_>>(), ["a", "b", "d"]);
    let uses = |pairs: &[(&str, &str)]| -> Uses {
        let pairs = pairs.iter();
        pairs
            .map(|(one, other)| (one.to_string(), [other.to_string()].into()))
            .collect()
    };
    let mut chain = vec!["a".to_owned()];
    assert!(!cycle(&uses(&[("a", "b"), ("b", "c")]), &mut chain));
    assert!(cycle(&uses(&[("a", "b"), ("b", "a")]), &mut chain));
    assert_eq!(chain, ["a", "b", "a"]);
}
