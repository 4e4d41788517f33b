// SPDX-License-Identifier: Apache-2.0
//! The worker's pipes for splicing, leased only while bytes are in flight.

use std::os::fd::OwnedFd;

use crate::relay::SPLICE_BYTES;
use crate::sys;

/// Bound on open pipes; relays beyond it copy.
const PIPES_MAX: usize = 64;
/// Empty pipes kept open.
const SPARE_MAX: usize = 8;

/// Bound on the descriptors of a worker's pipes.
pub const PIPE_DESCRIPTORS_MAX: usize = 2 * PIPES_MAX + 2 * SPARE_MAX;

/// Both ends of a pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// A bounded set of pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    spare: Vec<Pipe>,
    leased: usize,
}

impl Pipes {
    /// Leases an empty pipe, if the bound and the system allow.
    pub(crate) fn lease(&mut self) -> Option<Pipe> {
        // A slow reader keeps its pipe, and each may hold memory of the kernel up to its capacity.
        if self.leased == PIPES_MAX {
            return None;
        }
        let pipe = match self.spare.pop() {
            Some(pipe) => pipe,
            None => {
                let (read, write) = sys::pipe(SPLICE_BYTES).ok()?;
                Pipe { read, write }
            }
        };
        self.leased += 1;
        Some(pipe)
    }

    /// Takes an empty pipe back.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        self.leased -= 1;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(pipe);
        }
    }

    /// Closes a pipe that still has bytes in it.
    pub(crate) fn discard(&mut self, pipe: Pipe) {
        self.leased -= 1;
        drop(pipe);
    }
}
