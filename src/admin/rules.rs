// SPDX-License-Identifier: Apache-2.0
//! The workers' counters by rule, summed.

use std::sync::Arc;

use posthaste_relay::control::Handle;
use posthaste_relay::tally::{Distribution, Tally};

use crate::api::saved::{Bucket, Histogram, Rule, Saved};

/// Histograms of times are in microseconds.
pub(crate) const US_PER_SECOND: f64 = 1e6;

/// The relays of one rule, of all workers.
#[derive(Clone, Debug)]
pub(crate) struct RuleTotal {
    pub(crate) name: Arc<str>,
    pub(crate) connect: Distribution,
    pub(crate) first_byte: Distribution,
    pub(crate) duration: Distribution,
    pub(crate) size: Distribution,
    pub(crate) saved_first_byte: Distribution,
    pub(crate) saved_end: Distribution,
    pub(crate) slower: u64,
    pub(crate) slower_us: u64,
}

impl RuleTotal {
    /// The counts of one worker.
    pub(crate) fn of(tally: &Tally) -> Self {
        Self {
            name: Arc::clone(&tally.name),
            connect: tally.connect.read(),
            first_byte: tally.first_byte.read(),
            duration: tally.duration.read(),
            size: tally.size.read(),
            saved_first_byte: tally.saved_first_byte.read(),
            saved_end: tally.saved_end.read(),
            slower: tally.slower.read(),
            slower_us: tally.slower_us.read(),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.connect.merge(&other.connect);
        self.first_byte.merge(&other.first_byte);
        self.duration.merge(&other.duration);
        self.size.merge(&other.size);
        self.saved_first_byte.merge(&other.saved_first_byte);
        self.saved_end.merge(&other.saved_end);
        self.slower += other.slower;
        self.slower_us += other.slower_us;
    }

    /// The savings of its relays.
    fn saved(&self) -> Saved {
        Saved {
            relays: self.saved_first_byte.count(),
            first_byte_seconds: seconds(self.saved_first_byte.sum),
            end_seconds: seconds(self.saved_end.sum),
            slower: self.slower,
            slower_seconds: seconds(self.slower_us),
        }
    }

    /// The same as a document of the admin API.
    pub(super) fn document(&self) -> Rule {
        let times = |times: &Distribution| histogram(times, US_PER_SECOND);
        Rule {
            name: self.name.to_string(),
            saved: self.saved(),
            connect_seconds: times(&self.connect),
            first_byte_seconds: times(&self.first_byte),
            duration_seconds: times(&self.duration),
            size_bytes: histogram(&self.size, 1.0),
            saved_first_byte_seconds: times(&self.saved_first_byte),
            saved_end_seconds: times(&self.saved_end),
        }
    }
}

/// Sums over all workers, in the order in which they first report the rules.
pub(super) fn of_workers(workers: &[Handle]) -> Vec<RuleTotal> {
    let mut rules: Vec<RuleTotal> = Vec::new();
    for tally in workers
        .iter()
        .flat_map(|worker| worker.counters.rules.each())
    {
        let more = RuleTotal::of(tally);
        // A worker counts few rules by name, so a search costs no more than a map.
        match rules.iter_mut().find(|rule| rule.name == more.name) {
            Some(rule) => rule.merge(&more),
            None => rules.push(more),
        }
    }
    rules
}

/// The savings of the relays of all rules.
pub(super) fn saved(rules: &[RuleTotal]) -> Saved {
    let each = rules.iter().map(RuleTotal::saved);
    each.fold(Saved::default(), |sum, rule| Saved {
        relays: sum.relays + rule.relays,
        first_byte_seconds: sum.first_byte_seconds + rule.first_byte_seconds,
        end_seconds: sum.end_seconds + rule.end_seconds,
        slower: sum.slower + rule.slower,
        slower_seconds: sum.slower_seconds + rule.slower_seconds,
    })
}

fn histogram(values: &Distribution, unit: f64) -> Histogram {
    let buckets = values.bounds.iter().zip(&values.counts);
    let buckets = buckets.map(|(bound, count)| Bucket {
        up_to: *bound as f64 / unit,
        count: *count,
    });
    Histogram {
        count: values.count(),
        sum: values.sum as f64 / unit,
        buckets: buckets.collect(),
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / US_PER_SECOND
}
