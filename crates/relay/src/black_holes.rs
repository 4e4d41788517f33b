// SPDX-License-Identifier: Apache-2.0
//! Detects chains whose flows get no bytes back although their nodes answer probes. Pure.
//!
//! A node that carries no byte may still answer probes, complete handshakes and report flows as
//! connected. So a chain is rated by its flows. A flow that sent something, or that waits for the
//! next node's reply, and gets no byte within [`SILENT_AFTER`] counts against its chain; a flow
//! that gets one counts for it. A chain pauses, for longer each time, when more than a third of its
//! flows count against it. A server that is silent without a chain too counts against none.
//!
//! Each node decides for itself and reports nothing, so no node can have another removed from chains
//! by accusing it. A client whose own server is silent only behind chains can do no more than
//! divert flows of its first node to the next best route.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::chain::Path;

/// How long a flow waits for a first byte, twice, before it counts as silent: the first period
/// starts when it may have sent something, the second when it has.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(3);
/// What a silent flow adds to the score of its chain. An answered flow subtracts one.
const SILENCE: u32 = 2;
/// The score at which a chain pauses: three silent flows, if none is answered.
const SCORE_MAX: u32 = 3 * SILENCE;
/// The first pause. Each later pause is twice as long.
const PAUSE: Duration = Duration::from_secs(10);
/// Bound on the doublings: 10 s << 5 is about five minutes.
const STRIKES_MAX: u32 = 5;
/// A chain without silent flows for this long starts with a clean record.
const FORGET_AFTER: Duration = Duration::from_secs(1800);
/// Bound on recorded chains: a node has three for each other node and class.
const PATHS_MAX: usize = 4096;
/// Bound on the silent servers recorded per chain.
const SERVERS_MAX: usize = 8;
/// How long a server that was silent without a chain counts against no chain, and the bound on such
/// servers.
const MUTE_FOR: Duration = Duration::from_secs(600);
const MUTES_MAX: usize = 1024;

/// The records of the chains whose flows begin at this node.
#[derive(Debug, Default)]
pub(crate) struct BlackHoles {
    paths: HashMap<Path, Record>,
    mute: HashMap<IpAddr, Duration>,
}

#[derive(Debug, Default)]
struct Record {
    score: u32,
    /// Number of pauses, less the answers since.
    strikes: u32,
    /// End of the pause.
    until: Duration,
    /// Time of the last silent flow.
    last: Duration,
    servers: Vec<IpAddr>,
}

impl BlackHoles {
    /// Whether the path is paused, so that flows take another route if there is one.
    pub(crate) fn is_silent(&self, path: Path, now: Duration) -> bool {
        self.left(path, now).is_some()
    }

    /// The rest of the pause, if the path is paused.
    pub(crate) fn left(&self, path: Path, now: Duration) -> Option<Duration> {
        let left = self.paths.get(&path)?.until.checked_sub(now)?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether to report a server that is silent without a chain.
    pub(crate) fn is_checked(&self, server: IpAddr) -> bool {
        let mut records = self.paths.values();
        records.any(|record| record.servers.contains(&server))
    }

    /// A flow of a chain got no bytes back. Returns whether this begins a pause.
    pub(crate) fn on_silence(&mut self, path: Path, server: IpAddr, now: Duration) -> bool {
        let is_mute = self.mute.get(&server).is_some_and(|until| *until > now);
        if is_mute || !self.has_room_for(path, now) {
            return false;
        }
        let record = self.paths.entry(path).or_default();
        record.last = now;
        // To clear the chain if one of these turns out to be silent without it.
        if !record.servers.contains(&server) && record.servers.len() < SERVERS_MAX {
            record.servers.push(server);
        }
        if record.until > now {
            // The flow began before the pause.
            return false;
        }
        record.score += SILENCE;
        // After a pause, one silent flow is enough for the next one.
        if record.strikes == 0 && record.score < SCORE_MAX {
            return false;
        }
        record.until = now + PAUSE * (1 << record.strikes);
        record.strikes = (record.strikes + 1).min(STRIKES_MAX);
        record.score = 0;
        true
    }

    /// A flow of a chain got its first byte; `late` if it had counted as silent.
    pub(crate) fn on_answer(&mut self, path: Path, late: bool) {
        let Some(record) = self.paths.get_mut(&path) else {
            return;
        };
        if late {
            // The server was slow, not the chain.
            self.paths.remove(&path);
            return;
        }
        // Answers first make up for silent flows, and then shorten the next pause.
        if record.score == 0 {
            record.strikes = record.strikes.saturating_sub(1);
        }
        record.score = record.score.saturating_sub(1);
        if record.score == 0 && record.strikes == 0 && record.until.is_zero() {
            self.paths.remove(&path);
        }
    }

    /// A server was silent without a chain: its silence counts against no chain.
    pub(crate) fn on_mute(&mut self, server: IpAddr, now: Duration) {
        if self.mute.len() >= MUTES_MAX {
            self.mute.retain(|_, until| *until > now);
        }
        // A full table takes no more: clients choose the servers, and must not evict each other's.
        if self.mute.len() < MUTES_MAX {
            self.mute.insert(server, now + MUTE_FOR);
        }
        self.paths.retain(|_, record| {
            let was_silent = record.servers.contains(&server);
            record.servers.retain(|silent| *silent != server);
            !was_silent || !record.servers.is_empty()
        });
    }

    fn has_room_for(&mut self, path: Path, now: Duration) -> bool {
        if self.paths.len() >= PATHS_MAX {
            self.paths
                .retain(|_, record| now < record.last + FORGET_AFTER);
        }
        let stale = |record: &Record| now >= record.last + FORGET_AFTER;
        if self.paths.get(&path).is_some_and(stale) {
            self.paths.remove(&path);
        }
        self.paths.len() < PATHS_MAX || self.paths.contains_key(&path)
    }
}

#[cfg(test)]
mod tests {
    use posthaste_wire::header::NodeId;

