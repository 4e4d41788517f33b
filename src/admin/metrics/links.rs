// SPDX-License-Identifier: Apache-2.0
//! Links to peers. What is not known of one has no sample, rather than 0.

use posthaste_daemon::metrics::{Page, label, truth};
use posthaste_measure::documents::{Link, Links};

/// A family with at most one sample for each link.
type Family = (&'static str, &'static str, fn(&Link) -> Option<f64>);

#[rustfmt::skip]
const GAUGES: [Family; 6] = [
    ("link_up", "Whether the link to a peer is there.", |link| truth(link.state == "up")),
    ("link_rtt_seconds", "The shortest recent round trip to a peer.", |link| link.rtt_us.map(seconds)),
    ("link_rtt_mean_seconds", "Smoothed round trip time to a peer.", |link| link.smoothed_us.map(seconds)),
    ("link_jitter_seconds", "Smoothed deviation of the round trip time to a peer.", |link| link.jitter_us.map(seconds)),
    ("link_loss_ratio", "Share of probes to a peer that were lost recently, there or back.", |link| Some(f64::from(link.loss_ppm?) / 1e6)),
    ("link_age_seconds", "Since the link to a peer was measured.", |link| Some(link.age_ms? as f64 / 1e3)),
];

pub(super) fn links(page: &mut Page, links: &Links) {
    let each = || links.links.iter();
    for (name, help, value) in GAUGES {
        let known = each().filter_map(|link| Some((&link.peer, value(link)?)));
        page.by(name, help, "peer", known);
    }
    probes(page, &links.links);
    let help = "Handshakes with a peer that were made to measure its link.";
    let handshakes = each().map(|link| (&link.peer, link.handshakes));
    page.by("link_handshakes_total", help, "peer", handshakes);
    let help = "Probes of others that were answered.";
    page.single("stamp_reflected_total", help, links.reflected);
    let help = "Measuring packets that were not accepted, by reason.";
    page.by("stamp_refused_total", help, "reason", &links.refused);
}

fn probes(page: &mut Page, links: &[Link]) {
    page.family("link_probes_total", "Probes, by result.");
    for link in links {
        let peer = label("peer", &link.peer);
        let results = [
            ("sent", link.probes),
            ("answered", link.answers),
            ("lost", link.losses),
        ];
        for (result, count) in results {
            let labels = format!("{peer},result=\"{result}\"");
            page.sample("link_probes_total", &labels, count);
        }
    }
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
