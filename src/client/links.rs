// SPDX-License-Identifier: Apache-2.0
//! The `links` verb: round trips to peers, and whether they are up.

use std::fmt::Write;

use super::{present, query, show};
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
    let head = [
        "PEER",
        "STATE",
        "MEASURED BY",
        "RTT",
        "MEAN",
        "JITTER",
        "LOSS",
        "AGE",
        "EVERY",
    ];
    let rows = links.links.iter().map(row);
    text + &show::table(head, rows, 3)
}

fn row(link: &Link) -> [String; 9] {
    let micros = |time: Option<u32>| time.map_or_else(|| "-".into(), show::micros);
    let source = link.source.clone().unwrap_or_else(|| "-".into());
    let blocked = if link.udp_blocked { " (no UDP)" } else { "" };
    [
        link.peer.clone(),
        link.state.clone(),
        format!("{source}{blocked}"),
        micros(link.rtt_us),
        micros(link.smoothed_us),
        micros(link.jitter_us),
        link.loss_ppm.map_or_else(
            || "-".into(),
            |ppm| format!("{:.1}%", f64::from(ppm) / 10_000.0),
        ),
        link.age_ms.map_or_else(|| "-".into(), show::span),
        show::span(link.interval_ms),
    ]
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
