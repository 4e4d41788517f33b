// SPDX-License-Identifier: Apache-2.0
//! Messages back and forth over one connection.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::connection;
use super::meter::Window;
use super::{Call, Outcome, percentiles};
use crate::content;

/// Sends and waits in turn until the window is over, and reports the durations of messages.
pub(super) fn run(call: &Call, bytes: usize) -> Result<Outcome> {
    let pattern = content::pattern();
    ensure!(bytes <= pattern.len(), "messages of {bytes} bytes");
    let mut outcome = Outcome::default();
    let mut stream = connection::open_echo(call)?;
    outcome.begun = 1;
    // After the connection: its handshake is no message.
    let mut window = Window::new(call)?;
    let mut latencies = Vec::new();
    let mut buffer = vec![0; bytes];
    while !window.is_over() {
        let start = Instant::now();
        stream.write_all(&pattern[..bytes]).context("send")?;
        stream.read_exact(&mut buffer).context("receive")?;
        let elapsed = start.elapsed();
        if buffer != pattern[..bytes] {
            let error = ErrorKind::InvalidData.into();
            connection::count_error(&mut outcome.errors, "message", &error);
        }
        outcome.received += bytes as u64;
        if window.check(&mut outcome)? {
            outcome.counted += 1;
            outcome.counted_bytes += bytes as u64;
            latencies.push(elapsed.as_secs_f64() * 1e6);
        }
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(
        stream.read(&mut buffer)? == 0,
        "more came back than was sent"
    );
    outcome.completed = 1;
    outcome.latency_us = percentiles(&latencies);
    Ok(outcome)
}
