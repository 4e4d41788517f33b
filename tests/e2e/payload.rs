// SPDX-License-Identifier: Apache-2.0
//! Bytes that depend on a seed and on their position only, so that both ends of a connection know
//! them: one that is lost, repeated or out of place shows.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::io::{self, Read, Write};
use std::sync::OnceLock;

use posthaste_lab::rng::Rng;

/// After this many bytes the content repeats: a prime, so no multiple of any buffer.
const PERIOD: usize = 65_521;

/// Bytes sent or read at a time.
const CHUNK: usize = 64 << 10;

/// A piece of the content named `seed`, from position `offset` on.
fn content(seed: u64, offset: u64, length: usize) -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    let content = CONTENT.get_or_init(|| {
        let mut random = Rng::new(1);
        let mut period: Vec<u8> = (0..PERIOD)
            .map(|_| random.next().to_le_bytes()[4])
            .collect();
        period.extend_from_within(..);
        period.extend_from_within(..CHUNK);
        period
    });
    // Neighbouring seeds begin far apart.
    let from = (seed % PERIOD as u64) * 7919 + offset % PERIOD as u64;
    let from = usize::try_from(from % PERIOD as u64).unwrap();
    &content[from..from + length.min(CHUNK)]
}

/// Sends `bytes` bytes of the content named `seed`.
pub(crate) fn send(stream: &mut impl Write, seed: u64, bytes: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes {
        sent += send_piece(stream, seed, sent, bytes - sent)?;
    }
    Ok(())
}

/// Sends some of the content from `offset` on, at most `most` bytes; how many.
pub(crate) fn send_piece(
    stream: &mut impl Write,
    seed: u64,
    offset: u64,
    most: u64,
) -> io::Result<u64> {
    let most = usize::try_from(most).unwrap_or(CHUNK);
    let sent = uninterrupted(|| stream.write(content(seed, offset, most)))?;
    Ok(sent as u64)
}

/// Reads exactly `bytes` bytes, which must be the content named `seed`.
pub(crate) fn receive(stream: &mut impl Read, seed: u64, bytes: u64) -> io::Result<()> {
    let received = receive_all(&mut stream.take(bytes), seed)?;
    if received < bytes {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("an end after {received} of {bytes} bytes"),
        ));
    }
    Ok(())
}

/// Reads to the end of the stream, which must be the content named `seed`; how long it was.
pub(crate) fn receive_all(stream: &mut impl Read, seed: u64) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut received = 0;
    loop {
        let length = uninterrupted(|| stream.read(&mut buffer))?;
        if length == 0 {
            return Ok(received);
        }
        assert_eq!(
            &buffer[..length],
            content(seed, received, length),
            "bytes {received} to {} of content {seed}",
            received + length as u64
        );
        received += length as u64;
    }
}

/// Repeats a call that a stop of the whole process (SIGSTOP, a frozen cgroup) interrupted: on sockets
/// with a time-out, `SIGCONT` ends calls with `EINTR` although it has no handler (signal(7)).
pub(crate) fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
