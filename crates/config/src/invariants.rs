// SPDX-License-Identifier: Apache-2.0
//! What holds for every text that is given as a configuration file. For the
//! tests and for fuzzing; not part of the product.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::controller::Controller;
use super::host::KeyFile;
use super::{Capacity, Config, Error};

/// A host on which files are checked, always the same.
pub const HOST: Capacity = Capacity {
    cpus: 2,
    files: 20_512,
    congestion: || vec!["cubic".into(), "bbr".into()],
    key_file,
    group: |name| (name == "netops").then_some(1234),
};

/// The files with keys on that host.
const KEY_FILES: [&str; 2] = ["/etc/posthaste/rome.key", "/etc/posthaste/identity.key"];

fn key_file(path: &Path) -> io::Result<KeyFile> {
    if !KEY_FILES.iter().any(|file| path == Path::new(file)) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(KeyFile {
        text: "5a".repeat(32) + "\n",
        for_all: false,
    })
}

const FILE: &str = "node.toml";

/// Checks that a text has a meaning, as a file of a controller or of a node,
/// which can be shown and then read again, or an error that names the file.
/// Returns whether it has a meaning.
///
/// # Panics
/// When something does not hold.
pub fn check(text: &str) -> bool {
    if Controller::is_meant_by(text) {
        return check_controller(text);
    }
    let config = match parse(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(error.to_string().contains(FILE), "{error}");
            return false;
        }
    };
    config.to_json().expect("a configuration can be shown");
    let shown = config.to_string();
    let again = read_again(&config, &shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(again, config, "{shown}");
    assert_eq!(config.adopt(config.clone()), (config, vec![]));
    true
}

fn check_controller(text: &str) -> bool {
    let read = |text: &str| Controller::parse(Path::new(FILE), text, &HOST);
    let config = match read(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(error.to_string().contains(FILE), "{error}");
            return false;
        }
    };
    config.to_json().expect("a configuration can be shown");
    let shown = config.to_string();
    let again = read(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(again.to_string(), shown);
    assert_eq!(config.adopt(again).1, [] as [&str; 0], "{shown}");
    true
}

/// Reads what is shown of a configuration, with the keys that are not shown.
pub(super) fn read_again(config: &Config, shown: &str) -> Result<Config, Error> {
    let mut again = parse(&shown.replace("(hidden)", &"0".repeat(64)))?;
    let peers = Arc::make_mut(&mut again.policy.chains).peers.iter_mut();
    let of_peers = config
        .policy
        .chains
        .peers
        .iter()
        .zip(&config.spelling.key_files);
    for (peer, (original, files)) in peers.zip(of_peers) {
        if files.own.is_none() {
            peer.key.clone_from(&original.key);
        }
        if files.other.is_none() {
            peer.other_key.clone_from(&original.other_key);
        }
    }
    // What was corrected with a warning is shown as corrected.
    again.warnings.clone_from(&config.warnings);
    Ok(again)
}

fn parse(text: &str) -> Result<Config, Error> {
    Config::parse(Path::new(FILE), text, &HOST)
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use super::*;

    const FULL: &str = include_str!("../../../fuzz/seeds/config/full.toml");
    const CONTROLLER: &str = include_str!("../../../fuzz/seeds/config/controller.toml");
    const TEXTS: u64 = 3_000;
    /// What decides the meaning of a line.
    const SIGNS: &[char] = &[
        '"', '[', ']', '=', '.', '-', '/', ':', '#', '0', '9', 's', 'm', 'K', ' ', '\n', 'é',
    ];

    #[test]
    fn invariants_of_random_files() {
        for file in [FULL, CONTROLLER] {
            assert!(check(file));
            they_hold_for_what_resembles(file);
        }
    }

    fn they_hold_for_what_resembles(file: &str) {
        let mut meaningful = 0;
        for number in 0..TEXTS {
            let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
            for step in 0..=chance((number, "steps"), 3) {
                spoil(&mut lines, (number, step));
            }
            meaningful += u64::from(check(&lines.join("\n")));
        }
        assert!(meaningful > TEXTS / 20, "{meaningful} are too few");
        assert!(meaningful < TEXTS, "none was spoilt");
    }

    /// Changes a line, moves it, doubles it or leaves it out.
    fn spoil(lines: &mut Vec<String>, seed: (u64, usize)) {
        let at = chance((seed, "line"), lines.len());
        let other = chance((seed, "other"), lines.len());
        match chance((seed, "how"), 5) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[other].clone()),
            2 => lines.swap(at, other),
            3 => exchange(lines, at, other),
            _ => {
                let end = chance((seed, "sign"), lines[at].chars().count() + 1);
                let rest: String = lines[at].chars().skip(end + 1).collect();
                let sign = SIGNS[chance((seed, "which"), SIGNS.len())];
                let kept: String = lines[at].chars().take(end).collect();
                lines[at] = format!("{kept}{sign}{rest}");
            }
        }
    }

    /// Gives a key the value of another.
    fn exchange(lines: &mut [String], at: usize, other: usize) {
        let value = lines[other].split_once(" = ").map(|(_, value)| value);
        let key = lines[at].split_once(" = ").map(|(key, _)| key);
        if let (Some(key), Some(value)) = (key, value) {
            lines[at] = format!("{key} = {value}");
        }
    }

    /// A number below `limit` that follows from `seed`.
    fn chance(seed: impl std::hash::Hash, limit: usize) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(seed);
        usize::try_from(hash % limit as u64).expect("less than a usize")
    }
}
