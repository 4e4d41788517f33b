// SPDX-License-Identifier: Apache-2.0
//! The control thread of a node: signals, admin API, metrics, changes of interfaces, watchdog, the
//! guard.
//!
//! It is the main thread, with a single-threaded runtime that is never on the data path. It
//! accesses the node only through [`Operations`]. The admin API is HTTP with JSON on a unix socket;
//! access is controlled by the permissions of the socket's file.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::State;
use crate::host::{ChangeWatch, HostChange, LinkWatch, watch_links};
use crate::memory;
use crate::upgrade::take::Sockets;
use crate::upgrade::{Kind, give};
use posthaste_config::Config;
use posthaste_daemon::{http, notify};

mod control;
mod fleet;
mod handover;
mod metrics;
mod operations;
mod packet_log;
mod routes;
pub(crate) mod rules;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use control::Control;
pub(crate) use operations::Operations;
use packet_log::PacketLog;

/// Interval of the control thread's check whether the workers have ended.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_DRAINING: Duration = Duration::from_millis(10);
/// The same after a successor has taken over: relays may continue for an hour.
const LOOK_INTERVAL_REPLACED: Duration = Duration::from_millis(250);
/// How long a request may delay the end of the node.
const CLOSING_TIME_MAX: Duration = Duration::from_millis(500);

/// The sockets of the control thread, bound early so that errors occur before a flow is touched.
#[derive(Debug)]
pub(crate) struct Listeners {
    admin: socket::AdminSocket,
    metrics: Option<std::net::TcpListener>,
    links: LinkWatch,
    changes: Vec<ChangeWatch>,
    /// Accepts requests of a successor for this node's place.
    handover: Option<give::Listener>,
}

impl Listeners {
    /// Binds the sockets, and subscribes to changes of interfaces. With the `sockets` of a
    /// predecessor it continues with the metrics socket of that, and waits for
    /// [`Self::take_place`].
    pub(crate) fn bind(config: &Config, sockets: Option<&mut Sockets>) -> anyhow::Result<Self> {
        let first = sockets.is_none();
        let inherited = |sockets: &mut Sockets| sockets.take(Kind::Metrics, config.metrics?);
        let inherited = sockets.and_then(inherited).map(Into::into);
        let bind = || config.metrics.map(socket::bind_metrics).transpose();
        Ok(Self {
            // A successor binds beside the path, which its predecessor still serves.
            admin: if first {
                socket::AdminSocket::bind(&config.admin_socket, config.admin_group.as_ref())?
            } else {
                socket::AdminSocket::bind_aside(&config.admin_socket, config.admin_group.as_ref())?
            },
            metrics: inherited.map_or_else(bind, |metrics| Ok(Some(metrics)))?,
            links: watch_links().context("subscribe to news of interfaces")?,
            changes: changes()?,
            // A successor's place can be requested once it has that place.
            handover: first.then(give::Listener::open).transpose()?,
        })
    }

    /// A duplicate of the metrics socket.
    pub(crate) fn share_metrics(&self) -> std::io::Result<Option<OwnedFd>> {
        let metrics = self.metrics.as_ref().map(std::net::TcpListener::try_clone);
        Ok(metrics.transpose()?.map(Into::into))
    }

    /// Takes the place of a predecessor that has given it up.
    pub(crate) fn take_place(&mut self) -> anyhow::Result<()> {
        self.admin
            .place()
            .take()
            .context("take the place of the admin socket")?;
        self.handover = Some(give::Listener::open()?);
        Ok(())
    }
}

/// Controls a running node until its workers have ended, which a drain causes. Reports the node as
/// ready once everything is served.
pub(crate) fn serve<N: Operations>(node: &Arc<N>, listeners: Listeners) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // Requests run there, since they may wait for a worker; a flood of them queues.
        .max_blocking_threads(2)
        .thread_name("posthaste-ctl")
        .thread_stack_size(256 << 10)
        .build()
        .context("start the control runtime")?;
    let control = Arc::new(Control::new(Arc::clone(node) as Arc<dyn Operations>));
    let ended = runtime.block_on(async {
        let servers = start_tasks(listeners, &control)?;
        node.log()
            .info("the node is ready", &[("workers", &node.workers().len())]);
        // Only now: units that are ordered after this one may use the admin socket at once.
        notify::ready("relaying");
        let ended = until_workers_end(&control).await;
        node.log().info("the node has stopped", &[]);
        servers.close().await;
        ended
    });
    // Blocking tasks cannot be cancelled: dropping the runtime would wait for them.
    runtime.shutdown_timeout(CLOSING_TIME_MAX);
    ended
}

