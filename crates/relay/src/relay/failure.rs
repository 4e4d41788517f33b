// SPDX-License-Identifier: Apache-2.0
//! The end of a connection that neither end agreed to.

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
    /// An end of its stream is its FIN.
    after_fin: bool,
    /// Bytes of it that the other side has acknowledged, once that was asked.
    acknowledged: Option<u64>,
    /// When those became more, in the worker's time.
    progress: Option<CompactInstant>,
}

impl Failure {
    pub(super) fn new(side: Side, error: &io::Error) -> Self {
        let (error, after_fin) = match error.kind() {
            // Of a connection that was gone when it was shut down. Its error is left
            // for readers, unless its FIN had come.
            ErrorKind::NotConnected => (ErrorKind::ConnectionReset, true),
            // What Linux calls a reset behind a FIN.
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

    /// The other side has acknowledged so many bytes by now.
    pub(super) fn note_acknowledged(&mut self, bytes: u64, now: Duration) {
        let before = self.acknowledged.replace(bytes);
        if before.is_some_and(|before| bytes > before) {
            self.progress = Some(now.into());
        }
    }

    /// When the other side acknowledged something last, as far as is known.
    pub(super) fn progress(&self) -> Option<Duration> {
        self.progress.map(Duration::from)
    }

    /// Whether the end of the stream of `side` is no FIN: a connection that has told a
    /// writer of its failure tells readers that it is over, and no more.
    pub(super) fn cuts(&self, side: Side) -> bool {
        self.side == side && !self.after_fin
    }
}

/// Whose fault an error on an open connection is.
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
