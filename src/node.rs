// SPDX-License-Identifier: Apache-2.0
//! A running node: starts its parts in the order that keeps the host's traffic
//! flowing, and stops them in the reverse.
//!
//! The guard is forked first, while there is one thread; interception begins last, when the workers
//! can accept what it redirects. At the end interception is removed first. Everything that can fail
//! at start fails before a flow is touched.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use posthaste_bpf::{Congestion, FIRST_GENERATION, Firewall, Maps, Redirect, Settings};
use posthaste_relay::chain::{Chains, Encapsulation};
use posthaste_relay::clock::Clock;
use posthaste_relay::control::{Command, Handle};
use posthaste_relay::policy::{DataPath, OWN_CONGESTION, Policy};
use posthaste_relay::sys;
use posthaste_relay::worker::{self, Common, ReplayGuard};
use posthaste_wire::header::NodeId;

use crate::control_client::{ControlClient, PlanOverlay, PlanTarget, PrefixOwner};
use crate::destinations::{Ends, Feed, Samples};
use crate::guard::Guard;
use crate::host::Claim;
use crate::intercept::{self, WorkerHost};
use crate::placement::Placement;
use crate::upgrade::take::{Barrier, Sockets};
use crate::upgrade::{Descriptor, Kind};
use crate::{admin, affinity, host, reach};
use posthaste_config::Config;
use posthaste_daemon::log::{Level, Log};
use posthaste_daemon::thread::lock;
use posthaste_daemon::{log, privileges};
use posthaste_measure::{Measure, Reflectors};

mod handover;
mod interfaces;
mod listeners;
mod operations;

pub(crate) use handover::take_over;
use handover::{Entry, Inheritance};
use listeners::Inherited;

/// Length of each listener's accept queue; the kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Logged where firewall rules count connections or inspect their content.
const LIMITED: &str = "the firewall limits or inspects connections that it forwards, which relays would go past: \
    connections are forwarded, unless a rule sets observe = false";
/// Logged where CAP_NET_BIND_SERVICE is missing.
const FORBIDDEN_PORTS: &str = "clients with privileged ports are forwarded and not relayed: \
    CAP_NET_BIND_SERVICE is missing";

/// The parts of a node that its control thread works with.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where the configuration came from; `None` when there is no file.
    path: Option<PathBuf>,
    /// The configuration as it was read.
    file: Mutex<Config>,
    /// The configuration in force: the file, extended by a controller.
    config: Mutex<Config>,
    /// The controller's part. Locked first, by every function that changes any of the three.
    plan_overlay: Mutex<Option<PlanOverlay>>,
    redirect: Mutex<Redirect>,
    /// The congestion control of hops, if something wants it and the kernel has taken it.
    congestion: Option<Congestion>,
    /// `None` unless each worker has a CPU of its own.
    placement: Option<Mutex<Placement>>,
    /// The workers, in the order of their numbers.
    pub(crate) workers: Vec<Handle>,
    pub(crate) log: Log,
    measure: Measure,
    pub(crate) following: ControlClient,
    inheritance: Inheritance,
}

/// Runs a node until a signal or the admin API stops it and it has drained.
pub(crate) fn run(path: Option<PathBuf>, config: Config) -> anyhow::Result<()> {
    privileges::require(&privileges::NODE)?;
    // Checked before the claim, which waits up to 5 s for a guard: an operator who starts a node
    // twice reads at once which one runs.
    reach::ensure_alone(&config.admin_socket)?;
    // A relay has two sockets: the usual soft limit of 1024 would end at some 500 relays.
    privileges::raise_open_files()?;
    let claim = Claim::take()?;
    let successions = claim.count_succession()?;
    // Before any thread exists (fork) and before anything is installed on the host: from here on a
    // crash leaves nothing behind.
    let guard = Arc::new(Guard::start(&config.transparent, claim, successions)?);
    let mut entry = Entry::first(&guard, successions);
    entry.adopt_predecessors(&config);
    let ended = run_guarded(path, config, entry);
    // Also after a failed start, which may have installed the rule and the route already. The first
    // error is the one to report.
    let left = guard.leave();
    ended?;
    left
}

