// SPDX-License-Identifier: Apache-2.0
//! The thread that follows a controller: waits, reads what came, and does what the follower wants done.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::Capability;
use nix::poll::PollFd;
use posthaste_control::follower::{Action, Event, Follower};
use posthaste_control::identity::Identity;
use posthaste_control::message::{Hello, PlanVersion, ToController, VERSION};
use posthaste_control::route_table::RouteTable;
use posthaste_control::tls;
use posthaste_daemon::http::{micros, millis};
use posthaste_relay::{clock, sys};
use posthaste_wire::header::NodeId;
use rustls::ClientConfig;

use super::disk::Disk;
use super::plan_overlay::PairKeys;
use super::stream::Stream;
use super::{Observations, PlanOverlay, PlanTarget, Request, Shared};
use crate::api::control_client as api;
use crate::destinations::Samples;
use posthaste_config::{Config, Follow};
use posthaste_daemon::log::{Level, Log, Quota};
use posthaste_daemon::thread::{lock, wait};

/// What the thread keeps: to mark its socket, to set the redirect programs' peers, and to have
/// links measured.
pub(super) const KEPT: [Capability; 3] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
];
/// How long opening a stream may take.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// How often observations of finished relays are read.
const LEARN_EVERY: Duration = Duration::from_secs(3);

/// All that the thread works with.
pub(super) struct Thread {
    shared: Arc<Shared>,
    node: Arc<dyn PlanTarget>,
    settings: Follow,
    identity: Identity,
    mark: u32,
    tls: Arc<ClientConfig>,
    disk: Disk,
    follower: Follower,
    keys: PairKeys,
    samples: Option<Samples>,
    /// What flows go by.
    observations: Observations,
    learn_at: Duration,
    stream: Option<Stream>,
    /// When a stream that is being opened has to be.
    open_by: Option<Duration>,
    /// Why there is no stream, as it was logged.
    trouble: Option<String>,
    /// Lines that the controller causes.
    lines: Quota,
    log: Log,
}

impl Thread {
    pub(super) fn new(
        shared: Arc<Shared>,
        (node, log): (Arc<dyn PlanTarget>, Log),
        config: &Config,
        settings: Follow,
    ) -> anyhow::Result<Self> {
        let me = config.policy.chains.me.context("the node has no number")?;
        let identity = settings
            .secret
            .clone()
            .context("the node has no identity")?
            .0;
        let disk = Disk::new(&settings.state)?;
        let now = sys::monotonic();
        let saved = disk.load().unwrap_or_else(|error| {
            let error = format!("{error:#}");
            log.warn("stored plan unreadable", &[("error", &error)]);
            None
        });
        let saved = saved.map(|saved| {
            let stood = saved.stood(disk.boot);
            (saved.since(disk.boot), stood)
        });
        let hello = hello(config, me, &identity);
        let seed = u64::from_ne_bytes(sys::random());
        let samples = lock(&shared.samples).take();
        Ok(Self {
            shared,
            node,
            samples,
            observations: Observations::default(),
            learn_at: now + LEARN_EVERY,
            tls: Arc::new(tls::client(&identity, settings.key)),
            settings,
            identity,
            mark: config.transparent.socket_mark,
            disk,
            follower: Follower::new(hello, saved, seed, now),
            keys: PairKeys::default(),
            stream: None,
            open_by: None,
            trouble: None,
            lines: Quota::default(),
            log,
        })
    }

    /// Follows until it is stopped.
    pub(super) fn run(mut self) {
        while !self.shared.stopped.load(Ordering::Relaxed) {
            self.wait();
            self.turn();
        }
        if let Some(stream) = self.stream.take() {
            stream.close();
        }
        self.save();
    }

    /// Does all that is to be done now.
    pub(super) fn turn(&mut self) {
        self.receive();
        self.follower.on_own_clock(clock::own(), sys::monotonic());
        let links = std::mem::take(&mut *lock(&self.shared.links));
        links
            .into_values()
            .for_each(|link| self.follower.on_link(link));
        let requests = std::mem::take(&mut *lock(&self.shared.requests));
        let now = sys::monotonic();
        for Request::Forget(name, answer) in requests {
            let found = self.follower.forget_key(&name, now);
            // The caller may have stopped waiting.
            let _ = answer.send(found);
        }
        // What they have to be answered with is among the orders.
        self.send_events();
        if now >= self.learn_at {
            self.learn();
        }
        while let Some(order) = self.follower.poll_action(sys::monotonic()) {
            self.carry_out(order);
        }
        self.send_events();
        *lock(&self.shared.status) = Some(self.status());
    }