    use super::*;
    use posthaste_testkit::Rng;

    fn server(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn path(number: u64) -> Path {
        Path::to(NodeId::new(number).unwrap())
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    /// Adds silent flows of chain 7, each to a server of its own, until the chain pauses.
    fn silence(black_holes: &mut BlackHoles, now: Duration) -> u8 {
        let flows =
            (0..100).take_while(|flow| !black_holes.on_silence(path(7), server(*flow), now));
        1 + u8::try_from(flows.count()).unwrap()
    }

    #[test]
    fn black_hole_avoided_longer() {
        let mut black_holes = BlackHoles::default();
        assert_eq!(silence(&mut black_holes, at(0)), 3);
        assert!(black_holes.is_silent(path(7), at(9)) && !black_holes.is_silent(path(8), at(9)));
        assert_eq!(black_holes.left(path(7), at(10)), None);
        let mut now = at(10);
        for pause in [20, 40, 80, 160, 320, 320] {
            assert_eq!(silence(&mut black_holes, now), 1);
            assert_eq!(black_holes.left(path(7), now), Some(at(pause)));
            now += at(pause);
        }
        assert_eq!(silence(&mut black_holes, now + FORGET_AFTER), 3);
    }

    #[test]
    fn answers_clear_a_chain() {
        let mut black_holes = BlackHoles::default();
        // If every third flow is silent, the chain may stay in use,
        for _ in 0..1000 {
            assert!(!black_holes.on_silence(path(7), server(1), at(0)));
            black_holes.on_answer(path(7), false);
            black_holes.on_answer(path(7), false);
        }
        assert!(black_holes.paths.is_empty());
        // if every second is, it must pause.
        let flows = (0..100).take_while(|_| {
            let is_over = black_holes.on_silence(path(7), server(1), at(0));
            black_holes.on_answer(path(7), false);
            !is_over
        });
        assert_eq!(flows.count(), 4);
        // Answers end the record.
        (0..9).for_each(|_| black_holes.on_answer(path(7), false));
        assert_eq!(silence(&mut black_holes, at(10)), 3);
    }

    // promise: S16
    #[test]
    fn silent_servers_blame_nothing() {
        let mut black_holes = BlackHoles::default();
        for _ in 0..3 {
            assert!(!black_holes.is_silent(path(7), at(0)));
            black_holes.on_silence(path(7), server(1), at(0));
        }
        assert!(black_holes.is_silent(path(7), at(0)) && black_holes.is_checked(server(1)));
        black_holes.on_mute(server(1), at(1));
        assert!(!black_holes.is_silent(path(7), at(1)) && !black_holes.is_checked(server(1)));
        for _ in 0..100 {
            assert!(!black_holes.on_silence(path(7), server(1), at(500)));
        }
        assert_eq!(silence(&mut black_holes, at(700)), 3);
        black_holes.on_answer(path(7), true);
        assert!(!black_holes.is_silent(path(7), at(701)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut black_holes = BlackHoles::default();
        for chain in 1..=5000_u32 {
            black_holes.on_silence(path(chain.into()), IpAddr::from(chain.to_be_bytes()), at(0));
            black_holes.on_silence(path(1), IpAddr::from(chain.to_be_bytes()), at(0));
        }
        for number in 9000..11_000_u32 {
            black_holes.on_mute(IpAddr::from(number.to_be_bytes()), at(0));
        }
        assert_eq!(black_holes.paths[&path(1)].servers.len(), SERVERS_MAX);
        assert_eq!(black_holes.paths.len(), PATHS_MAX);
        assert_eq!(black_holes.mute.len(), MUTES_MAX);
        black_holes.on_silence(path(9000), server(1), FORGET_AFTER);
        assert_eq!(black_holes.paths.len(), 1, "the others were long ago");
    }

    /// One flow per second takes the best of three chains or goes direct; the best chain is a black
    /// hole.
    // promise: S16
    #[test]
    fn swallowing_node_loses_flows() {
        for seed in 0..20 {
            let (mut black_holes, mut rng) = (BlackHoles::default(), Rng::new(seed));
            let mut carried = [0_u32; 4];
            for second in 0..3600 {
                let now = at(second);
                let up = (0..3).find(|chain| !black_holes.is_silent(path(chain + 1), now));
                let next_hop = up.unwrap_or(3);
                carried[usize::try_from(next_hop).unwrap()] += 1;
                let server = server(u8::try_from(rng.below(50)).unwrap());
                // A tenth of the servers never send anything.
                let is_mute = server < self::server(5);
                match (next_hop, is_mute) {
                    (3, true) => black_holes.on_mute(server, now),
                    (3, false) => {}
                    (0, _) | (_, true) => {
                        black_holes.on_silence(path(next_hop + 1), server, now);
                    }
                    (_, false) => black_holes.on_answer(path(next_hop + 1), false),
                }
            }
            assert!(carried[0] < 30, "{carried:?}");
            assert!(carried[1] > 3000, "{carried:?}");
        }
    }
}
