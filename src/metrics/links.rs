// SPDX-License-Identifier: Apache-2.0
//! Links to peers. What is not known of one has no sample, rather than 0.

use super::{Page, escaped};
use crate::admin::api::links::{Link, Links};

/// A family with at most one sample for each link.
type Family = (&'static str, &'static str, fn(&Link) -> Option<f64>);

const GAUGES: [Family; 6] = [
    ("link_up", "Whether the link to a peer is there.", |link| {
        Some(f64::from(u8::from(link.state == "up")))
    }),
    (
        "link_rtt_seconds",
        "The shortest recent round trip to a peer.",
        |link| link.rtt_us.map(seconds),
    ),
    (
        "link_rtt_mean_seconds",
        "Smoothed round trip time to a peer.",
        |link| link.smoothed_us.map(seconds),
    ),
    (
        "link_jitter_seconds",
        "Smoothed deviation of the round trip time to a peer.",
        |link| link.jitter_us.map(seconds),
    ),
    (
        "link_loss_ratio",
        "Share of probes to a peer that were lost recently, there or back.",
        |link| link.loss_ppm.map(|ppm| f64::from(ppm) / 1e6),
    ),
    (
        "link_age_seconds",
        "Since the link to a peer was measured.",
        |link| link.age_ms.map(|age| age as f64 / 1e3),
    ),
];

pub(super) fn links(page: &mut Page, links: &Links) {
    for (name, help, value) in GAUGES {
        page.family(name, "gauge", help);
        for link in &links.links {
            if let Some(value) = value(link) {
                page.sample(name, &peer(link), value);
            }
        }
    }
    counters(page, links);
    page.single(
        "stamp_reflected_total",
        "counter",
        "Probes of others that were answered.",
        links.reflected,
    );
    page.family(
        "stamp_refused_total",
        "counter",
        "Measuring packets that were not accepted, by reason.",
    );
    for (reason, count) in &links.refused {
        page.sample(
            "stamp_refused_total",
            &format!("reason=\"{reason}\""),
            count,
        );
    }
}

fn counters(page: &mut Page, links: &Links) {
    page.family(
        "link_probes_total",
        "counter",
        "Probes, by what became of them.",
    );
    for link in &links.links {
        let fates = [
            ("sent", link.probes),
            ("answered", link.answers),
            ("lost", link.losses),
        ];
        for (fate, count) in fates {
            let labels = format!("{},fate=\"{fate}\"", peer(link));
            page.sample("link_probes_total", &labels, count);
        }
    }
    page.family(
        "link_handshakes_total",
        "counter",
        "Handshakes with a peer that were made to measure its link.",
    );
    for link in &links.links {
        page.sample("link_handshakes_total", &peer(link), link.handshakes);
    }
}

fn peer(link: &Link) -> String {
    format!("peer=\"{}\"", escaped(&link.peer))
}

fn seconds(micros: u32) -> f64 {
    f64::from(micros) / 1e6
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A link that is up and one that is dead.
    pub(in super::super) fn measured() -> Links {
        let up = Link {
            peer: "paris".into(),
            id: 8,
            state: "up".into(),
            rtt_us: Some(20_500),
            source: Some("stamp".into()),
            smoothed_us: Some(21_000),
            jitter_us: Some(400),
            loss_ppm: Some(15_000),
            age_ms: Some(1_500),
            interval_ms: 1_000,
            in_use: true,
            udp_blocked: false,
            probes: 9,
            answers: 3,
            losses: 6,
            handshakes: 1,
            reports: 2,
        };
        let dead = Link {
            peer: "rome".into(),
            state: "dead".into(),
            rtt_us: None,
            smoothed_us: None,
            jitter_us: None,
            loss_ppm: None,
            age_ms: None,
            ..up.clone()
        };
        Links {
            links: vec![up, dead],
            refused: [("auth".to_owned(), 3)].into(),
            ..Links::default()
        }
    }
}
