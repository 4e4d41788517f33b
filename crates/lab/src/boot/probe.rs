// SPDX-License-Identifier: Apache-2.0
//! A client that detects the first byte relayed by the node on its path.
//!
//! A byte that comes back proves nothing: without a node, or before it is ready, packets are
//! forwarded and the server answers. The TTL distinguishes the two. Packets of the server have lost
//! one when the node forwarded them; packets of a node that terminates the connection have the full
//! TTL. So the probes require the full TTL (`IP_MINTTL`, `IPV6_MINHOPCOUNT`): the client's kernel
//! drops everything forwarded, and only a relaying node can open the connection. [`check_path`]
//! verifies, before every series, that forwarding works and that the probes ignore it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};

use crate::poll::Poll;
use crate::{socket, sys};

/// Interval of connection attempts.
const INTERVAL: Duration = Duration::from_micros(100);
/// Bound on pending attempts; an older one is given up.
const WAITING_MAX: usize = 1000;
/// The initial TTL of hosts. A router decrements it.
const FULL_TTL: usize = 64;
/// How long a forwarded byte may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a probe must stay unanswered without a relay.
const SILENCE: Duration = Duration::from_millis(200);

sockopt_impl!(
    /// Least TTL of IPv4 packets that a socket accepts.
    MinTtl,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MINTTL,
    usize
);
sockopt_impl!(
    /// Least hop limit of IPv6 packets that a socket accepts.
    MinHopCount,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MINHOPCOUNT,
    usize
);

/// Verifies that `target` answers through plain forwarding, and that probes ignore that.
pub fn check_path(target: SocketAddr) -> Result<()> {
    forwarded(target).context("plain forwarding")?;
    let mut prober = Prober::new(target)?;
    let until = Instant::now() + SILENCE;
    while Instant::now() < until {
        ensure!(
            prober.step()?.is_none(),
            "a probe was answered although no node runs: relayed and forwarded look the same"
        );
    }
    Ok(())
}

/// Sends a byte, waits for it to come back, and closes the connection.
fn forwarded(target: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])?;
    stream.shutdown(Shutdown::Write)?;
    stream.read(&mut [0]).map(drop)
}

/// Probes until a byte has come back through a relay; returns when. Fails when `over` is set
/// before.
pub fn first_relayed_byte(target: SocketAddr, over: &AtomicBool) -> Result<Instant> {
    let mut prober = Prober::new(target)?;
    while !over.load(Ordering::Relaxed) {
        if let Some(when) = prober.step()? {
            return Ok(when);
        }
    }
    bail!("no byte was relayed to {target}")
}

/// Attempts in progress.
#[derive(Debug)]
struct Prober {
    target: SocketAddr,
    poll: Poll,
    ready: Vec<usize>,
    waiting: VecDeque<(usize, TcpStream)>,
    /// The number of the next attempt.
    next: usize,
    due: Instant,
}

impl Prober {
    fn new(target: SocketAddr) -> Result<Self> {
        sys::drop_timer_slack()?;
        Ok(Self {
            target,
            poll: Poll::new()?,
            ready: Vec::new(),
            waiting: VecDeque::new(),
            next: 0,
            due: Instant::now(),
        })
    }

    /// Makes the next attempt if it is due, and handles events until the one after. Returns when
    /// the first byte arrived, if it did.
    fn step(&mut self) -> Result<Option<Instant>> {
        if Instant::now() >= self.due {
            self.attempt()?;
            self.due = Instant::now() + INTERVAL;
        }
        let timeout = self.due.saturating_duration_since(Instant::now());
        self.poll.wait(Some(timeout), &mut self.ready)?;
        let now = Instant::now();
        let ready = std::mem::take(&mut self.ready);
        Ok(ready
            .into_iter()
            .any(|number| self.advance(number))
            .then_some(now))
    }

    fn attempt(&mut self) -> Result<()> {
        let socket = socket::toward(self.target)?;
        // A second byte must not wait for the acknowledgement of the first (Nagle).
        socket.set_tcp_nodelay(true)?;
        match self.target {
            SocketAddr::V4(_) => setsockopt(&socket, MinTtl, &FULL_TTL)?,
            SocketAddr::V6(_) => setsockopt(&socket, MinHopCount, &FULL_TTL)?,
        }
        // A refused attempt is no error: the relay may be about to listen.
        let Ok(stream) = socket::begin(socket, self.target) else {
            return Ok(());
        };
        self.poll.add(&stream, self.next)?;
        self.waiting.push_back((self.next, stream));
        self.next += 1;
        // Without a relay no attempt ever ends, as forwarded answers are dropped.
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Advances an attempt; true when its byte has come back. An attempt that fails, because the
    /// node was not fully up, is dropped.
    fn advance(&mut self, number: usize) -> bool {
        let Some(index) = self
            .waiting
            .iter()
            .position(|(waiting, _)| *waiting == number)
        else {
            return false;
        };
        let stream = &mut self.waiting[index].1;
        // Writing again with the byte in flight is harmless: the server returns two.
        let result = stream.write_all(b"?").and_then(|()| stream.read(&mut [0]));
        match result {
            Ok(1) => return true,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected
                ) => {}
            _ => drop(self.waiting.remove(index)),
        }
        false
    }
}
