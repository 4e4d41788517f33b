// SPDX-License-Identifier: Apache-2.0
//! Bounds the unauthenticated connections at the explicit listeners, in all and per source; the
//! oldest gives way. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bound on the connections of a worker without a flow, or refused.
pub(super) const PLACES: usize = 4096;
/// Of these, bound per source (IPv4 /24, IPv6 /64) without a known peer or client.
const OF_UNAUTHORIZED: usize = 256;
/// Of these, bound per source with a known peer or client.
const OF_KNOWN: usize = 2048;

/// The waiting connections, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Places {
    next: u64,
    taken: BTreeMap<u64, Place>,
    /// The oldest connections of unauthorized senders give way before others.
    unauthorized: BTreeSet<u64>,
    sources: HashMap<[u8; 8], BTreeSet<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Key of the connection.
    key: u64,
    source: [u8; 8],
}

/// The number of a place. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(u64);

impl Places {
    /// The connection that must close before one from `source` gets a place, if any.
    pub(super) fn in_the_way(&self, source: [u8; 8], is_known: bool) -> Option<u64> {
        let most = if is_known { OF_KNOWN } else { OF_UNAUTHORIZED };
        let of_source = self.sources.get(&source);
        let oldest = match of_source {
            // Its own oldest: a source that sends many connections displaces no other's.
            Some(places) if places.len() >= most => places.first(),
            _ if self.taken.len() < PLACES => None,
            _ => self
                .unauthorized
                .first()
                .or_else(|| self.taken.keys().next()),
        };
        oldest.map(|number| self.taken[number].key)
    }

    /// Gives a connection a place.
    pub(super) fn take(&mut self, key: u64, source: [u8; 8], is_known: bool) -> Number {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, Place { key, source });
        self.sources.entry(source).or_default().insert(number);
        if !is_known {
            self.unauthorized.insert(number);
        }
        Number(number)
    }

    /// A connection gives up its place.
    pub(super) fn leave(&mut self, Number(number): Number) {
        let Some(Place { source, .. }) = self.taken.remove(&number) else {
            return;
        };
        self.unauthorized.remove(&number);
        if let Some(places) = self.sources.get_mut(&source) {
            places.remove(&number);
            // So that the table is bounded by the places, and not by the sources that a flood
            // invents.
            if places.is_empty() {
                self.sources.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 8] = [1; 8];

    /// Takes a place, and closes the connection that gives way.
    fn come(
        places: &mut Places,
        numbers: &mut Vec<Option<Number>>,
        source: [u8; 8],
        known: bool,
    ) -> Option<u64> {
        let gone = places.in_the_way(source, known);
        if let Some(number) = gone.and_then(|key| numbers[usize::try_from(key).unwrap()].take()) {
            places.leave(number);
        }
        let key = u64::try_from(numbers.len()).unwrap();
        numbers.push(Some(places.take(key, source, known)));
        gone
    }

    // promise: Q12
    #[test]
    fn oldest_of_source_goes() {
        let (mut places, mut numbers) = (Places::default(), Vec::new());
        for _ in 0..OF_UNAUTHORIZED {
            assert_eq!(come(&mut places, &mut numbers, HERE, false), None);
        }
        for oldest in 0..10 {
            assert_eq!(come(&mut places, &mut numbers, HERE, false), Some(oldest));
        }
        assert_eq!(come(&mut places, &mut numbers, [2; 8], false), None);
        // A known client at such a source has a larger bound.
        assert_eq!(come(&mut places, &mut numbers, HERE, true), None);
    }

    // promise: Q12
    #[test]
    fn unauthorized_go_first() {
        let (mut places, mut numbers) = (Places::default(), Vec::new());
        for _ in 0..10 {
            come(&mut places, &mut numbers, HERE, true);
        }
        for source in 0..PLACES - 10 {
            let source = (source as u64 / 100 + 1000).to_be_bytes();
            assert_eq!(come(&mut places, &mut numbers, source, false), None);
        }
        let elsewhere = [9; 8];
        assert_eq!(come(&mut places, &mut numbers, elsewhere, false), Some(10));
        assert_eq!(come(&mut places, &mut numbers, HERE, true), Some(11));
    }

    // promise: Q12
    #[test]
    fn nothing_left_behind() {
        let (mut places, mut numbers) = (Places::default(), Vec::new());
        for _ in 0..2 * OF_UNAUTHORIZED {
            come(&mut places, &mut numbers, HERE, false);
        }
        for number in numbers.into_iter().flatten() {
            places.leave(number);
            places.leave(number);
        }
        assert!(
            places.taken.is_empty() && places.unauthorized.is_empty() && places.sources.is_empty()
        );
    }
}
