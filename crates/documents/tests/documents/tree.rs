// SPDX-License-Identifier: Apache-2.0
//! The files of the project.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories without sources of ours.
const LEFT_OUT: [&str; 6] = [
    "target",
    ".git",
    "results",
    "corpus",
    "artifacts",
    "lab-output",
];

/// The project's directory.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("crates/documents is two directories deep")
        .to_owned()
}

/// A file, by its path from the project's directory.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The text of one file.
pub(crate) fn read(path: &str) -> String {
    let whole = root().join(path);
    fs::read_to_string(&whole).unwrap_or_else(|error| panic!("{}: {error}", whole.display()))
}

/// All files with one of these endings, in the order of their paths.
pub(crate) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), endings, &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn walk(directory: &Path, endings: &[&str], found: &mut Vec<File>) {
    let entries = fs::read_dir(directory).expect("a directory of the project can be read");
    for entry in entries {
        let path = entry.expect("an entry can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !LEFT_OUT.contains(&name.as_ref()) {
                walk(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = fs::read_to_string(&path).expect("sources and documents are UTF-8");
            let path = path.strip_prefix(root()).expect("it is below the root");
            let path = path.to_string_lossy().into_owned();
            found.push(File { path, text });
        }
    }
}
