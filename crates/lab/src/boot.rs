// SPDX-License-Identifier: Apache-2.0
//! `boot`: measures how fast a node starts and how much memory it takes.
//!
//! *Boot* is the time from the `exec` of the program, which is in the page cache, until the client
//! has a byte back from the server through the node (see [`probe`] for how relayed bytes are told
//! apart from forwarded ones). The new process itself records the time just before `exec`.
//!
//! *Memory* is that of the node's process and of every process it started, idle and then with many
//! idle relays.

pub(crate) mod memory;
pub mod probe;
mod report;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::memory::Usage;
use crate::echo::{self, Call, Echo};
use crate::link::Link;
use crate::netns::Namespace;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::{self, Record};
use crate::scratch::Scratch;
use crate::sys;

const PORT: u16 = 7;
/// Bound on the start and the stop of a node.
const PATIENCE: Duration = Duration::from_secs(30);
/// Idle relays opened at a time.
const BATCH: usize = 200;
/// Descriptors of the lab besides those of the connections.
const SPARE_DESCRIPTORS: u64 = 200;

/// Arguments of `posthaste-lab boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Starts per number of workers and IP version
    #[arg(long, default_value_t = 30)]
    repeats: usize,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<usize>,
    /// IP versions
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["4", "6"])]
    families: Vec<Family>,
    /// Idle relays to open; fewer when the descriptor limit is lower
    #[arg(long, default_value_t = 2000)]
    relays: usize,
    /// Seed, for the record only: nothing here is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the record and the chart go
    #[arg(long, value_name = "DIR", default_value = "lab-output")]
    output: PathBuf,
}

/// The boot times of one configuration, in milliseconds.
#[derive(Debug)]
struct Boots {
    workers: usize,
    family: Family,
    total: Vec<f64>,
    fork: Vec<f64>,
}

/// Memory with one number of workers.
#[derive(Debug)]
struct Footprint {
    workers: usize,
    idle: Vec<Usage>,
    relays: usize,
    loaded: Vec<Usage>,
}

/// Runs the experiment, prints its tables, writes record and chart.
pub fn run(args: &Args) -> Result<()> {
    let descriptors = echo::raise_descriptor_limit()?;
    let mut record = Record::start("boot", args.seed);
    let network = Network::line([Link::Veth, Link::Veth]).build()?;
    let _server = Echo::start(network.server(), PORT)?;
    let boots = measure_boots(args, &network)?;
    let possible = usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2);
    let relays = args.relays.min(possible.context("count descriptors")?);
    if relays < args.relays {
        let remark = format!("{relays} idle relays: RLIMIT_NOFILE {descriptors} allows no more.");
        record.remarks.push(remark);
    }
    let footprint = |&workers: &usize| measure_memory(args, &network, workers, relays);
    let footprints = args
        .workers
        .iter()
        .map(footprint)
        .collect::<Result<Vec<_>>>()?;
    record.parameter("node", args.binary.version()?);
    record.parameter("repeats", args.repeats);
    report::fill(&mut record, &boots, &footprints);
    record.publish(&args.output, [("svg", report::chart(&boots).svg())])
}

fn measure_boots(args: &Args, network: &Network) -> Result<Vec<Boots>> {
    let binary = args.binary.find()?;
    let boots = |(&workers, &family): (&usize, &Family)| Boots {
        workers,
        family,
        total: Vec::new(),
        fork: Vec::new(),
    };
    let pairs = args
        .workers
        .iter()
        .flat_map(|w| args.families.iter().map(move |f| (w, f)));
    let mut all: Vec<Boots> = pairs.map(boots).collect();
    for boots in &all {
        let target = SocketAddr::new(network.server_address(boots.family), PORT);
        network.client().run_in(|| probe::check_path(target))?;
        // Not counted: the program may not be in the page cache.
        boot(network, &binary, boots.workers, target)?;
    }
    for repeat in 0..args.repeats {
        eprintln!("boot: round {} of {}", repeat + 1, args.repeats);
        for boots in &mut all {
            let target = SocketAddr::new(network.server_address(boots.family), PORT);
            let (total, fork) = boot(network, &binary, boots.workers, target)?;
            boots.total.push(total.as_secs_f64() * 1000.0);
            boots.fork.push(fork.as_secs_f64() * 1000.0);
        }
    }
    Ok(all)
}

/// Starts a node, waits for the first byte it relays and stops it. Returns the time from `exec`
/// until that byte, and the time that making the process took before `exec`.
fn boot(
    network: &Network,
    binary: &Path,
    workers: usize,
    target: SocketAddr,
) -> Result<(Duration, Duration)> {
    let launch = Launch::new(network.node(0), binary, workers)?;
    launch.time(network, target)
}

/// A node that is ready to start.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command, with all slow preparations done.
    pub(crate) command: Command,
    ready: UnixDatagram,
    files: Scratch,
}

impl Launch {
    /// Prepares the start of a node in a namespace.
    pub(crate) fn new(namespace: &Namespace, binary: &Path, workers: usize) -> Result<Self> {
        let files = Scratch::new()?;
        let notices = files.path().join("notify.sock");
        let ready = UnixDatagram::bind(&notices).context("make a notification socket")?;
        let mut command = launch(namespace, binary, workers, &files)?;
        command.env("NOTIFY_SOCKET", &notices);
        Ok(Self {
            command,
            ready,
            files,
        })
    }

