// SPDX-License-Identifier: Apache-2.0
//! New connections that fetch one object each.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::connection::{self, FirstMessage};
use super::meter::Window;
use super::{Call, Outcome, Request, percentiles};
use crate::poll::Poll;
use crate::{content, socket};

/// Bound on open connections in an open loop; one more is an error, not a delay.
const OPEN_MAX: usize = 8192;

/// How long the last connections may take to end after the window.
const LAST: Duration = Duration::from_secs(5);

/// A closed loop: when a connection has ended, the next one begins.
pub(super) fn closed(call: &Call, at_once: usize, sizes: &[u64]) -> Result<Outcome> {
    ensure!(!sizes.is_empty(), "no sizes to fetch");
    let mut fetcher = Fetcher::new(call)?;
    let mut next = (0..).map(|turn: usize| sizes[turn % sizes.len()]);
    let mut size = || next.next().unwrap_or_default();
    for _ in 0..at_once {
        fetcher.begin(size(), Instant::now());
    }
    while !fetcher.window.is_over() {
        for _ in 0..fetcher.wait(Duration::from_millis(10))? {
            fetcher.begin(size(), Instant::now());
        }
    }
    fetcher.finish()
}

/// An open loop: connections begin on time, whatever the state of earlier ones, and their duration
/// counts from when they were due.
pub(super) fn open(call: &Call, rate: u32, size: u64) -> Result<Outcome> {
    ensure!(rate > 0, "a rate of none");
    crate::sys::drop_timer_slack()?;
    let mut fetcher = Fetcher::new(call)?;
    let interval = Duration::from_secs(1) / rate;
    let mut due = Instant::now();
    while !fetcher.window.is_over() {
        fetcher.wait(due.saturating_duration_since(Instant::now()))?;
        while Instant::now() >= due {
            fetcher.begin(size, due);
            due += interval;
        }
    }
    fetcher.finish()
}

/// Connections in progress.
#[derive(Debug)]
struct Fetcher {
    call: Call,
    first_message: FirstMessage,
    poll: Poll,
    slots: Vec<Option<Fetch>>,
    /// Empty slots.
    free: Vec<usize>,
    ready: Vec<usize>,
    buffer: Vec<u8>,
    window: Window,
    outcome: Outcome,
    latencies: Vec<f64>,
}

/// One connection.
#[derive(Debug)]
struct Fetch {
    stream: TcpStream,
    begun: Instant,
    size: u64,
    have: u64,
    requested: bool,
    /// Bytes of the converter's answer still expected; `None` is unknown.
    answer: Option<usize>,
}

impl Fetcher {
    fn new(call: &Call) -> Result<Self> {
        socket::raise_descriptor_limit()?;
        Ok(Self {
            call: call.clone(),
            first_message: FirstMessage::new(call),
            poll: Poll::new()?,
            slots: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            buffer: vec![0; 1 << 17],
            window: Window::new(call)?,
            outcome: Outcome::default(),
            latencies: Vec::new(),
        })
    }

    /// Begins a connection. A failure is counted.
    fn begin(&mut self, size: u64, begun: Instant) {
        self.outcome.begun += 1;
        if let Err(error) = self.try_begin(size, begun) {
            self.count_error("begin", &error);
        }
    }

    fn try_begin(&mut self, size: u64, begun: Instant) -> io::Result<()> {
        if self.free.is_empty() {
            if self.slots.len() == OPEN_MAX {
                return Err(io::Error::other("too many connections open"));
            }
            self.free.push(self.slots.len());
            self.slots.push(None);
        }
        let stream = socket::begin(socket::toward(self.call.target)?, self.call.target)?;
        let slot = self.free[self.free.len() - 1];
        self.poll.add(&stream, slot)?;
        self.free.pop();
        self.slots[slot] = Some(Fetch {
            stream,
            begun,
            size,
            have: 0,
            requested: false,
            answer: self.first_message.answer_bytes(),
        });
        Ok(())
    }

    /// Waits for events up to the given time, handles them, and returns the number of connections
    /// that have ended.
    fn wait(&mut self, most: Duration) -> Result<usize> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(Some(most), &mut ready)?;
        let counting = self.window.check(&mut self.outcome)?;
        let ended = ready
            .iter()
            .filter(|slot| self.go_on(**slot, counting))
            .count();
        self.ready = ready;
        Ok(ended)
    }

    /// Advances a connection; true when it has ended in any way.
    fn go_on(&mut self, slot: usize, counting: bool) -> bool {
        let Some(fetch) = self.slots[slot].as_mut() else {
            return false;
        };
        let before = fetch.have;
        let result = fetch.advance(&self.first_message, &mut self.buffer);
        let gained = fetch.have - before;
        self.outcome.received += gained;
        if counting {
            self.outcome.counted_bytes += gained;
        }
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => self.count_error("fetch", &error),
            Ok(()) => self.complete(slot, counting),
        }
        self.slots[slot] = None;
        self.free.push(slot);
        true
    }

    fn complete(&mut self, slot: usize, counting: bool) {
        self.outcome.completed += 1;
        if let Some(fetch) = self.slots[slot].as_ref().filter(|_| counting) {
            self.outcome.counted += 1;
            self.latencies
                .push(fetch.begun.elapsed().as_secs_f64() * 1e6);
        }
    }

    fn count_error(&mut self, what: &str, error: &io::Error) {
        connection::count_error(&mut self.outcome.errors, what, error);
    }

    /// Waits for the last connections, and returns the results.
    fn finish(mut self) -> Result<Outcome> {
        let until = Instant::now() + LAST;
        while self.free.len() < self.slots.len() && Instant::now() < until {
            self.wait(Duration::from_millis(100))?;
        }
        let unfinished = self.slots.iter().flatten().count() as u64;
        if unfinished > 0 {
            let what = "not ended after the load".to_owned();
            self.outcome.errors.insert(what, unfinished);
        }
        self.outcome.latency_us = percentiles(&self.latencies);
        Ok(self.outcome)
    }
}

impl Fetch {
    /// Advances to the end, or until the socket would block, which is returned as an error.
    fn advance(&mut self, first_message: &FirstMessage, buffer: &mut [u8]) -> io::Result<()> {
        if !self.requested {
            let request = first_message.with(Request::Object(self.size));
            connection::write_whole(&mut self.stream, &request)?;
            self.requested = true;
        }
        connection::skip_answer(&mut self.stream, &mut self.answer)?;
        loop {
            let count = self.stream.read(buffer)?;
            if count == 0 {
                return connection::expect(self.have == self.size, "ended too early");
            }
            let fits = content::fits(self.have, &buffer[..count]);
            self.have += count as u64;
            connection::expect(fits, "wrong bytes")?;
            connection::expect(self.have <= self.size, "too many bytes")?;
        }
    }
}
