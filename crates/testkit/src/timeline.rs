// SPDX-License-Identifier: Apache-2.0
//! Events by time.

use std::collections::BTreeMap;

/// Events that have yet to happen, each at a time `T`. Those of one time happen in the order in
/// which they were added.
#[derive(Debug)]
pub struct Timeline<T, E> {
    events: BTreeMap<(T, u64), E>,
    added: u64,
}

impl<T: Ord + Copy, E> Default for Timeline<T, E> {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<T: Ord + Copy, E> Timeline<T, E> {
    /// Adds an event.
    pub fn add(&mut self, at: T, event: E) {
        self.events.insert((at, self.added), event);
        self.added += 1;
    }

    /// When the next event happens.
    pub fn first(&self) -> Option<T> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// All events, the next first.
    pub fn events(&self) -> impl Iterator<Item = &E> {
        self.events.values()
    }

    /// Removes the events that `keeps` is false for.
    pub fn retain(&mut self, keeps: impl Fn(&E) -> bool) {
        self.events.retain(|_, event| keeps(event));
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<(T, E)> {
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
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
