// SPDX-License-Identifier: Apache-2.0
//! The worker that carries a command's connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::fcntl::OFlag;
use nix::poll::PollTimeout;
use nix::unistd::pipe2;
use posthaste_bpf as bpf;
use posthaste_relay::control::{Command, Handle, RelayInfo};
use posthaste_relay::intercept::{Event, Intercept};
use posthaste_relay::sys::{self, SocketSettings};
use posthaste_relay::worker::{self, Common};

use posthaste_daemon::privileges;

use super::child::next_signal;
use super::complaint::{self, Complaints};
use super::via::Via;
use super::{netns, policy};
use crate::signals::Signals;

/// Length of each listener's accept queue; the kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Without a mark: the programs recognise the sockets otherwise.
const SOCKETS: SocketSettings = SocketSettings {
    mark: 0,
    backlog: BACKLOG,
};
/// How long bytes of the command may be in flight after its end: in total, and without progress.
const LAST_WORDS_MAX: Duration = Duration::from_secs(60);
const LAST_WORDS_STILL: Duration = Duration::from_secs(3);
/// Milliseconds between two checks of that.
const LOOK_MS: u8 = 50;
/// Bound on the connections checked.
const LOOKED_AT: usize = 65_536;

/// The worker in its thread.
#[derive(Debug)]
pub(super) struct Worker {
    worker: Handle,
    thread: JoinHandle<()>,
    complaints: Complaints,
}

impl Worker {
    /// Starts the worker; from then on connections are redirected to it.
    pub(super) fn start(programs: Arc<bpf::Capture>, via: Via) -> anyhow::Result<Self> {
        let netns = netns()?;
        let mut settings = worker::Settings {
            index: 0,
            listeners: Vec::new(),
            sockets: SOCKETS,
            explicit: Vec::new(),
            fixed: Vec::new(),
            common: Common::default(),
            policy: Arc::new(policy::toward(&via)),
        };
        let ports = listen(&mut settings)?;
        let (journal, complaints) = complaint::start(via);
        let open = move || {
            privileges::keep_only(&privileges::RUNNING).map_err(io::Error::other)?;
            let capture = Capture::open(programs, netns, ports)?;
            Ok((capture, 0))
        };
        let starting = worker::spawn(settings, Box::new(journal), open)?;
        Ok(Self {
            worker: starting.handle(),
            thread: starting.wait().context("start the worker")?,
            complaints,
        })
    }

    /// Stops redirecting connections, lets the command's bytes arrive, and ends the worker. A
    /// signal ends it early.
    pub(super) fn finish(self, signals: &Signals) {
        let start = Instant::now();
        self.drain(LAST_WORDS_MAX);
        while start.elapsed() < LAST_WORDS_MAX
            && let Some(relays) = self.relays()
        {
            let is_still = |relay: &RelayInfo| relay.idle >= LAST_WORDS_STILL;
            if !relays.is_empty() && relays.iter().all(is_still) {
                break;
            }
            // Without relays it is about to end, or to accept the last one.
            let pause = if relays.is_empty() { 1 } else { LOOK_MS };
            if next_signal(signals, PollTimeout::from(pause)).is_some() {
                break;
            }
        }
        // What is left has not moved for a while, or a signal has ended the wait.
        self.drain(Duration::ZERO);
        // A panic has printed its own message.
        let _ = self.thread.join();
        self.complaints.finish();
    }

    fn drain(&self, deadline: Duration) {
        self.worker.send(Command::Drain { deadline });
    }

    /// The relays of the worker, or nothing if it has ended.
    fn relays(&self) -> Option<Vec<RelayInfo>> {
        let (answer, relays) = mpsc::channel();
        self.worker.send(Command::List {
            limit: LOOKED_AT,
            answer,
        });
        relays.recv().ok()
    }
}

/// Opens listeners on the loopback addresses; returns their ports.
fn listen(worker: &mut worker::Settings) -> anyhow::Result<bpf::Ports> {
    let mut ports = bpf::Ports::default();
    for ipv6 in [false, true] {
        let listener = match sys::transparent_listener(ipv6, SOCKETS) {
            Ok(listener) => listener,
            // IPv6 is disabled on the host: it has no connections to redirect.
            Err(_) if ipv6 => continue,
            Err(error) => return Err(error).context("open a listener"),
        };
        let address = listener.local_addr().context("read a listener's port")?;
        let port = address.as_socket().map(|address| address.port());
        let Some(port) = port else {
            bail!("a listener without a port");
        };
        let of_family = if ipv6 {
            &mut ports.ipv6
        } else {
            &mut ports.ipv4
        };
        *of_family = Some(port);
        worker.listeners.push(listener);
    }
    Ok(ports)
}

/// The [`Intercept`] of a command's connections: they are complete when they arrive, and their
/// clients are local processes, so there is nothing to report before and nothing to hold. Their
/// packets do not cross this host.
struct Capture {
    programs: Arc<bpf::Capture>,
    netns: u64,
    ports: bpf::Ports,
    /// A pipe without a writer.
    silence: (OwnedFd, OwnedFd),
}

impl Capture {
    fn open(programs: Arc<bpf::Capture>, netns: u64, ports: bpf::Ports) -> io::Result<Self> {
        Ok(Self {
            programs,
            netns,
            ports,
            // Nothing is ever written to it: there are no events.
            silence: pipe2(OFlag::O_CLOEXEC)?,
        })
    }
}

impl Intercept for Capture {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.silence.0.as_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        None
    }

    fn has_events(&self) -> bool {
        false
    }

    fn set_accepting(&mut self, listening: bool) -> io::Result<()> {
        let ports = if listening {
            self.ports
        } else {
            bpf::Ports::default()
        };
        let redirected = self.programs.lead_to(self.netns, ports);
        redirected.map_err(io::Error::other)
    }

    fn original(&mut self, client: SocketAddr) -> Option<SocketAddr> {
        self.programs.take_original(client)
    }

    fn lag(&self) -> Duration {
        // Within this host a handshake is complete when it has begun.
        Duration::ZERO
    }
}