fn start_tasks(listeners: Listeners, control: &Arc<Control>) -> anyhow::Result<Servers> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let signals = signal(kind).context("catch the signals to stop")?;
        tokio::spawn(drain_on(signals, Arc::clone(control)));
    }
    let hangups = signal(SignalKind::hangup()).context("catch SIGHUP")?;
    tokio::spawn(reload_on(hangups, Arc::clone(control)));

    let links = poll(listeners.links).context("poll for interfaces")?;
    tokio::spawn(pass_on_links(links, Arc::clone(control)));
    for watch in listeners.changes {
        // Discards changes made during the start: most are the node's own.
        if watch.take().context("read changes of this host")? {
            control.node.on_change(watch.change());
        }
        let watch = poll(watch).context("poll for changes of this host")?;
        tokio::spawn(pass_on_changes(watch, Arc::clone(control)));
    }
    if let Some(interval) = notify::watchdog_interval() {
        tokio::spawn(feed_watchdog(interval, Arc::clone(control)));
    }
    if let Some(handover) = listeners.handover {
        let handover = poll(handover).context("poll the hand-over socket")?;
        tokio::spawn(handover::hand_over(handover, Arc::clone(control)));
    }
    start_servers(listeners.admin, listeners.metrics, control)
}

/// Registers a readable descriptor with the runtime.
fn poll<T: Owner>(owner: T) -> std::io::Result<AsyncFd<T>> {
    // SAFETY: an owner has its descriptor for itself, never changes it, and closes it only when
    // the `AsyncFd` that owns the owner is dropped.
    let polled = unsafe { AsyncFd::register_with_interest(owner, Interest::READABLE) };
    polled.map_err(std::io::Error::from)
}

/// The owner of one descriptor.
trait Owner: std::os::fd::AsRawFd {}
impl Owner for ChangeWatch {}
impl Owner for LinkWatch {}
impl Owner for give::Listener {}

/// The servers, while they take requests.
struct Servers {
    /// Dropping it stops the servers.
    open: watch::Sender<()>,
    control: Arc<Control>,
    tasks: Vec<JoinHandle<std::io::Result<()>>>,
    /// Removes its file when dropped.
    _admin: socket::AdminSocket,
}

impl Servers {
    /// Finishes the requests in progress.
    async fn close(self) {
        drop(self.open);
        self.control.close_metrics();
        for task in self.tasks {
            let _ = tokio::time::timeout(CLOSING_TIME_MAX, task).await;
        }
    }
}

fn start_servers(
    admin: socket::AdminSocket,
    metrics: Option<std::net::TcpListener>,
    control: &Arc<Control>,
) -> anyhow::Result<Servers> {
    let (open, closing) = watch::channel(());
    let listener = admin
        .listener
        .try_clone()
        .context("share the admin socket")?;
    let unix = tokio::net::UnixListener::from_std(listener).context("poll the admin socket")?;
    let routes = routes::admin(Arc::clone(control));
    control.answers_at(admin.place());
    let mut tasks = vec![tokio::spawn(http::serve(unix, routes, closing))];
    if let Some(listener) = metrics {
        let tcp = tokio::net::TcpListener::from_std(listener).context("poll the metrics socket")?;
        let routes = routes::observation(Arc::clone(control));
        let closing = control.open_metrics();
        tasks.push(tokio::spawn(http::serve(tcp, routes, closing)));
    }
    Ok(Servers {
        open,
        control: Arc::clone(control),
        tasks,
        _admin: admin,
    })
}

/// The first signal drains within the configured time, the next one at once.
async fn drain_on(mut signals: Signal, control: Arc<Control>) {
    while signals.recv().await.is_some() {
        let impatient = control.is_ending();
        let control = Arc::clone(&control);
        let work = move || control.drain(impatient.then_some(Duration::ZERO));
        let _ = tokio::task::spawn_blocking(work).await;
    }
}

