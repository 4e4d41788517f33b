// SPDX-License-Identifier: Apache-2.0
//! Durations and savings of relays by rule: histograms that one worker fills and other threads
//! read.
//!
//! Open relays take no memory here. A worker counts at most [`RULES_MAX`] rule names in its life,
//! however often the configuration is reloaded; relays of further rules are counted together.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::control::Saved;
use crate::counters::Counter;

/// Rules counted by name: the first ones that a worker gets.
pub const RULES_MAX: usize = 64;
/// The name for all others. No rule can have it.
pub const OTHER_RULES: &str = "(other)";

/// Upper bounds of the buckets for parts of a connection's opening, and for savings, in
/// microseconds.
pub const OPENING_BOUNDS_US: [u64; 13] = [
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000,
    5_000_000, 10_000_000,
];
/// Upper bounds of the buckets for durations of relays, in microseconds.
pub const DURATION_BOUNDS_US: [u64; 9] = [
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
    21_600_000_000,
    86_400_000_000,
];
/// Upper bounds of the buckets for the bytes of a relay.
pub const SIZE_BOUNDS_BYTES: [u64; 8] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The number of values by bucket, and their sum.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    within: [Counter; N],
    beyond: Counter,
    sum: Counter,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            within: std::array::from_fn(|_| Counter::default()),
            beyond: Counter::default(),
            sum: Counter::default(),
        }
    }

    /// Adds a value. Only the owning worker may call this.
    fn add(&self, value: u64) {
        // Bounds belong to their bucket, as `le` of Prometheus has it.
        let place = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = place.map_or(&self.beyond, |place| &self.within[place]);
        bucket.add(1);
        self.sum.add(value);
    }

    /// The values so far.
    pub fn read(&self) -> Distribution {
        let within = self.within.iter().map(Counter::read);
        Distribution {
            bounds: self.bounds,
            counts: within.chain([self.beyond.read()]).collect(),
            sum: self.sum.read(),
        }
    }
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Upper bounds of the buckets.
    pub bounds: &'static [u64],
    /// Values in each bucket; the last count is of those beyond all bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another distribution with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

/// The relays of one rule.
#[derive(Debug)]
pub struct Tally {
    /// The rule's name.
    pub name: Arc<str>,
    /// From the client's SYN, or its accept, until the server's handshake was complete.
    pub connect: Histogram<13>,
    /// From the same start until the node wrote the first byte of the server to the client.
    pub first_byte: Histogram<13>,
    /// From the same start to the end.
    pub duration: Histogram<9>,
    /// Bytes in both directions.
    pub size: Histogram<8>,
    /// Time saved until the first byte.
    pub saved_first_byte: Histogram<13>,
    /// Time saved until the end.
    pub saved_end: Histogram<13>,
    /// Relays that opened more slowly than the connection would have without a node.
    pub slower: Counter,
    /// The time lost by those, in microseconds.
    pub slower_us: Counter,
}

impl Tally {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            connect: Histogram::new(&OPENING_BOUNDS_US),
            first_byte: Histogram::new(&OPENING_BOUNDS_US),
            duration: Histogram::new(&DURATION_BOUNDS_US),
            size: Histogram::new(&SIZE_BOUNDS_BYTES),
            saved_first_byte: Histogram::new(&OPENING_BOUNDS_US),
            saved_end: Histogram::new(&OPENING_BOUNDS_US),
            slower: Counter::default(),
            slower_us: Counter::default(),
        }
    }

    pub(crate) fn on_connected(&self, after: Duration) {
        self.connect.add(micros(after));
    }

    pub(crate) fn on_first_byte(&self, after: Duration) {
        self.first_byte.add(micros(after));
    }

    pub(crate) fn on_end(&self, total: Duration, bytes: u64, saved: Option<Saved>) {
        self.duration.add(micros(total));
        self.size.add(bytes);
        let Some(saved) = saved else { return };
        // Histograms of Prometheus sum up values that only grow, so losses have counters of their
        // own.
        self.saved_first_byte
            .add(saved.first_byte_us.try_into().unwrap_or(0));
        self.saved_end.add(saved.end_us.try_into().unwrap_or(0));
        if saved.first_byte_us < 0 {
            self.slower.add(1);
            self.slower_us.add(saved.first_byte_us.unsigned_abs());
        }
    }
}

