// SPDX-License-Identifier: Apache-2.0
//! Histograms by rule.

use posthaste_daemon::metrics::{Page, label};
use posthaste_relay::tally::Distribution;

use super::super::rules::{RuleTotal, US_PER_SECOND};

/// A histogram of every rule: its family, its documentation, its unit, and where it is.
type Family = (
    &'static str,
    &'static str,
    f64,
    fn(&RuleTotal) -> &Distribution,
);

#[rustfmt::skip]
const FAMILIES: [Family; 6] = [
    ("relay_connect_seconds", "From the client's SYN, or its accept, until the server's handshake was complete.", US_PER_SECOND, |rule| &rule.connect),
    ("relay_first_byte_seconds", "From the client's SYN, or its accept, to the first byte from the server.", US_PER_SECOND, |rule| &rule.first_byte),
    ("relay_duration_seconds", "From the client's SYN, or its accept, to the end of the relay.", US_PER_SECOND, |rule| &rule.duration),
    ("relay_size_bytes", "Bytes that a relay carried, in both directions.", 1.0, |rule| &rule.size),
    ("relay_saved_first_byte_seconds", "What a relay saved to the first byte from the server, at the least.", US_PER_SECOND, |rule| &rule.saved_first_byte),
    ("relay_saved_end_seconds", "What a relay saved to the end, at the least.", US_PER_SECOND, |rule| &rule.saved_end),
];

/// What the relays of each rule took and saved.
pub(super) fn rules(page: &mut Page, rules: &[RuleTotal]) {
    for (family, help, unit, of) in FAMILIES {
        page.family_of("histogram", family, help);
        for rule in rules {
            let label = label("rule", &rule.name);
            histogram(page, family, &label, of(rule), unit);
        }
    }
    let help = "Relays that opened more slowly than without the node.";
    let slower = rules.iter().map(|rule| (&rule.name, rule.slower));
    page.by("relays_slower_total", help, "rule", slower);
    let seconds = |rule: &RuleTotal| rule.slower_us as f64 / US_PER_SECOND;
    let slower = rules.iter().map(|rule| (&rule.name, seconds(rule)));
    page.by(
        "relays_slower_seconds_total",
        "By how much, all together.",
        "rule",
        slower,
    );
}

/// The samples of one histogram, whose buckets include those before.
fn histogram(page: &mut Page, family: &str, label: &str, values: &Distribution, unit: f64) {
    let bucket = format!("{family}_bucket");
    let mut below = 0;
    for (bound, count) in values.bounds.iter().zip(&values.counts) {
        below += count;
        let bound = *bound as f64 / unit;
        page.sample(&bucket, &format!("{label},le=\"{bound}\""), below);
    }
    let count = values.count();
    page.sample(&bucket, &format!("{label},le=\"+Inf\""), count);
    page.sample(&format!("{family}_sum"), label, values.sum as f64 / unit);
    page.sample(&format!("{family}_count"), label, count);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use posthaste_relay::tally::{DURATION_BOUNDS_US, OPENING_BOUNDS_US, SIZE_BOUNDS_BYTES};

    /// A rule with one relay that took two seconds and carried 20 kB, and one beyond all bounds.
    pub(crate) fn tallied(name: &str) -> RuleTotal {
        let of = |bounds: &'static [u64], value: u64| {
            let mut counts = vec![0; bounds.len() + 1];
            let at = bounds.iter().position(|bound| value <= *bound).unwrap();
            counts[at] = 1;
            counts[bounds.len()] = 1;
            Distribution {
                bounds,
                counts,
                sum: value,
            }
        };
        RuleTotal {
            name: name.into(),
            connect: of(&OPENING_BOUNDS_US, 90_000),
            first_byte: of(&OPENING_BOUNDS_US, 150_000),
            duration: of(&DURATION_BOUNDS_US, 2_000_000),
            size: of(&SIZE_BOUNDS_BYTES, 20_000),
            saved_first_byte: of(&OPENING_BOUNDS_US, 40_000),
            saved_end: of(&OPENING_BOUNDS_US, 400_000),
            slower: 3,
            slower_us: 2_500_000,
        }
    }

    #[test]
    fn cumulative_buckets_in_base_units() {
        let mut page = Page::of("posthaste");
        rules(&mut page, &[tallied("a\"b")]);
        let page = page.finish();
        for line in [
            "# TYPE posthaste_relay_connect_seconds histogram",
            "posthaste_relay_connect_seconds_bucket{rule=\"a\\\"b\",le=\"0.05\"} 0",
            "posthaste_relay_connect_seconds_bucket{rule=\"a\\\"b\",le=\"0.1\"} 1",
            "posthaste_relay_connect_seconds_bucket{rule=\"a\\\"b\",le=\"10\"} 1",
            "posthaste_relay_connect_seconds_bucket{rule=\"a\\\"b\",le=\"+Inf\"} 2",
            "posthaste_relay_connect_seconds_sum{rule=\"a\\\"b\"} 0.09",
            "posthaste_relay_connect_seconds_count{rule=\"a\\\"b\"} 2",
            "posthaste_relay_size_bytes_bucket{rule=\"a\\\"b\",le=\"100000\"} 1",
            "posthaste_relays_slower_total{rule=\"a\\\"b\"} 3",
            "posthaste_relays_slower_seconds_total{rule=\"a\\\"b\"} 2.5",
        ] {
            assert!(page.lines().any(|given| given == line), "{line}\n{page}");
        }
    }
}
