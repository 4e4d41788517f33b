// SPDX-License-Identifier: Apache-2.0
//! The final table: services before and after.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use serde::Serialize;

use super::{Ended, Outcome};
use crate::api::observed::Observed;
use crate::client::{Column, table};

/// One service: medians in milliseconds, from the client's SYN at the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Service {
    server: SocketAddr,
    /// Until the client's handshake was complete, of an observed connection.
    connect_before_ms: Option<f64>,
    /// And until the first byte from the server, at least: two round trips of both halves, less the
    /// client's second one.
    first_byte_before_ms: Option<f64>,
    /// Number of relayed connections that finished.
    relayed: usize,
    connect_ms: Option<f64>,
    first_byte_ms: Option<f64>,
}

/// All services, those with the most connections first.
pub(super) fn services(observed: &Observed, ended: &[Ended]) -> Vec<Service> {
    #[derive(Default)]
    struct Samples {
        before: Vec<f64>,
        first_before: Vec<f64>,
        connect: Vec<f64>,
        first: Vec<f64>,
    }
    let mut all: BTreeMap<SocketAddr, Samples> = BTreeMap::new();
    for one in &observed.destinations {
        let samples = all.entry(one.server).or_default();
        let whole = one.client_rtt_ms + one.server_rtt_ms;
        samples.before.push(whole);
        samples.first_before.push(whole + one.server_rtt_ms);
    }
    for one in ended {
        let samples = all.entry(one.server).or_default();
        samples.connect.push(one.accept_ms);
        samples.first.extend(one.first_byte_ms);
    }
    let mut services: Vec<Service> = all
        .into_iter()
        .map(|(server, samples)| Service {
            server,
            connect_before_ms: median(samples.before),
            first_byte_before_ms: median(samples.first_before),
            relayed: samples.connect.len(),
            connect_ms: median(samples.connect),
            first_byte_ms: median(samples.first),
        })
        .collect();
    // Stable: services with as many connections stay in the order of their addresses.
    services.sort_by_key(|service| std::cmp::Reverse(service.relayed));
    services
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The outcome as text.
pub(super) fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "In {:.0} s the node watched {} connections that it forwarded, and relayed {}.\n",
        outcome.seconds, outcome.watched, outcome.relayed
    );
    if let Some(saved_ms) = outcome.packets_saved_ms {
        let _ = writeln!(
            text,
            "{} took the packet path: their data reached the server {saved_ms:.1} ms earlier on average.",
            outcome.packets
        );
    }
    if outcome.no_gain > 0 {
        let _ = writeln!(
            text,
            "It forwarded {} that a relay would save too little (observe.gain_min).",
            outcome.no_gain
        );
    }
    if outcome.blocked {
        text.push_str(
            "This host's firewall stands in the way of relays: run posthaste doctor for fixes.\n",
        );
    }
    if outcome.services.is_empty() {
        // The packet path needs no profile of a service, and leaves none.
        if outcome.packets == 0 {
            text.push_str("No connection crossed this host, or none was answered.\n");
        }
        return text;
    }
    text.push('\n');
    text + &table(COLUMNS, &outcome.services, 1)
}

const COLUMNS: &[Column<Service>] = &[
    ("SERVICE", |service| service.server.to_string()),
    ("RELAYED", |service| service.relayed.to_string()),
    ("CONNECT BEFORE", |service| ms(service.connect_before_ms)),
    ("AFTER (ms)", |service| ms(service.connect_ms)),
    ("FIRST BYTE BEFORE", |service| {
        ms(service.first_byte_before_ms)
    }),
    ("AFTER (ms)", |service| ms(service.first_byte_ms)),
];

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |ms| format!("{ms:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::observed::Destination;

    fn destination(server: &str, client_rtt_ms: f64, server_rtt_ms: f64) -> Destination {
        Destination {
            client: "10.1.0.2".parse().unwrap(),
            server: server.parse().unwrap(),
            client_rtt_ms,
            server_rtt_ms,
            state: "relayed".into(),
            source_translated: false,
            destination_translated: false,
            age_seconds: 1.0,
        }
    }

    #[test]
    fn services_are_distinguished() {
        let observed = Observed {
            destinations: vec![
                destination("10.2.0.2:80", 10.0, 30.0),
                destination("10.2.0.2:81", 10.0, 30.0),
            ],
            incomplete: false,
        };
        let relay = |accept_ms| Ended {
            server: "10.2.0.2:81".parse().unwrap(),
            accept_ms,
            first_byte_ms: Some(60.0),
        };
        let services = services(&observed, &[relay(12.0), relay(10.0), relay(11.0)]);
        assert_eq!((services[0].relayed, services[1].relayed), (3, 0));
        assert_eq!(services[0].connect_before_ms, Some(40.0));
        assert_eq!(services[0].connect_ms, Some(11.0));
        assert_eq!(services[0].first_byte_before_ms, Some(70.0));
        assert_eq!(services[1].connect_ms, None);
    }

    #[test]
    fn packet_flows_are_connections() {
        let of = |packets, saved| Outcome {
            seconds: 60.0,
            watched: 0,
            relayed: 0,
            packets,
            packets_saved_ms: saved,
            no_gain: 0,
            blocked: false,
            services: Vec::new(),
        };
        let none = "No connection crossed this host";
        assert!(text(&of(0, None)).contains(none));
        let some = text(&of(26, Some(1.5)));
        assert!(some.contains("26 took") && !some.contains(none), "{some}");
    }
}
