// SPDX-License-Identifier: Apache-2.0
//! Estimates the time that a relay saved its client, compared with the same connection without this
//! node, from measurements of the relay. Rather underestimates. Pure.
//!
//! Without the node every round trip is one over the whole path, of `R`: the sum of the lowest
//! round trips of the client's side and of the server's side. Times count from the client's SYN, by
//! the client's clock.
//!
//! *To the first byte.* The client can send its request after `R`. Here the request left for the
//! server after `u`; the rest of the way is the same. So `R - u` was saved, or nothing if the
//! client waited for longer than `R` before its request. If the server sends first, its handshake
//! takes the place of the request.
//!
//! *To the end.* Bytes of one direction take `n` rounds of slow start, from ten segments (RFC 6928)
//! and doubling in each: without the node the last byte follows the first after at least `(n - 1)
//! R`. On a slower link, or if an end paused, it would have been later; that is not counted, nor is
//! the time in which the connection was idle. The saving is this lower bound less the measured
//! time.
//!
//! *Slower* is counted only where it is certain: the client's bytes were waiting, nothing was
//! retransmitted, and still the server's side was open later than both handshakes take in sequence.
//!
//! docs/saved.md describes all of this for operators.

use std::time::Duration;

use posthaste_plan::Model;
use posthaste_relay::control::{Course, Ended, Leg, Saved};

/// Error of a kernel time that counts in ticks: a tick of the slowest clock of Linux (100 Hz).
const TICK_US: i64 = 10_000;
/// Smaller losses are not counted as slower.
const SLOWER_MIN_US: i64 = 1_000;

/// The measurements of a finished relay. Times are in microseconds from the client's SYN at the
/// node, or from its accept.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The clock started when the client's handshake was complete.
    from_accept: bool,
    client: RoundTrip,
    server: RoundTrip,
    /// Duration of the handshake with the server.
    handshake: i64,
    /// When the client's first bytes were passed on, if any.
    request: Option<i64>,
    /// Whether these waited for the server's side.
    prompt: bool,
    /// When the server's first bytes were passed on.
    first_byte: i64,
    /// When the last bytes to the client and to the server were sent; `None` if some may not have
    /// arrived.
    last_down: Option<i64>,
    last_up: Option<i64>,
    /// When the client acknowledged everything, if it did.
    confirmed: Option<i64>,
    bytes_down: u64,
    bytes_up: u64,
    segment_bytes: u32,
    sent_twice: bool,
}

/// A round trip of one side.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// The lowest measurement.
    least: i64,
    /// Upper bound of recent ones: the timeout of RFC 6298 without its minimum.
    most: i64,
}

/// The saving of a relay; `None` if unknown.
pub(crate) fn of(ended: &Ended) -> Option<Saved> {
    Seen::of(ended, &ended.course?).map(|seen| seen.saved())
}

impl Seen {
    fn of(ended: &Ended, course: &Course) -> Option<Self> {
        let handshake = i64::from(ended.handshake_us?);
        let client = i64::from(course.downstream.min_rtt_us?);
        let measured = course.upstream.min_rtt_us.map_or(handshake, i64::from);
        let total = micros(ended.total);
        let request = course.request_us.map(i64::from);
        let first_byte = i64::from(ended.first_byte_us?);
        let last = |leg: &Leg, bytes: u64, first: i64| {
            // Rather too late: a larger saving must not come from the clock's error.
            let last = total - i64::from(leg.last_sent_ms) * 1_000 + TICK_US;
            (leg.acked_bytes >= bytes).then_some(last.max(first))
        };
        let (down, up) = (&course.downstream, &course.upstream);
        Some(Self {
            from_accept: !ended.accept.connects_at_syn(),
            client: RoundTrip::new(client, down),
            // The kernel's minimum is that of the last minutes (tcp_min_rtt_wlen); the handshake
            // may be older.
            server: RoundTrip::new(measured.min(handshake), up),
            handshake,
            request,
            prompt: course.prompt,
            first_byte,
            last_down: last(down, ended.bytes_down, first_byte),
            last_up: last(up, ended.bytes_up, request.unwrap_or(0)),
            confirmed: course.server_closed_first.then_some(total),
            bytes_down: ended.bytes_down,
            bytes_up: ended.bytes_up,
            segment_bytes: down.segment_bytes.max(up.segment_bytes),
            sent_twice: down.retransmitted_segments + up.retransmitted_segments > 0,
        })
    }

    fn saved(&self) -> Saved {
        match self.slower() {
            Some(slower) => Saved {
                first_byte_us: -slower,
                end_us: 0,
            },
            None => Saved {
                first_byte_us: self.saved_until(self.requested()),
                end_us: self.saved_to_end().unwrap_or(0),
            },
        }
    }

    /// The round trip of the whole path.
    fn path(&self) -> i64 {
        self.client.least + self.server.least
    }

    /// The latest time at which the server's first bytes were requested: if it did not wait for the
    /// client's bytes, its handshake counts as the request.
    fn requested(&self) -> i64 {
        let latest = self.first_byte - self.server.least;
        self.request.map_or(latest, |request| request.min(latest))
    }

    /// How much later than `moment` the client could have sent without the node.
    fn saved_until(&self, moment: i64) -> i64 {
        (self.path() - self.since_syn(moment)).max(0)
    }

    /// Converts a time to one since the client's SYN.
    fn since_syn(&self, moment: i64) -> i64 {
        let handshake = if self.from_accept {
            self.client.least
        } else {
            0
        };
        moment + handshake
    }

    fn saved_to_end(&self) -> Option<i64> {
        let (last_down, last_up) = (self.last_down?, self.last_up?);
        let down_is_last = last_down >= last_up || self.bytes_up == 0;
        let arrived = if down_is_last {
            let sent = last_down + self.client.most;
            // Both are upper bounds.
            self.confirmed.map_or(sent, |confirmed| confirmed.min(sent))
        } else {
            last_up + self.server.most + self.client.most
        };
        let first_byte = self.first_byte + self.client.least + self.saved_until(self.requested());
        let down = first_byte + self.rounds(self.bytes_down) * self.path();
        let up = self.request.map_or(0, |request| {
            // The answer need not have waited for the last of them.
            let there_and_back = i64::from(!down_is_last);
            let rounds = self.rounds(self.bytes_up) + there_and_back;
            request + self.saved_until(request) + rounds * self.path()
        });
        Some((down.max(up) - arrived).max(0))
    }

    /// Round trips of slow start between the first and the last of so many bytes.
    fn rounds(&self, bytes: u64) -> i64 {
        let model = Model {
            segment_bytes: self.segment_bytes,
            ..Model::default()
        };
        i64::from(model.rounds(bytes, model.initial_window)) - 1
    }

    /// How much slower the relay opened than the connection would have, if certain.
    fn slower(&self) -> Option<i64> {
        let handshakes = if self.from_accept {
            self.handshake
        } else {
            self.client.most + self.handshake
        };
        let slower = self.request? - handshakes;
        let sure = self.prompt && !self.sent_twice;
        (sure && slower >= SLOWER_MIN_US).then_some(slower)
    }
}

impl RoundTrip {
    fn new(least: i64, leg: &Leg) -> Self {
        let most = i64::from(leg.rtt_us) + 4 * i64::from(leg.rttvar_us);
        Self {
            least,
            most: most.max(least),
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
