// SPDX-License-Identifier: Apache-2.0
//! One connection of the server: a request, its answer, and the end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::request::{REQUEST_BYTES, Request};
use crate::content;

/// The progress of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for an event of the socket.
    Waiting,
    /// Everything was sent, and the client's FIN arrived after that.
    Ended,
}

/// A connection and its request.
#[derive(Debug)]
pub(crate) struct Conversation {
    stream: TcpStream,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Receiving the request.
    Listening {
        request: [u8; REQUEST_BYTES],
        have: usize,
    },
    /// The pattern is sent, up to a size, if there is one.
    Sending { sent: u64, size: Option<u64> },
    /// Echoes everything; `waiting` is what could not be sent yet.
    Echoing { waiting: Vec<u8> },
    /// Receives the pattern up to a size.
    Receiving { received: u64, size: u64 },
    /// The server's FIN is sent; the client's is awaited.
    Ending,
}

impl Conversation {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let phase = Phase::Listening {
            request: [0; REQUEST_BYTES],
            have: 0,
        };
        Self { stream, phase }
    }

    /// One that echoes without a request.
    pub(crate) fn echoing(stream: TcpStream) -> Self {
        let phase = Phase::Echoing {
            waiting: Vec::new(),
        };
        Self { stream, phase }
    }

    /// Advances until it must wait for the socket. Adds sent bytes to `sent`. An error is the
    /// connection's, or an invalid request.
    pub(super) fn advance(&mut self, buffer: &mut [u8], sent: &mut u64) -> io::Result<Progress> {
        let result = self.advance_until_blocked(buffer, sent);
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Progress::Waiting),
            result => result,
        }
    }

    fn advance_until_blocked(
        &mut self,
        buffer: &mut [u8],
        total: &mut u64,
    ) -> io::Result<Progress> {
        loop {
            match &mut self.phase {
                Phase::Listening { request, have } => {
                    *have += some(self.stream.read(&mut request[*have..])?)?;
                    if *have == REQUEST_BYTES {
                        self.phase = Phase::requested(*request)?;
                    }
                }
                Phase::Sending { sent, size } => {
                    send(&mut self.stream, sent, *size, total)?;
                    self.stream.shutdown(Shutdown::Write)?;
                    self.phase = if size.is_some() {
                        Phase::Ending
                    } else {
                        return Ok(Progress::Ended);
                    };
                }
                Phase::Echoing { waiting } => {
                    if echo(&mut self.stream, waiting, buffer, total)? {
                        self.stream.shutdown(Shutdown::Write)?;
                        return Ok(Progress::Ended);
                    }
                }
                Phase::Receiving { received, size } => {
                    receive(&mut self.stream, received, *size, buffer)?;
                    self.stream.shutdown(Shutdown::Write)?;
                    self.phase = Phase::Ending;
                }
                Phase::Ending => {
                    let surplus = self.stream.read(&mut buffer[..1])?;
                    return match surplus {
                        0 => Ok(Progress::Ended),
                        _ => Err(ErrorKind::InvalidData.into()),
                    };
                }
            }
        }
    }
}

impl Phase {
    fn requested(request: [u8; REQUEST_BYTES]) -> io::Result<Self> {
        let request = Request::decode(request).ok_or(ErrorKind::InvalidData)?;
        Ok(match request {
            Request::Object(size) => Self::Sending {
                sent: 0,
                size: Some(size),
            },
            Request::Stream => Self::Sending {
                sent: 0,
                size: None,
            },
            Request::Echo => Self::Echoing {
                waiting: Vec::new(),
            },
            Request::Upload(size) => Self::Receiving { received: 0, size },
        })
    }
}

/// Sends the pattern until `size` bytes are sent, or without a size until the client's FIN.
fn send(
    stream: &mut TcpStream,
    sent: &mut u64,
    size: Option<u64>,
    total: &mut u64,
) -> io::Result<()> {
    while size.is_none_or(|size| *sent < size) {
        // A stream has no size: only the client can end it.
        if size.is_none() && has_ended(stream)? {
            return Ok(());
        }
        let left = size.map_or(u64::MAX, |size| size - *sent);
        let count = stream.write(content::part(*sent, left))? as u64;
        *sent += count;
        *total += count;
    }
    Ok(())
}

/// Receives the pattern until `size` bytes have arrived.
fn receive(
    stream: &mut TcpStream,
    received: &mut u64,
    size: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    while *received < size {
        let count = some(stream.read(buffer)?)?;
        if !content::matches(*received, &buffer[..count]) {
            return Err(ErrorKind::InvalidData.into());
        }
        *received += count as u64;
    }
    Ok(())
}

/// Whether the client's FIN has arrived; no bytes may precede it.
fn has_ended(stream: &mut TcpStream) -> io::Result<bool> {
    match stream.read(&mut [0]) {
        Ok(0) => Ok(true),
        Ok(_) => Err(ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Echoes received bytes; true when the client's FIN has arrived and everything is sent.
fn echo(
    stream: &mut TcpStream,
    waiting: &mut Vec<u8>,
    buffer: &mut [u8],
    total: &mut u64,
) -> io::Result<bool> {
    while !waiting.is_empty() {
        let count = stream.write(waiting)?;
        waiting.drain(..count);
        *total += count as u64;
    }
    let length = stream.read(buffer)?;
    if length == 0 {
        return Ok(true);
    }
    // Written at once, as an event for a socket that is writable all the time would not come
    // (edge-triggered).
    let count = match stream.write(&buffer[..length]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        result => result?,
    };
    *total += count as u64;
    waiting.extend_from_slice(&buffer[count..length]);
    Ok(false)
}

/// Rejects a count of zero: the client's FIN came too early.
fn some(count: usize) -> io::Result<usize> {
    if count == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(count)
}
