// SPDX-License-Identifier: Apache-2.0
//! Measures the links between this node and its peers: STAMP (RFC 8762) over UDP, round trips of
//! TCP connections, and handshakes where UDP does not pass. See `docs/measuring.md`.
//!
//! A separate thread does all of it: a flood of probes disturbs neither the data plane nor the
//! control thread. `links` decides, without I/O and clocks; the other modules carry out.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use posthaste_relay::clock::Clock;
use posthaste_relay::control::Handle;
use posthaste_relay::sys;
use posthaste_wire::header::NodeId;

use posthaste_config::Config;
use posthaste_daemon::log::Log;
use posthaste_daemon::thread::{Waker, lock, spawn};

mod checks;
pub mod documents;
mod flights;
mod handshake_probes;
mod hops;
mod limit;
mod link;
mod links;
mod reflector;
mod refusal;
mod report;
mod sender;
mod series;
mod targets;
mod thread;
mod udp;
mod wanted;
mod window;

pub use link::State;
use links::Links;
use refusal::Counts;
pub use report::Report;
use targets::Settings;
use thread::{KEPT, Thread};
use udp::Udp;

/// Stack of the measuring thread.
const STACK_BYTES: usize = 256 << 10;

/// The reflectors of a node, opened before privileges are dropped, since ports below 1024 need
/// them.
#[derive(Debug)]
pub struct Reflectors {
    open: Vec<(SocketAddr, Udp)>,
    status: Vec<documents::Reflector>,
}

impl Reflectors {
    /// Opens the configured reflectors, or continues with those of a predecessor, which
    /// `inherited` returns by address. One that cannot be opened is reported in the log and in the list of links: the node relays without it.
    pub fn open(
        config: &Config,
        log: &Log,
        mut inherited: impl FnMut(SocketAddr) -> Option<OwnedFd>,
    ) -> Self {
        let mark = config.transparent.socket_mark;
        let (mut open, mut status) = (Vec::new(), Vec::new());
        let measure = &config.measure;
        for address in measure.reflectors.iter().filter(|_| measure.enabled) {
            let opened = match inherited(*address) {
                // It keeps its queue: probes that arrive during the change are answered.
                Some(socket) => Ok(Udp::inherited(socket, *address)),
                // Without fates: a reflector keeps no probe to which a fate could belong.
                None => Udp::bind(*address, mark, false),
            };
            let failure = opened.as_ref().err().map(ToString::to_string);
            if let Some(failure) = &failure {
                log.error(
                    "could not open a reflector: peers measure this node by handshakes",
                    &[("address", &address), ("error", failure)],
                );
            }
            open.extend(opened.ok().map(|socket| (*address, socket)));
            status.push(documents::Reflector {
                address: address.to_string(),
                failure,
            });
        }
        Self { open, status }
    }

    /// Duplicates of the sockets, for a successor.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn share(&self) -> std::io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let each = self.open.iter();
        each.map(|(address, socket)| Ok((*address, socket.share()?)))
            .collect()
    }
}

/// What receives the reports of the measuring thread.
pub trait ReportSink: Debug + Send + Sync {
    /// The state of a link has changed. Must not wait.
    fn on_report(&self, report: &Report);
}

/// State shared with the thread.
#[derive(Debug)]
struct Shared {
    sink: Box<dyn ReportSink>,
    clock: Clock,
    links: Mutex<Links>,
    /// Settings that the thread has not adopted yet.
    next: Mutex<Option<Settings>>,
    counts: Counts,
    stopped: AtomicBool,
}

/// The measurements of a node.
#[derive(Debug)]
pub struct Measure {
    shared: Arc<Shared>,
    reflectors: Vec<documents::Reflector>,
    workers: Vec<Handle>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    /// Opened sockets that are not served yet.
    sockets: Vec<(SocketAddr, Udp)>,
    thread: Option<(JoinHandle<()>, Arc<Waker>)>,
}

impl Measure {
    /// Does nothing until [`Self::configure`].
    pub fn new(
        config: &Config,
        reflectors: Reflectors,
        workers: &[Handle],
        (clock, sink): (Clock, Box<dyn ReportSink>),
    ) -> Self {
        // Random: nodes that start together must not probe in step.
        let seed = u64::from_ne_bytes(sys::random());
        Self {
            shared: Arc::new(Shared {
                clock,
                sink,
                links: Mutex::new(Links::new(config.measure.schedule, seed)),
                next: Mutex::default(),
                counts: Counts::new(),
                stopped: AtomicBool::new(false),
            }),
            reflectors: reflectors.status,
            workers: workers.to_vec(),
            running: Mutex::new(Running {
                sockets: reflectors.open,
                thread: None,
            }),
        }
    }

    /// Applies a configuration, the first or a later one, if that needs measurements. Reflectors do
    /// not change.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn configure(&self, config: &Config, log: &Log) -> anyhow::Result<()> {
        let settings = Settings::of(config);
        // Held to the end: two reloads at once must not start two threads.
        let mut running = lock(&self.running);
        // A node that neither measures nor reflects needs no thread.
        let idle = settings.targets.is_empty() && running.sockets.is_empty();
        if running.thread.is_none() && idle {
            return Ok(());
        }
        if let Some((_, waker)) = &running.thread {
            // Replaces settings that the thread has not adopted yet.
            *lock(&self.shared.next) = Some(settings);
            waker.wake();
            return Ok(());
        }
        let waker = Arc::new(Waker::new().context("make a waker")?);
        let shared = Arc::clone(&self.shared);
        let sockets = std::mem::take(&mut running.sockets);
        let workers = self.workers.clone();
        // Its sockets exist before the node reports that it is ready.
        let measuring = Thread::new(shared, settings, sockets, workers, log.clone());
        let theirs = Arc::clone(&waker);
        let run = move || measuring.run(&theirs);
        let thread = spawn("posthaste-links", STACK_BYTES, &KEPT, log.clone(), run)?;
        running.thread = Some((thread, waker));
        Ok(())
    }

    /// Measures links at the intervals that a controller requests, within bounds; other links as
    /// configured.
    pub fn set_wanted(&self, wanted: HashMap<NodeId, Duration>) {
        lock(&self.shared.links).set_wanted(wanted, sys::monotonic());
        if let Some((_, waker)) = &lock(&self.running).thread {
            waker.wake();
        }
    }

    /// The state of the links, with the names of peers.
    pub fn status(&self, config: &Config) -> documents::Links {
        let now = sys::monotonic();
        let status = lock(&self.shared.links).status(now);
        documents::links(config, &status, &self.reflectors, &self.shared.counts)
    }

    /// Stops the thread.
    pub fn stop(&self) {
        // Before the wake-up, or the thread could check it too early and wait again.
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some((thread, waker)) = lock(&self.running).thread.take() {
            waker.wake();
            let _ = thread.join();
        }
    }
}
