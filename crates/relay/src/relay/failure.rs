// SPDX-License-Identifier: Apache-2.0
//! The failure of a connection of a relay.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::compact_instant::CompactInstant;
use crate::outcome::Outcome;
use crate::side::Side;

/// The failure of a side.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) side: Side,
    pub(super) outcome: Outcome,
    /// Whether an end of its stream is its FIN.
    after_fin: bool,
    /// Its bytes that the other side has acknowledged, once measured.
    acknowledged: Option<u64>,
    /// When that number last grew, in the worker's time.
    progress: Option<CompactInstant>,
}

impl Failure {
    pub(super) fn new(side: Side, error: &io::Error) -> Self {
        let (error, after_fin) = match error.kind() {
            // `shutdown` of a connection that was gone. Its error is left for readers, unless its
            // FIN had arrived.
            ErrorKind::NotConnected => (ErrorKind::ConnectionReset, true),
            // Linux reports a reset behind a FIN as EPIPE.
            ErrorKind::BrokenPipe => (ErrorKind::BrokenPipe, true),
            kind => (kind, false),
        };
        Self {
            side,
            outcome: blame(side, error),
            after_fin,
            acknowledged: None,
            progress: None,
        }
    }

    /// The other side has acknowledged `bytes` so far.
    pub(super) fn note_acknowledged(&mut self, bytes: u64, now: Duration) {
        let before = self.acknowledged.replace(bytes);
        // The first measurement is no progress: the bytes may have been acknowledged long before.
        if before.is_some_and(|before| bytes > before) {
            self.progress = Some(now.into());
        }
    }

    /// When the other side last acknowledged bytes, as far as known.
    pub(super) fn progress(&self) -> Option<Duration> {
        self.progress.map(Duration::from)
    }

    /// Whether the end of the stream of `side` is not a FIN: a connection that has returned its
    /// error to a writer returns only an end of stream to readers.
    pub(super) fn cuts(&self, side: Side) -> bool {
        self.side == side && !self.after_fin
    }
}

/// The outcome for an error of a side on an open connection.
fn blame(side: Side, error: ErrorKind) -> Outcome {
    let reset = matches!(
        error,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
    );
    // Unreachable errors on an open connection surface when its retries end.
    let silent = matches!(
        error,
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    );
    match (side, reset, silent) {
        (Side::Downstream, true, _) => Outcome::DownstreamReset,
        (Side::Upstream, true, _) => Outcome::UpstreamReset,
        (Side::Downstream, _, true) => Outcome::DownstreamTimeout,
        (Side::Upstream, _, true) => Outcome::UpstreamTimeout,
        _ => Outcome::Internal,
    }
}