    /// Takes over what finished relays observed: flows use it, and the controller receives it.
    fn learn(&mut self) {
        let now = sys::monotonic();
        self.learn_at = now + LEARN_EVERY;
        let mut destinations = lock(&self.shared.destinations);
        for sample in self.samples.iter().flat_map(Samples::take) {
            destinations.on_sample(&sample, now);
        }
        // Otherwise they would count as reported, and the controller would never get them.
        if self.follower.is_joined() {
            let news = destinations.news(self.follower.ttl(), now);
            self.follower.on_destinations(news);
        }
        let observations = Observations::of(&mut destinations, &self.follower, now);
        // `renew` locks them again.
        drop(destinations);
        if observations != self.observations {
            self.renew();
        }
    }

    fn send_events(&mut self) {
        while let Some(event) = self.follower.next_event() {
            self.send(&event);
            if event == Event::Joined {
                // A restarted controller has no destinations: it keeps those reports in memory only.
                lock(&self.shared.destinations).forget_reported();
                self.learn();
            }
        }
    }

    /// Waits until something is to be read or done.
    fn wait(&self) {
        let learn_at = self.samples.is_some().then_some(self.learn_at);
        let deadline = [self.follower.deadline(), self.open_by, learn_at];
        let stream = self.stream.as_ref();
        let stream = stream.map(|stream| PollFd::new(stream.socket(), stream.interest()));
        if let Some(waker) = self.shared.waker.get() {
            wait(waker, stream, deadline.into_iter().flatten().min());
        }
    }

    /// Takes the stream as far as it goes.
    fn receive(&mut self) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut ended = stream.advance().err();
        let now = sys::monotonic();
        if stream.is_open() && self.open_by.take().is_some() {
            self.follower.on_open(now);
        }
        if self.open_by.is_some_and(|by| by <= now) {
            // An error of the stream itself is the better reason.
            ended.get_or_insert_with(|| anyhow::anyhow!("it takes too long"));
        }
        // What came before the end counts.
        while self.open_by.is_none() {
            match stream.next() {
                Ok(Some(message)) => self.follower.on_message(message, now),
                Ok(None) => break,
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = ended {
            self.lose(&error);
        }
    }

    /// The stream is no more.
    fn lose(&mut self, error: &anyhow::Error) {
        (self.stream, self.open_by) = (None, None);
        self.follower.on_closed(sys::monotonic());
        self.complain(format!("{error:#}"));
    }

    /// Logs why there is no stream, once for each reason.
    fn complain(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            let address = self.settings.address;
            let what = "no stream to the controller";
            self.log_event(
                Level::Warn,
                what,
                &[("controller", &address), ("error", &why)],
            );
            self.trouble = Some(why);
        }
    }