async fn reload_on(mut signals: Signal, control: Arc<Control>) {
    while signals.recv().await.is_some() {
        let control = Arc::clone(&control);
        let _ = tokio::task::spawn_blocking(move || control.reload()).await;
    }
}

/// Passes changes of interfaces to the node.
async fn pass_on_links(links: AsyncFd<LinkWatch>, control: Arc<Control>) {
    while let Ok(mut ready) = links.readable().await {
        match links.get_ref().read() {
            Ok(events) => {
                let control = Arc::clone(&control);
                let _ = tokio::task::spawn_blocking(move || control.node.on_links(&events)).await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => {
                let log = control.node.log();
                log.error("netlink monitor failed", &[("error", &error)]);
                return;
            }
        }
    }
}

/// Subscribes to changes of firewall and routing. A kernel without nftables reports none.
fn changes() -> anyhow::Result<Vec<ChangeWatch>> {
    let of = |change| ChangeWatch::open(change).context("subscribe to changes of this host");
    let others = [of(HostChange::Routing)?, of(HostChange::Addresses)?];
    Ok(ChangeWatch::open(HostChange::Firewall)
        .into_iter()
        .chain(others)
        .collect())
}

/// Reports to the node that its profiles of destinations may be outdated.
async fn pass_on_changes(watch: AsyncFd<ChangeWatch>, control: Arc<Control>) {
    while let Ok(mut ready) = watch.readable().await {
        let change = watch.get_ref().change();
        match watch.get_ref().take() {
            Ok(true) => {
                let control = Arc::clone(&control);
                let _ = tokio::task::spawn_blocking(move || control.node.on_change(change)).await;
                tokio::time::sleep(pause_after(change)).await;
            }
            Ok(false) => ready.clear_ready(),
            Err(error) => {
                let log = control.node.log();
                log.error("firewall and route monitor failed", &[("error", &error)]);
                return;
            }
        }
    }
}

/// How long further changes are delayed. Firewall rules must apply within a second; routers with a
/// routing protocol change routes all the time, and each SYN is checked against the routes anyway.
fn pause_after(change: HostChange) -> Duration {
    match change {
        HostChange::Firewall | HostChange::Addresses => Duration::from_millis(200),
        HostChange::Routing => Duration::from_secs(10),
    }
}

/// Sends keep-alives to the service manager while the node works.
async fn feed_watchdog(interval: Duration, control: Arc<Control>) {
    loop {
        tokio::time::sleep(interval).await;
        if control.state() == State::Replaced {
            // The successor sends the keep-alives now.
            return;
        }
        let control = Arc::clone(&control);
        let alive = tokio::task::spawn_blocking(move || fleet::alive(control.workers())).await;
        // Without keep-alives the service manager restarts a node that hangs.
        if alive.unwrap_or(false) {
            notify::alive();
        }
    }
}

/// Waits for all workers to end. If one ends without a command to, that is a failure, and the
/// others are drained.
async fn until_workers_end(control: &Arc<Control>) -> anyhow::Result<()> {
    let mut failed = false;
    let mut settled = false;
    let mut packet_log = PacketLog::new();
    let mut heap = memory::Heap::default();
    loop {
        let pause = match control.state() {
            State::Ready => LOOK_INTERVAL,
            State::Draining => LOOK_INTERVAL_DRAINING,
            State::Replaced => LOOK_INTERVAL_REPLACED,
        };
        // The workers have the pause below to answer, so that none is waited for.
        let roll = fleet::Roll::call(control.workers());
        let _ = tokio::time::timeout(pause, control.draining.notified()).await;
        control.node.look_after_guard();
        if control.state() == State::Ready {
            control.node.place_flows();
            control.node.release_packets();
        }
        packet_log.look(&*control.node);
        if !settled {
            // The start is complete, and the memory of its code can be released.
            memory::forget_start();
            settled = true;
        }
        heap.look(Instant::now());
        let ended = roll.ended();
        if ended == control.workers().len() {
            break;
        }
        if ended > 0 && control.state() == State::Ready {
            failed = true;
            control
                .node
                .log()
                .error("a worker ended without a request", &[]);
            control.drain(None);
        }
    }
    packet_log.write(&*control.node);
    if failed {
        bail!("a worker ended without a request");
    }
    Ok(())
}
