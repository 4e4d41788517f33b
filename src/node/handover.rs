// SPDX-License-Identifier: Apache-2.0
//! A node that takes the place of another, and one whose place is taken. What the two say to each
//! other, and in which order, is in [`crate::upgrade`].

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use posthaste_relay::control::Command;
use posthaste_relay::worker;

use super::{Node, run_guarded, set_rules, wait_for};
use crate::config::Config;
use crate::guard::Guard;
use crate::host::{self, Claim};
use crate::measure::Reflectors;
use crate::upgrade::take::{Barrier, Sockets};
use crate::upgrade::{Descriptor, Kind, Predecessors, Succession, Word};
use crate::{admin, notify, privileges};

/// How long a worker may take to give its listeners away.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the kernel may take over the last bytes of finished relays.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// How much longer than a node its predecessors may take to end, which had the same deadline.
const PREDECESSORS_TIME_MAX: Duration = Duration::from_secs(8);

/// How a node comes to its place.
pub(super) struct Entry<'a> {
    guard: &'a Arc<Guard>,
    pub(super) successions: u16,
    /// Opened when workers may take flows.
    pub(super) barrier: Barrier,
    /// From a predecessor.
    pub(super) sockets: Option<Sockets>,
    pub(super) succession: Option<Succession>,
    predecessors: Predecessors,
    /// Whoever waits for it.
    word: Option<&'a Word>,
}

impl<'a> Entry<'a> {
    /// Nobody has it.
    pub(super) fn first(guard: &'a Arc<Guard>, successions: u16) -> Self {
        let barrier = Barrier::default();
        barrier.open();
        Self {
            guard,
            successions,
            barrier,
            sockets: None,
            succession: None,
            predecessors: Predecessors::default(),
            word: None,
        }
    }

    /// Says that the node has its place.
    pub(super) fn notify_peer(&self) {
        if let Some(word) = self.word {
            notify::took_over();
            word.done();
        }
    }

    /// What the node keeps of it.
    pub(super) fn inheritance(&mut self, shared: Vec<(Descriptor, OwnedFd)>) -> Inheritance {
        Inheritance {
            guard: Arc::clone(self.guard),
            predecessors: std::mem::take(&mut self.predecessors),
            shared,
            replaced: AtomicBool::new(false),
        }
    }
}

/// What a node has from its predecessors, and for a successor.
#[derive(Debug)]
pub(super) struct Inheritance {
    guard: Arc<Guard>,
    predecessors: Predecessors,
    /// Sockets that no worker has.
    shared: Vec<(Descriptor, OwnedFd)>,
    replaced: AtomicBool,
}

/// Sockets that a successor goes on with and no worker has.
pub(super) fn shared(
    config: &Config,
    listeners: &admin::Listeners,
    reflectors: &Reflectors,
) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
    let metrics = listeners
        .share_metrics()
        .context("share the metrics socket")?;
    let named = |kind| move |(address, socket)| (Descriptor { kind, address }, socket);
    let metrics = config.metrics.zip(metrics).map(named(Kind::Metrics));
    let reflectors = reflectors.share().context("share the reflectors")?;
    let reflectors = reflectors.into_iter().map(named(Kind::Reflector));
    Ok(metrics.into_iter().chain(reflectors).collect())
}

/// Takes the place of the node that runs, and goes on in it. Who started this process is told
/// whether it has come to that.
pub(crate) fn take_over(path: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let word = Word::take()?;
    let begun = Config::load_or_default(path.as_deref())
        .map_err(Into::into)
        .and_then(|config| Ok((begin(&config)?, config)));
    let ((guard, successions, succession), config) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            word.failed(&error);
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut entry = Entry::first(&guard, successions);
    entry.barrier = Barrier::default();
    entry.word = Some(&word);
    entry.take(succession);
    let ended = run_guarded(path, config, entry);
    if let Err(error) = &ended {
        word.failed(error);
    }
    let left = guard.leave();
    ended?;
    left.map(|()| ExitCode::SUCCESS)
}

