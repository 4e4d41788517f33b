// SPDX-License-Identifier: Apache-2.0
//! The `observed` verb: the profiles that a node has learned.

use super::show::{self, Column};
use super::{observed_by, present};
use crate::api::observed::{Destination, Observed};
use crate::verb::AdminArgs;

/// The `observed` verb.
pub(crate) fn observed(args: &AdminArgs, limit: usize) -> anyhow::Result<()> {
    let observed = observed_by(&args.socket, limit)?;
    present(args, &observed, list)
}

fn list(observed: &Observed) -> String {
    let more = if observed.incomplete {
        "(there are more; --limit COUNT)\n"
    } else {
        ""
    };
    show::table(COLUMNS, &observed.destinations, 3) + more
}

const COLUMNS: &[Column<Destination>] = &[
    ("SERVICE", |one| one.server.to_string()),
    ("CLIENT", |one| one.client.to_string()),
    ("STATE", |one| one.state.clone()),
    ("CLIENT RTT", |one| format!("{:.1} ms", one.client_rtt_ms)),
    ("SERVER RTT", |one| format!("{:.1} ms", one.server_rtt_ms)),
    ("NAT", nat),
    ("AGE", |one| show::span(show::millis(one.age_seconds))),
];

fn nat(one: &Destination) -> String {
    let nat = match (one.source_translated, one.destination_translated) {
        (false, false) => "-",
        (true, false) => "source",
        (false, true) => "destination",
        (true, true) => "both",
    };
    nat.into()
}