/// The tallies of one worker. A slot, once taken, stays with its rule.
#[derive(Debug)]
pub struct Tallies {
    named: [OnceLock<Box<Tally>>; RULES_MAX],
    other: OnceLock<Box<Tally>>,
}

impl Default for Tallies {
    fn default() -> Self {
        Self {
            named: [const { OnceLock::new() }; RULES_MAX],
            other: OnceLock::new(),
        }
    }
}

impl Tallies {
    /// The slot of a rule. Only the owning worker may call this, when it gets new rules.
    pub(crate) fn place_of(&self, name: &str) -> usize {
        let is_its = |slot: &OnceLock<Box<Tally>>| {
            *slot.get_or_init(|| Box::new(Tally::new(name))).name == *name
        };
        // Slots are filled in order and stay: the first of this name, or the first empty one.
        self.named.iter().position(is_its).unwrap_or_else(|| {
            self.other.get_or_init(|| Box::new(Tally::new(OTHER_RULES)));
            RULES_MAX
        })
    }

    /// The tally in a slot.
    pub(crate) fn at(&self, place: usize) -> Option<&Tally> {
        let slot = self.named.get(place).unwrap_or(&self.other);
        slot.get().map(AsRef::as_ref)
    }

    /// All tallies in use.
    pub fn each(&self) -> impl Iterator<Item = &Tally> {
        let slots = self.named.iter().chain([&self.other]);
        slots.filter_map(|slot| slot.get().map(AsRef::as_ref))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_in_first_bucket() {
        let histogram = Histogram::new(&SIZE_BOUNDS_BYTES);
        for bytes in [0, 1_000, 1_001, 10_000_000_000, 10_000_000_001] {
            histogram.add(bytes);
        }
        let mut read = histogram.read();
        assert_eq!(read.counts, [2, 1, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.count(), read.sum), (5, 20_000_002_002));
        read.merge(&histogram.read());
        assert_eq!((read.count(), read.counts[0]), (10, 4));
    }

    #[test]
    fn bounds_grow() {
        assert!(OPENING_BOUNDS_US.is_sorted_by(|a, b| a < b));
        assert!(DURATION_BOUNDS_US.is_sorted_by(|a, b| a < b));
        assert!(SIZE_BOUNDS_BYTES.is_sorted_by(|a, b| a < b));
    }

    // promise: W10
    #[test]
    fn excess_rules_share_counters() {
        let tallies = Tallies::default();
        let places: Vec<usize> = (0..RULES_MAX + 9)
            .map(|number| tallies.place_of(&format!("rule{number}")))
            .collect();
        assert!(places[..RULES_MAX].is_sorted_by(|a, b| a < b));
        assert!(places[RULES_MAX..].iter().all(|place| *place == RULES_MAX));
        assert_eq!(tallies.place_of("rule7"), 7, "a rule keeps its place");
        assert_eq!(&*tallies.at(RULES_MAX).unwrap().name, OTHER_RULES);
        assert_eq!(tallies.each().count(), RULES_MAX + 1);
    }

    #[test]
    fn slower_is_not_negative() {
        let tally = Tally::new("web");
        let saved = |first_byte_us, end_us| {
            Some(Saved {
                first_byte_us,
                end_us,
            })
        };
        tally.on_end(Duration::from_secs(1), 7, saved(-5_000, 0));
        tally.on_end(Duration::from_secs(1), 7, saved(3_000, 4_000));
        tally.on_end(Duration::from_secs(1), 7, None);
        let first = tally.saved_first_byte.read();
        assert_eq!((first.count(), first.sum), (2, 3_000));
        assert_eq!(tally.saved_end.read().sum, 4_000);
        assert_eq!((tally.slower.read(), tally.slower_us.read()), (1, 5_000));
        assert_eq!(tally.duration.read().count(), 3);
    }
}
