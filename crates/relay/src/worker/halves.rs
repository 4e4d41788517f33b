// SPDX-License-Identifier: Apache-2.0
//! The relay's [`Io`] on real sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};

use crate::pipes::{PIPE_BYTES, Pipe, Pipes};
use crate::relay::Io;
use crate::side::{Side, Sides};
use crate::sys;

/// Bytes read at once when copying.
const SCRATCH_BYTES: usize = 64 << 10;

/// Buffers that all relays of a worker share.
#[derive(Debug)]
pub(super) struct Workspace {
    scratch: Box<[u8]>,
    pub(super) pipes: Pipes,
    /// Bytes spliced since the worker last asked.
    pub(super) spliced_bytes: u64,
}

impl Workspace {
    pub(super) fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pipes: Pipes::default(),
            spliced_bytes: 0,
        }
    }
}

/// Both sockets of a relay, for the length of one turn.
pub(super) struct Halves<'a> {
    pub(super) sockets: &'a Sides<Option<OwnedFd>>,
    pub(super) workspace: &'a mut Workspace,
}

impl Halves<'_> {
    fn fd(&self, side: Side) -> &OwnedFd {
        self.sockets[side]
            .as_ref()
            .expect("an open relay has both sockets")
    }
}

impl Io for Halves<'_> {
    type Pipe = Pipe;
    type Buffer = Box<[u8]>;

    fn read(&mut self, side: Side) -> io::Result<usize> {
        let fd = self.fd(side).as_raw_fd();
        retry(|| recv(fd, &mut self.workspace.scratch, MsgFlags::empty()))
    }

    fn write(&mut self, side: Side, from: usize, to: usize) -> io::Result<usize> {
        let fd = self.fd(side).as_raw_fd();
        retry(|| {
            send(
                fd,
                &self.workspace.scratch[from..to],
                MsgFlags::MSG_NOSIGNAL,
            )
        })
    }

    fn keep(&mut self, from: usize, to: usize) -> Box<[u8]> {
        self.workspace.scratch[from..to].into()
    }

    fn write_kept(&mut self, side: Side, kept: &Box<[u8]>, from: usize) -> io::Result<usize> {
        let fd = self.fd(side).as_raw_fd();
        retry(|| send(fd, &kept[from..], MsgFlags::MSG_NOSIGNAL))
    }

    fn lease(&mut self) -> Option<Pipe> {
        self.workspace.pipes.lease()
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.workspace.pipes.give_back(pipe);
    }

    fn fill(&mut self, side: Side, pipe: &mut Pipe) -> io::Result<usize> {
        let bytes = sys::splice(self.fd(side), &pipe.write, PIPE_BYTES)?;
        self.workspace.spliced_bytes += bytes as u64;
        Ok(bytes)
    }

    fn empty(&mut self, side: Side, pipe: &mut Pipe, bytes: usize) -> io::Result<usize> {
        sys::splice(&pipe.read, self.fd(side), bytes)
    }

    fn finish(&mut self, side: Side) -> io::Result<()> {
        Ok(shutdown(self.fd(side).as_raw_fd(), Shutdown::Write)?)
    }
}

fn retry(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}
