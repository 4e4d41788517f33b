// SPDX-License-Identifier: Apache-2.0
//! Priorities for the journal of systemd, which reads them in front of each line (sd-daemon(3)).
//!
//! Whether the journal reads a descriptor follows from the descriptor, not from `JOURNAL_STREAM`: a
//! node that takes over from another continues with that one's output.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::sys::socket::{UnixAddr, getpeername};

use crate::log::Level;

/// Where journals have their sockets; those of log namespaces have a name behind it.
const DIRECTORY: &str = "/run/systemd/journal";
const SOCKET: &str = "stdout";

/// Whether a journal reads what is written to a descriptor.
pub fn reads(output: impl AsFd) -> bool {
    let peer = getpeername::<UnixAddr>(output.as_fd().as_raw_fd());
    peer.is_ok_and(|peer| peer.path().is_some_and(is_journal))
}

fn is_journal(path: &Path) -> bool {
    let of_journals = |directory: &Path| {
        let text = directory.to_str().unwrap_or_default();
        let name = text.strip_prefix(DIRECTORY);
        name.is_some_and(|name| name.is_empty() || name.starts_with('.'))
    };
    path.ends_with(SOCKET) && path.parent().is_some_and(of_journals)
}

/// What a line of this severity begins with in a journal.
pub(crate) fn prefix(level: Level) -> &'static str {
    match level {
        Level::Info => "<6>",
        Level::Warn => "<4>",
        Level::Error => "<3>",
    }
}

/// Reports something on standard error, for a process that has no log.
pub fn report(level: Level, text: &str) {
    let is_read = reads(std::io::stderr());
    for line in text.lines() {
        eprintln!("{}{line}", if is_read { prefix(level) } else { "" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_recognized() {
        for path in [
            "/run/systemd/journal/stdout",
            "/run/systemd/journal.web/stdout",
        ] {
            assert!(is_journal(Path::new(path)), "{path}");
        }
        for path in [
            "/run/systemd/journal/socket",
            "/run/systemd/journalist/stdout",
            "/run/stdout",
            "stdout",
        ] {
            assert!(!is_journal(Path::new(path)), "{path}");
        }
        assert!(!reads(std::fs::File::open("/dev/null").unwrap()));
    }
}
