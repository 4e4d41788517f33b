// SPDX-License-Identifier: Apache-2.0
//! Files that hold the old or the new content, and nothing between.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file as a whole, with this mode if it is new, through a file beside it with the
/// extension `next`.
///
/// # Errors
/// The system's; the former content stays.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut options = File::options();
    // Truncated: a process that died in here has left one.
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(&next)?;
    file.write_all(content)?;
    // Before the new name: after a crash of the host it must not lead to an empty file.
    file.sync_all()?;
    // Replaces the file in one step: a reader finds the old one or the new one (rename(2)).
    fs::rename(&next, path)
}
