// SPDX-License-Identifier: Apache-2.0
//! Whether bytes of streams wait to be sent, which quinn-proto does not report.

/// Counts what was written, and what has left by the totals of the congestion control. These drift apart,
/// since packets hold other things too, so ACKs correct it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    written: u64,
    /// What had left when nothing of it had.
    gone: u64,
    /// The part that was written after the last attempt to send, and what had left then.
    fresh: u64,
    fresh_gone: u64,
    /// ACKs that were taken into account.
    acks: u64,
    /// All seemed gone at the last attempt.
    was_empty: bool,
}

impl Backlog {
    /// Bytes were written to a stream.
    pub(crate) fn on_written(&mut self, bytes: u64) {
        self.written += bytes;
        self.fresh += bytes;
    }

    /// All that may be sent was sent, and `gone` have left so far. Returns whether no bytes wait.
    ///
    /// Of so many ACKs, the last has shown whether the streams had no more to send at the attempt before
    /// it. If they had although all seemed gone, at least a `window` waits until another ACK shows the
    /// contrary.
    pub(crate) fn on_sent_all(
        &mut self,
        gone: u64,
        (acks, is_limited): (u64, bool),
        window: u64,
    ) -> bool {
        if std::mem::replace(&mut self.acks, acks) != acks {
            if is_limited {
                (self.written, self.gone) = (self.fresh, self.fresh_gone);
            } else if self.was_empty {
                (self.written, self.gone) = (window, gone);
            }
        }
        (self.fresh, self.fresh_gone) = (0, gone);
        self.was_empty = self.written <= gone - self.gone;
        self.was_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 500_000;

    #[test]
    fn what_was_written_waits_until_it_has_left() {
        let mut backlog = Backlog::default();
        assert!(backlog.on_sent_all(0, (0, true), WINDOW));
        backlog.on_written(100_000);
        assert!(!backlog.on_sent_all(30_000, (0, true), WINDOW));
        // An ACK of what was sent before.
        assert!(!backlog.on_sent_all(50_000, (1, false), WINDOW));
        assert!(!backlog.on_sent_all(99_999, (1, false), WINDOW));
        assert!(backlog.on_sent_all(101_000, (2, false), WINDOW));
    }

    #[test]
    fn acks_correct_it() {
        let mut backlog = Backlog::default();
        backlog.on_written(100_000);
        // Less than it took for all has left, and an ACK shows that nothing waits.
        assert!(!backlog.on_sent_all(90_000, (0, true), WINDOW));
        assert!(backlog.on_sent_all(90_000, (1, true), WINDOW));
        // Written since, of which some leaves at once.
        backlog.on_written(50_000);
        assert!(!backlog.on_sent_all(120_000, (2, true), WINDOW));
        assert!(backlog.on_sent_all(150_000, (2, true), WINDOW));
        // So much has left, and still something waits.
        assert!(!backlog.on_sent_all(200_000, (3, false), WINDOW));
        assert!(!backlog.on_sent_all(400_000, (4, false), WINDOW));
        assert!(backlog.on_sent_all(400_000, (5, true), WINDOW));
    }
}
