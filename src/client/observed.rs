// SPDX-License-Identifier: Apache-2.0
//! The `observed` verb: the profiles that a node has learned.

use super::{observed_by, present, show};
use crate::api::observed::{Destination, Observed};
use crate::verb::AdminArgs;

/// The `observed` verb.
pub(crate) fn observed(args: &AdminArgs, limit: usize) -> anyhow::Result<()> {
    let observed = observed_by(&args.socket, limit)?;
    present(args, &observed, list)
}

fn list(observed: &Observed) -> String {
    let head = [
        "SERVICE",
        "CLIENT",
        "STATE",
        "CLIENT RTT",
        "SERVER RTT",
        "NAT",
        "AGE",
    ];
    let rows = observed.destinations.iter().map(row);
    let more = if observed.incomplete {
        "(there are more; --limit COUNT)\n"
    } else {
        ""
    };
    show::table(head, rows, 3) + more
}

fn row(one: &Destination) -> [String; 7] {
    let nat = match (one.source_translated, one.destination_translated) {
        (false, false) => "-",
        (true, false) => "source",
        (false, true) => "destination",
        (true, true) => "both",
    };
    let rtt = |ms: f64| format!("{ms:.1} ms");
    [
        one.server.to_string(),
        one.client.to_string(),
        one.state.clone(),
        rtt(one.client_rtt_ms),
        rtt(one.server_rtt_ms),
        nat.into(),
        show::span(show::millis(one.age_seconds)),
    ]
}
