// SPDX-License-Identifier: Apache-2.0
//! Common parts of a client's connections: connecting, requests, error counts.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{MsgFlags, recv};

use super::{Call, Request, request};

/// Timeout of a blocking connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The message before a request, and the expected answer before its content.
#[derive(Debug)]
pub(super) struct FirstMessage {
    /// Empty without a converter.
    message: Vec<u8>,
}

impl FirstMessage {
    pub(super) fn new(call: &Call) -> Self {
        Self {
            message: call.request_for.map_or_else(Vec::new, request::request_for),
        }
    }

    /// A request with the first message before it.
    pub(super) fn with(&self, request: Request) -> Vec<u8> {
        [&self.message[..], &request.encode()].concat()
    }

    /// Length of the converter's answer: `None` is unknown, and without a converter it is zero.
    pub(super) fn answer_bytes(&self) -> Option<usize> {
        self.message.is_empty().then_some(0)
    }
}

/// A blocking connection that is echoed.
pub(super) fn open_echo(call: &Call) -> Result<TcpStream> {
    let first_message = FirstMessage::new(call);
    let mut stream = TcpStream::connect_timeout(&call.target, PATIENCE).context("connect")?;
    // A message must not wait for the acknowledgement of the one before (Nagle).
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .write_all(&first_message.with(Request::Echo))
        .context("request echoes")?;
    skip_answer(&mut stream, &mut first_message.answer_bytes())
        .context("read the converter's answer")?;
    Ok(stream)
}

/// Writes bytes that must fit into the empty buffer of a new connection.
pub(super) fn write_whole(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    match stream.write(bytes) {
        // Not connected yet.
        Err(error) if error.kind() == ErrorKind::NotConnected => Err(ErrorKind::WouldBlock.into()),
        result => expect(result? == bytes.len(), "request cut short"),
    }
}

/// Reads and drops a converter's answer, if one is expected.
pub(super) fn skip_answer(stream: &mut TcpStream, left: &mut Option<usize>) -> io::Result<()> {
    if left.is_none() {
        let mut front = [0; 2];
        // The length is in the header (RFC 8803, section 6.1); bytes of content may follow it at once.
        // Peeked, so that a partial header stays in the socket until the rest is there.
        let flags = MsgFlags::MSG_PEEK;
        let count = recv(stream.as_raw_fd(), &mut front, flags)?;
        if count == 1 {
            return Err(ErrorKind::WouldBlock.into());
        }
        *left = request::answer_bytes(front);
        expect(count == 2 && left.is_some(), "no answer of a converter")?;
    }
    let mut buffer = [0; 1020];
    while let Some(count) = left.filter(|&count| count > 0) {
        let count = stream.read(&mut buffer[..count])?;
        expect(count > 0, "ended within the converter's answer")?;
        *left = left.map(|left| left - count);
    }
    Ok(())
}

/// An error with a description.
pub(super) fn expect(holds: bool, otherwise: &str) -> io::Result<()> {
    if holds {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidData, otherwise.to_owned()))
}

/// Counts an error.
pub(super) fn count_error(errors: &mut BTreeMap<String, u64>, what: &str, error: &io::Error) {
    *errors.entry(format!("{what}: {error}")).or_default() += 1;
}
