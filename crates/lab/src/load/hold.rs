// SPDX-License-Identifier: Apache-2.0
//! Many connections that are open and silent.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result};

use super::{Call, Outcome, connection, print};

/// Opens connections, waits for an echoed byte on each, prints that they are open, and waits to be
/// killed.
pub(super) fn run(call: &Call, connections: usize) -> Result<()> {
    crate::socket::raise_descriptor_limit()?;
    let open = |number| open(call).with_context(|| format!("open connection {number}"));
    let held: Vec<TcpStream> = (0..connections).map(open).collect::<Result<_>>()?;
    print(&Outcome {
        begun: held.len() as u64,
        received: held.len() as u64,
        ..Outcome::default()
    })?;
    // The connections end with the process, by resets or FINs that nobody counts.
    loop {
        std::thread::park();
    }
}

fn open(call: &Call) -> Result<TcpStream> {
    let mut stream = connection::open_echo(call)?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}
