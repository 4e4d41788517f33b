// SPDX-License-Identifier: Apache-2.0
//! A node that takes the place of another, and one that is replaced. [`crate::upgrade`] has the
//! messages between the two and their order.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use posthaste_relay::worker;

use super::{Node, run_guarded, set_rules, wait_for};
use crate::admin::{self, Operations};
use crate::guard::Guard;
use crate::host::{self, Claim};
use crate::upgrade::take::{Barrier, Sockets};
use crate::upgrade::{Descriptor, Kind, Predecessors, Succession, Word};
use posthaste_config::Config;
use posthaste_daemon::log::Level;
use posthaste_daemon::{journal, notify, privileges};
use posthaste_measure::Reflectors;

/// How long the kernel may take over the last bytes of finished relays.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// How much longer than this node its predecessors may take to end; they have the same deadline.
const PREDECESSORS_TIME_MAX: Duration = Duration::from_secs(8);

/// How a node starts: first on its host, or as a successor.
pub(super) struct Entry<'a> {
    guard: &'a Arc<Guard>,
    pub(super) successions: u16,
    /// Opened when workers may take flows.
    pub(super) barrier: Barrier,
    /// From a predecessor.
    pub(super) sockets: Option<Sockets>,
    pub(super) succession: Option<Succession>,
    predecessors: Predecessors,
    /// The `upgrade` verb that waits for the result.
    word: Option<&'a Word>,
}

impl<'a> Entry<'a> {
    /// The entry of a node that replaces none. There may be predecessors of one that has died.
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

    /// Finds the predecessors of a node that has died: they end with this node.
    pub(super) fn adopt_predecessors(&mut self, config: &Config) {
        self.predecessors = Predecessors::left_beside(&config.admin_socket);
    }

    /// Reports to systemd and to the `upgrade` verb that the node has its place.
    pub(super) fn notify_peer(&self) {
        if let Some(word) = self.word {
            notify::took_over();
            word.done();
        }
    }

    /// Takes out what the node keeps after its start.
    pub(super) fn inheritance(&mut self, shared: Vec<(Descriptor, OwnedFd)>) -> Inheritance {
        Inheritance {
            guard: Arc::clone(self.guard),
            predecessors: std::mem::take(&mut self.predecessors),
            shared: Mutex::new(shared),
            replaced: AtomicBool::new(false),
        }
    }
}

/// What a node got from its predecessors, and keeps for a successor.
#[derive(Debug)]
pub(super) struct Inheritance {
    guard: Arc<Guard>,
    pub(super) predecessors: Predecessors,
    /// Sockets that no worker has, for a successor; none once this node is replaced: it would keep
    /// their ports from a node that starts while this one lives on.
    pub(super) shared: Mutex<Vec<(Descriptor, OwnedFd)>>,
    pub(super) replaced: AtomicBool,
}

/// Sockets that a successor continues with and no worker has.
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

/// Takes the place of the running node and runs until it ends. Reports to the process that started
/// this one whether the take-over succeeded.
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
    // Closed, other than for a first node: `succeed` opens it when the predecessor is ready.
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

/// The part of the start that needs a process with one thread.
fn begin(config: &Config) -> anyhow::Result<(Arc<Guard>, u16, Succession)> {
    privileges::require(&privileges::NODE)?;
    privileges::raise_open_files()?;
    let mut succession = Succession::begin(config)?;
    // Before anything is installed: each replaced node costs memory, and a program in the path of
    // every packet.
    let ended = succession.make_room()?;
    // There is no log yet; the unit's journal has standard error.
    if ended > 0 {
        let text =
            "posthaste: too many nodes were replaced recently: the relays of the oldest are reset";
        journal::report(Level::Warn, text);
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
        // Where only the predecessor is attached, no flow would be relayed after it stepped back.
        self.ensure_attached(links)?;
        succession.follow()?;
        entry.barrier.open();
        let threads = wait_for(workers)?;
        set_rules(&mut self.redirect(), &self.config())?;
        self.report_packet_path();
        self.forget_profiles();
        // From here on this node takes the flows that the predecessor leaves, which then leaves all
        // new ones. Between the predecessor's step back and this node's step up the claim has no
        // holder: without this lock a node that starts then could take it.
        let change = entry.guard.claim().change()?;
        succession.take()?;
        entry.guard.claim().step_up()?;
        drop(change);
        Ok(threads)
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.inheritance.replaced.load(Ordering::Relaxed)
    }

    /// The process that cleans up after it.
    pub(crate) fn guard(&self) -> &Guard {
        &self.inheritance.guard
    }

    /// Waits for predecessors, which drain together with this node, and, unless another node
    /// delivers the packets, until the kernel has sent the last bytes of relays.
    pub(super) fn await_the_rest(&self) {
        if !self.is_replaced() {
            for late in self.predecessors().wait(PREDECESSORS_TIME_MAX) {
                let log = &self.log;
                log.warn("a replaced node is still running", &[("pid", &late)]);
            }
        }
        if self.claim().is_alone().unwrap_or(true) {
            // Without interception the peers' ACKs no longer reach the orphaned sockets, and bytes
            // that were accepted from the other side would be lost (I1).
            let most = self.config().node.drain_timeout.min(LAST_WORDS_MAX);
            host::await_last_words(self.config().transparent.socket_mark, most);
        }
    }
}
