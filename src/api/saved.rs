// SPDX-License-Identifier: Apache-2.0
//! Durations and savings of relays, in `GET /status`.

use serde::{Deserialize, Serialize};

/// Time that relays saved their clients, compared with direct connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// Number of relays with an estimate.
    pub(crate) relays: u64,
    /// Until the first byte from the server, in total.
    pub(crate) first_byte_seconds: f64,
    /// Until the end, in total.
    pub(crate) end_seconds: f64,
    /// Number of relays slower than without the node.
    pub(crate) slower: u64,
    /// Time they lost, in total.
    pub(crate) slower_seconds: f64,
}

/// The relays of one rule since the node started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) saved: Saved,
    /// From the client's SYN, or its accept, until the server's handshake was complete.
    pub(crate) connect_seconds: Histogram,
    /// From the same start until the first byte of the server was passed on.
    pub(crate) first_byte_seconds: Histogram,
    /// From the same start to the end.
    pub(crate) duration_seconds: Histogram,
    /// Bytes in both directions.
    pub(crate) size_bytes: Histogram,
    pub(crate) saved_first_byte_seconds: Histogram,
    pub(crate) saved_end_seconds: Histogram,
}

/// A distribution of values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    pub(crate) count: u64,
    pub(crate) sum: f64,
    /// Values beyond the last bound are in `count` alone.
    pub(crate) buckets: Vec<Bucket>,
}

/// Number of values above the previous bound, up to this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) up_to: f64,
    pub(crate) count: u64,
}