fn run_guarded(path: Option<PathBuf>, config: Config, mut entry: Entry<'_>) -> anyhow::Result<()> {
    // Loading takes as long as all the rest, so the rest runs in parallel: in the new thread, which
    // has to start first and has time for that.
    let (maps, made) = mpsc::channel();
    let (loaded, prepared) = thread::scope(|scope| {
        let (barrier, sockets) = (&entry.barrier, entry.sockets.as_mut());
        let preparing = scope.spawn(|| Prepared::new(&config, made, barrier, sockets));
        let loaded = load(&config, maps, entry.successions);
        (loaded, preparing.join())
    });
    // The rest may have failed for want of maps, so the loader's reason is first.
    let mut loaded = loaded?;
    // A successor sets its rules later, when its predecessor lets flows through: see `succeed`.
    if entry.succession.is_none() {
        set_rules(&mut loaded, &config)?;
    }
    let mut prepared = prepared.map_err(|_| anyhow!("starting ended with a panic"))??;
    let (workers, links) = (prepared.workers, prepared.links);
    let handles: Vec<_> = workers.iter().map(worker::Starting::handle).collect();
    let following = ControlClient::new(prepared.samples, prepared.clock);
    let measure = Measure::new(
        &config,
        prepared.reflectors,
        &handles,
        (following.clock().clone(), Box::new(following.clone())),
    );
    let inheritance = entry.inheritance(prepared.shared);
    let parts = (prepared.log, measure, following, inheritance);
    let node = Node::new(path, config, loaded, parts, prepared.congestion, &handles)?;
    let threads = match &entry.succession {
        None => node.begin(workers, &links)?,
        Some(succession) => node.succeed(succession, &entry, workers, &links)?,
    };
    // Only now has the predecessor moved its own socket aside; renaming earlier would hide a node
    // that still takes flows from its operator.
    if entry.succession.is_some() {
        prepared.listeners.take_place()?;
    }
    // Only loading needed these privileges.
    privileges::keep_only(&privileges::RUNNING)?;
    node.measure.configure(&node.config(), &node.log)?;
    let node = Arc::new(node);
    // Cloned: a plan that was kept is applied before this returns, and locks the configuration.
    let config = node.config().clone();
    let following = node.following.start(&config, node.clone(), &node.log)?;
    entry.notify_peer();
    let ended = admin::serve(&node, prepared.listeners);
    node.measure.stop();
    // Its thread ends only when it is stopped: the join below would not return.
    node.following.stop();
    for thread in threads.into_iter().chain(following) {
        if thread.join().is_err() {
            bail!("a thread ended with a panic");
        }
    }
    node.await_the_rest();
    // Detaches the programs. Until here they deliver the last segments of relays that have ended to
    // the kernel's orphaned sockets.
    drop(node);
    // Last: every thread that writes log lines has ended, so nothing is lost.
    prepared.writer.finish();
    ended
}

/// Loads the redirect programs with the settings that are constants for the verifier. Sends the
/// maps before that, since workers need no more to start. Takes no flow: there are no rules yet.
fn load(
    config: &Config,
    maps: mpsc::Sender<Arc<Maps>>,
    successions: u16,
) -> anyhow::Result<Redirect> {
    let half_open = &config.policy.half_open;
    let made = Arc::new(Maps::new(Settings {
        workers: u32::try_from(config.node.workers)?,
        redirect_mark: config.transparent.mark,
        socket_mark: config.transparent.socket_mark,
        netns: sys::netns_cookie().context("read the cookie of this network namespace")?,
        least_port: privileges::least_port(),
        profiles_max: config.observe.profiles_max,
        packet_flows: config.packet.flows,
        // A map for each part: a flood of spoofed SYNs fills the first, and the reserve stays for
        // clients of validated prefixes.
        half_open: half_open.total - half_open.reserve,
        half_open_reserve: half_open.reserve,
        // A controller may add peers at any time, for whose hops windows are set.
        windows: config.follow.is_some() || sets_windows(&config.policy),
        successions,
    })?);
    // The receiver is gone if the other thread has failed; its error is reported then.
    let _ = maps.send(Arc::clone(&made));
    drop(maps);
    Ok(Redirect::load(made)?)
}

