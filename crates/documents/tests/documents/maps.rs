// SPDX-License-Identifier: Apache-2.0
//! The table of maps in `docs/internals.md`.

use std::collections::BTreeSet;

use super::tree;

/// The names of the maps that a source defines. A setting is none.
fn defined(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let name = line.strip_prefix("} ")?;
        name.strip_suffix(" SEC(\".maps\");")
    })
}

/// The names in the first column of the table.
fn documented(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| map |"));
    let rows = rows.take_while(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(1));
    columns
        .flat_map(|column| column.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn table_has_every_map() {
    let sources = tree::files(&[".bpf.c", ".h"]);
    let maps: BTreeSet<&str> = sources
        .iter()
        .flat_map(|file| defined(&file.text))
        .collect();
    assert!(maps.contains("packet_flows"), "{maps:?}");
    let page = tree::read("docs/internals.md");
    assert_eq!(documented(&page), maps, "docs/internals.md");
}
