// SPDX-License-Identifier: Apache-2.0
//! The clients and servers of one network: a thread for each end of each connection.

use std::net::TcpStream;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::ends::{self, PATIENCE};
use super::plan::{DROPPED_PORT, PORTS, Plan, REJECTED_PORT, UPLOAD_PORT};
use super::testbed::Testbed;
use crate::stream::{self, End, Listeners, spawn};

/// The course of a connection. Times are since the start of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// When its client began, and when and how it ended.
    pub(super) begun: Duration,
    /// The client's own port, once it is connected.
    pub(super) port: Option<u16>,
    pub(super) client: Option<(Duration, End)>,
    /// When the server got its number, and when and how it ended.
    pub(super) arrived: Option<Duration>,
    pub(super) server: Option<(Duration, End)>,
}

/// State shared by all threads of a network.
#[derive(Debug)]
struct Shared {
    start: Instant,
    seed: u64,
    lives: Vec<Mutex<Life>>,
    /// Every active client, and every active server, has one of these.
    clients: Arc<()>,
    servers: Arc<()>,
}

impl Shared {
    fn note(&self, number: u64, change: impl FnOnce(&mut Life)) {
        // A number from the wire may be any: a damaged one must not end the server.
        let life = usize::try_from(number).ok();
        if let Some(life) = life.and_then(|number| self.lives.get(number)) {
            change(&mut life.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// A client to start. From now on it counts as active: a thread that starts clients late would be
/// given more and more of them.
#[derive(Debug)]
struct Order {
    number: u64,
    playing: Arc<()>,
}

/// The clients and servers of a network. They end when dropped.
#[derive(Debug)]
pub(super) struct Clients {
    shared: Arc<Shared>,
    orders: Option<Sender<Order>>,
    launcher: Option<JoinHandle<()>>,
    _listeners: Listeners,
}

impl Clients {
    pub(super) fn start(
        testbed: &Testbed,
        seed: u64,
        connections: u64,
        start: Instant,
    ) -> Result<Self> {
        let lives = (0..connections).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared {
            start,
            seed,
            lives,
            clients: Arc::default(),
            servers: Arc::default(),
        });
        let mut listeners = Listeners::default();
        for server in testbed.servers() {
            let others = [UPLOAD_PORT, DROPPED_PORT, REJECTED_PORT];
            for port in PORTS.into_iter().chain(others) {
                let shared = Arc::clone(&shared);
                listeners.add(server, port, move |stream| {
                    let _playing = Arc::clone(&shared.servers);
                    serve(stream, &shared);
                })?;
            }
        }
        let (orders, inbox) = mpsc::channel();
        let clients = Arc::clone(&shared);
        let launch = move || {
            for order in inbox {
                launch_client(order, &clients);
            }
        };
        // Threads inherit the namespace of the one that starts them.
        let launcher = testbed.network.client().spawn(launch)?;
        Ok(Self {
            shared,
            orders: Some(orders),
            launcher: Some(launcher),
            _listeners: listeners,
        })
    }

    /// Starts a connection.
    pub(super) fn dial(&self, number: u64) {
        if let Some(orders) = &self.orders {
            // The receiver lives until the clients are dropped.
            let playing = Arc::clone(&self.shared.clients);
            let _ = orders.send(Order { number, playing });
        }
    }

    /// Number of active clients and servers.
    pub(super) fn playing(&self) -> usize {
        // One count is of the shared state itself.
        let ends = [&self.shared.clients, &self.shared.servers];
        let [clients, servers] = ends.map(|ends| Arc::strong_count(ends) - 1);
        clients.max(servers)
    }

    /// The courses of all connections.
    pub(super) fn lives(&self) -> Vec<Life> {
        let lives = self.shared.lives.iter();
        lives
            .map(|life| *life.lock().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // The thread that starts clients ends when nobody can send to it any more.
        self.orders = None;
        // A panic has printed its own message.
        let _ = self.launcher.take().map(JoinHandle::join);
    }
}

fn launch_client(order: Order, shared: &Arc<Shared>) {
    let Order { number, playing } = order;
    let (player, plan) = (Arc::clone(shared), Plan::new(shared.seed, number));
    let work = move || {
        let (shared, _playing) = (player, playing);
        let begun = shared.start.elapsed();
        shared.note(number, |life| life.begun = begun);
        let end = match ends::connect(&plan) {
            Ok(stream) => {
                let port = stream.local_addr().ok().map(|address| address.port());
                shared.note(number, |life| life.port = port);
                ends::play_client(&plan, stream)
            }
            Err(end) => end,
        };
        let now = shared.start.elapsed();
        shared.note(number, |life| life.client = Some((now, end)));
    };
    if spawn(work).is_err() {
        let now = shared.start.elapsed();
        shared.note(number, |life| life.client = Some((now, End::Failed)));
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) {
    // The client identifies a connection that sends nothing.
    let Ok(number) = stream::read_number(&mut stream, PATIENCE) else {
        return;
    };
    let arrived = shared.start.elapsed();
    shared.note(number, |life| life.arrived = Some(arrived));
    let end = ends::play_server(&Plan::new(shared.seed, number), stream);
    let now = shared.start.elapsed();
    shared.note(number, |life| life.server = Some((now, end)));
}
