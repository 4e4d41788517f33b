// SPDX-License-Identifier: Apache-2.0
//! Decides which peers get options in SYNs: not all paths pass them, and not all nodes accept them.
//! Pure: callers pass the time.
//!
//! After three options in a row that a peer did not accept, it gets none for a minute, and then
//! one. If that is not accepted either, the pause doubles, up to an hour. One accepted option
//! clears the record.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_wire::header::NodeId;

/// Ignored options in a row before the first pause: some are lost by chance.
const MISSES_MAX: u32 = 3;
/// The first and the longest pause.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Ignored options by peer.
#[derive(Debug, Default)]
pub(crate) struct SynOptions(HashMap<NodeId, Misses>);

#[derive(Clone, Copy, Debug)]
struct Misses {
    /// In a row.
    count: u32,
    /// End of the pause.
    until: Duration,
}

impl SynOptions {
    /// Records whether a peer accepted an option.
    pub(crate) fn note(&mut self, peer: NodeId, accepted: bool, now: Duration) {
        if accepted {
            self.0.remove(&peer);
            return;
        }
        let misses = self.0.entry(peer).or_insert(Misses {
            count: 0,
            until: now,
        });
        // This option was sent before the pause began.
        if now < misses.until {
            return;
        }
        misses.count = misses.count.saturating_add(1);
        if let Some(pauses) = misses.count.checked_sub(MISSES_MAX) {
            let pause = PAUSE.saturating_mul(1 << pauses.min(16));
            misses.until = now + pause.min(PAUSE_MAX);
        }
    }

    /// The rest of a peer's pause; `None` if it gets options.
    pub(crate) fn paused_for(&self, peer: NodeId, now: Duration) -> Option<Duration> {
        let until = self.0.get(&peer)?.until;
        until.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Removes nodes that are no longer peers.
    pub(crate) fn retain(&mut self, mut is_peer: impl FnMut(NodeId) -> bool) {
        self.0.retain(|peer, _| is_peer(*peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn peer(id: u64) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn after(seconds: u64) -> Duration {
        NOW + Duration::from_secs(seconds)
    }

    fn paused(syn_options: &SynOptions, now: Duration) -> Option<u64> {
        syn_options
            .paused_for(peer(1), now)
            .map(|left| left.as_secs())
    }

    // promise: K12
    #[test]
    fn ignored_options_back_off() {
        let mut syn_options = SynOptions::default();
        for _ in 0..2 {
            syn_options.note(peer(1), false, NOW);
            assert_eq!(paused(&syn_options, NOW), None);
        }
        syn_options.note(peer(1), false, NOW);
        assert_eq!(paused(&syn_options, NOW), Some(60));
        assert_eq!(paused(&syn_options, after(59)), Some(1));
        let mut now = after(60);
        for pause in [120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(paused(&syn_options, now), None);
            syn_options.note(peer(1), false, now);
            assert_eq!(paused(&syn_options, now), Some(pause));
            now += Duration::from_secs(pause);
        }
        assert_eq!(syn_options.paused_for(peer(2), now), None, "another");
    }

    #[test]
    fn options_in_flight_not_counted() {
        let mut syn_options = SynOptions::default();
        for _ in 0..50 {
            syn_options.note(peer(1), false, NOW);
        }
        assert_eq!(paused(&syn_options, NOW), Some(60));
    }

    // promise: K12
    #[test]
    fn one_acceptance_resets() {
        let mut syn_options = SynOptions::default();
        for _ in 0..2 {
            syn_options.note(peer(1), false, NOW);
        }
        syn_options.note(peer(1), true, NOW);
        for _ in 0..2 {
            syn_options.note(peer(1), false, NOW);
        }
        assert_eq!(paused(&syn_options, NOW), None);
        syn_options.note(peer(1), false, NOW);
        syn_options.note(peer(1), true, NOW);
        assert_eq!(paused(&syn_options, NOW), None);
    }

    #[test]
    fn removed_peers_forgotten() {
        let mut syn_options = SynOptions::default();
        for _ in 0..3 {
            syn_options.note(peer(1), false, NOW);
        }
        syn_options.retain(|id| id == peer(2));
        assert!(syn_options.0.is_empty());
    }
}
