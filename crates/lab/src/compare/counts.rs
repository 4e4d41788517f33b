// SPDX-License-Identifier: Apache-2.0
//! The kernel's counters of a host: packets of an interface, and TCP failures.

use std::ops::Sub;

use anyhow::{Context, Result};

use crate::flood::counts::{counter, read};

/// Counters since the host was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Packets that the interface received and sent. One that is passed to the next stack in one
    /// piece counts once, however large.
    pub(super) packets: u64,
    /// Retransmitted segments.
    pub(super) retransmitted: u64,
    /// Resets sent.
    pub(super) resets: u64,
    /// Connections ended by a reset, and failed attempts.
    pub(super) broken: u64,
}

impl Counts {
    /// Reads the counters of an interface and of the calling thread's network namespace.
    pub(super) fn take(interface: &str) -> Result<Self> {
        let snmp = read("snmp")?;
        let tcp = |name| counter(&snmp, "Tcp:", name);
        Ok(Self {
            packets: packets(&read("dev")?, interface)?,
            retransmitted: tcp("RetransSegs")?,
            resets: tcp("OutRsts")?,
            // A reset ends an open connection in the first counter and a half-open one in the
            // second.
            broken: tcp("EstabResets")? + tcp("AttemptFails")?,
        })
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            retransmitted: self.retransmitted - earlier.retransmitted,
            resets: self.resets - earlier.resets,
            broken: self.broken - earlier.broken,
        }
    }
}

/// Packets received and sent by an interface, in the lines of /proc/net/dev.
fn packets(text: &str, interface: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        (name.trim() == interface).then_some(rest)
    });
    let fields: Option<Vec<u64>> = line.map(|line| {
        let numbers = line.split_ascii_whitespace();
        numbers.filter_map(|number| number.parse().ok()).collect()
    });
    // Received bytes and packets are first; sent bytes and packets follow six fields later.
    let both = fields.and_then(|fields| Some(fields.get(1)? + fields.get(9)?));
    both.with_context(|| format!("the kernel shows no interface {interface}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_both_directions() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets ...\n    lo: 1 2 0 0 0 0 0 0 \
                    3 4 0 0 0 0 0 0\n  s0: 900 12 0 0 0 0 0 0 800 11 0 0 0 0 0 0\n";
        assert_eq!(packets(text, "s0").unwrap(), 23);
        assert!(packets(text, "c0").is_err());
    }

    #[test]
    fn snapshot_of_host() {
        assert!(Counts::take("lo").is_ok());
    }
}
