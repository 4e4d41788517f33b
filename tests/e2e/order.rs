// SPDX-License-Identifier: Apache-2.0
//! `src/order.ld` names code by globs. A module or a crate that was renamed would drop out of it without a
//! word, and memory would grow.

use std::process::Command;

use crate::support::binary;

const SCRIPT: &str = include_str!("../../src/order.ld");

#[test]
fn sections_of_order_exist() {
    let symbols = output("nm", &[binary().to_str().expect("a path in UTF-8")]);
    let globs: Vec<&str> = words("(", ")").filter_map(section).collect();
    assert!(globs.len() > 20, "{globs:?}");
    for glob in globs {
        let is_named = |line: &str| {
            line.split(' ')
                .next_back()
                .is_some_and(|name| fits(glob, name))
        };
        assert!(symbols.lines().any(is_named), "no function fits {glob}");
    }
}

#[test]
fn libc_members_of_order_exist() {
    let library = output("cc", &["-print-file-name=libc.a"]);
    let members = output("ar", &["t", library.trim()]);
    let globs: Vec<&str> = words("*libc.a:", "(").collect();
    assert!(globs.len() > 5, "{globs:?}");
    for glob in globs {
        let found = members.lines().any(|member| fits(glob, member));
        assert!(found, "libc.a has no {glob}");
    }
}

/// What stands between these in the script.
fn words(before: &'static str, after: &'static str) -> impl Iterator<Item = &'static str> {
    let pieces = SCRIPT.split(before).skip(1);
    pieces.flat_map(move |piece| piece.split(after).next().unwrap_or_default().split(' '))
}

/// The glob of a function's section, if it is for functions by name.
fn section(word: &'static str) -> Option<&'static str> {
    word.strip_prefix(".text.").filter(|glob| *glob != "*")
}

/// Whether a name fits a glob of stars.
fn fits(glob: &str, name: &str) -> bool {
    let Some((first, rest)) = glob.split_once('*') else {
        return glob == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = name.find(piece) else {
            return false;
        };
        name = &name[at + piece.len()..];
    }
    name.ends_with(last)
}

fn output(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("run {program}: {error}"));
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).expect("text in UTF-8")
}