/// Writes the first rules. The programs take flows by them once they are attached.
fn set_rules(redirect: &mut Redirect, config: &Config) -> anyhow::Result<()> {
    let generation = intercept::set_rules(redirect, config)?;
    // Workers start with FIRST_GENERATION: they would not recognise the rules that events of
    // another generation name.
    ensure!(
        generation == FIRST_GENERATION,
        "the first rules are of another generation"
    );
    Ok(())
}

/// The parts of a node except the redirect programs.
struct Prepared {
    listeners: admin::Listeners,
    /// Sockets that a successor continues with and no worker has.
    shared: Vec<(Descriptor, OwnedFd)>,
    log: Log,
    writer: log::Writer,
    workers: Vec<worker::Starting>,
    /// See [`Node::congestion`].
    congestion: Option<Congestion>,
    /// What workers report of ended relays; `None` without a controller.
    samples: Option<Samples>,
    /// The interfaces of this host.
    links: Vec<host::Link>,
    reflectors: Reflectors,
    /// The time that nodes share; workers, probes and the stream use one clock.
    clock: Clock,
}

impl Prepared {
    /// `maps` delivers the maps of the redirect programs once they are made. Workers take no flow
    /// before `barrier` is open. `sockets` are a predecessor's.
    fn new(
        config: &Config,
        maps: mpsc::Receiver<Arc<Maps>>,
        barrier: &Barrier,
        mut sockets: Option<&mut Sockets>,
    ) -> anyhow::Result<Self> {
        let listeners = admin::Listeners::bind(config, sockets.as_deref_mut())?;
        // Before interception: without the rule, every packet of a relay would be dropped.
        host::install(config)?;
        let (log, writer) = log::start(config.node.log_connections)?;
        let least_port = privileges::least_port();
        if config.transparent.enabled && least_port > 0 {
            let below: &[(&str, &dyn Display)] = &[("below", &least_port)];
            log.warn(FORBIDDEN_PORTS, below);
        }
        report_multipath(config, &log);
        for warning in config.warnings.iter().chain(&reach::obstacle(config)) {
            log.warn(warning, &[]);
        }
        let policy = Arc::new(config.policy.clone());
        let clock = Clock::default();
        let common = Common {
            replay_guard: Arc::new(ReplayGuard::new(clock.clone())),
            ..Common::default()
        };
        // Before the workers open hops.
        let congestion = register_congestion(config, &log);
        set_rate_limits(congestion.as_ref(), &config.policy, &log)?;
        // Waits for the loader as late as possible: all of the above overlaps with making the maps.
        let made = maps.recv().context("there are no maps")?;
        let (feed, samples) = config.follow.is_some().then(Feed::new).unzip();
        let inherited = sockets.as_deref_mut();
        let mut inherited = inherited
            .map(|sockets| Inherited::new(config, sockets))
            .unwrap_or_default();
        let homes = affinity::homes(config.node.workers, &posthaste_config::cpus());
        let workers = (0..u16::try_from(config.node.workers)?)
            .map(|index| {
                let home = homes.as_ref().map(|homes| homes[usize::from(index)]);
                let ends = Ends::new(log.clone(), feed.clone());
                let opened = (barrier, &mut inherited);
                start_worker(
                    made.worker_maps(index)?,
                    config,
                    ends,
                    (&policy, &common),
                    home,
                    opened,
                )
            })
            .collect::<anyhow::Result<_>>()?;
        let reflectors = Reflectors::open(config, &log, |address| {
            sockets.as_mut()?.take(Kind::Reflector, address)
        });
        let shared = handover::shared(config, &listeners, &reflectors)?;
        // Listed after `listeners` subscribed to changes, so that no interface is missed in
        // between.
        let links = host::links().context("list the interfaces")?;
        Ok(Self {
            listeners,
            shared,
            log,
            writer,
            workers,
            congestion,
            samples,
            links,
            reflectors,
            clock,
        })
    }
}

