// SPDX-License-Identifier: Apache-2.0
//! An epoll set of numbered descriptors, each added once.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::sys;

/// Events taken at a time.
const BATCH: usize = 256;

/// The set. Descriptors leave it when they are closed.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    pub(crate) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; BATCH];
        Ok(Self { epoll, events })
    }

    /// Watches a socket for everything, edge-triggered, under a number.
    pub(crate) fn add(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        // Each socket is added once and never changed: a call for each change of interest would be CPU
        // time of the measured client.
        let interest = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        self.add_for(socket, interest, number)
    }

    /// Watches a descriptor as long as there is something to read, under a number.
    pub(crate) fn add_readable(&self, fd: impl AsFd, number: usize) -> io::Result<()> {
        self.add_for(fd, EpollFlags::EPOLLIN, number)
    }

    fn add_for(&self, fd: impl AsFd, interest: EpollFlags, number: usize) -> io::Result<()> {
        let event = EpollEvent::new(interest, number as u64);
        self.epoll.add(fd, event).map_err(io::Error::from)
    }

    /// Waits for events up to the given time, and stores the numbers of their descriptors in
    /// `ready`.
    pub(crate) fn wait(
        &mut self,
        most: Option<Duration>,
        ready: &mut Vec<usize>,
    ) -> io::Result<()> {
        // Links and open loops are due within microseconds, which epoll_wait cannot wait for.
        let count = sys::epoll_wait_precise(self.epoll.0.as_fd(), &mut self.events, most)?;
        ready.clear();
        let numbers = self.events[..count].iter().map(|event| event.u64);
        ready.extend(numbers.filter_map(|number| usize::try_from(number).ok()));
        Ok(())
    }
}
