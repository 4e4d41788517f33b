// SPDX-License-Identifier: Apache-2.0
//! The `keys` verb: what two nodes share, and who nodes and controllers are.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use posthaste_control::identity::Identity;
use posthaste_relay::sys;
use posthaste_wire::auth::KEY_BYTES;

use crate::client;
use crate::verb::{self, AdminArgs};

/// Bound on the bytes read of a secret file: one secret and white space.
const FILE_BYTES_MAX: u64 = 256;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysVerb {
    /// Generate a shared key of 64 hexadecimal digits
    Generate {
        /// Write the key to a new file with mode 0600 and print nothing
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Generate the secret of a controller, or of a node that has one, and print the public key
    Identity {
        /// The new file with the secret, with mode 0600
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Print the public key of a secret, for the configuration of the other side
    Public {
        /// The file with the secret
        file: PathBuf,
    },
    /// Accept the key that the controller now sends for a node, in place of the key that it sent first
    Forget {
        /// The node's name, as posthaste chains shows it
        name: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Executes the verb.
pub(crate) fn run(verb: &KeysVerb) -> anyhow::Result<()> {
    match verb {
        KeysVerb::Generate { output: None } => verb::print(&generate()),
        KeysVerb::Generate { output: Some(file) } => write_new(file, &generate()),
        KeysVerb::Identity { output } => make_identity(output),
        KeysVerb::Public { file } => verb::print(&format!("{}\n", identity(file)?.public())),
        KeysVerb::Forget { name, admin } => client::forget_key(name, admin),
    }
}

/// Makes a secret, and prints the public key.
fn make_identity(output: &Path) -> anyhow::Result<()> {
    write_new(output, &generate())?;
    verb::print(&format!("{}\n", identity(output)?.public()))
}

/// The identity whose secret is in a file.
fn identity(file: &Path) -> anyhow::Result<Identity> {
    let mut text = String::new();
    File::open(file)
        .and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .with_context(|| format!("read {}", file.display()))?;
    // The file ends with a newline.
    let identity = Identity::from_hex(text.trim());
    identity.with_context(|| {
        let file = file.display();
        format!(
            "{file}: expected 64 hexadecimal digits in it, as posthaste keys identity writes them"
        )
    })
}

/// A key from the kernel's random number generator, and the end of the line.
fn generate() -> String {
    // Blocks until the kernel has enough entropy.
    let bytes: [u8; KEY_BYTES] = sys::random();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits + "\n"
}

/// Creates a file for its owner alone; fails if it exists.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let made = File::options()
        .write(true)
        // O_EXCL: an existing key may be in use elsewhere, and a symbolic link that someone has
        // placed here is not followed.
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
        // A partial key must not stay.
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    // promise: C5
    #[test]
    fn keys_differ() {
        let keys: std::collections::HashSet<_> = (0..64).map(|_| generate()).collect();
        assert_eq!(keys.len(), 64);
        for key in keys {
            let key = key.strip_suffix('\n').expect("a line");
            assert!(
                key.len() == 64 && key.chars().all(|c| c.is_ascii_hexdigit()),
                "{key}"
            );
        }
    }

    #[test]
    fn private_file_written_once() {
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

    #[test]
    fn secret_and_public_key() {
        let path = std::env::temp_dir().join(format!("ph-identity-{}", std::process::id()));
        make_identity(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let public = Identity::from_hex(text.trim()).unwrap().public();
        assert_eq!(identity(&path).unwrap().public(), public);
        assert!(make_identity(&path).is_err(), "it is not overwritten");
        fs::write(&path, "secret").unwrap();
        let error = identity(&path).unwrap_err().to_string();
        assert!(
            error.contains("64 hexadecimal digits") && !error.contains("secret\""),
            "{error}"
        );
        fs::remove_file(&path).unwrap();
    }
}
