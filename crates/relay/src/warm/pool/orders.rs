// SPDX-License-Identifier: Apache-2.0
//! The next action of a pool, and when to poll it again.

use std::time::Duration;

use super::{
    Action, BEAT, BUSY_FOR, DIAL_MIN, DIALS_BASE, Health, PONG_MIN, PONG_ROUND_TRIPS, Pinged, Pool,
    REST_MAX, REVIEW, Resting, SURPLUS_FOR,
};

impl Pool {
    /// The next action, if one is due. Call it until it returns `None`: after every reported event,
    /// and at [`Self::deadline`].
    pub(in crate::warm) fn poll_action(&mut self, now: Duration) -> Option<Action> {
        self.seen = now;
        if self.dial_silent_at().is_some_and(|at| at <= now) {
            self.lose(Health::Silent);
        }
        // Dead and surplus hops first: they must not count when dials are decided.
        self.bury(now)
            .or_else(|| self.ping(now))
            .or_else(|| self.dismiss(now))
            .or_else(|| self.dial(now))
    }

    /// When to poll again if nothing happens before.
    pub(in crate::warm) fn deadline(&self) -> Option<Duration> {
        let unverified = (!self.unverified.is_empty()).then_some(self.seen);
        let dial = self.wants_dial(self.seen).then(|| self.backoff.until());
        let fewer = self.waiting() > usize::from(self.limits.min) || self.surplus.is_some();
        let times = [
            unverified,
            self.overdue_at(),
            self.rested_at(),
            self.beat_at(),
            self.dial_silent_at(),
            dial,
            fewer.then_some(self.seen + REVIEW),
        ];
        times.into_iter().flatten().min()
    }

    /// A ping without a pong: the hop is dead, and the others must be verified.
    fn bury(&mut self, now: Duration) -> Option<Action> {
        self.overdue_at().filter(|at| *at <= now)?;
        let dead = self.pinged.pop_front()?;
        // If the peer has answered over another hop since, only this hop is dead.
        if self.health == Health::Up && self.received <= dead.at {
            self.health = Health::Silent;
        }
        self.check_all();
        Some(Action::Bury(dead.hop))
    }

    fn ping(&mut self, now: Duration) -> Option<Action> {
        let due = [self.rested_at(), self.beat_at()];
        let (unverified, next) = match self.unverified.pop_front() {
            Some(next) => (true, next),
            None if due.into_iter().flatten().any(|at| at <= now) => {
                (false, self.resting.pop_front()?)
            }
            None => return None,
        };
        let Resting { hop, since, .. } = next;
        self.pinged.push_back(Pinged {
            hop,
            since,
            at: now,
            unverified,
        });
        Some(Action::Ping(hop))
    }

    /// Closes hops that were surplus for [`SURPLUS_FOR`], the longest silent first.
    fn dismiss(&mut self, now: Duration) -> Option<Action> {
        if self.waiting() <= self.target(now) {
            self.surplus = None;
            return None;
        }
        let since = *self.surplus.get_or_insert(now);
        if now < since + SURPLUS_FOR {
            return None;
        }
        Some(Action::Dismiss(self.resting.pop_front()?.hop))
    }

    fn dial(&self, now: Duration) -> Option<Action> {
        (self.wants_dial(now) && self.backoff.until() <= now).then_some(Action::Dial)
    }

    /// Whether to dial one more as soon as the backoff allows.
    fn wants_dial(&self, now: Duration) -> bool {
        let (dialing, open) = (self.dialing(), self.waiting() + self.dialing());
        if self.down() {
            // One dial at a time tests whether the peer is back: more would only load it, or the
            // network before it.
            return dialing == 0 && open < usize::from(self.limits.max);
        }
        open < self.target(now) && dialing < DIALS_BASE + 2 * self.recent_flows(now)
    }

    /// When the oldest ping times out.
    fn overdue_at(&self) -> Option<Duration> {
        Some(self.pinged.front()?.at + self.patience(PONG_MIN))
    }

    /// When to ping the hop that has been silent for longest.
    fn rested_at(&self) -> Option<Duration> {
        Some(self.resting.front()?.received + REST_MAX)
    }

    /// When to ping a peer in use, to detect its death in time.
    fn beat_at(&self) -> Option<Duration> {
        let at = self.received + BEAT;
        let busy = self.flow_seen.is_some_and(|last| at < last + BUSY_FOR);
        // An answer over any hop shows that the peer lives, so one ping at a time is enough.
        (busy && self.pinged.is_empty() && !self.resting.is_empty()).then_some(at)
    }

    /// When a dial to a peer that counts as up has gone without an answer for too long, and no
    /// other answer has arrived.
    fn dial_silent_at(&self) -> Option<Duration> {
        let (_, began) = self.dialing.front()?;
        let known = self.rtt.is_some() && !self.down();
        known.then(|| self.received.max(*began) + self.patience(DIAL_MIN))
    }

    fn patience(&self, least: Duration) -> Duration {
        self.rtt
            .map_or(least, |rtt| least.max(rtt * PONG_ROUND_TRIPS))
    }

    fn recent_flows(&self, now: Duration) -> usize {
        crate::warm::demand::rounded(self.demand.recent(now))
    }
}
