// SPDX-License-Identifier: Apache-2.0
//! Whether a worker takes new flows: it has room and descriptors, and does not drain.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::accept_mode::AcceptMode;
use crate::intercept::Intercept;
use crate::outcome::Outcome;

use super::{TOKEN_LISTENER, Worker};

/// Slots reserved for flows that were redirected before the worker stopped accepting.
const SLOTS_RESERVE: usize = 64;
/// How long handshakes that began before a successor took over may take: the time in which a kernel
/// retransmits a SYN-ACK twice, one and three seconds after the first.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Descriptors that must be free before a worker that ran out resumes.
const DESCRIPTORS_SPARE: usize = 16;

impl<I: Intercept> Worker<I> {
    /// Whether new flows are refused: the worker drains, and has no successor.
    pub(super) fn begins_nothing(&self) -> bool {
        self.drain_until.is_some() && !self.replaced
    }

    /// Whether a drain is complete. A client in late mode is in no table before its handshake is
    /// complete, so the drain waits for such clients.
    pub(super) fn drained(&self) -> bool {
        let Some(until) = self.drain_until else {
            return false;
        };
        // Whatever the rules, flows open late when the half-open budget is used up.
        let late = self.counters.flows(AcceptMode::LATE).read() > 0 || self.rules.any_late();
        let grace = match (self.replaced, late) {
            (true, _) => HANDSHAKE_TIME_MAX,
            (false, true) => self.intercept.lag(),
            (false, false) => Duration::ZERO,
        };
        if self.entries.len() > 0 || self.now < until.min(self.drain_from + grace) {
            return false;
        }
        let mut requests = self.pending_requests.iter();
        let requesting = requests.any(|(_, request)| self.replaced || request.is_finishing());
        let sends = self.tunnels.as_ref().is_some_and(|one| !one.is_over());
        self.now >= until || !requesting && !sends
    }

    /// Ends a drain that takes too long, or accepts flows again when there is room.
    pub(super) fn drain_or_return(&mut self) {
        match self.drain_until {
            Some(until) if self.now >= until => {
                let left: Vec<u64> = self.entries.iter().map(|(key, _)| key).collect();
                for key in left {
                    self.end(key, Outcome::Drained);
                }
            }
            None if self.not_accepting && !self.out_of_files && self.roomy() => {
                self.set_draining(false)
            }
            _ => {}
        }
    }

    /// Whether the table has only the room left that flows in transit may need.
    pub(super) fn full(&self) -> bool {
        let most = self.rules.relays_max();
        self.entries.len() + reserve(most) >= most
    }

    /// Whether the table is well below full, so that accepting does not flap.
    fn roomy(&self) -> bool {
        let most = self.rules.relays_max();
        self.entries.len() + 2 * reserve(most) < most
    }

    /// Stops or resumes taking new flows; while stopped they are forwarded.
    pub(super) fn set_draining(&mut self, not_accepting: bool) {
        if self.not_accepting != not_accepting
            && self.intercept.set_accepting(!not_accepting).is_ok()
        {
            self.not_accepting = not_accepting;
        }
    }

    /// Out of descriptors or memory: new flows are forwarded, and completed handshakes stay in the
    /// accept queues.
    pub(super) fn starve(&mut self) {
        self.set_draining(true);
        self.out_of_files = true;
        // Listeners are level-triggered: a queue that is not emptied would wake the worker at once.
        self.listen_for(EpollFlags::empty());
    }

    /// Resumes accepting, once there are descriptors to spare.
    pub(super) fn recover(&mut self) {
        // The kernel does not report how many are free, so some are opened and closed again.
        let probe = || self.waker.as_fd().try_clone_to_owned();
        let spare: io::Result<Vec<OwnedFd>> = (0..DESCRIPTORS_SPARE).map(|_| probe()).collect();
        if spare.is_ok() {
            self.out_of_files = false;
            self.listen_for(EpollFlags::EPOLLIN);
        }
    }

    fn listen_for(&self, interest: EpollFlags) {
        for (number, listener) in self.listeners.sockets() {
            let mut event = EpollEvent::new(interest, TOKEN_LISTENER | number);
            let _ = self.epoll.modify(listener, &mut event);
        }
    }
}

/// Slots kept free in a table of `most`.
fn reserve(most: usize) -> usize {
    SLOTS_RESERVE.min(most / 4)
}
