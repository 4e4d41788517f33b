// SPDX-License-Identifier: Apache-2.0
//! Reads and writes the few bytes that a hop carries before its flow.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::sys::retry;

/// The state of a hop over which nothing should have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is open, and nothing has arrived.
    Silent,
    /// Bytes have arrived.
    Spoken,
    /// The other end has closed it.
    Closed,
    /// It was reset, or has timed out.
    Broken,
}

/// Checks without waiting, and consumes nothing.
pub(super) fn look(socket: &OwnedFd) -> Look {
    // Peeked: a pong stays in the socket for the reader of the reply, which skips it.
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match retry(|| recv(socket.as_raw_fd(), &mut [0], flags)) {
        Ok(0) => Look::Closed,
        Ok(_) => Look::Spoken,
        Err(Errno::EAGAIN) => Look::Silent,
        Err(_) => Look::Broken,
    }
}

pub(super) fn read(socket: &OwnedFd, into: &mut [u8]) -> nix::Result<usize> {
    retry(|| recv(socket.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT))
}

pub(super) fn write(socket: &OwnedFd, bytes: &[u8]) -> nix::Result<usize> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    retry(|| send(socket.as_raw_fd(), bytes, flags))
}
