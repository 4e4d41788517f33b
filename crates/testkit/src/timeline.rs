// SPDX-License-Identifier: Apache-2.0
//! Events by time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Events that have yet to happen, each at a time `T`. Those of one time happen in the order in
/// which they were added.
#[derive(Debug)]
pub struct Timeline<T, E> {
    pending: BinaryHeap<Reverse<Pending<T, E>>>,
    added: u64,
}

/// An event, ordered by its time and its number.
#[derive(Debug)]
struct Pending<T, E> {
    due: (T, u64),
    event: E,
}

impl<T: Ord, E> Ord for Pending<T, E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.due.cmp(&other.due)
    }
}

impl<T: Ord, E> PartialOrd for Pending<T, E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord, E> PartialEq for Pending<T, E> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl<T: Ord, E> Eq for Pending<T, E> {}

impl<T: Ord, E> Default for Timeline<T, E> {
    fn default() -> Self {
        Self {
            pending: BinaryHeap::new(),
            added: 0,
        }
    }
}

impl<T: Ord + Copy, E> Timeline<T, E> {
    /// Adds an event.
    pub fn add(&mut self, at: T, event: E) {
        let due = (at, self.added);
        self.pending.push(Reverse(Pending { due, event }));
        self.added += 1;
    }

    /// When the next event happens.
    pub fn first(&self) -> Option<T> {
        self.pending.peek().map(|Reverse(next)| next.due.0)
    }

    /// All events, in any order.
    pub fn events(&self) -> impl Iterator<Item = &E> {
        self.pending.iter().map(|Reverse(pending)| &pending.event)
    }

    /// Removes the events that `keeps` is false for.
    pub fn retain(&mut self, keeps: impl Fn(&E) -> bool) {
        self.pending
            .retain(|Reverse(pending)| keeps(&pending.event));
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<(T, E)> {
        let Reverse(next) = self.pending.pop()?;
        Some((next.due.0, next.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_order() {
        let mut timeline = Timeline::default();
        for (at, event) in [(7, 'b'), (3, 'a'), (7, 'c')] {
            timeline.add(at, event);
        }
        assert_eq!(timeline.first(), Some(3));
        let all = std::iter::from_fn(|| timeline.pop()).collect::<Vec<_>>();
        assert_eq!(all, [(3, 'a'), (7, 'b'), (7, 'c')]);
    }
}
