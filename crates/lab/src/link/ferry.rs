// SPDX-License-Identifier: Apache-2.0
//! The thread that carries packets between the TUN interfaces of emulated links.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::eventfd::EventFd;

use super::queue::Queue;
use super::{Emulation, MTU};
use crate::poll::Poll;
use crate::rng::scramble;
use crate::sys;

/// Packets read from one interface before the due ones of all are written.
const BATCH: usize = 32;

/// A later packet is counted: the machine was too busy to be exact.
const LATE: Duration = Duration::from_millis(1);

/// Whether ferries have priority over all else.
static REAL_TIME: AtomicBool = AtomicBool::new(false);

/// Gives the ferries of this process that start from now on real-time priority: delays are exact,
/// for experiments. Tests do without, as it starves what they test.
pub fn run_in_real_time() {
    REAL_TIME.store(true, Ordering::Relaxed);
}

/// The epoll token of the event for changes and for the end.
const CHANGE: usize = usize::MAX;

/// The ferry's counters, over all its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets delivered.
    pub packets: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Packets lost on purpose or dropped by a full queue.
    pub dropped: u64,
    /// Those dropped by a full queue.
    pub overflowed: u64,
    /// Bytes that the interfaces sent: delivered, lost and dropped.
    pub sent_bytes: u64,
    /// Packets that the far interface rejected.
    pub refused: u64,
    /// Packets delivered more than a millisecond after their time.
    pub late: u64,
    /// The worst lateness, in microseconds.
    pub lateness_us_max: u64,
}

/// A running ferry. Its links carry packets until it is dropped.
#[derive(Debug)]
pub struct Ferry {
    changed: Arc<EventFd>,
    /// The thread ends when this is gone.
    changes: Option<Sender<(usize, Emulation)>>,
    stats: Arc<Mutex<Stats>>,
    thread: Option<JoinHandle<()>>,
}

/// One interface: packets read here are queued in `queue` and written to the interface `peer`.
#[derive(Debug)]
struct Port {
    tun: File,
    queue: Queue,
    peer: usize,
}

impl Ferry {
    /// Starts to carry packets between the two interfaces of each link.
    pub fn start(links: Vec<([File; 2], Emulation)>, seed: u64) -> Result<Self> {
        let ports = ports(links, seed);
        let changed = Arc::new(EventFd::new().context("make an event descriptor")?);
        let poll = watch(&ports, &changed)?;
        let stats = Arc::default();
        let (changes, inbox) = mpsc::channel();
        let mut crossing = Crossing {
            changed: Arc::clone(&changed),
            changes: inbox,
            buffer: vec![0; usize::from(MTU)],
            began: Instant::now(),
            stats: Arc::clone(&stats),
            ports,
        };
        let thread = thread::Builder::new()
            // The name distinguishes its CPU time in `top -H`.
            .name("lab-ferry".into())
            .spawn(move || crossing.run(poll))
            .context("start the ferry thread")?;
        Ok(Self {
            changed,
            changes: Some(changes),
            stats,
            thread: Some(thread),
        })
    }

