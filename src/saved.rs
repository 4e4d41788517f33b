// SPDX-License-Identifier: Apache-2.0
//! What a relay saved its client, against the same connection without this node: estimated from
//! what was measured of it, and rather too little than too much. Pure.
//!
//! Without the node every round trip is one over the whole path, of `R`: the lowest round trip of
//! the client's side and the lowest of the server's side, added up. Times count from the client's
//! SYN, by the client's clock.
//!
//! *To the first byte.* The client can send its request after `R`. Here the request left for the
//! server after `u`; from then on it has the same way to go. So `R - u` was saved, and nothing
//! where the client waited for longer than `R` before it asked. Of a server that speaks first the
//! handshake takes the request's place.
//!
//! *To the end.* Bytes of one direction take `n` rounds of slow start, from ten segments (RFC 6928)
//! and doubling in each: without the node the last byte follows the first after `(n - 1) R` at the
//! least. Where the link is slower than that, or either end paused, it would have been later; that
//! counts for nothing, and so does all the time that the connection was idle. What was saved is this
//! least time less the time that was measured.
//!
//! *Slower* it is called only where that is sure: the client's bytes were waiting, nothing was sent
//! twice, and still the server's side was open later than both handshakes take one after another.
//!
//! The whole is described for operators in docs/saved.md.

use std::time::Duration;

use posthaste_plan::Model;
use posthaste_relay::control::{Course, Ended, Leg, Saved};

/// By how much a time of the kernel's that counts in ticks may be wrong: a tick of the slowest
/// clock that Linux is built with (100 Hz).
const TICK_US: i64 = 10_000;
/// What is slower by less is not called so.
const SLOWER_MIN_US: i64 = 1_000;

/// What is known of a relay that finished. Times are in microseconds from the client's SYN as the
/// node saw it, or from its accept.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The clock started when the client's handshake was complete.
    from_accept: bool,
    client: RoundTrip,
    server: RoundTrip,
    /// How long the handshake with the server took.
    handshake: i64,
    /// When the client's first bytes were passed on, if it sent any.
    request: Option<i64>,
    /// These waited for the server's side.
    prompt: bool,
    /// When the server's first bytes were passed on.
    first_byte: i64,
    /// By when the client was last sent bytes, and the server; nothing if some may not have arrived.
    last_down: Option<i64>,
    last_up: Option<i64>,
    /// When the client told that it had everything, if it did.
    confirmed: Option<i64>,
    bytes_down: u64,
    bytes_up: u64,
    segment_bytes: u32,
    sent_twice: bool,
}

/// A round trip of one side.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// The lowest there was.
    least: i64,
    /// What the last ones took at most: what RFC 6298 waits for, without its lower bound.
    most: i64,
}

/// What a relay saved; nothing where it cannot be told.
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
            let last = total - i64::from(leg.last_sent_ms) * 1_000 + TICK_US;
            (leg.acked_bytes >= bytes).then_some(last.max(first))
        };
        let (down, up) = (&course.downstream, &course.upstream);
        Some(Self {
            from_accept: !ended.accept.connects_at_syn(),
            client: RoundTrip::new(client, down),
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

    /// When the server was asked for its first bytes, at the latest: a request that it did not wait
    /// for was none, but its handshake.
    fn requested(&self) -> i64 {
        let latest = self.first_byte - self.server.least;
        self.request.map_or(latest, |request| request.min(latest))
    }

    /// How much later than `moment` the client could have spoken without the node.
    fn saved_until(&self, moment: i64) -> i64 {
        (self.path() - self.since_syn(moment)).max(0)
    }

    /// A moment counted from the client's SYN.
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
            self.confirmed.map_or(sent, |confirmed| confirmed.min(sent))
        } else {
            last_up + self.server.most + self.client.most
        };
        let first_byte = self.first_byte + self.client.least + self.saved_until(self.requested());
        let down = first_byte + self.rounds(self.bytes_down) * self.path();
        let up = self.request.map_or(0, |request| {
            // An answer need not have waited for the last of them.
            let there_and_back = i64::from(!down_is_last);
            let rounds = self.rounds(self.bytes_up) + there_and_back;
            request + self.saved_until(request) + rounds * self.path()
        });
        Some((down.max(up) - arrived).max(0))
    }

    /// How many round trips of slow start are between the first and the last of so many bytes.
    fn rounds(&self, bytes: u64) -> i64 {
        let model = Model {
            segment_bytes: self.segment_bytes,
            ..Model::default()
        };
        i64::from(model.rounds(bytes, model.initial_window)) - 1
    }

    /// By how much the relay opened more slowly than the connection would have, if it surely did.
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
