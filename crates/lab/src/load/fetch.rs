// SPDX-License-Identifier: Apache-2.0
//! New connections that fetch one object each, and those that carry as much as possible.

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::socket::{MsgFlags, recv};
use socket2::Protocol;

use super::connection::{self, FirstMessage};
use super::meter::Window;
use super::{Call, Outcome, Request, percentiles};
use crate::poll::Poll;
use crate::{content, socket};

/// Bound on open connections in an open loop; one more is an error, not a delay.
const OPEN_MAX: usize = 8192;

/// How long the last connections may take to end after the window.
const LAST: Duration = Duration::from_secs(5);

/// Bytes read at a time: of an object, and of a stream.
const READ: usize = 1 << 17;
const TAKEN: usize = 1 << 20;

/// A closed loop: when a connection has ended, the next one begins.
pub(super) fn closed(call: &Call, at_once: usize, sizes: &[u64]) -> Result<Outcome> {
    ensure!(!sizes.is_empty(), "no sizes to fetch");
    let mut fetcher = Fetcher::new(call)?;
    let mut next = (0..).map(|turn: usize| sizes[turn % sizes.len()]);
    let mut size = || next.next().unwrap_or_default();
    for _ in 0..at_once {
        fetcher.begin(Request::Object(size()), Instant::now());
    }
    while !fetcher.window.is_over() {
        for _ in 0..fetcher.wait(Duration::from_millis(10))? {
            fetcher.begin(Request::Object(size()), Instant::now());
        }
    }
    fetcher.finish()
}

/// An open loop: connections begin on time, whatever the state of earlier ones, and their duration
/// counts from when they were due.
pub(super) fn open(call: &Call, rate: u32, size: u64) -> Result<Outcome> {
    ensure!(rate > 0, "a rate of none");
    // The default slack of 50 us is an eighth of the interval at 2500 connections per second.
    crate::sys::drop_timer_slack()?;
    let mut fetcher = Fetcher::new(call)?;
    let interval = Duration::from_secs(1) / rate;
    let mut due = Instant::now();
    while !fetcher.window.is_over() {
        fetcher.wait(due.saturating_duration_since(Instant::now()))?;
        // All that are due begin: an open loop does not slow down with the relay.
        while Instant::now() >= due {
            fetcher.begin(Request::Object(size), due);
            due += interval;
        }
    }
    fetcher.finish()
}

/// Connections that receive until the window is over.
pub(super) fn stream(call: &Call, flows: usize) -> Result<Outcome> {
    let mut fetcher = Fetcher::new(call)?;
    for _ in 0..flows {
        fetcher.begin(Request::Stream, Instant::now());
    }
    while !fetcher.window.is_over() {
        fetcher.wait(Duration::from_millis(5))?;
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
    /// Whether the client's FINs of streams are sent.
    ended: bool,
    outcome: Outcome,
    latencies: Vec<f64>,
}

/// One connection.
#[derive(Debug)]
struct Fetch {
    stream: TcpStream,
    begun: Instant,
    request: Request,
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
            buffer: vec![0; TAKEN],
            window: Window::new(call)?,
            ended: false,
            outcome: Outcome::default(),
            latencies: Vec::new(),
        })
    }

    /// Begins a connection. A failure is counted.
    fn begin(&mut self, request: Request, begun: Instant) {
        self.outcome.begun += 1;
        if let Err(error) = self.try_begin(request, begun) {
            self.count_error("begin", &error);
        }
    }

    fn try_begin(&mut self, request: Request, begun: Instant) -> io::Result<()> {
        if self.free.is_empty() {
            // A relay that is too slow shows as errors, instead of as memory of the client.
            if self.slots.len() == OPEN_MAX {
                return Err(io::Error::other("too many connections open"));
            }
            self.free.push(self.slots.len());
            self.slots.push(None);
        }
        let protocol = if self.call.multipath {
            Protocol::MPTCP
        } else {
            Protocol::TCP
        };
        let target = self.call.target;
        let stream = socket::begin(socket::toward_by(protocol, target)?, target)?;
        // Taken only when nothing can fail any more, or the slot would be lost.
        let slot = self.free[self.free.len() - 1];
        self.poll.add(&stream, slot)?;
        self.free.pop();
        self.slots[slot] = Some(Fetch {
            stream,
            begun,
            request,
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
        let mut ended = 0;
        for slot in &ready {
            ended += usize::from(self.go_on(*slot)?);
        }
        self.ready = ready;
        self.window.check(&mut self.outcome)?;
        Ok(ended)
    }

    /// Advances a connection until it would block; true when it has ended in any way.
    fn go_on(&mut self, slot: usize) -> Result<bool> {
        while let Some(fetch) = self.slots[slot].as_mut() {
            let result = fetch.take(&self.first_message, &mut self.buffer);
            // A stream may keep this loop busy for longer than the window.
            let counting = self.window.check(&mut self.outcome)?;
            match result {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => self.count_error("fetch", &error),
                Ok(0) => self.complete(slot, counting),
                Ok(count) => {
                    self.outcome.received += count;
                    if counting {
                        self.outcome.counted_bytes += count;
                    } else if self.window.is_over() {
                        self.end_streams()?;
                    }
                    continue;
                }
            }
            self.slots[slot] = None;
            self.free.push(slot);
            return Ok(true);
        }
        Ok(false)
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

    /// Sends the client's FINs of streams, once: they end the server's.
    fn end_streams(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let flows = self.slots.iter().flatten();
        let mut streams = flows.filter(|flow| flow.request == Request::Stream);
        streams.try_for_each(|flow| flow.stream.shutdown(Shutdown::Write))
    }

    /// Waits for the last connections, and returns the results.
    fn finish(mut self) -> Result<Outcome> {
        self.end_streams()?;
        // Bounded, or one lost FIN would keep the whole benchmark waiting.
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
    /// The number of bytes received, zero at the end. The error's kind shows whether the socket would block.
    fn take(&mut self, first_message: &FirstMessage, buffer: &mut [u8]) -> io::Result<u64> {
        if !self.requested {
            let request = first_message.with(self.request);
            connection::write_whole(&mut self.stream, &request)?;
            self.requested = true;
        }
        connection::skip_answer(&mut self.stream, &mut self.answer)?;
        let Request::Object(size) = self.request else {
            // Counted and not copied: the cost of the ends would hide that of the relay.
            let count = recv(self.stream.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC)?;
            return Ok(count as u64);
        };
        let count = self.stream.read(&mut buffer[..READ])?;
        let fits = content::fits(self.have, &buffer[..count]);
        self.have += count as u64;
        connection::expect(fits, "wrong bytes")?;
        connection::expect(self.have <= size, "too many bytes")?;
        connection::expect(count > 0 || self.have == size, "ended too early")?;
        Ok(count as u64)
    }
}
