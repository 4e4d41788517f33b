// SPDX-License-Identifier: Apache-2.0
//! The last plan on disk, so that a node that starts again without its controller has it.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use posthaste_control::follower::Saved;
use posthaste_daemon::file;

/// More is not read: what a thousand nodes need takes less than a tenth.
const BYTES_MAX: u64 = 64 << 20;
/// Names the time between two starts of the host, during which the monotonic clock only goes forward.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Where the last plan is kept.
#[derive(Debug)]
pub(super) struct Disk {
    file: PathBuf,
    /// Which start of the host this is.
    pub(super) boot: [u8; 16],
}

impl Disk {
    pub(super) fn new(directory: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(BOOT_ID).with_context(|| format!("read {BOOT_ID}"))?;
        // It has the form of a UUID, with hyphens.
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16);
        Ok(Self {
            file: directory.join("plan"),
            boot: boot
                .with_context(|| format!("read {BOOT_ID}"))?
                .to_be_bytes(),
        })
    }

    /// What was kept; nothing if nothing was.
    pub(super) fn load(&self) -> anyhow::Result<Option<Saved>> {
        let path = self.file.display();
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("open {path}"))?,
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .with_context(|| format!("read {path}"))?;
        let saved = Saved::from_bytes(&bytes);
        Ok(Some(saved.with_context(|| format!("read {path}"))?))
    }

    /// Keeps it: whole, or what was kept before stays.
    pub(super) fn save(&self, saved: &Saved) -> anyhow::Result<()> {
        let write = || {
            if let Some(directory) = self.file.parent() {
                fs::create_dir_all(directory)?;
            }
            // Only the node itself need read who its neighbours are.
            file::replace(&self.file, 0o600, &saved.to_bytes())
        };
        write().with_context(|| format!("write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use posthaste_control::follower::Follower;
    use posthaste_control::message::Hello;

    use super::*;

    fn saved(boot: [u8; 16]) -> Saved {
        let hello = Hello {
            version: 1,
            number: 1,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds: None,
        };
        Follower::new(hello, None, 1, Duration::ZERO).saved(boot)
    }

    #[test]
    fn stored_plan_and_damage() {
        let directory = std::env::temp_dir().join(format!("ph-plan-{}", std::process::id()));
        let disk = Disk::new(&directory).unwrap();
        assert_eq!(disk.load().unwrap(), None);
        disk.save(&saved(disk.boot)).unwrap();
        disk.save(&saved([9; 16])).unwrap();
        assert_eq!(disk.load().unwrap(), Some(saved([9; 16])));
        let bytes = fs::read(&disk.file).unwrap();
        fs::write(&disk.file, &bytes[..bytes.len() - 1]).unwrap();
        let error = format!("{:#}", disk.load().unwrap_err());
        assert!(
            error.contains("/plan: ") && error.contains("no plan"),
            "{error}"
        );
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "a file").unwrap();
        assert!(disk.save(&saved([9; 16])).is_err());
        fs::remove_file(&directory).unwrap();
    }
}
