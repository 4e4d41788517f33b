// SPDX-License-Identifier: Apache-2.0
//! What a controller counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::streams::Unauthorized;
use super::wire::End;

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self) {
        // Relaxed: nothing is ordered by a number that is only shown.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// As a metric's value.
    pub(super) fn sample(&self) -> Option<f64> {
        Some(self.read() as f64)
    }
}

/// Since the controller started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) registrations: Counter,
    pub(super) messages: Counter,
    pub(super) nacks: Counter,
    pub(super) updates_full: Counter,
    pub(super) updates_incremental: Counter,
    pub(super) plans: Counter,
    pub(super) plans_changed: Counter,
    pub(super) repairs: Counter,
    pub(super) store_failures: Counter,
    pub(super) requests_denied: Counter,
    pub(super) reloads_succeeded: Counter,
    pub(super) reloads_failed: Counter,
    ended: [Counter; End::LABELS.len()],
    turned_away: [Counter; Unauthorized::LABELS.len()],
}

impl Counters {
    pub(super) fn end(&self, end: &End) {
        count(&self.ended, &End::LABELS, end.label());
    }

    pub(super) fn turn_away(&self, why: &Unauthorized) {
        count(&self.turned_away, &Unauthorized::LABELS, why.label());
    }

    /// Streams of nodes that ended or did not begin, by reason.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        End::LABELS
            .into_iter()
            .zip(self.ended.iter().map(Counter::read))
    }

    /// Connections that did not become streams, by reason.
    pub(super) fn turned_away(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.turned_away.iter().map(Counter::read);
        Unauthorized::LABELS.into_iter().zip(counts)
    }
}

fn count(counters: &[Counter], labels: &[&str], label: &str) {
    if let Some(place) = labels.iter().position(|known| *known == label) {
        counters[place].add();
    }
}
