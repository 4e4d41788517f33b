// SPDX-License-Identifier: Apache-2.0
//! Upstream sockets that a flow got within the current turn.
//!
//! A flow keeps its token when it connects again, and `epoll_wait` returned the events of a turn
//! before the turn began. So an event of that turn belongs to the former socket. Applied to the new
//! one, it would report a connection that is not open yet, and a FIN that its server has not sent:
//! the client would get part of the answer and a clean end.

/// Keys of the flows whose upstream socket is newer than the events of this turn.
#[derive(Debug, Default)]
pub(super) struct Fresh(Vec<u64>);

impl Fresh {
    /// The flow has got another upstream socket.
    pub(super) fn note(&mut self, key: u64) {
        self.0.push(key);
    }

    /// Whether an event of this turn belongs to a former socket of the flow.
    pub(super) fn outdates_events_of(&self, key: u64) -> bool {
        self.0.contains(&key)
    }

    /// Events were fetched anew: they belong to the current sockets.
    pub(super) fn begin_turn(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_before_a_reconnect() {
        let mut fresh = Fresh::default();
        assert!(!fresh.outdates_events_of(7));
        fresh.note(7);
        assert!(fresh.outdates_events_of(7));
        assert!(!fresh.outdates_events_of(8), "another flow's");
        fresh.begin_turn();
        assert!(!fresh.outdates_events_of(7), "events of the new socket");
    }
}
