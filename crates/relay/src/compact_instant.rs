// SPDX-License-Identifier: Apache-2.0
//! A point in the worker's time in half the size of a [`Duration`]: every relay keeps some.

use std::time::Duration;

/// Nanoseconds of the worker's clock; they last for 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactInstant(u64);

impl From<Duration> for CompactInstant {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<CompactInstant> for Duration {
    fn from(compact_instant: CompactInstant) -> Self {
        Self::from_nanos(compact_instant.0)
    }
}

/// Microseconds that may be unknown, in the size of a `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Micros(u32);

impl Micros {
    /// Not known.
    pub(crate) const UNKNOWN: Self = Self(u32::MAX);

    /// The microseconds, if known.
    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::UNKNOWN).then_some(self.0)
    }
}

impl Default for Micros {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl From<Duration> for Micros {
    /// Saturates at `u32::MAX - 1`, just below 72 minutes.
    fn from(time: Duration) -> Self {
        Self(u32::try_from(time.as_micros()).map_or(u32::MAX - 1, |us| us.min(u32::MAX - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instant_round_trip() {
        let time = Duration::new(123_456_789, 987_654_321);
        assert_eq!(Duration::from(CompactInstant::from(time)), time);
    }

    #[test]
    fn long_is_not_unknown() {
        assert_eq!(Micros::default().get(), None);
        assert_eq!(Micros::from(Duration::from_micros(7)).get(), Some(7));
        let long = Micros::from(Duration::from_secs(1 << 20));
        assert_eq!(long.get(), Some(u32::MAX - 1));
    }
}