/// All that comes before there is a second thread.
fn begin(config: &Config) -> anyhow::Result<(Arc<Guard>, u16, Succession)> {
    privileges::require(&privileges::NODE)?;
    privileges::raise_open_files()?;
    let mut succession = Succession::begin(config)?;
    let ended = succession.make_room()?;
    if ended > 0 {
        eprintln!(
            "posthaste: too many nodes were replaced recently: the relays of the oldest are reset"
        );
    }
    let claim = Claim::succeed()?;
    let successions = claim.count_succession()?;
    let guard = Guard::start(&config.transparent, claim, successions)?;
    Ok((Arc::new(guard), successions, succession))
}

impl Entry<'_> {
    fn take(&mut self, mut succession: Succession) {
        self.predecessors = std::mem::take(&mut succession.predecessors);
        self.sockets = Some(std::mem::take(&mut succession.sockets));
        self.succession = Some(succession);
    }
}

impl Node {
    /// Takes flows in a predecessor's place. At every moment one of the two takes them; what has
    /// begun at the predecessor stays there.
    pub(super) fn succeed(
        &self,
        succession: &Succession,
        entry: &Entry<'_>,
        workers: Vec<worker::Starting>,
        links: &[host::Link],
    ) -> anyhow::Result<Vec<JoinHandle<()>>> {
        // Without rules the programs take nothing yet.
        self.redirect().settle()?;
        self.attach_all(links)?;
        self.ensure_attached(links)?;
        succession.follow()?;
        entry.barrier.open();
        let threads = wait_for(workers)?;
        set_rules(&mut self.redirect(), &self.config())?;
        // What the predecessor leaves is taken from here on, and then it leaves everything.
        let change = entry.guard.claim().change()?;
        succession.take()?;
        entry.guard.claim().step_up()?;
        drop(change);
        Ok(threads)
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.inheritance.replaced.load(Ordering::Relaxed)
    }

    /// The nodes whose place it has taken.
    pub(crate) fn predecessors(&self) -> &Predecessors {
        &self.inheritance.predecessors
    }

    /// Its part of the claim on the network namespace.
    pub(crate) fn claim(&self) -> &Claim {
        self.inheritance.guard.claim()
    }

    /// The process that cleans up after it.
    pub(crate) fn guard(&self) -> &Guard {
        &self.inheritance.guard
    }

    /// Duplicates of the sockets that a successor goes on with.
    pub(crate) fn sockets(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        let mut all = Vec::new();
        for (descriptor, socket) in &self.inheritance.shared {
            let socket = socket.try_clone().context("share a socket")?;
            all.push((*descriptor, socket));
        }
        for worker in &self.workers {
            let (answer, answers) = channel();
            worker.send(Command::Listeners { answer });
            let listeners = answers.recv_timeout(ANSWER_TIME_MAX);
            let listeners = listeners.context("a worker does not answer")?;
            all.extend(
                listeners
                    .context("share the listeners")?
                    .into_iter()
                    .map(|shared| {
                        let kind = if shared.fixed {
                            Kind::Fixed
                        } else {
                            Kind::Explicit
                        };
                        let address = shared.address;
                        (Descriptor { kind, address }, shared.socket)
                    }),
            );
        }
        Ok(all)
    }

    /// Says whether the programs of a successor see what its own leave.
    pub(crate) fn set_followed(&self, followed: bool) -> anyhow::Result<()> {
        Ok(self.redirect().set_followed(followed)?)
    }

    /// Leaves new flows to a successor, and all that there can be only one of: the stream to the
    /// controller, and probes.
    pub(crate) fn replace(&self, deadline: Duration) {
        self.inheritance.replaced.store(true, Ordering::Relaxed);
        for worker in &self.workers {
            worker.send(Command::Replace { deadline });
        }
        self.following.stop();
        self.measure.stop();
    }

    /// Waits for what a node that has ended leaves to others: predecessors that were told to end
    /// with it, and the kernel, for as long as no other node is there for it.
    pub(super) fn await_the_rest(&self) {
        if !self.is_replaced() {
            for late in self.predecessors().wait(PREDECESSORS_TIME_MAX) {
                let log = &self.log;
                log.warn("a replaced node is still running", &[("pid", &late)]);
            }
        }
        if self.claim().is_alone().unwrap_or(true) {
            let most = self.config().node.drain_timeout.min(LAST_WORDS_MAX);
            host::await_last_words(self.config().transparent.socket_mark, most);
        }
    }
}