    fn carry_out(&mut self, order: Action) {
        match order {
            Action::Dial => match Stream::dial(self.settings.address, self.mark, &self.tls) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    self.open_by = Some(sys::monotonic() + DIAL_WITHIN);
                }
                Err(error) => self.lose(&error),
            },
            Action::Send(mut message) => {
                if let (ToController::Hello(hello), Some(stream)) = (&mut *message, &self.stream)
                    && let Some(ip) = stream.own_ip()
                {
                    hello.reach_by(ip);
                }
                let sent = self.stream.as_mut().map(|stream| stream.send(&message));
                if let Some(Err(error)) = sent {
                    self.lose(&error);
                }
            }
            Action::Close(why) => {
                if let Some(stream) = self.stream.take() {
                    stream.close();
                }
                self.complain(why);
            }
            Action::Renew => self.renew(),
            Action::Measure => {
                let wanted = self.follower.intervals().iter();
                let wanted = wanted.filter_map(|(to, every_ms)| {
                    let every = Duration::from_millis((*every_ms).into());
                    Some((NodeId::new(*to)?, every))
                });
                self.node.set_wanted(wanted.collect());
            }
            Action::Save => self.save(),
            Action::SetTime(sent) => {
                let clock = &self.shared.clock;
                clock.set_offset(|| sent.time(sys::monotonic()));
            }
        }
    }

    /// Has flows go by what is followed now.
    fn renew(&mut self) {
        let now = sys::monotonic();
        self.observations =
            Observations::of(&mut lock(&self.shared.destinations), &self.follower, now);
        let observations = self.observations.clone();
        let Self {
            follower,
            settings,
            identity,
            keys,
            ..
        } = self;
        let plan_overlay = PlanOverlay::of(follower, settings, identity, keys, observations);
        if let Err(error) = self.node.set_extension(plan_overlay) {
            let error = format!("{error:#}");
            self.log
                .error("could not apply the plan", &[("error", &error)]);
        }
        let peers = self.node.chains();
        self.follower
            .retain_links(|to| NodeId::new(to).is_some_and(|id| peers.peer(id).is_some()));
    }

    fn save(&self) {
        if let Err(error) = self.disk.save(&self.follower.saved(self.disk.boot)) {
            let error = format!("{error:#}");
            self.log
                .warn("could not store the plan", &[("error", &error)]);
        }
    }

    /// Logs what the controller causes, within bounds.
    fn log_event(&mut self, level: Level, message: &str, fields: &[(&str, &dyn Display)]) {
        if let Some(left_out) = self.lines.take(Instant::now()) {
            self.log.event_after(left_out, level, message, fields);
        }
    }

    fn send(&mut self, event: &Event) {
        match event {
            Event::Joined => {
                self.trouble = None;
                let address = self.settings.address;
                let what = "connected the controller";
                self.log_event(Level::Info, what, &[("controller", &address)]);
            }
            Event::Follows(plan_version) | Event::Again(plan_version) => {
                self.log_event(
                    Level::Info,
                    "follows a plan",
                    &plan_version_fields(plan_version),
                );
            }
            Event::Over(plan_version) => {
                let what = "the plan is too old: flows go without it";
                self.log_event(Level::Warn, what, &plan_version_fields(plan_version));
            }
            Event::Refused(refusal) => {
                self.log_event(Level::Warn, "plan refused", &[("error", refusal)]);
            }
            Event::Unwanted(unwanted) => {
                self.log_event(Level::Warn, "member key mismatch", &[("error", unwanted)]);
            }
            Event::GoAway(why) => {
                let what = "controller closed the stream";
                self.log_event(Level::Warn, what, &[("reason", why)]);
            }
            Event::ClockWrong(ahead_us) => {
                let ahead = format!("{:.3}", *ahead_us as f64 / 1e6);
                let what = "the clock of this host is not the controller's, by which the node goes: is \
                            something like chrony running on both hosts?";
                self.log_event(Level::Warn, what, &[("clock_ahead_s", &ahead)]);
            }
            Event::ClockRight => {
                let what = "the clock of this host is the controller's again";
                self.log_event(Level::Info, what, &[]);
            }
        }
    }

    fn status(&self) -> api::Follow {
        let now = sys::monotonic();
        let held = self.follower.held(now);
        let plan = self.follower.plan();
        let counts = self.follower.counts();
        let chains = plan.into_iter().flat_map(RouteTable::chains);
        let chains = chains.filter(|(_, between)| !between.is_empty()).count();
        let egresses = plan.map_or(0, RouteTable::len);
        api::Follow {
            address: self.settings.address.to_string(),
            connected: self.follower.is_joined(),
            trouble: self.trouble.clone(),
            plan: held.map(|(plan_version, age)| api::Plan {
                epoch: plan_version.epoch,
                version: plan_version.version,
                age_ms: age.map(millis),
                ttl_ms: millis(self.follower.ttl()),
                in_force: plan.is_some(),
                chains,
                egresses,
            }),
            members: self.follower.members().count(),
            joins: counts.joins,
            plans: counts.plans,
            older: counts.older,
            nacks: counts.nacks,
            keys: counts.keys,
            clock: self.follower.time().map(|sent| api::Clock {
                offset_us: 0,
                error_us: micros(sent.error(now)),
            }),
            destinations: self.experience(now),
        }
    }

    /// What was learned of destinations, in numbers.
    fn experience(&self, now: Duration) -> api::Destinations {
        let counts = lock(&self.shared.destinations).counts(now);
        api::Destinations {
            known: counts.known,
            sized: counts.sized,
            measured: counts.measured,
            refused: counts.refused,
            dropped: self.samples.as_ref().map_or(0, Samples::dropped),
        }
    }
}

fn plan_version_fields(plan_version: &PlanVersion) -> [(&str, &dyn Display); 2] {
    [
        ("epoch", &plan_version.epoch),
        ("version", &plan_version.version),
    ]
}

/// Who this node is.
fn hello(config: &Config, me: NodeId, identity: &Identity) -> Hello {
    Hello {
        version: VERSION,
        number: me.into(),
        software: concat!("posthaste ", env!("CARGO_PKG_VERSION")).to_owned(),
        exchange: identity.exchange_public(),
        listeners: config.explicit.clone(),
        reflectors: config.measure.reflectors.clone(),
        holds: None,
    }
}
