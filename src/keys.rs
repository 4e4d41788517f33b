// SPDX-License-Identifier: Apache-2.0
//! The `keys` verb: what two nodes share.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use posthaste_wire::seal::KEY_BYTES;

use crate::cli;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysVerb {
    /// Make a key of 64 hexadecimal digits
    Generate {
        /// Write it to a new file that only its owner can read, and print nothing
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Does what the verb says.
pub(crate) fn run(verb: &KeysVerb) -> anyhow::Result<()> {
    let KeysVerb::Generate { output } = verb;
    let line = generate()? + "\n";
    match output {
        Some(file) => write_new(file, &line),
        None => cli::print(&line),
    }
}

/// A key from the kernel's random numbers, of which the device gives none
/// before it has enough.
fn generate() -> anyhow::Result<String> {
    let device = "/dev/random";
    let mut bytes = [0; KEY_BYTES];
    File::open(device)
        .and_then(|mut random| random.read_exact(&mut bytes))
        .with_context(|| format!("read {device}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a file that was not there, for its owner alone.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let made = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let mut file = match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is there already: it is not overwritten", path.display())
        }
        made => made.with_context(|| format!("create {}", path.display()))?,
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a key is none.
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_two_keys_are_the_same() {
        let keys: std::collections::HashSet<_> = (0..64).map(|_| generate().unwrap()).collect();
        assert_eq!(keys.len(), 64);
        for key in keys {
            assert!(
                key.len() == 64 && key.chars().all(|c| c.is_ascii_hexdigit()),
                "{key}"
            );
        }
    }

    #[test]
    fn a_file_is_for_its_owner_and_written_once() {
        let path = std::env::temp_dir().join(format!("ph-key-{}", std::process::id()));
        write_new(&path, "one\n").unwrap();
        let error = write_new(&path, "two\n").unwrap_err().to_string();
        assert!(error.contains("is not overwritten"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        assert!(write_new(Path::new("/nowhere/key"), "x").is_err());
    }
}