impl Node {
    /// Joins the parts.
    fn new(
        path: Option<PathBuf>,
        config: Config,
        mut redirect: Redirect,
        (log, measure, following, inheritance): (Log, Measure, ControlClient, Inheritance),
        congestion: Option<Congestion>,
        workers: &[Handle],
    ) -> anyhow::Result<Self> {
        set_peer_starts(&mut redirect, &config.policy, &log)?;
        set_syn_options(&mut redirect, &config.policy, &log)?;
        redirect.set_observing(intercept::observing(&config))?;
        redirect.set_patience(intercept::patience(&config))?;
        let homes = affinity::homes(config.node.workers, &posthaste_config::cpus());
        let placement = homes.and_then(Placement::new);
        Ok(Self {
            path,
            file: Mutex::new(config.clone()),
            config: Mutex::new(config),
            plan_overlay: Mutex::default(),
            redirect: Mutex::new(redirect),
            congestion,
            placement: placement.map(Mutex::new),
            workers: workers.to_vec(),
            log,
            measure,
            following,
            inheritance,
        })
    }

    /// Starts interception once every worker takes flows.
    fn begin(
        &self,
        workers: Vec<worker::Starting>,
        links: &[host::Link],
    ) -> anyhow::Result<Vec<JoinHandle<()>>> {
        // Before attaching: the programs look for a listener in the map, and a SYN that finds none
        // would be forwarded.
        let threads = wait_for(workers)?;
        self.attach_all(links)?;
        // Flows are relayed from here on.
        // What takes long (verifying the deferred programs, replacing filters by TCX links) happens
        // while flows are relayed already: see 0001, "Two objects".
        self.redirect().settle()?;
        self.report_packet_path();
        self.forget_profiles();
        Ok(threads)
    }

    /// Reports if a rule wants the packet path and this host cannot carry it, or not beyond this
    /// process.
    fn report_packet_path(&self) {
        let error = self.redirect().packet_path_error();
        if let Some(error) = error {
            let rules = &self.config().policy.rules;
            // By default it is an improvement that a host may lack; a rule that requires it must not
            // be ignored silently.
            if rules.iter().any(|rule| rule.data_path == DataPath::Packet) {
                let message = "the packet path is not available: flows under data_path = \"packet\" are forwarded";
                self.log.warn(message, &[("error", &error)]);
            } else {
                let message = "the packet path is not available: all flows use sockets";
                // An operator can change that.
                let is_forbidden = matches!(&error, posthaste_bpf::Error::Unpinned { source }
                    if source.kind() == io::ErrorKind::PermissionDenied);
                let level = if is_forbidden {
                    Level::Warn
                } else {
                    Level::Info
                };
                self.log.event(level, message, &[("error", &error)]);
            }
        }
        if let Some(error) = self.redirect().packet_path_unpinned() {
            let message = "the packet path cannot be pinned: its open flows break when this process ends, \
                           also at an upgrade";
            self.log.warn(message, &[("error", &error)]);
        }
        let entries = self.redirect().foreign_flow_table();
        if let Some(entries) = entries {
            let message = "the flow table of an earlier process stays in use: packet.flows takes effect when \
                           a node starts while no flow of the packet path is open";
            let configured = self.config().packet.flows;
            let fields: &[(&str, &dyn Display)] =
                &[("flows", &entries), ("configured", &configured)];
            self.log.warn(message, fields);
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> MutexGuard<'_, Config> {
        lock(&self.config)
    }

    fn redirect(&self) -> MutexGuard<'_, Redirect> {
        lock(&self.redirect)
    }

    /// The node that a controller names as owner of the destination's prefix.
    pub(crate) fn whose(&self, destination: IpAddr) -> Option<PrefixOwner> {
        lock(&self.plan_overlay).as_ref()?.whose(destination)
    }

