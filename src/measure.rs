// SPDX-License-Identifier: Apache-2.0
//! Measuring the links between this node and its peers: STAMP (RFC 8762) over
//! UDP, what TCP connections tell by the way, and handshakes where UDP does not
//! pass. `docs/measuring.md` says what comes of it.
//!
//! A thread of its own does all of it: a flood of probes disturbs neither the
//! data plane nor the control thread. [`links`] decides, free of I/O and
//! clocks; everything else here carries out.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use posthaste_relay::clock::Clock;
use posthaste_relay::control::Handle;
use posthaste_relay::sys;
use posthaste_wire::header::NodeId;

use crate::admin::api::links as api;
use crate::config::Config;
use crate::control_client::ControlClient;
use crate::journal::Log;
use crate::upgrade::Kind;
use crate::upgrade::take::Sockets;

mod checks;
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
mod show;
mod targets;
mod thread;
mod udp;
mod wanted;
mod window;

pub(crate) use link::State;
use links::Links;
use refusal::Counts;
pub(crate) use report::Report;
use targets::Settings;
use thread::Thread;
use udp::Udp;

/// The reflectors of a node: opened while there are privileges, which ports
/// below 1024 need.
#[derive(Debug)]
pub(crate) struct Reflectors {
    open: Vec<(SocketAddr, Udp)>,
    status: Vec<api::Reflector>,
}

impl Reflectors {
    /// Opens what the configuration says. One that cannot be opened is told in
    /// the log and in the list of links: the node relays without.
    /// Those of a predecessor go on.
    pub(crate) fn open(config: &Config, log: &Log, mut sockets: Option<&mut Sockets>) -> Self {
        let mark = config.transparent.socket_mark;
        let (mut open, mut status) = (Vec::new(), Vec::new());
        let measure = &config.measure;
        for address in measure.reflectors.iter().filter(|_| measure.enabled) {
            let inherited = sockets.as_mut();
            let inherited = inherited.and_then(|all| all.take(Kind::Reflector, *address));
            let opened = match inherited {
                Some(socket) => Ok(Udp::inherited(socket, *address)),
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
            status.push(api::Reflector {
                address: address.to_string(),
                failure,
            });
        }
        Self { open, status }
    }

    /// Duplicates of the sockets, for a successor.
    pub(crate) fn share(&self) -> std::io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let each = self.open.iter();
        each.map(|(address, socket)| Ok((*address, socket.share()?)))
            .collect()
    }
}

/// What the thread shares with others.
#[derive(Debug)]
struct Shared {
    /// Is told what is news.
    following: ControlClient,
    clock: Clock,
    links: Mutex<Links>,
    /// What the thread has not taken over yet.
    next: Mutex<Option<Settings>>,
    counts: Counts,
    stopped: AtomicBool,
}

/// The measuring of a node.
#[derive(Debug)]
pub(crate) struct Measure {
    shared: Arc<Shared>,
    reflectors: Vec<api::Reflector>,
    workers: Vec<Handle>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    /// Opened, and not served yet.
    sockets: Vec<(SocketAddr, Udp)>,
    thread: Option<(JoinHandle<()>, UnixStream)>,
}

impl Measure {
    /// Measures and answers nothing yet: [`Self::configure`] begins.
    pub(crate) fn new(
        config: &Config,
        reflectors: Reflectors,
        workers: &[Handle],
        following: ControlClient,
    ) -> Self {
        let seed = u64::from_ne_bytes(sys::random());
        Self {
            shared: Arc::new(Shared {
                clock: following.clock().clone(),
                following,
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

    /// Goes on by a configuration, the first or another, if that has any use
    /// for it. Reflectors stay as they are.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn configure(&self, config: &Config, log: &Log) -> anyhow::Result<()> {
        let settings = Settings::of(config);
        let mut running = lock(&self.running);
        let idle = settings.targets.is_empty() && running.sockets.is_empty();
        if running.thread.is_none() && idle {
            return Ok(());
        }
        if let Some((_, wake)) = &mut running.thread {
            *lock(&self.shared.next) = Some(settings);
            // A full pipe wakes the thread as well.
            let _ = wake.write(&[0]);
            return Ok(());
        }
        let (wake, woken) = UnixStream::pair().context("make a pipe for measuring")?;
        for end in [&wake, &woken] {
            end.set_nonblocking(true).context("prepare a pipe")?;
        }
        let shared = Arc::clone(&self.shared);
        let sockets = std::mem::take(&mut running.sockets);
        let workers = self.workers.clone();
        // Its sockets are there before the node says that it is ready.
        let measuring = Thread::new(shared, settings, sockets, workers, log.clone());
        let thread = std::thread::Builder::new()
            .name("posthaste-links".into())
            .stack_size(256 << 10)
            .spawn(move || measuring.run(woken))
            .context("start the thread that measures links")?;
        running.thread = Some((thread, wake));
        Ok(())
    }

    /// Measures links as often as a controller wants, within bounds; those that it does not name as
    /// the configuration says.
    pub(crate) fn set_wanted(&self, wanted: HashMap<NodeId, Duration>) {
        lock(&self.shared.links).set_wanted(wanted, sys::monotonic());
        if let Some((_, wake)) = &mut lock(&self.running).thread {
            // A full pipe wakes the thread as well.
            let _ = wake.write(&[0]);
        }
    }

    /// How the links are, with the names of peers.
    pub(crate) fn status(&self, config: &Config) -> api::Links {
        let now = sys::monotonic();
        let status = lock(&self.shared.links).status(now);
        show::links(config, &status, &self.reflectors, &self.shared.counts)
    }

    /// Ends.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some((thread, mut wake)) = lock(&self.running).thread.take() {
            let _ = wake.write(&[0]);
            let _ = thread.join();
        }
    }
}

/// A panic in another thread ends the process, so no lock stays poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
