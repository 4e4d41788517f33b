// SPDX-License-Identifier: Apache-2.0
//! Starts workers: each sets itself up in its own thread.

use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use posthaste_tunnel::{Paths, Siblings};
use socket2::Socket;

use crate::black_holes::BlackHoles;
use crate::control::{Command, Handle, Journal};
use crate::counters::Counters;
use crate::intercept::Intercept;
use crate::policy::Policy;
use crate::slab::Slab;
use crate::syn_options::SynOptions;
use crate::sys::{self, SocketSettings, Waker};
use crate::warm::{self, WarmHops};

use super::authentication::ReplayGuard;
use super::bypass::Leaving;
use super::fresh::Fresh;
use super::health::{Health, SharedHealth};
use super::linger::Lingering;
use super::listeners::Listeners;
use super::multipath::Multipath;
use super::pace::Paces;
use super::places::Places;
use super::prefixes::Prefixes;
use super::replay::Held;
use super::rules::Rules;
use super::socket_io::Buffers;
use super::unread::Unread;
use super::{TOKEN_EVENTS, TOKEN_LISTENER, TOKEN_WAKER, TOKEN_WARM, Worker};

/// What the workers of a node share.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// Replay protection of requests.
    pub replay_guard: Arc<ReplayGuard>,
    /// What tunnels know of paths.
    pub paths: Arc<Paths>,
    /// What has failed recently.
    pub health: Arc<SharedHealth>,
    /// Where their tunnels hand each other datagrams.
    pub siblings: Arc<Siblings>,
}

/// The settings of a worker.
#[derive(Debug)]
pub struct Settings {
    /// Its number, from 0.
    pub index: u16,
    /// Its transparent listeners, at most one per family.
    pub listeners: Vec<Socket>,
    /// Of the listeners that it opens itself, and the mark of its upstream sockets.
    pub sockets: SocketSettings,
    /// Its listeners for clients that name the destination themselves.
    pub explicit: Vec<Socket>,
    /// Its listeners with a fixed destination, and that destination.
    pub fixed: Vec<(Socket, SocketAddr)>,
    /// Shared with the node's other workers.
    pub common: Common,
    /// The policy to start with.
    pub policy: Arc<Policy>,
}

/// A worker whose thread is starting.
#[derive(Debug)]
pub struct Starting {
    handle: Handle,
    thread: JoinHandle<()>,
    result: Receiver<io::Result<()>>,
}

impl Starting {
    /// The handle of the worker. Commands sent before it is set up are carried out afterwards.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the worker takes flows.
    ///
    /// # Errors
    /// It could not be set up.
    pub fn wait(self) -> io::Result<JoinHandle<()>> {
        let ended = |_| io::Error::other("the worker's thread ended");
        self.result.recv().map_err(ended)??;
        Ok(self.thread)
    }
}

/// Starts a worker. `intercept` is called in the worker's thread, since its result may belong to a
/// thread, and may block. It also returns the generation of the first policy, as events carry it.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn<I, F>(
    settings: Settings,
    journal: Box<dyn Journal>,
    intercept: F,
) -> io::Result<Starting>
where
    I: Intercept,
    F: FnOnce() -> io::Result<(I, u8)> + Send + 'static,
{
    let (sender, commands) = mpsc::channel();
    let handle = Handle {
        commands: sender,
        waker: Arc::new(Waker::new()?),
        counters: Arc::default(),
    };
    let (waker, counters) = (Arc::clone(&handle.waker), Arc::clone(&handle.counters));
    let (started, result) = mpsc::channel();
    let name = format!("worker-{}", settings.index);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let worker = intercept().and_then(|intercept| {
            Worker::new(settings, intercept, commands, waker, counters, journal)
        });
        // The receiver is gone if the node has given up starting.
        match worker {
            Ok(mut worker) => {
                let _ = started.send(Ok(()));
                worker.run();
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    Ok(Starting {
        handle,
        thread,
        result,
    })
}

impl<I: Intercept> Worker<I> {
    fn new(
        mut settings: Settings,
        (mut intercept, generation): (I, u8),
        commands: Receiver<Command>,
        waker: Arc<Waker>,
        counters: Arc<Counters>,
        journal: Box<dyn Journal>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let input = EpollFlags::EPOLLIN;
        epoll.add(waker.as_fd(), EpollEvent::new(input, TOKEN_WAKER))?;
        epoll.add(intercept.event_fd(), EpollEvent::new(input, TOKEN_EVENTS))?;
        let listeners = Listeners::new(
            std::mem::take(&mut settings.listeners),
            std::mem::take(&mut settings.explicit),
            std::mem::take(&mut settings.fixed),
        )?;
        let rules = Rules::new(&settings.policy, generation, &counters.rules);
        for (number, listener) in listeners.sockets() {
            epoll.add(listener, EpollEvent::new(input, TOKEN_LISTENER | number))?;
            // Accepted sockets inherit the options, which saves system calls per flow.
            sys::apply(listener, rules.inherited())?;
        }
        intercept.set_accepting(true)?;
        let now = sys::monotonic();
        let mut worker = Self {
            warm: warm_hops(&settings, now),
            index: settings.index,
            epoll,
            listeners,
            common: settings.common,
            socket_mark: settings.sockets.mark,
            intercept,
            commands,
            waker,
            counters,
            journal,
            rules,
            entries: Slab::new(),
            opening: HashMap::new(),
            half_open: HashMap::new(),
            prefixes: Prefixes::default(),
            missing_syn_event: HashSet::new(),
            pending_requests: Slab::new(),
            places: Places::default(),
            tunnels: None,
            paces: Paces::default(),
            syn_options: SynOptions::default(),
            multipath: Multipath::new(settings.sockets),
            health: Health::default(),
            looks: BinaryHeap::new(),
            held: Held::default(),
            black_holes: BlackHoles::default(),
            passed: VecDeque::new(),
            buffers: Buffers::new(),
            to_connect: Vec::new(),
            failed_trials: 0,
            trial_worked: None,
            silent_trial: None,
            fresh: Fresh::default(),
            again: Vec::new(),
            lingering: Lingering::default(),
            leaving: Leaving::default(),
            unread: Unread::default(),
            ended: Vec::new(),
            closed: Vec::new(),
            events_wait: false,
            now,
            not_accepting: false,
            out_of_files: false,
            swept: Duration::ZERO,
            cursor: 0,
            sweeps: 0,
            drain_from: Duration::ZERO,
            drain_until: None,
            replaced: false,
        };
        worker.offer_multipath(&settings.policy)?;
        Ok(worker)
    }
}

/// The idle hops of a node that has a number.
fn warm_hops(settings: &Settings, now: Duration) -> Option<WarmHops> {
    let chains = &settings.policy.chains;
    let common = warm::Common {
        me: chains.me?,
        mark: settings.sockets.mark,
        token_base: TOKEN_WARM,
        seed: u64::from_ne_bytes(sys::random()),
    };
    Some(WarmHops::new(common, &chains.peers, now))
}
