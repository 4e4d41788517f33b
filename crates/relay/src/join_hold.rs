// SPDX-License-Identifier: Apache-2.0
//! Further paths of Multipath TCP that arrive before their connection is accepted (RFC 8684 section
//! 3.2).
//!
//! A client sends the SYN of its second path right behind the ACK that completes the handshake of
//! the first. The token in it becomes known when the worker accepts the connection, and until then
//! looks like that of a connection which does not cross this node. So the SYN is held, for a short
//! and fixed time; one for which there is no room is forwarded at once, since tokens can be forged. A
//! budget bounds the SYNs with known tokens: a client has those of its own connections. Nothing
//! here does I/O.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Longest time that a SYN is held: many times what a worker needs from a handshake to its
/// `accept()`, also on a busy host, and less than a client's first retransmission timeout (one
/// second, RFC 6298 section 2.1).
const HOLD_MAX: Duration = Duration::from_millis(300);
/// Another worker may accept the connection, so the token is looked up this often.
const INTERVAL: Duration = Duration::from_millis(2);
/// Bound on held SYNs, and on those of one client prefix: tokens can be forged.
const HELD_MAX: usize = 64;
const HELD_BY_PREFIX_MAX: usize = 8;

/// Bound on the SYNs with known tokens in a second, and on those of one client prefix: a /24 may be
/// the shared addresses of a mobile network.
const PER_SECOND_MAX: u32 = 4096;
const PER_SECOND_BY_PREFIX_MAX: u32 = 512;
const SECOND: Duration = Duration::from_secs(1);

/// A SYN with MP_JOIN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join<S> {
    /// Of the connection.
    pub(crate) token: u32,
    /// Of the client.
    pub(crate) prefix: [u8; 8],
    pub(crate) syn: S,
}

/// What to do with a SYN that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its connection is one of the node's.
    Join,
    /// It is not.
    Forward,
}

/// The held SYNs of a worker, the oldest first.
#[derive(Debug)]
pub(crate) struct JoinHold<S> {
    held: VecDeque<(Duration, Join<S>)>,
    next: Duration,
}

impl<S> Default for JoinHold<S> {
    fn default() -> Self {
        Self {
            held: VecDeque::new(),
            next: Duration::ZERO,
        }
    }
}

impl<S> JoinHold<S> {
    /// Holds a SYN; returns it where there is no room.
    pub(crate) fn hold(&mut self, join: Join<S>, now: Duration) -> Result<(), Join<S>> {
        let of_prefix = self.held.iter();
        let of_prefix = of_prefix.filter(|(_, held)| held.prefix == join.prefix);
        if of_prefix.count() >= HELD_BY_PREFIX_MAX || self.held.len() >= HELD_MAX {
            return Err(join);
        }
        // The token may have become known while the event waited in the ring.
        self.look_soon();
        self.held.push_back((now + HOLD_MAX, join));
        Ok(())
    }

    /// A token has become known.
    pub(crate) fn look_soon(&mut self) {
        self.next = Duration::ZERO;
    }

    /// When to look at the held SYNs next.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.held.is_empty()).then_some(self.next)
    }

    /// Takes the SYNs that need not wait any longer.
    pub(crate) fn take_due(
        &mut self,
        now: Duration,
        mut is_known: impl FnMut(u32) -> bool,
    ) -> Vec<(Join<S>, Fate)> {
        if self.deadline().is_none_or(|next| now < next) {
            return Vec::new();
        }
        self.next = now + INTERVAL;
        let mut due = Vec::new();
        for (until, join) in std::mem::take(&mut self.held) {
            if is_known(join.token) {
                due.push((join, Fate::Join));
            } else if until <= now {
                due.push((join, Fate::Forward));
            } else {
                self.held.push_back((until, join));
            }
        }
        due
    }
}

/// How many SYNs with MP_JOIN and a known token came in this second.
#[derive(Debug, Default)]
pub(crate) struct JoinBudget {
    until: Duration,
    total: u32,
    by_prefix: HashMap<[u8; 8], u32>,
}

