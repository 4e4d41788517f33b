// SPDX-License-Identifier: Apache-2.0
//! A controller: takes nodes in, makes plans of what they measure, and sends each its part.
//!
//! One thread with a runtime carries all streams and the API; plans are made on another. What must survive
//! is stored before any node receives it. Without a controller nodes use their last plan, so the end of
//! this process interrupts no flow.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use posthaste_control::store::Store;
use posthaste_control::tls;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use posthaste_config::controller::Controller;
use posthaste_daemon::{log, notify, privileges};

mod api;
mod conduct;
mod counters;
pub mod documents;
mod explain;
mod membership;
mod metrics;
mod planner;
mod server;
mod state;
mod streams;
mod wire;

use server::Server;

/// Connections that the kernel holds for us.
const BACKLOG: i32 = 1024;
/// How often the time is kept. What nodes remember of authentication tags is older by half of that.
const KEEP_TIME_EVERY: Duration = Duration::from_secs(60);
/// How long an ending controller waits until GoAway messages and answers are sent.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(2);

/// Runs a controller with the configuration that was read from `path`, until SIGTERM or SIGINT.
///
/// # Errors
/// A socket cannot be bound, or the store cannot be opened.
pub fn run(path: &Path, config: Controller) -> anyhow::Result<()> {
    // First: ports below 1024 need a privilege that is dropped next.
    let sockets = Sockets::bind(&config)?;
    // What nodes send is read from here on. It needs no privilege.
    privileges::keep_only(&[])?;
    privileges::raise_open_files()?;
    // After the drop: a new thread has the capabilities of its creator (capabilities(7)).
    let (log, writer) = log::start(false)?;
    for warning in &config.warnings {
        log.warn(warning, &[]);
    }
    let (store, contents, broken) = Store::open(&config.server.store)?;
    if let Some(broken) = broken {
        let aside = broken.aside.display();
        let what = "the store cannot be read: it was moved aside, and a new one begun";
        log.error(what, &[("why", &broken.why), ("aside", &aside)]);
    }
    let identity = config.server.identity.clone();
    let server = Arc::new(Server::new(config, store, contents, log));
    let acceptor = TlsAcceptor::from(Arc::new(tls::server(&identity, server.allowed_keys())));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // Tables, a repair, a reload and a write to the store may run at once.
        .max_blocking_threads(4)
        .thread_name("posthaste-plan")
        .build()
        .context("start the runtime")?;
    let ended = runtime.block_on(serve(path, sockets, &acceptor, &server));
    // A plan that is being made cannot be aborted: its thread is left behind after this.
    runtime.shutdown_timeout(CLOSING_TIME_MAX);
    // It has a `Log`, and the writer ends with the last of them.
    drop(server);
    writer.finish();
    ended
}

/// What a controller listens on: bound early, so that what fails, fails before anything else is done.
struct Sockets {
    streams: Vec<std::net::TcpListener>,
    api: Option<std::net::TcpListener>,
}

impl Sockets {
    fn bind(config: &Controller) -> anyhow::Result<Self> {
        let streams = config.server.listen.iter();
        let streams = streams.map(|address| bind(*address, "server.listen"));
        let api = config.api.as_ref();
        Ok(Self {
            streams: streams.collect::<anyhow::Result<_>>()?,
            api: api.map(|api| bind(api.listen, "api.listen")).transpose()?,
        })
    }
}

fn bind(address: SocketAddr, key: &str) -> anyhow::Result<std::net::TcpListener> {
    let bound = || -> std::io::Result<Socket> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            // So that 0.0.0.0 and [::] go side by side.
            socket.set_only_v6(true)?;
        }
        // Connections of a predecessor in TIME-WAIT must not keep a restart from binding.
        socket.set_reuse_address(true)?;
        // The runtime expects this of a listener that it did not open itself.
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    let socket = bound().with_context(|| format!("bind {key} = \"{address}\""))?;
    Ok(socket.into())
}

async fn serve(
    path: &Path,
    sockets: Sockets,
    acceptor: &TlsAcceptor,
    server: &Arc<Server>,
) -> anyhow::Result<()> {
    // Before anything is served: until then a signal ends the process without GoAway.
    let mut terminated = signal(SignalKind::terminate()).context("catch SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("catch SIGINT")?;
    let hangups = signal(SignalKind::hangup()).context("catch SIGHUP")?;
    let mut tasks = Vec::new();
    for listener in sockets.streams {
        let listener = TcpListener::from_std(listener).context("poll server.listen")?;
        let streams = streams::accept_all(listener, acceptor.clone(), Arc::clone(server));
        tasks.push(tokio::spawn(streams));
    }
    if let Some(listener) = sockets.api {
        let listener = TcpListener::from_std(listener).context("poll api.listen")?;
        tasks.push(tokio::spawn(api::serve(listener, Arc::clone(server))));
    }
    tasks.push(tokio::spawn(planner::plan_all(Arc::clone(server))));
    tasks.push(tokio::spawn(reload_on(
        hangups,
        path.into(),
        Arc::clone(server),
    )));
    tasks.push(tokio::spawn(keep_time(Arc::clone(server))));
    if let Some(interval) = notify::watchdog_interval() {
        tasks.push(tokio::spawn(feed_watchdog(interval)));
    }
    let nodes = server.lock().config.nodes.len();
    server
        .log
        .info("the controller is ready", &[("nodes", &nodes)]);
    // Only now: the service manager starts what depends on this, which may connect at once.
    notify::ready("planning");
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    notify::stopping(CLOSING_TIME_MAX);
    // Before the streams end, so that no connection is accepted meanwhile.
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    part(server).await;
    // After the last message: the stored time covers all that nodes received.
    server.keep_time();
    server.log.info("the controller has stopped", &[]);
    Ok(())
}

/// Sends GoAway to all nodes, and waits until they have gone, but not for long.
async fn part(server: &Server) {
    server.stop();
    let removed = async {
        while !server.lock().sessions.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(CLOSING_TIME_MAX, removed).await;
}

async fn reload_on(mut hangups: Signal, path: PathBuf, server: Arc<Server>) {
    while hangups.recv().await.is_some() {
        notify::reloading();
        let file = path.clone();
        // Reads files: streams and keepalives must not wait for a disk.
        let loaded = tokio::task::spawn_blocking(move || Controller::load(&file)).await;
        match loaded {
            Ok(Ok(next)) => reload(next, &server),
            Ok(Err(error)) => {
                server.counters.reloads_failed.add();
                server.log.error("reload failed", &[("error", &error)]);
            }
            // The runtime ends.
            Err(_) => return,
        }
        notify::ready("planning");
    }
}

fn reload(next: Controller, server: &Server) {
    let (next, waiting) = server.lock().config.adopt(next);
    for warning in &next.warnings {
        server.log.warn(warning, &[]);
    }
    let (nodes, waiting) = (next.nodes.len(), waiting.join(","));
    server.configure(next);
    server.counters.reloads_succeeded.add();
    server.log.info(
        "the configuration was reloaded",
        &[("nodes", &nodes), ("needs_restart", &waiting)],
    );
}

/// Stores the time that nodes receive, at an interval: after a restart it must not go back for them.
async fn keep_time(server: Arc<Server>) {
    loop {
        let theirs = Arc::clone(&server);
        if tokio::task::spawn_blocking(move || theirs.keep_time())
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(KEEP_TIME_EVERY).await;
    }
}

/// As long as the runtime turns. A plan that is being made does not stop it.
async fn feed_watchdog(interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        notify::alive();
    }
}
