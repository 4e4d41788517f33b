// SPDX-License-Identifier: Apache-2.0
//! Load generator and server for `compare`, in processes of their own.
//!
//! Both are single-threaded epoll loops. Their parameters ([`Order`]) and results ([`Served`],
//! [`Outcome`]) are JSON. A client first sends a [`Request`]. Every byte the server sends is part
//! of a known pattern; the client counts all of them and compares some, so that lost, repeated and
//! reordered bytes are detected.
//!
//! The client reads the CPU clocks of all participating processes at the start and at the end of
//! its window, so that counters and clocks cover the same time.

mod connection;
pub(crate) mod conversation;
mod fetch;
mod hold;
mod meter;
mod pingpong;
mod request;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub use self::request::Request;
pub(crate) use self::request::{answer_bytes, request_for};
use crate::stats::percentile;

/// Arguments of `posthaste-lab load`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do, as JSON
    order: String,
}

/// The parameters of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Serve until killed.
    Serve(Serve),
    /// Generate load.
    Call(Call),
}

/// The parameters of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Serve {
    /// The port, of all addresses, shared with other servers.
    pub port: u16,
    /// The CPU whose connections it prefers, if there are several servers.
    pub cpu: Option<usize>,
    /// A unix socket on which every client gets the current [`Served`].
    pub control: PathBuf,
}

/// The parameters of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The address to connect to.
    pub target: SocketAddr,
    /// The server to request there by RFC 8803; `None` if the target leads to it.
    pub request_for: Option<SocketAddr>,
    /// Whether it offers Multipath TCP.
    pub multipath: bool,
    /// Time before anything is counted, in ms.
    pub warm_up_ms: u64,
    /// Time in which transactions are counted and CPUs are measured, in ms.
    pub window_ms: u64,
    /// Processes whose CPU time is measured with the client's own, by group name.
    pub parties: BTreeMap<String, Vec<i32>>,
    /// The load.
    pub work: Work,
}

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// New connections, at most so many at once, each fetching one object; sizes in turn, in bytes.
    Closed {
        /// Connections open at a time.
        at_once: usize,
        /// Sizes of objects in bytes, taken in turn.
        sizes: Vec<u64>,
    },
    /// New connections at a constant rate, whatever the state of earlier ones.
    Open {
        /// Connections begun per second.
        rate: u32,
        /// The size of every object in bytes.
        size: u64,
    },
    /// Connections that carry as much as possible from the server.
    Stream {
        /// How many.
        flows: usize,
    },
    /// Messages back and forth over one connection, each after the reply to the last.
    PingPong {
        /// The size of a message in bytes.
        bytes: usize,
    },
    /// Connections that carry one byte back and forth and are silent until the process is killed.
    Hold {
        /// How many.
        connections: usize,
    },
}

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Connections accepted.
    pub accepted: u64,
    /// Those on which the client's FIN arrived after everything had been sent.
    pub ended: u64,
    /// Those that ended in any other way.
    pub broken: u64,
    /// Bytes of objects, streams and echoes sent.
    pub sent: u64,
}

/// Results of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Transactions (or messages) completed within the window.
    pub counted: u64,
    /// Bytes received within the window.
    pub counted_bytes: u64,
    /// The length of the window in seconds.
    pub window_s: f64,
    /// CPU seconds used within the window, by group; the client's own are `client`.
    pub cpu_s: BTreeMap<String, f64>,
    /// All connections begun, also outside the window.
    pub begun: u64,
    /// All connections that ended as expected: every byte, then the server's FIN.
    pub completed: u64,
    /// All bytes of objects, streams and echoes received.
    pub received: u64,
    /// Errors, and how often each occurred.
    pub errors: BTreeMap<String, u64>,
    /// Duration of a transaction or message in us: percentiles 10, 50, 90, 99.
    pub latency_us: Option<[f64; 4]>,
}

/// Carries out the order and prints the results.
pub fn run(args: &Args) -> Result<()> {
    let order: Order = serde_json::from_str(&args.order).context("read the order")?;
    match order {
        Order::Serve(serve) => server::run(&serve),
        Order::Call(call) => {
            let outcome = match &call.work {
                Work::Closed { at_once, sizes } => fetch::closed(&call, *at_once, sizes)?,
                Work::Open { rate, size } => fetch::open(&call, *rate, *size)?,
                Work::Stream { flows } => fetch::stream(&call, *flows)?,
                Work::PingPong { bytes } => pingpong::run(&call, *bytes)?,
                Work::Hold { connections } => return hold::run(&call, *connections),
            };
            print(&outcome)
        }
    }
}

/// Percentiles 10, 50, 90 and 99; none without samples.
pub(crate) fn percentiles(samples: &[f64]) -> Option<[f64; 4]> {
    let at = |percent| percentile(samples, percent);
    Some([at(10.0)?, at(50.0)?, at(90.0)?, at(99.0)?])
}

/// Writes a line of JSON to the standard output.
fn print(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value).context("encode")?;
    // The lab waits for the newline: a line may be written in parts.
    writeln!(std::io::stdout(), "{line}").context("print")
}