impl JoinBudget {
    /// Counts a SYN of this client prefix. Returns whether it is within the bounds.
    pub(crate) fn admit(&mut self, prefix: [u8; 8], now: Duration) -> bool {
        if now >= self.until {
            *self = Self {
                until: now + SECOND,
                ..Self::default()
            };
        }
        if self.total >= PER_SECOND_MAX {
            return false;
        }
        let count = self.by_prefix.entry(prefix).or_insert(0);
        if *count >= PER_SECOND_BY_PREFIX_MAX {
            return false;
        }
        *count += 1;
        self.total += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(token: u32, client: u8) -> Join<u32> {
        Join {
            token,
            prefix: [client; 8],
            syn: token,
        }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_secs(5) + Duration::from_millis(millis)
    }

    #[test]
    fn known_token_joins_at_once() {
        let mut hold = JoinHold::default();
        assert_eq!(hold.deadline(), None);
        hold.hold(join(7, 1), at(0)).unwrap();
        assert_eq!(
            hold.take_due(at(0), |token| token == 7),
            [(join(7, 1), Fate::Join)]
        );
        assert_eq!(hold.deadline(), None);
    }

    #[test]
    fn unknown_token_waits_and_is_forwarded() {
        let mut hold = JoinHold::default();
        hold.hold(join(7, 1), at(0)).unwrap();
        for millis in (0..300).step_by(2) {
            assert_eq!(hold.take_due(at(millis), |_| false), []);
            assert_eq!(hold.deadline(), Some(at(millis + 2)));
        }
        assert_eq!(
            hold.take_due(at(300), |_| false),
            [(join(7, 1), Fate::Forward)]
        );
        assert_eq!(hold.deadline(), None);
    }

    #[test]
    fn looked_up_at_intervals_and_when_a_token_is_new() {
        let mut hold = JoinHold::default();
        hold.hold(join(7, 1), at(0)).unwrap();
        hold.hold(join(8, 1), at(0)).unwrap();
        assert_eq!(hold.take_due(at(0), |_| false), []);
        assert_eq!(hold.take_due(at(1), |_| panic!("not yet")), []);
        hold.look_soon();
        assert_eq!(
            hold.take_due(at(1), |token| token == 8),
            [(join(8, 1), Fate::Join)]
        );
        assert_eq!(hold.take_due(at(3), |_| true), [(join(7, 1), Fate::Join)]);
    }

    // promise: MP6
    #[test]
    fn bounds_on_forged_tokens() {
        let mut hold = JoinHold::default();
        for token in 0..8 {
            hold.hold(join(token, 1), at(0)).unwrap();
        }
        assert_eq!(hold.hold(join(8, 1), at(0)), Err(join(8, 1)));
        for client in 2..9 {
            for token in 0..8 {
                hold.hold(join(token, client), at(1)).unwrap();
            }
        }
        assert_eq!(hold.hold(join(9, 9), at(1)), Err(join(9, 9)));
        assert_eq!(hold.take_due(at(300), |_| false).len(), 8);
        hold.hold(join(9, 9), at(300)).unwrap();
        assert_eq!(hold.take_due(at(301), |_| false).len(), 56);
    }

    // promise: MP6
    #[test]
    fn bounds_on_joins_in_a_second() {
        let mut budget = JoinBudget::default();
        let admitted = |budget: &mut JoinBudget, client, millis| {
            let admit = |_: &u32| budget.admit([client; 8], at(millis));
            (0..1000).filter(admit).count()
        };
        assert_eq!(admitted(&mut budget, 1, 0), 512);
        assert_eq!(admitted(&mut budget, 1, 999), 0);
        for client in 2..9 {
            assert_eq!(admitted(&mut budget, client, 999), 512);
        }
        assert_eq!(admitted(&mut budget, 9, 999), 0, "all clients together");
        assert_eq!(admitted(&mut budget, 1, 1000), 512);
    }
}