    /// Changes the properties of a link, by its index in [`Self::start`]. Packets in flight arrive
    /// as they would have.
    pub fn change(&self, link: usize, emulation: Emulation) -> Result<()> {
        // Queued, not applied here: the packet queues belong to the ferry thread alone.
        let sent = self
            .changes
            .as_ref()
            .map(|changes| changes.send((link, emulation)));
        sent.transpose().context("reach the ferry")?;
        self.changed.write(1).context("wake the ferry")?;
        Ok(())
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ferry {
    fn drop(&mut self) {
        // The event's counter is at zero, so the write cannot fail; a panic of the thread has
        // printed its own message.
        self.changes = None;
        let _ = self.changed.write(1);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn ports(links: Vec<([File; 2], Emulation)>, seed: u64) -> Vec<Port> {
    let mut ports = Vec::with_capacity(links.len() * 2);
    for ([left, right], emulation) in links {
        let first = ports.len();
        for (tun, index, peer) in [(left, first, first + 1), (right, first + 1, first)] {
            // Each direction has its own sequence, or the same packets would be lost both ways.
            let queue = Queue::new(&emulation, scramble(seed) ^ index as u64);
            ports.push(Port { tun, queue, peer });
        }
    }
    ports
}

fn watch(ports: &[Port], changed: &EventFd) -> Result<Poll> {
    let poll = Poll::new()?;
    let tuns = ports.iter().map(|port| port.tun.as_fd()).enumerate();
    for (number, fd) in tuns.chain([(CHANGE, changed.as_fd())]) {
        poll.add_readable(fd, number)
            .context("watch a descriptor")?;
    }
    Ok(poll)
}

/// The state of the ferry thread.
struct Crossing {
    changed: Arc<EventFd>,
    changes: Receiver<(usize, Emulation)>,
    ports: Vec<Port>,
    buffer: Vec<u8>,
    began: Instant,
    stats: Arc<Mutex<Stats>>,
}

impl Crossing {
    fn run(&mut self, mut poll: Poll) {
        // Best effort: without these the ferry is less exact, which the statistics show.
        let _ = sys::drop_timer_slack();
        if REAL_TIME.load(Ordering::Relaxed) {
            let _ = sys::become_realtime(50);
        }
        let mut ready = Vec::new();
        loop {
            let timeout = self
                .next_wake()
                .map(|due| due.saturating_sub(self.began.elapsed()));
            poll.wait(timeout, &mut ready)
                .expect("the descriptors are valid for the life of the thread");
            for &number in &ready {
                match number {
                    CHANGE if self.take_changes() => {}
                    CHANGE => return,
                    port => self.take(port),
                }
            }
            self.deliver();
        }
    }

    fn next_wake(&self) -> Option<Duration> {
        self.ports
            .iter()
            .filter_map(|port| port.queue.next_wake())
            .min()
    }

    /// Applies changes; false when there will be no more.
    fn take_changes(&mut self) -> bool {
        // Reading resets the event; the count does not matter.
        let _ = self.changed.read();
        loop {
            match self.changes.try_recv() {
                Ok((link, emulation)) => {
                    for port in self.ports.iter_mut().skip(link * 2).take(2) {
                        port.queue.change(&emulation);
                    }
                }
                Err(end) => return end == TryRecvError::Empty,
            }
        }
    }

    /// Reads the packets that an interface sends.
    fn take(&mut self, index: usize) {
        let port = &mut self.ports[index];
        let before = port.queue.counts();
        // A fast sender at one interface must not delay due packets of the others.
        for _ in 0..BATCH {
            // An error means that there are no more packets for now, or that the interface is down.
            let Ok(bytes) = port.tun.read(&mut self.buffer) else {
                break;
            };
            port.queue
                .push(self.began.elapsed(), self.buffer[..bytes].to_vec());
        }
        let after = port.queue.counts();
        self.counted(|stats| {
            stats.dropped += after.dropped - before.dropped;
            stats.overflowed += after.overflowed - before.overflowed;
            stats.sent_bytes += after.bytes - before.bytes;
        });
    }

    /// Writes the packets that are due.
    fn deliver(&mut self) {
        for index in 0..self.ports.len() {
            // Read again for each port: writing to the one before took time.
            let now = self.began.elapsed();
            while let Some((due, packet)) = self.ports[index].queue.pop_ready(now) {
                let peer = self.ports[index].peer;
                // A full or missing interface drops the packet, as a real one would.
                let written = self.ports[peer].tun.write(&packet);
                self.count(&written, self.began.elapsed().saturating_sub(due));
            }
        }
    }

    fn count(&self, written: &io::Result<usize>, lateness: Duration) {
        let micros = u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX);
        self.counted(|stats| match written {
            Ok(bytes) => {
                stats.packets += 1;
                stats.bytes += *bytes as u64;
                stats.late += u64::from(lateness > LATE);
                stats.lateness_us_max = stats.lateness_us_max.max(micros);
            }
            Err(_) => stats.refused += 1,
        });
    }

    fn counted(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