    /// Starts the node, waits for the first byte it relays to `target` and stops it. Returns the
    /// time from `exec` until that byte, and the time that making the process took before `exec`.
    pub(crate) fn time(
        self,
        network: &Network,
        target: SocketAddr,
    ) -> Result<(Duration, Duration)> {
        let timed = time_start(network, self.command, target);
        let (node, total, forked) =
            timed.with_context(|| format!("the node said: {}", message(&self.files)))?;
        // A node that is stopped before it is ready dies, and the next one waits until its guard
        // has cleaned up.
        await_ready(&self.ready)?;
        node.stop()?;
        Ok((total, forked))
    }
}

/// Starts a relay and waits for the first byte that it relays to `target`. Returns it with the time
/// from `exec` until that byte, and the time that creating the process took before `exec`.
pub(crate) fn time_start(
    network: &Network,
    mut command: Command,
    target: SocketAddr,
) -> Result<(Running, Duration, Duration)> {
    let (mut noted, note) = io::pipe().context("make a pipe")?;
    let (go, over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            network.client().run_in(|| {
                go.wait();
                probe::first_relayed_byte(target, &over)
            })
        });
        go.wait();
        let start = Instant::now();
        sys::note_exec(&mut command, start, note);
        let relay = command.spawn().map(Running).context("start it");
        let relay = relay.and_then(|relay| relay.watch(|| prober.is_finished()));
        over.store(true, Ordering::Relaxed);
        let first = prober
            .join()
            .map_err(|_| anyhow!("the probing thread panicked"))?;
        let relay = relay?;
        let mut nanoseconds = [0; 8];
        noted
            .read_exact(&mut nanoseconds)
            .context("read the time of exec")?;
        let forked = Duration::from_nanos(u64::from_ne_bytes(nanoseconds));
        Ok((relay, first?.duration_since(start) - forked, forked))
    })
}

/// Waits until the node reports that it has started.
fn await_ready(notices: &UnixDatagram) -> Result<()> {
    notices.set_read_timeout(Some(PATIENCE))?;
    let mut notice = [0; 256];
    loop {
        let length = notices
            .recv(&mut notice)
            .context("wait until the node is ready")?;
        if notice[..length].starts_with(b"READY=1") {
            return Ok(());
        }
    }
}

fn message(files: &Scratch) -> String {
    fs::read_to_string(files.path().join("output")).unwrap_or_default()
}

/// The command that starts a node, with all slow preparations done.
fn launch(
    namespace: &Namespace,
    binary: &Path,
    workers: usize,
    files: &Scratch,
) -> Result<Command> {
    let config = files.path().join("node.toml");
    let socket = files.path().join("admin.sock");
    let text = format!(
        "version = 1\n[node]\nworkers = {workers}\n[admin]\nsocket = {socket:?}\n[metrics]\nlisten = \"off\"\n[defaults]\nobserve = false\n"
    );
    record::write_file(&config, &text)?;
    let output = File::create(files.path().join("output")).context("make an output file")?;
    let mut command = namespace.command(binary)?;
    command
        .arg("node")
        .arg("-c")
        .arg(&config)
        .stdin(Stdio::null());
    command
        .stdout(output.try_clone().context("duplicate a descriptor")?)
        .stderr(output);
    Ok(command)
}

/// A relay that is killed when dropped.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Waits until `done`; fails when the relay ends or nothing happens before that.
    fn watch(mut self, done: impl Fn() -> bool) -> Result<Self> {
        let until = Instant::now() + PATIENCE;
        while !done() {
            let ended = self.0.try_wait().context("wait for the node")?;
            ensure!(ended.is_none(), "it ended before it relayed a byte");
            ensure!(
                Instant::now() < until,
                "no byte was relayed within {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(self)
    }

    /// Stops the node with a signal and waits until it has ended.
    fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.0.id()).context("process id out of range")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("send SIGTERM to the node")?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().context("wait for the node")? {
                ensure!(status.success(), "the node ended with {status}");
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "the node still runs {PATIENCE:?} after SIGTERM"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure_memory(
    args: &Args,
    network: &Network,
    workers: usize,
    relays: usize,
) -> Result<Footprint> {
    eprintln!("boot: memory with {workers} workers and {relays} relays");
    let config = format!("[node]\nworkers = {workers}\n");
    let node = Node::builder(network.node(0), args.binary.find()?)
        .config(&config)
        .start()?;
    let pid = node.process().pid();
    let idle = memory::settled(|| memory::of_family(pid))?;
    let target = SocketAddr::new(network.server_address(Family::V4), PORT);
    let calls = network.client().run_in(|| open_idle(target, relays))?;
    let open = node.counter("relays")?;
    ensure!(
        open == relays as u64,
        "the node has {open} relays open, not {relays}"
    );
    let loaded = memory::settled(|| memory::of_family(pid))?;
    drop(calls);
    Ok(Footprint {
        workers,
        idle,
        relays,
        loaded,
    })
}

/// Opens `count` connections that each have carried one byte there and back.
fn open_idle(target: SocketAddr, count: usize) -> Result<Vec<Call>> {
    let mut calls = Vec::with_capacity(count);
    while calls.len() < count {
        let batch = BATCH.min(count - calls.len());
        calls.extend(echo::call(target, batch, PATIENCE)?);
    }
    Ok(calls)
}
