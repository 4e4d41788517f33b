// SPDX-License-Identifier: Apache-2.0
//! Upstream sockets that a flow got within the current turn.
//!
//! A flow keeps its token when it is connected anew, and `epoll_wait` returned the events of a
//! turn before the turn began. So an event of that turn belongs to the socket before. Taken for
//! one of the new socket, it would report a connection that is not open yet, and a FIN that its
//! server has not sent: the client would get a part of the answer, and an orderly end.

/// Keys of the flows whose upstream socket is younger than the events at hand.
#[derive(Debug, Default)]
pub(super) struct Fresh(Vec<u64>);

impl Fresh {
    /// The flow has another upstream socket from now on.
    pub(super) fn note(&mut self, key: u64) {
        self.0.push(key);
    }

    /// Whether an event of this turn is of a socket that the flow had before.
    pub(super) fn outdates_events_of(&self, key: u64) -> bool {
        self.0.contains(&key)
    }

    /// Events were fetched anew: they are of the sockets that there are.
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
