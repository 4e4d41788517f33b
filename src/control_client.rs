// SPDX-License-Identifier: Apache-2.0
//! Following a controller: a thread of its own keeps the stream, so that neither the data plane nor
//! the control thread ever waits for it. What is to be done decides
//! [`posthaste_control::follower::Follower`]; this carries it out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use posthaste_control::message::{Link, LinkState};
use posthaste_relay::chain::Chains;
use posthaste_relay::clock::Clock;
use posthaste_relay::sys;
use posthaste_wire::header::NodeId;

use crate::api::control_client as api;
use crate::destinations::{Destinations, Samples, prefix_of};
use posthaste_config::Config;
use posthaste_daemon::log::Log;
use posthaste_daemon::thread::{Waker, lock, spawn};
use posthaste_measure::{Report, ReportSink, State};

mod disk;
mod observations;
mod plan_overlay;
mod stream;
mod thread;

pub(crate) use observations::Observations;
pub(crate) use plan_overlay::{PlanOverlay, PrefixOwner};
use thread::{KEPT, Thread};

/// Stack of the thread.
const STACK_BYTES: usize = 1 << 20;
/// How long a caller waits for the thread's answer to a request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// A request to the thread.
#[derive(Debug)]
enum Request {
    /// Accept the key that the controller sent last for this node. Answers whether there is such a node.
    Forget(String, Sender<bool>),
}

/// What is known of a destination by this node's own relays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Experience {
    /// The usual size of transfers, in bytes, and on how many recent ones that rests.
    pub(crate) size: Option<(u32, u32)>,
    /// The round trip to it, in microseconds.
    pub(crate) rtt_us: Option<u32>,
}

/// What the thread shares with others.
#[derive(Debug)]
struct Shared {
    /// The thread sets it to the controller's time.
    clock: Clock,
    /// What ended relays observed.
    destinations: Mutex<Destinations>,
    /// What the observations go to.
    samples: Mutex<Option<Samples>>,
    /// Reports on links that the thread has not taken yet, by peer.
    links: Mutex<BTreeMap<u64, Link>>,
    requests: Mutex<Vec<Request>>,
    status: Mutex<Option<api::Follow>>,
    /// Set when the thread starts.
    waker: OnceLock<Waker>,
    stopped: AtomicBool,
}

/// The node, as the thread that follows a controller sees it.
pub(crate) trait PlanTarget: Debug + Send + Sync {
    /// The peers and chains in force.
    fn chains(&self) -> Arc<Chains>;
    /// Extends the configuration by a controller's plan. It applies to flows that begin from now
    /// on; open relays keep their chains.
    ///
    /// # Errors
    /// Other peers cannot be measured, or hops to them started as they should; all the rest is done.
    fn set_extension(&self, plan_overlay: PlanOverlay) -> anyhow::Result<()>;
    /// Measures links at the interval that a controller requests, within bounds.
    fn set_wanted(&self, wanted: HashMap<NodeId, Duration>);
}

/// The hold of others on the thread that follows a controller, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct ControlClient(Arc<Shared>);

impl ControlClient {
    /// Follows no controller yet. `samples` is what workers report of relays, if sizes are to be learned.
    pub(crate) fn new(samples: Option<Samples>, clock: Clock) -> Self {
        Self(Arc::new(Shared {
            clock,
            destinations: Mutex::new(Destinations::new(u64::from_ne_bytes(sys::random()))),
            samples: Mutex::new(samples),
            links: Mutex::default(),
            requests: Mutex::default(),
            status: Mutex::default(),
            waker: OnceLock::new(),
            stopped: AtomicBool::default(),
        }))
    }

    /// Begins, if the node has a controller. The plan that was kept is followed before this returns.
    ///
    /// # Errors
    /// There is no thread for it, or what was kept cannot be used.
    pub(crate) fn start(
        &self,
        config: &Config,
        node: Arc<dyn PlanTarget>,
        log: &Log,
    ) -> anyhow::Result<Option<JoinHandle<()>>> {
        let Some(settings) = config.follow.clone() else {
            return Ok(None);
        };
        let _ = self.0.waker.set(Waker::new().context("make a waker")?);
        let mut following =
            Thread::new(Arc::clone(&self.0), (node, log.clone()), config, settings)?;
        following.turn();
        let run = move || following.run();
        spawn("posthaste-plan", STACK_BYTES, &KEPT, log.clone(), run).map(Some)
    }

    /// Ends the thread, soon.
    pub(crate) fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// How it goes; nothing without a controller.
    pub(crate) fn status(&self) -> Option<api::Follow> {
        let mut status = lock(&self.0.status).clone()?;
        // As it is now: the host's clock may have been set since.
        if let (Some(clock), Some(offset_us)) = (&mut status.clock, self.0.clock.own_ahead_us()) {
            clock.offset_us = offset_us;
        }
        Some(status)
    }

    /// What time it is among nodes.
    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// What is known of a destination.
    pub(crate) fn experience(&self, ip: IpAddr) -> Experience {
        let (prefix, now) = (prefix_of(ip), sys::monotonic());
        let destinations = lock(&self.0.destinations);
        Experience {
            size: destinations.size(&prefix, now),
            rtt_us: destinations.round_trip(&prefix, now),
        }
    }

    /// Accepts the key that the controller sent last for a node. Whether there is such a node; nothing
    /// without a controller.
    pub(crate) fn forget_key(&self, name: &str) -> Option<bool> {
        self.0.waker.get()?;
        let (answer, answered) = channel();
        lock(&self.0.requests).push(Request::Forget(name.to_owned(), answer));
        self.wake();
        // The thread may be busy with the network: an operator's request does not wait for that.
        answered.recv_timeout(ANSWER_TIME_MAX).ok()
    }

    fn wake(&self) {
        if let Some(waker) = self.0.waker.get() {
            waker.wake();
        }
    }
}

impl ReportSink for ControlClient {
    fn on_report(&self, report: &Report) {
        let state = match (report.state, report.rtt_us) {
            (State::Dead, _) => LinkState::Dead,
            (State::Up, Some(rtt_us)) => LinkState::Up {
                rtt_us,
                loss_ppm: report.loss_ppm,
                rate: None,
            },
            _ => LinkState::Unmeasured,
        };
        let to = report.peer.into();
        // Only the newest report of a link counts: the map has no more entries than peers, however
        // slow the thread is.
        lock(&self.0.links).insert(to, Link { to, state });
        self.wake();
    }
}