    /// Begins a new epoch of profiles, and reads what the firewall does to forwarded connections.
    fn forget_profiles(&self) {
        let rules = host::nftables::rules().unwrap_or_else(|error| {
            self.log
                .warn("could not read the firewall's rules", &[("error", &error)]);
            host::nftables::Rules {
                filters: true,
                ..Default::default()
            }
        });
        let limits = rules.limits.join(", ");
        if !limits.is_empty() {
            self.log.warn(LIMITED, &[("chains", &limits)]);
        }
        let firewall = Firewall {
            limits: !limits.is_empty(),
            filters: rules.filters || host::nftables::has_legacy_filter(),
        };
        if let Err(error) = self.redirect().forget_profiles(firewall) {
            self.log
                .error("could not clear the profiles", &[("error", &error)]);
        }
    }
}

impl PlanTarget for Node {
    fn chains(&self) -> Arc<Chains> {
        Arc::clone(&self.config().policy.chains)
    }

    fn set_extension(&self, plan_overlay: PlanOverlay) -> anyhow::Result<()> {
        let mut known = lock(&self.plan_overlay);
        let next = plan_overlay.extend(&lock(&self.file));
        *known = Some(plan_overlay);
        let chains = Arc::clone(&next.policy.chains);
        let others = chains.peers != self.config().policy.chains.peers;
        for worker in &self.workers {
            worker.send(Command::Chains(Arc::clone(&chains)));
        }
        *self.config() = next.clone();
        // Plans may follow each other within a second (0014), members change rarely: maps and
        // probes are left alone unless peers differ.
        if others {
            set_peer_starts(&mut self.redirect(), &next.policy, &self.log)?;
            self.measure.configure(&next, &self.log)?;
        }
        Ok(())
    }

    fn set_wanted(&self, wanted: HashMap<NodeId, Duration>) {
        self.measure.set_wanted(wanted);
    }
}

/// Waits until every worker takes flows.
fn wait_for(workers: Vec<worker::Starting>) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let threads = workers.into_iter().map(worker::Starting::wait);
    let threads = threads.collect::<io::Result<Vec<_>>>();
    threads.context("start the workers")
}

/// Warns if the configuration wants Multipath TCP and this host has none.
pub(super) fn report_multipath(config: &Config, log: &Log) {
    let wanted = config.policy.wants_multipath() || !config.multipath_listeners.is_empty();
    if wanted && let Err(error) = sys::supports_multipath() {
        let message = "this host has no Multipath TCP (net.mptcp.enabled): its connections are left to their \
                       servers, and hops use TCP";
        log.warn(message, &[("error", &error)]);
    }
}

/// Registers the product's own congestion control if something in a configuration wants it. Without
/// it sockets use BBR.
fn register_congestion(config: &Config, log: &Log) -> Option<Congestion> {
    if !uses_own_congestion(config) {
        return None;
    }
    match Congestion::register() {
        Ok(registered) => {
            sys::set_own_congestion(registered.name());
            Some(registered)
        }
        Err(error) => {
            let message = "the congestion control \"posthaste\" is not available: bbr in its place";
            log.info(message, &[("error", &error)]);
            None
        }
    }
}

/// Bounds what is sent to peers. Without the congestion control that does it, that is reported.
fn set_rate_limits(
    congestion: Option<&Congestion>,
    policy: &Policy,
    log: &Log,
) -> anyhow::Result<()> {
    let limits = intercept::rate_limits(policy);
    match congestion {
        Some(congestion) => congestion.set_limits(&limits)?,
        None if limits.is_empty() => {}
        None => log.warn(
            "rate_limit does not bound hops over TCP: this process has no congestion control \"posthaste\" \
             (Linux 6.4 with BTF, from the start on); restart it, or limit the interface with tc",
            &[],
        ),
    }
    Ok(())
}

fn uses_own_congestion(config: &Config) -> bool {
    let rules = config.policy.rules.iter();
    let sides = rules.flat_map(|rule| [&rule.downstream, &rule.upstream]);
    let peers = config.policy.chains.peers.iter().map(|peer| &peer.socket);
    // Those that a controller will name.
    let others = config.follow.iter().map(|follow| &follow.socket);
    let mut all = sides.chain(peers).chain(others);
    all.any(|side| side.congestion.as_deref() == Some(OWN_CONGESTION))
}

