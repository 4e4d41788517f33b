// SPDX-License-Identifier: Apache-2.0
//! The `links` verb: round trips to peers, and whether they are up.

use std::fmt::Write;

use super::show::{self, Column};
use super::{present, query};
use crate::verb::AdminArgs;
use posthaste_measure::documents::{Link, Links};

/// The `links` verb.
pub(crate) fn links(args: &AdminArgs) -> anyhow::Result<()> {
    let links: Links = query(&args.socket, "GET", "/links")?;
    present(args, &links, list)
}

fn list(links: &Links) -> String {
    let mut text = String::new();
    for reflector in &links.reflectors {
        let state = reflector.failure.as_ref();
        let state = state.map_or_else(
            || "answers probes".to_owned(),
            |failure| format!("NOT OPEN: {failure}"),
        );
        let _ = writeln!(text, "reflector {} {state}", reflector.address);
    }
    let refused = links.refused.iter().filter(|(_, count)| **count > 0);
    let refused: Vec<_> = refused
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let _ = writeln!(text, "probes answered: {}", links.reflected);
    if !refused.is_empty() {
        let _ = writeln!(text, "packets refused: {}", refused.join(", "));
    }
    text.push('\n');
    text + &show::table(LINKS, &links.links, 3)
}

const LINKS: &[Column<Link>] = &[
    ("PEER", |link| link.peer.clone()),
    ("STATE", |link| link.state.clone()),
    ("MEASURED BY", measured_by),
    ("RTT", |link| micros(link.rtt_us)),
    ("MEAN", |link| micros(link.smoothed_us)),
    ("JITTER", |link| micros(link.jitter_us)),
    ("LOSS", |link| loss(link.loss_ppm)),
    ("AGE", |link| {
        link.age_ms.map_or_else(|| "-".into(), show::span)
    }),
    ("EVERY", |link| show::span(link.interval_ms)),
];

fn measured_by(link: &Link) -> String {
    let source = link.source.as_deref().unwrap_or("-");
    let blocked = if link.udp_blocked { " (no UDP)" } else { "" };
    format!("{source}{blocked}")
}

fn micros(time: Option<u32>) -> String {
    time.map_or_else(|| "-".into(), show::micros)
}

/// A loss in parts per million.
pub(super) fn loss(ppm: Option<u32>) -> String {
    let percent = ppm.map(|ppm| format!("{:.1}%", f64::from(ppm) / 10_000.0));
    percent.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_measure::documents::Reflector;

    #[test]
    fn unknown_not_zero() {
        let link = Link {
            peer: "paris".into(),
            id: 8,
            state: "dead".into(),
            rtt_us: None,
            source: None,
            smoothed_us: None,
            jitter_us: None,
            loss_ppm: None,
            age_ms: None,
            interval_ms: 10_000,
            in_use: false,
            udp_blocked: false,
            probes: 9,
            answers: 3,
            losses: 6,
            handshakes: 1,
            reports: 2,
        };
        let up = Link {
            peer: "rome".into(),
            state: "up".into(),
            rtt_us: Some(20_500),
            source: Some("handshake".into()),
            smoothed_us: Some(21_000),
            jitter_us: Some(400),
            loss_ppm: Some(15_000),
            age_ms: Some(1_500),
            udp_blocked: true,
            ..link.clone()
        };
        let text = list(&Links {
            reflectors: vec![Reflector {
                address: "192.0.2.1:862".into(),
                failure: Some("EACCES".into()),
            }],
            links: vec![link, up],
            reflected: 7,
            refused: [("auth".to_owned(), 3), ("stale".to_owned(), 0)].into(),
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "reflector 192.0.2.1:862 NOT OPEN: EACCES");
        assert_eq!(lines[2], "packets refused: 3 auth");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(lines[5]),
            ["paris", "dead", "-", "-", "-", "-", "-", "-", "10s"]
        );
        assert!(
            lines[6].contains("handshake (no UDP)") && lines[6].contains("1.5%"),
            "{text}"
        );
    }
}
