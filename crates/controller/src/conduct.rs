// SPDX-License-Identifier: Apache-2.0
//! What one node may have a controller do. Pure.
//!
//! A node on the list may be broken into, or be broken. What it sends again and again costs a bounded part of a
//! processor: it is read more slowly, and who has rows sent again and again or comes all the time is sent away. It is
//! remembered over its streams.

use std::time::Duration;

use posthaste_daemon::log::Quota;

/// What a message costs: 200 in a second may come,
const MESSAGE: Duration = Duration::from_millis(5);
/// or a megabyte,
const BYTE: Duration = Duration::from_micros(1);
/// and at once what comes in so long: all links of a node that die, each in a message of its own.
const MESSAGES_AT_ONCE: Duration = Duration::from_secs(10);
/// Rows that do not fit cost all rows. An honest node has none: six at once, and six in a minute.
const NACK: Duration = Duration::from_secs(10);
const NACKS_AT_ONCE: Duration = Duration::from_secs(60);
/// A stream costs a look at all destinations, and a plan: twenty at once, and twelve in a minute.
const STREAM: Duration = Duration::from_secs(5);
const STREAMS_AT_ONCE: Duration = Duration::from_secs(100);

/// What a node has had done of late.
#[derive(Debug, Default)]
pub(super) struct Conduct {
    messages: Meter,
    nacks: Meter,
    streams: Meter,
    /// Lines of the log that it causes.
    pub(super) lines: Quota,
}

impl Conduct {
    /// It has sent a message of so many bytes. Returns for how long no other is to be read.
    pub(super) fn on_message(&mut self, bytes: usize, now: Duration) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let over = self.messages.add(MESSAGE + BYTE * bytes, now);
        // As long as the excess: beyond the burst a node is read at the limit, and loses nothing.
        over.saturating_sub(MESSAGES_AT_ONCE)
    }

    /// It reports that rows do not fit. Whether it may still do so.
    pub(super) fn may_nack(&mut self, now: Duration) -> bool {
        self.nacks.add_within(NACK, NACKS_AT_ONCE, now)
    }

    /// It comes. Whether it may.
    pub(super) fn may_come(&mut self, now: Duration) -> bool {
        self.streams.add_within(STREAM, STREAMS_AT_ONCE, now)
    }
}

/// What was used and has not been made up for by time: the generic cell rate algorithm (ITU-T I.371).
#[derive(Debug, Default)]
struct Meter {
    paid_at: Duration,
}

impl Meter {
    /// Adds to it, and returns how much it is then.
    fn add(&mut self, cost: Duration, now: Duration) -> Duration {
        // Time without use is not saved up: a burst is bounded by the limit alone.
        self.paid_at = self.paid_at.max(now) + cost;
        // Never negative: `paid_at` is `now` at least.
        self.paid_at - now
    }

    /// Adds to it if it is no more than `most` then. Whether it was.
    fn add_within(&mut self, cost: Duration, most: Duration, now: Duration) -> bool {
        let fits = self.paid_at.max(now) + cost <= now + most;
        // What is refused costs nothing, or a node that keeps trying could never come back.
        if fits {
            self.add(cost, now);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    // promise: O16
    #[test]
    fn talkative_node_read_slowly() {
        let mut conduct = Conduct::default();
        let mut now = at(1000);
        // Two links of a thousand each die, and it is cut off for a while.
        for _ in 0..1900 {
            assert_eq!(conduct.on_message(30, now), Duration::ZERO);
        }
        let begin = now;
        for _ in 0..10_000 {
            now += conduct.on_message(1000, now);
        }
        let took = now - begin;
        assert!(took >= at(58) && took <= at(62), "{took:?}");
        // A message that is as long as it may be.
        let pause = conduct.on_message(1 << 20, now);
        assert!(pause <= at(2), "{pause:?}");
        assert_eq!(conduct.on_message(30, now + at(60)), Duration::ZERO);
    }

    // promise: O16
    #[test]
    fn nacks_and_streams_bounded() {
        let mut conduct = Conduct::default();
        let nacks = |conduct: &mut Conduct, now| {
            let granted = (0..1000).filter(|_| conduct.may_nack(now));
            granted.count()
        };
        assert_eq!(nacks(&mut conduct, at(5)), 6);
        assert_eq!(nacks(&mut conduct, at(14)), 0);
        assert_eq!(nacks(&mut conduct, at(15)), 1);
        assert_eq!(nacks(&mut conduct, at(900)), 6);
        let streams = (0..1000).filter(|_| conduct.may_come(at(900)));
        assert_eq!(streams.count(), 20);
        assert!(conduct.may_come(at(905)) && !conduct.may_come(at(905)));
    }
}
