// SPDX-License-Identifier: Apache-2.0
//! Connections that carry as much as possible from the server.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::{MsgFlags, recv};

use super::connection::{self, FirstMessage};
use super::meter::Window;
use super::{Call, Outcome, Request};
use crate::poll::Poll;
use crate::socket;

/// How long the last bytes may take after the client's FIN.
const LAST: Duration = Duration::from_secs(10);

/// Bytes read at a time.
const TAKEN: usize = 1 << 20;

/// Receives until the window is over, ends all connections and returns the results.
pub(super) fn run(call: &Call, flows: usize) -> Result<Outcome> {
    let mut streams = Streams::begin(call, flows)?;
    let mut until = None;
    let mut ready = Vec::new();
    while streams.flows.iter().any(Option::is_some) {
        streams
            .poll
            .wait(Some(Duration::from_millis(5)), &mut ready)?;
        for &number in &ready {
            streams.go_on(number)?;
        }
        streams.window.check(&mut streams.outcome)?;
        if !streams.window.is_over() {
            continue;
        }
        let until = *until.get_or_insert_with(|| Instant::now() + LAST);
        streams.end()?;
        if Instant::now() > until {
            let left = streams.flows.iter().flatten().count() as u64;
            let what = "not ended after the load".to_owned();
            streams.outcome.errors.insert(what, left);
            break;
        }
    }
    Ok(streams.outcome)
}

#[derive(Debug)]
struct Streams {
    poll: Poll,
    first_message: FirstMessage,
    flows: Vec<Option<Flow>>,
    buffer: Vec<u8>,
    window: Window,
    outcome: Outcome,
    /// Whether the client's FINs are sent.
    ended: bool,
}

#[derive(Debug)]
struct Flow {
    stream: TcpStream,
    requested: bool,
    /// Bytes of the converter's answer still expected; `None` is unknown.
    answer: Option<usize>,
}

impl Streams {
    fn begin(call: &Call, flows: usize) -> Result<Self> {
        let mut streams = Self {
            poll: Poll::new()?,
            first_message: FirstMessage::new(call),
            flows: Vec::new(),
            buffer: vec![0; TAKEN],
            window: Window::new(call)?,
            outcome: Outcome::default(),
            ended: false,
        };
        for number in 0..flows {
            let stream = socket::begin(socket::toward(call.target)?, call.target)?;
            streams.poll.add(&stream, number)?;
            streams.flows.push(Some(Flow {
                stream,
                requested: false,
                answer: streams.first_message.answer_bytes(),
            }));
        }
        streams.outcome.begun = flows as u64;
        Ok(streams)
    }

    /// Reads what has arrived on a flow.
    fn go_on(&mut self, number: usize) -> Result<()> {
        while let Some(flow) = self.flows[number].as_mut() {
            match flow.take(&self.first_message, &mut self.buffer) {
                Ok(0) => {
                    self.outcome.completed += 1;
                    self.flows[number] = None;
                }
                Ok(count) => {
                    self.outcome.received += count;
                    if self.window.check(&mut self.outcome)? {
                        self.outcome.counted_bytes += count;
                    } else if self.window.is_over() {
                        self.end()?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    connection::count_error(&mut self.outcome.errors, "stream", &error);
                    self.flows[number] = None;
                }
            }
        }
        Ok(())
    }

    /// Sends the client's FINs, once.
    fn end(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        for flow in self.flows.iter().flatten() {
            flow.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}

impl Flow {
    /// The number of bytes received; zero at the end.
    fn take(&mut self, first_message: &FirstMessage, buffer: &mut [u8]) -> io::Result<u64> {
        if !self.requested {
            let request = first_message.with(Request::Stream);
            connection::write_whole(&mut self.stream, &request)?;
            self.requested = true;
        }
        connection::skip_answer(&mut self.stream, &mut self.answer)?;
        // Counted and not copied: the cost of the ends would hide that of the relay.
        let count = recv(self.stream.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC)?;
        Ok(count as u64)
    }
}
