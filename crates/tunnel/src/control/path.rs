// SPDX-License-Identifier: Apache-2.0
//! What a node knows of the path to an address from all of its connections with it, in all workers: the
//! rate at which they deliver together. One that begins, or sends again after a pause, takes an equal
//! share of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::limit::Limit;
use super::rate_of;
use super::rates::Rate;

/// The paths of a node that have connections.
#[derive(Debug, Default)]
pub struct Paths(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    paths: HashMap<IpAddr, Weak<Path>>,
    /// By peer.
    limits: HashMap<u64, Arc<Limit>>,
    /// Bytes that all connections have written and their peers have not read.
    unread: Arc<AtomicU64>,
}

impl Paths {
    /// The path to an address.
    pub(crate) fn to(&self, address: IpAddr) -> Arc<Path> {
        let mut known = lock(&self.0);
        if let Some(path) = known.paths.get(&address).and_then(Weak::upgrade) {
            return path;
        }
        known.paths.retain(|_, path| path.strong_count() > 0);
        let path = Arc::default();
        known.paths.insert(address, Arc::downgrade(&path));
        path
    }

    /// The bound on what is sent to a peer, which may be set later.
    pub(crate) fn limit(&self, peer: u64) -> Arc<Limit> {
        Arc::clone(lock(&self.0).limits.entry(peer).or_default())
    }

    /// The count of bytes that all connections have written and their peers have not read.
    pub(crate) fn unread(&self) -> Arc<AtomicU64> {
        Arc::clone(&lock(&self.0).unread)
    }

    /// Bounds what the node sends to these peers, in bytes per second, and to no others.
    pub(crate) fn set_limits(&self, rates: &HashMap<u64, u32>) {
        let limits = &mut lock(&self.0).limits;
        for peer in rates.keys() {
            limits.entry(*peer).or_default();
        }
        // Those of former peers, whose connections are gone.
        limits.retain(|peer, limit| rates.contains_key(peer) || Arc::strong_count(limit) > 1);
        for (peer, limit) in limits {
            limit.set(rates.get(peer).copied());
        }
    }
}

/// A path, and how its connections use it.
#[derive(Debug, Default)]
pub struct Path(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Connections with bytes in flight.
    active: u64,
    /// Bytes delivered by all, and when the last of them were acknowledged.
    delivered: u64,
    acked_at: Duration,
    rate: Rate,
    /// A connection has found what the path carries: before, the rate shows what was sent.
    is_found: bool,
}

/// What all connections had delivered when a packet was sent, and when the last of it was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    delivered: u64,
    acked_at: Duration,
}

/// What an ACK shows a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// When its newest packet was sent, and what the path had delivered then.
    pub(super) sent: Duration,
    pub(super) mark: Mark,
    /// Bytes.
    pub(super) acked: u64,
    /// Whether the connection had no more to send.
    pub(super) is_limited: bool,
    pub(super) is_queued: bool,
    /// The least round-trip time.
    pub(super) round: Duration,
}

/// A connection's part in a path.
#[derive(Debug)]
pub(super) struct Member {
    path: Arc<Path>,
    is_active: bool,
}

impl Clone for Member {
    /// The clone of a connection's rule has nothing in flight.
    fn clone(&self) -> Self {
        Self::of(&self.path)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Member {
    pub(super) fn of(path: &Arc<Path>) -> Self {
        Self {
            path: Arc::clone(path),
            is_active: false,
        }
    }

    /// The connection sends.
    pub(super) fn join(&mut self, now: Duration) {
        if std::mem::replace(&mut self.is_active, true) {
            return;
        }
        let mut state = lock(&self.path.0);
        if state.active == 0 {
            state.acked_at = now;
        }
        state.active += 1;
    }

    /// Nothing of it is in flight.
    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.is_active) {
            lock(&self.path.0).active -= 1;
        }
    }

    pub(super) fn mark(&self) -> Mark {
        let state = lock(&self.path.0);
        Mark {
            delivered: state.delivered,
            acked_at: state.acked_at,
        }
    }

    pub(super) fn on_acks(&self, now: Duration, shown: &Shown) {
        let mut state = lock(&self.path.0);
        state.delivered += shown.acked;
        let since = now.saturating_sub(shown.mark.acked_at);
        let within = now.saturating_sub(shown.sent).max(since);
        let sample = rate_of(state.delivered - shown.mark.delivered, within);
        state.acked_at = now;
        if !shown.is_limited || sample >= state.rate.value() {
            state.rate.add(now, sample, shown.round, shown.is_queued);
        }
    }

    /// The connection sends as fast as the path carries.
    pub(super) fn on_found(&self) {
        lock(&self.path.0).is_found = true;
    }

    /// The path is not what it was.
    pub(super) fn forget(&self) {
        let mut state = lock(&self.path.0);
        state.is_found = false;
        state.rate = Rate::default();
    }

    /// Whether no other connection has bytes in flight.
    pub(super) fn is_alone(&self) -> bool {
        lock(&self.path.0).active <= 1
    }

    /// Bytes per second for each of the connections that send, if it is known what the path carries.
    pub(super) fn share(&self) -> Option<u64> {
        let state = lock(&self.path.0);
        let share = state.rate.value() / state.active.max(1);
        (state.is_found && share > 0).then_some(share)
    }
}

/// What the lock holds is right at any moment, so a thread that panicked does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_connections_is_forgotten() {
        let paths = Paths::default();
        let [one, other] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        let path = paths.to(one);
        assert!(Arc::ptr_eq(&path, &paths.to(one)));
        assert!(!Arc::ptr_eq(&path, &paths.to(other)));
        drop(path);
        paths.to(other);
        assert_eq!(lock(&paths.0).paths.len(), 1);
    }

    #[test]
    fn share_of_those_that_send() {
        let path = Arc::default();
        let mut members = [(); 4].map(|()| Member::of(&path));
        let now = Duration::from_secs(1);
        members[0].join(now);
        let shown = Shown {
            sent: now,
            mark: members[0].mark(),
            acked: 100_000,
            is_limited: false,
            is_queued: false,
            round: Duration::from_millis(100),
        };
        members[0].on_acks(now + shown.round, &shown);
        assert_eq!(members[0].share(), None, "not found yet");
        members[0].on_found();
        assert_eq!(members[0].share(), Some(1_000_000));
        members[1..].iter_mut().for_each(|member| member.join(now));
        assert_eq!(members[0].share(), Some(250_000));
        members[1].leave();
        drop(members[2].clone());
        assert_eq!(members[0].share(), Some(333_333), "a clone is no member");
        let [first, second, third, fourth] = members;
        drop((second, third, fourth));
        assert_eq!(first.share(), Some(1_000_000), "the others are gone");
        first.forget();
        assert_eq!(first.share(), None);
    }
}
