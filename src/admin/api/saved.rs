// SPDX-License-Identifier: Apache-2.0
//! How long relays took and what they saved, in `GET /status`.

use serde::{Deserialize, Serialize};

/// What relays saved their clients, against the same connections without the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// Of how many it could be told.
    pub(crate) relays: u64,
    /// To the first byte from the server, all together.
    pub(crate) first_byte_seconds: f64,
    /// To the end.
    pub(crate) end_seconds: f64,
    /// How many were slower than without the node.
    pub(crate) slower: u64,
    /// By how much, all together.
    pub(crate) slower_seconds: f64,
}

/// The relays of one rule since the node started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) saved: Saved,
    /// From the client's SYN, or its accept, until the server's handshake was complete.
    pub(crate) connect_seconds: Histogram,
    /// From the same until a byte of the server was passed on.
    pub(crate) first_byte_seconds: Histogram,
    /// From the same to the end.
    pub(crate) duration_seconds: Histogram,
    /// Bytes in both directions.
    pub(crate) size_bytes: Histogram,
    pub(crate) saved_first_byte_seconds: Histogram,
    pub(crate) saved_end_seconds: Histogram,
}

/// How values are spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    pub(crate) count: u64,
    pub(crate) sum: f64,
    /// Values beyond the last bound are in `count` alone.
    pub(crate) buckets: Vec<Bucket>,
}

/// Values above the bound of the bucket before, up to this one's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) up_to: f64,
    pub(crate) count: u64,
}
