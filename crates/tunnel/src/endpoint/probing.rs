// SPDX-License-Identifier: Apache-2.0
//! Connections whose peer is silent: how often it is probed, and how long one that was dialed waits for the
//! first answer.

use std::time::Duration;

use quinn_proto::ConnectionHandle;

use super::Endpoint;
use crate::transport::PROBE_INTERVAL;

/// How long a connection that was dialed may receive nothing. quinn-proto sends its first packet again after 1
/// and 3 s.
const ANSWER_MAX: Duration = Duration::from_secs(4);

impl Endpoint {
    /// A connection was dialed.
    pub(super) fn expect_answer(&mut self, handle: ConnectionHandle, now: Duration) {
        if let Some(conn) = self.connections.get_mut(&handle) {
            conn.answer_by = Some(now + ANSWER_MAX);
            self.unanswered.insert(conn.number);
        }
    }

    /// A connection has sent something, which may want an answer.
    pub(super) fn note_elicited(&mut self, handle: ConnectionHandle, now: Duration) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        if !conn.has_elicited() {
            return;
        }
        conn.waits_since.get_or_insert(now);
        if conn.is_up && !std::mem::replace(&mut conn.is_watched, true) {
            self.watched.insert((now + conn.patience(), conn.number));
        }
    }

    /// Probes the peers of silent connections.
    pub(super) fn probe_silent(&mut self, now: Duration) {
        while let Some((due, connection)) = self.watched.first().copied()
            && due <= now
        {
            self.watched.pop_first();
            let Some(&handle) = self.handles.get(&connection) else {
                continue;
            };
            let Some(conn) = self.connections.get_mut(&handle) else {
                continue;
            };
            conn.is_watched = conn.waits_since.is_some() && !conn.is_lost;
            let Some(since) = conn.waits_since.filter(|_| conn.is_watched) else {
                continue;
            };
            let silent_at = since + conn.patience();
            if silent_at > now {
                self.watched.insert((silent_at, connection));
                continue;
            }
            conn.probes = true;
            conn.inner.ping();
            self.watched.insert((now + PROBE_INTERVAL, connection));
            self.touch(handle);
        }
    }
}