fn sets_windows(policy: &Policy) -> bool {
    // The initial window is an option of a rule's side.
    let sides = policy
        .rules
        .iter()
        .flat_map(|rule| [&rule.downstream, &rule.upstream]);
    let mut sides = sides.into_iter();
    // Hops to peers start by the bandwidth of their path, whatever the rules set.
    !policy.chains.peers.is_empty() || sides.any(|side| side.initial_window.is_some())
}

/// Sets the initial windows of connections with peers. Without the privilege they start as any
/// other, unless the configuration sets a window.
fn set_peer_starts(redirect: &mut Redirect, policy: &Policy, log: &Log) -> anyhow::Result<()> {
    let mut peers = policy.chains.peers.iter();
    let is_wanted = peers.any(|peer| peer.socket.initial_window.is_some());
    match redirect.set_peer_starts(&intercept::peer_starts(policy)) {
        // By default the windows are an improvement (0009) that a host without cgroup v2 or the
        // privilege goes without; an explicit `initial_window` must not be ignored silently.
        Err(error) if !is_wanted => {
            let what = "hops start with the kernel's initial window";
            log.info(what, &[("error", &error)]);
            Ok(())
        }
        result => Ok(result?),
    }
}

/// Accepts SYN options from peers, and sends them where the configuration requests it. Without the
/// privilege to send them, hops are opened by Convert.
fn set_syn_options(redirect: &mut Redirect, policy: &Policy, log: &Log) -> anyhow::Result<()> {
    redirect.set_syn_option_peers(&intercept::syn_option_peers(policy))?;
    let mut peers = policy.chains.peers.iter();
    if peers.any(|peer| peer.encapsulation == Encapsulation::SynOption)
        && let Err(error) = redirect.send_syn_options()
    {
        let what = "hops are opened by Convert, not by an option";
        log.warn(what, &[("error", &error)]);
    }
    Ok(())
}

fn start_worker(
    worker_handle: posthaste_bpf::WorkerHandle,
    config: &Config,
    ends: Ends,
    (policy, common): (&Arc<Policy>, &Common),
    home: Option<usize>,
    (barrier, inherited): (&Barrier, &mut Inherited),
) -> anyhow::Result<worker::Starting> {
    let index = worker_handle.worker();
    let settings = sys::SocketSettings {
        mark: config.transparent.socket_mark,
        backlog: BACKLOG,
    };
    let mut listeners = Vec::new();
    let mut duplicates = Vec::new();
    for ipv6 in [false, true] {
        match sys::transparent_listener(ipv6, settings) {
            Ok(listener) => {
                // A duplicate for the programs' map, which is filled in the worker's thread: the
                // worker owns the listener itself.
                duplicates.push((ipv6, listener.try_clone()?.into()));
                listeners.push(listener);
            }
            // The host has IPv6 switched off: there is nothing to intercept.
            Err(error) if ipv6 => ends
                .log()
                .info("no IPv6 on this host", &[("error", &error)]),
            Err(error) => return Err(error).context("open a transparent listener"),
        }
    }
    let (explicit, fixed) = listeners::open(config, settings, (index, home), inherited)?;
    let settings = worker::Settings {
        index,
        listeners,
        explicit,
        fixed,
        common: common.clone(),
        sockets: settings,
        policy: Arc::clone(policy),
    };
    let worker_log = ends.log().clone();
    let barrier = barrier.clone();
    let open = move || {
        // A successor's workers wait here: listeners in the map would take SYNs that the
        // predecessor still handles.
        barrier.pass();
        if let Some(Err(error)) = home.map(affinity::stay_on) {
            worker_log.warn(
                "a worker runs on another CPU than its packets",
                &[("error", &error)],
            );
        }
        // Capabilities belong to threads: the main thread dropping its own later does not change
        // this one.
        privileges::keep_only(&privileges::RUNNING).map_err(io::Error::other)?;
        Ok((
            worker_handle.open(duplicates, Box::new(WorkerHost::open(worker_log)))?,
            FIRST_GENERATION,
        ))
    };
    worker::spawn(settings, Box::new(ends), open).with_context(|| format!("start worker {index}"))
}
