// SPDX-License-Identifier: Apache-2.0
//! Load generator and server: what `compare` puts through a subject, from processes of its own.
//!
//! Both are single-threaded epoll loops. What they are told ([`Order`]) and what they found out
//! ([`Served`], [`Outcome`]) is JSON. A client says first, in [`Request`], what it wants. Every
//! byte the server sends is one of a known pattern; the client counts all of them and compares
//! some, so that nothing that loses, repeats or reorders bytes goes unnoticed.
//!
//! The client reads the CPU clocks of all processes that take part at the start and at the end of
//! its window: there is no delay between what is counted and what is measured.

mod connection;
pub(crate) mod content;
mod conversation;
mod fetch;
mod hold;
mod meter;
mod pingpong;
mod poll;
mod server;
mod stream;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub use self::content::Request;
use crate::stats::percentile;

/// Arguments of `posthaste-lab load`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do, as JSON
    order: String,
}

/// What a process is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Serve until killed.
    Serve(Serve),
    /// Put a load on a server.
    Call(Call),
}

/// What a server is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Serve {
    /// The port, of all addresses, shared with other servers.
    pub port: u16,
    /// The CPU whose connections it is to get, where there are several servers.
    pub cpu: Option<usize>,
    /// Who connects to this unix socket is told what has been [`Served`] so far.
    pub control: PathBuf,
}

/// What a client is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Whom it connects to.
    pub target: SocketAddr,
    /// The server that it asks for there by RFC 8803; none if the target leads to it.
    pub request_for: Option<SocketAddr>,
    /// Before anything is counted, in ms.
    pub warm_up_ms: u64,
    /// While transactions are counted and CPUs are measured, in ms.
    pub window_ms: u64,
    /// Processes whose CPU time is measured with the client's own, by the name of their party.
    pub parties: BTreeMap<String, Vec<i32>>,
    /// The load.
    pub work: Work,
}

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// New connections, so many at once, each fetching one object; the sizes in turn, in bytes.
    Closed {
        /// Connections open at a time.
        at_once: usize,
        /// Sizes of objects in bytes, taken in turn.
        sizes: Vec<u64>,
    },
    /// New connections, so many per second, whatever has become of the earlier ones.
    Open {
        /// Connections begun per second.
        rate: u32,
        /// The size of every object in bytes.
        size: u64,
    },
    /// Connections that carry all they can from the server.
    Stream {
        /// How many.
        flows: usize,
    },
    /// Messages there and back over one connection, the next when the last is back.
    PingPong {
        /// The size of a message in bytes.
        bytes: usize,
    },
    /// Connections that carry one byte there and back and are silent until the process is killed.
    Hold {
        /// How many.
        connections: usize,
    },
}

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Connections accepted.
    pub accepted: u64,
    /// Of them, those on which the client's FIN came after all had been sent.
    pub ended: u64,
    /// Of them, those that ended in any other way.
    pub broken: u64,
    /// Bytes of objects, streams and echoes sent.
    pub sent: u64,
}

/// What a client found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Transactions (or messages) completed within the window.
    pub counted: u64,
    /// Bytes received within the window.
    pub counted_bytes: u64,
    /// The length of the window in seconds.
    pub window_s: f64,
    /// CPU seconds used within the window, by party; the client's own are `client`.
    pub cpu_s: BTreeMap<String, f64>,
    /// Connections begun in all, before and after the window too.
    pub begun: u64,
    /// Connections that ended as they should in all: every byte, then the server's FIN.
    pub completed: u64,
    /// Bytes of objects, streams and echoes received in all.
    pub received: u64,
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
    /// Time from begin to end of a transaction or message in us: percentiles 10, 50, 90, 99.
    pub latency_us: Option<[f64; 4]>,
}

/// Does what it is told and prints what it found.
pub fn run(args: &Args) -> Result<()> {
    let order: Order = serde_json::from_str(&args.order).context("read the order")?;
    match order {
        Order::Serve(serve) => server::run(&serve),
        Order::Call(call) => {
            let outcome = match &call.work {
                Work::Closed { at_once, sizes } => fetch::closed(&call, *at_once, sizes)?,
                Work::Open { rate, size } => fetch::open(&call, *rate, *size)?,
                Work::Stream { flows } => stream::run(&call, *flows)?,
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
    writeln!(std::io::stdout(), "{line}").context("print")
}
