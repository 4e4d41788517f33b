// SPDX-License-Identifier: Apache-2.0
//! Whether this host tracks connections (nf_conntrack), as its firewall and NAT do.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of tracked connections in the reader's network namespace.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// How long a reading is valid.
const FRESH: Duration = Duration::from_secs(1);

/// Connections were tracked once. An empty table shows nothing: all entries may have expired.
static TRACKS: AtomicBool = AtomicBool::new(false);

/// The last reading.
#[derive(Debug, Default)]
pub(crate) struct Conntrack {
    looked: Option<Instant>,
}

impl Conntrack {
    /// Whether connections are tracked, or were since this process started. With `now` the count is
    /// read anew, otherwise it may be a second old.
    pub(crate) fn is_active(&mut self, now: bool) -> bool {
        let fresh = self.looked.is_some_and(|at| at.elapsed() < FRESH);
        // Once set it stays set, and costs no further read of /proc.
        if !TRACKS.load(Relaxed) && (now || !fresh) {
            // Without the module the file does not exist.
            let count = fs::read_to_string(COUNT).unwrap_or_default();
            // Another worker may have read a positive count meanwhile.
            TRACKS.fetch_or(is_positive(&count), Relaxed);
            self.looked = Some(Instant::now());
        }
        TRACKS.load(Relaxed)
    }
}

fn is_positive(count: &str) -> bool {
    count.trim().parse().is_ok_and(|count: u64| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_no_tracking() {
        let counts = ["", "0\n", "1\n", "262144\n", "many"];
        assert_eq!(counts.map(is_positive), [false, false, true, true, false]);
    }
}
