// SPDX-License-Identifier: Apache-2.0
//! Times the start of a relay, and reads its memory.
//!
//! The *start* is the time from the `exec` of the program, which is in the page cache, until the
//! client has a byte back from the server through the relay (see [`probe`] for how relayed bytes
//! are distinguished from forwarded ones). The new process itself records the time just before
//! `exec`.

pub(crate) mod memory;
pub mod probe;

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::network::Network;
use crate::process::Process;
use crate::{sys, threads};

/// Bound on the start of a relay.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a relay and waits for the first byte that it relays to `target`. Returns it with the time
/// from `exec` until that byte.
pub(crate) fn time_start(
    network: &Network,
    name: &str,
    mut command: Command,
    target: SocketAddr,
) -> Result<(Process, Duration)> {
    // A pipe, because the new process cannot return a value to the lab.
    let (mut noted, note) = io::pipe().context("make a pipe")?;
    // The probes run before the relay starts, so that none of its time is lost to their start.
    let (go, over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            network.client().run_in(|| {
                go.wait();
                probe::first_relayed_byte(target, &over)
            })
        });
        go.wait();
        let start = Instant::now();
        // The process is forked by another thread; only it knows when its `exec` was.
        sys::note_exec(&mut command, start, note);
        let relay = Process::spawn(name, command).and_then(|mut relay| {
            relay.wait_until("relayed byte", PATIENCE, |_| prober.is_finished())?;
            Ok(relay)
        });
        over.store(true, Ordering::Relaxed);
        let first = threads::join(prober);
        // The relay's error names the cause; the prober only timed out.
        let (relay, first) = (relay?, first?);
        let mut nanoseconds = [0; 8];
        noted
            .read_exact(&mut nanoseconds)
            .context("read the time of exec")?;
        // The parent's fork and the child's set-up are the lab's work, not the relay's.
        let forked = Duration::from_nanos(u64::from_ne_bytes(nanoseconds));
        Ok((relay, first.duration_since(start) - forked))
    })
}
