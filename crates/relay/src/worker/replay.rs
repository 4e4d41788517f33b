// SPDX-License-Identifier: Apache-2.0
//! What a flow needs to take another route while the next node has not replied: the remaining
//! routes, and its first bytes.

use std::cell::Cell;
use std::rc::Rc;

use crate::opening::Hops;

use super::socket_io::SCRATCH_BYTES;

/// Bytes kept per flow. A client that sends more waits until the next node has replied.
const REPLAY_MAX: usize = 256 << 10;
/// Bound on the bytes kept of all flows of a worker.
const REPLAY_OF_ALL_MAX: usize = 16 << 20;

/// Bytes kept of all flows of a worker.
pub(super) type Held = Rc<Cell<usize>>;

/// How a flow that waits for a reply continues if there is none.
#[derive(Debug)]
pub(super) struct Fallback {
    pub(super) hops: Hops,
    pub(super) kept: Kept,
}

impl Fallback {
    /// Whether there is another next hop (with `repeat` also the same one once more) and all bytes
    /// that the client has sent.
    pub(super) fn can_go_on(&self, repeat: bool) -> bool {
        self.hops.lead_on(repeat) && self.kept.bytes().is_some()
    }

    /// Whether a read of the client's bytes could return more than the flow may keep. A smaller
    /// read would look like an empty socket, so the client waits for the next node's reply.
    pub(super) fn is_full(&self) -> bool {
        let kept = self.kept.bytes().map_or(0, <[u8]>::len);
        kept + SCRATCH_BYTES > REPLAY_MAX
    }
}

/// The first bytes of a flow.
#[derive(Debug)]
pub(super) struct Kept {
    /// `None` when there were more than the bounds allow.
    bytes: Option<Vec<u8>>,
    held: Held,
}

impl Kept {
    /// No bytes yet. `held` counts the bytes of all flows of the worker.
    pub(super) fn new(held: &Held) -> Self {
        Self {
            bytes: Some(Vec::new()),
            held: Rc::clone(held),
        }
    }

    /// The client has sent `more`, which goes to the next node.
    pub(super) fn push(&mut self, more: &[u8]) {
        let Some(bytes) = &mut self.bytes else {
            return;
        };
        let held = self.held.get() + more.len();
        // All or nothing: with a part of them the next node would get a stream with a gap.
        if bytes.len() + more.len() > REPLAY_MAX || held > REPLAY_OF_ALL_MAX {
            return self.give_up();
        }
        self.held.set(held);
        bytes.extend_from_slice(more);
    }

    /// Drops the kept bytes, and keeps no more.
    pub(super) fn give_up(&mut self) {
        let bytes = self.bytes.take().map_or(0, |bytes| bytes.len());
        self.held.set(self.held.get() - bytes);
    }

    /// All bytes that the client has sent, if all are kept.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use crate::chain::NextHop;

    use super::*;

    // promise: K15
    #[test]
    fn replay_whole_or_nothing() {
        let held = Held::default();
        let mut kept = Kept::new(&held);
        assert_eq!(kept.bytes(), Some(&b""[..]));
        kept.push(b"a request");
        kept.push(b" and more");
        assert_eq!(kept.bytes(), Some(&b"a request and more"[..]));
        assert_eq!(held.get(), 18);
        kept.push(&[0; REPLAY_MAX]);
        kept.push(b"?");
        assert_eq!((kept.bytes(), held.get()), (None, 0));
    }

    #[test]
    fn going_on_needs_hop_and_bytes() {
        let held = Held::default();
        let fallback = |next| Fallback {
            hops: Hops::new(next, None),
            kept: Kept::new(&held),
        };
        assert!(!fallback(Vec::new()).can_go_on(true), "no hop was tried");
        let mut fallback = fallback(vec![NextHop::Direct]);
        assert!(fallback.can_go_on(false));
        fallback.kept.give_up();
        assert!(!fallback.can_go_on(true));
    }

    // promise: K19
    #[test]
    fn full_before_next_read() {
        let held = Held::default();
        let mut fallback = Fallback {
            hops: Hops::new(vec![NextHop::Direct], None),
            kept: Kept::new(&held),
        };
        for _ in 0..REPLAY_MAX / SCRATCH_BYTES {
            assert!(!fallback.is_full());
            fallback.kept.push(&[0; SCRATCH_BYTES]);
        }
        assert!(fallback.is_full() && fallback.can_go_on(false));
        fallback.kept.give_up();
        assert!(
            !fallback.is_full(),
            "a flow that keeps nothing waits for nothing"
        );
    }

    // promise: K15
    #[test]
    fn replay_memory_is_bounded() {
        let held = Held::default();
        let flow = || {
            let mut kept = Kept::new(&held);
            kept.push(&[0; REPLAY_MAX]);
            kept
        };
        let mut flows: Vec<Kept> = (0..REPLAY_OF_ALL_MAX / REPLAY_MAX)
            .map(|_| flow())
            .collect();
        assert!(flows.iter().all(|kept| kept.bytes().is_some()));
        assert!(flow().bytes().is_none());
        flows.pop();
        assert!(flow().bytes().is_some());
        drop(flows);
        assert_eq!(held.get(), 0);
    }
}
