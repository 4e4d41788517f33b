// SPDX-License-Identifier: Apache-2.0
//! The node's side of the stream to its controller. No I/O and no clock of its own: its driver carries
//! out the actions of [`Follower::poll_action`], reports the results, and calls again no later than at
//! [`Follower::deadline`]. Times are those of a clock that only goes forward.
//!
//! Nothing that happens to the stream changes what the node does: it follows the plan that it holds
//! until the plan's life is over, counted from the last lease renewal of the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::message::{
    Destination, Egress, Hello, Interval, Link, LinkState, NodeNumber, PlanVersion, ToController,
    ToNode, VERSION, Welcome,
};
use crate::route_table::{Refusal, RouteTable};

mod members;
mod saved;
mod stage;
mod time;

use members::Members;
pub use members::{MEMBERS_MAX, Unwanted};
pub use saved::{Saved, Unfit};
use stage::Stage;
pub use time::ClockOffset;
use time::Time;

/// The life of a plan until a controller sends another.
const LIFE: Duration = Duration::from_secs(900);
/// Bounds on the life that a controller may send, in seconds.
const TTL_S: std::ops::RangeInclusive<u32> = 1..=7 * 86_400;
/// Bounds on the keepalive interval, in seconds.
const KEEPALIVE_S: std::ops::RangeInclusive<u32> = 1..=3600;
/// What is followed is kept on disk no more often.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// Bound on the prefixes whose egresses a controller may send.
const EGRESSES_MAX: usize = 1 << 18;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a stream, and report it by [`Follower::on_open`] or [`Follower::on_closed`].
    Dial,
    /// Send this.
    Send(Box<ToController>),
    /// Close the stream, for this reason.
    Close(String),
    /// Flows must use what is held now.
    Renew,
    /// Links are to be measured by [`Follower::intervals`].
    Measure,
    /// Keep [`Follower::saved`].
    Save,
    /// It is this time by the controller's clock, in place of the former report.
    SetTime(ClockOffset),
}

/// An event for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The controller has let the node in.
    Joined,
    /// Another plan is followed.
    Follows(PlanVersion),
    /// The life of the plan is over.
    Over(PlanVersion),
    /// The plan stands again.
    Again(PlanVersion),
    /// A plan was offered and refused.
    Refused(Refusal),
    /// A member was not taken as it was received.
    Unwanted(Unwanted),
    /// The controller closes the stream, for this reason.
    GoAway(String),
    /// This host's own clock is so far ahead of the controller's, in microseconds: too far.
    ClockWrong(i64),
    /// It is not any more.
    ClockRight,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams on which the controller let the node in.
    pub joins: u64,
    /// Plans that were followed.
    pub plans: u64,
    /// Plans that were refused since they were older.
    pub older: u64,
    /// Plans that were refused since they did not fit.
    pub nacks: u64,
    /// Keys that were refused since another was received before.
    pub keys: u64,
}

/// A node that follows a controller's plans.
#[derive(Debug)]
pub struct Follower {
    hello: Hello,
    held: RouteTable,
    members: Members,
    egresses: Vec<Egress>,
    intervals: BTreeMap<NodeNumber, u32>,
    ttl: Duration,
    /// The last lease renewal.
    stood: Option<Duration>,
    /// Whether flows use the plan, by the last [`Action::Renew`].
    in_force: bool,
    stage: Stage,
    time: Time,
    links: BTreeMap<NodeNumber, LinkState>,
    /// Links that are to be reported.
    news: BTreeSet<NodeNumber>,
    destinations: Vec<Destination>,
    /// What the controller's last plan is answered with.
    answer: Option<ToController>,
    close: Option<String>,
    renew: bool,
    measure: bool,
    /// When to save, if there is something to be saved.
    save_at: Option<Duration>,
    saved_at: Option<Duration>,
    events: Vec<Event>,
    counts: Counts,
}

impl Follower {
    /// The node of `hello`, which holds nothing yet, or what was saved. `stood` is the last lease renewal
    /// of the saved plan, by this clock; nothing if that is unknown, and then the plan is not in force
    /// until the next renewal.
    pub fn new(
        hello: Hello,
        saved: Option<(Saved, Option<Duration>)>,
        seed: u64,
        now: Duration,
    ) -> Self {
        let mut follower = Self {
            held: RouteTable::new(hello.number),
            members: Members::new(hello.number),
            hello,
            egresses: Vec::new(),
            intervals: BTreeMap::new(),
            ttl: LIFE,
            stood: None,
            in_force: false,
            stage: Stage::new(seed, now),
            time: Time::default(),
            links: BTreeMap::new(),
            news: BTreeSet::new(),
            destinations: Vec::new(),
            answer: None,
            close: None,
            renew: false,
            measure: false,
            save_at: None,
            saved_at: None,
            events: Vec::new(),
            counts: Counts::default(),
        };
        if let Some((saved, stood)) = saved {
            follower.restore(saved, stood, now);
        }
        follower
    }

    /// Something to do now; call again until there is nothing.
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        // Before anything is sent: what has expired must not be used for another turn.
        self.check_ttl(now);
        self.renew |= self.members.expire(now);
        if std::mem::take(&mut self.renew) {
            return Some(Action::Renew);
        }
        if std::mem::take(&mut self.measure) {
            return Some(Action::Measure);
        }
        if let Some(sent) = self.time.take_news() {
            return Some(Action::SetTime(sent));
        }
        if self.save_at.is_some_and(|at| at <= now) {
            (self.save_at, self.saved_at) = (None, Some(now));
            return Some(Action::Save);
        }
        if self.stage.is_dialing_due(now) {
            return Some(Action::Dial);
        }
        let close = self.close.take().or_else(|| self.stage.is_silent(now));
        if let Some(why) = close.filter(|_| self.stage.is_open()) {
            self.on_closed(now);
            return Some(Action::Close(why));
        }
        let message = self.next_message(now)?;
        self.stage.on_sent();
        Some(Action::Send(Box::new(message)))
    }

    /// When [`Self::poll_action`] is to be called at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        let over = self.stood.map(|stood| stood + self.ttl);
        // A plan that is over has no deadline, or the driver would be called without a pause.
        let over = over.filter(|_| self.in_force);
        let all = [
            over,
            self.members.deadline(),
            self.save_at,
            self.stage.deadline(),
            self.time.deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// The next thing that has happened; call again until there is nothing.
    pub fn next_event(&mut self) -> Option<Event> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// The stream is open, and both ends have shown their keys.
    pub fn on_open(&mut self, now: Duration) {
        // The hello contains the plan that is held, so an answer owed to the former stream is not
        // sent.
        self.stage.on_open(now);
        (self.answer, self.close) = (None, None);
    }

    /// The stream could not be opened, or is closed.
    pub fn on_closed(&mut self, now: Duration) {
        self.stage.on_closed(now);
        self.time.on_closed();
        (self.answer, self.close) = (None, None);
    }

    /// What this host's own clock shows, since 1970. To be called with every other event, since the
    /// operator may set it at any time.
    pub fn on_own_clock(&mut self, unix: Duration, now: Duration) {
        self.events.extend(self.time.on_own_clock(unix, now));
    }

    /// A link has changed. Links to removed nodes are not reported.
    pub fn on_link(&mut self, link: Link) {
        if self.members.is_former(link.to) {
            return;
        }
        self.links.insert(link.to, link.state);
        self.news.insert(link.to);
    }

    /// These links are measured, and no others any more.
    pub fn retain_links(&mut self, is_measured: impl Fn(NodeNumber) -> bool) {
        let members = &self.members;
        let stays = |to: NodeNumber| is_measured(to) && !members.is_former(to);
        self.links.retain(|to, _| stays(*to));
        self.news.retain(|to| stays(*to));
    }

    /// What the node's own connections have measured of destinations since the last report.
    pub fn on_destinations(&mut self, destinations: Vec<Destination>) {
        self.destinations = destinations;
    }

    /// The addresses of the node have changed. They are sent with the next stream.
    pub fn set_hello(&mut self, hello: Hello) {
        self.hello = hello;
    }

    /// Takes what the controller sent.
    pub fn on_message(&mut self, message: ToNode, now: Duration) {
        self.stage.on_received(now);
        let is_first = matches!(message, ToNode::Welcome(_));
        let is_last = matches!(message, ToNode::GoAway(_));
        // A controller may refuse a node before it lets it in, so GoAway may come first.
        if is_first == self.stage.is_joined() && !is_last {
            return self.part("a message out of turn");
        }
        match message {
            ToNode::Welcome(welcome) => self.on_welcome(welcome, now),
            ToNode::Members {
                all,
                members,
                removed,
            } => {
                let unwanted = self.members.take(all, members, &removed, now);
                self.counts.keys += unwanted.iter().filter(|one| one.is_key()).count() as u64;
                self.events
                    .extend(unwanted.into_iter().map(Event::Unwanted));
                self.on_news(now);
            }
            ToNode::Measure(intervals) => self.on_intervals(&intervals),
            ToNode::RouteUpdate(update) => self.on_route_update(&update, now),
            ToNode::Egresses(egresses) if egresses.len() > EGRESSES_MAX => {
                self.part("too many prefixes");
            }
            ToNode::Egresses(egresses) => {
                self.egresses = egresses;
                self.on_news(now);
            }
            ToNode::LeaseRenewed(plan_version) => self.on_lease_renewed(plan_version, now),
            ToNode::GoAway(why) => {
                self.events.push(Event::GoAway(why.clone()));
                self.close = Some(why);
            }
            ToNode::Time { mark, unix_us } => {
                if self.time.on_answer(mark, unix_us, now) {
                    self.save_soon(now);
                }
            }
        }
    }

    /// The plan that flows use; nothing when there is none, or its life is over.
    pub fn plan(&self) -> Option<&RouteTable> {
        self.in_force.then_some(&self.held)
    }

    /// The plan that is held, in force or not, and the time since its last lease renewal.
    pub fn held(&self, now: Duration) -> Option<(PlanVersion, Option<Duration>)> {
        let age = self.stood.map(|stood| now.saturating_sub(stood));
        Some((self.held.plan_version()?, age))
    }

    /// The life of a plan.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whose destinations are whose.
    pub fn egresses(&self) -> &[Egress] {
        &self.egresses
    }

    /// How often to measure whom, in milliseconds; the others at leisure.
    pub fn intervals(&self) -> &BTreeMap<NodeNumber, u32> {
        &self.intervals
    }

    /// The state of the link to another node.
    pub fn link(&self, to: NodeNumber) -> Option<LinkState> {
        self.links.get(&to).copied()
    }

    /// The controller's last report of the time, if there was one.
    pub fn time(&self) -> Option<ClockOffset> {
        self.time.sent()
    }

    /// Whether the controller has let the node in.
    pub fn is_joined(&self) -> bool {
        self.stage.is_joined()
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn part(&mut self, why: &str) {
        self.close.get_or_insert_with(|| why.to_owned());
    }

    fn on_welcome(&mut self, welcome: Welcome, now: Duration) {
        let Welcome {
            version,
            ttl_s,
            keepalive_s,
        } = welcome;
        if !(1..=VERSION).contains(&version) {
            return self.part(&format!("version {version} is not spoken here"));
        }
        if !TTL_S.contains(&ttl_s) || !KEEPALIVE_S.contains(&keepalive_s) {
            return self.part("times out of bounds");
        }
        self.ttl = Duration::from_secs(ttl_s.into());
        let keepalive = Duration::from_secs(keepalive_s.into());
        self.stage.on_joined(keepalive, now);
        self.time.on_joined(keepalive, now);
        // The controller forgets a node's links when a stream begins, and takes the first report as
        // the full list.
        self.news = self.links.keys().copied().collect();
        self.counts.joins += 1;
        self.events.push(Event::Joined);
    }

    fn on_intervals(&mut self, intervals: &[Interval]) {
        if intervals.len() > MEMBERS_MAX {
            return self.part("too many intervals");
        }
        let intervals = intervals.iter();
        self.intervals = intervals.map(|link| (link.to, link.every_ms)).collect();
        self.measure = true;
    }

    fn on_route_update(&mut self, update: &crate::message::RouteUpdate, now: Duration) {
        let refusal = match self.held.apply(update) {
            Ok(()) => {
                self.counts.plans += 1;
                self.events.push(Event::Follows(update.plan_version));
                self.answer = Some(ToController::Holds(update.plan_version));
                // A new plan is a lease renewal as well: the controller made it from current
                // reports.
                (self.stood, self.in_force) = (Some(now), true);
                return self.on_news(now);
            }
            Err(refusal) => refusal,
        };
        self.answer = Some(match &refusal {
            // The controller may have lost its store: then it begins an epoch after the held plan's.
            Refusal::Older { held, .. } => {
                self.counts.older += 1;
                ToController::Holds(*held)
            }
            Refusal::Nack(why) => {
                self.counts.nacks += 1;
                ToController::Nack {
                    holds: self.held.plan_version(),
                    why: why.clone(),
                }
            }
        });
        self.events.push(Event::Refused(refusal));
    }

    fn on_lease_renewed(&mut self, plan_version: PlanVersion, now: Duration) {
        if self.held.plan_version() != Some(plan_version) {
            // The controller has another plan on record for this node: the answer corrects it.
            self.answer = self.held.plan_version().map(ToController::Holds);
            return;
        }
        self.stood = Some(now);
        self.save_soon(now);
    }

    /// Puts the plan out of force when its life is over, and back.
    fn check_ttl(&mut self, now: Duration) {
        let (Some(plan_version), Some(stood)) = (self.held.plan_version(), self.stood) else {
            return;
        };
        let renew_lease = now < stood + self.ttl;
        if renew_lease == self.in_force {
            return;
        }
        self.in_force = renew_lease;
        self.renew = true;
        self.events.push(if renew_lease {
            Event::Again(plan_version)
        } else {
            Event::Over(plan_version)
        });
    }

    /// Something that flows go by is not what it was.
    fn on_news(&mut self, now: Duration) {
        self.renew = true;
        self.save_soon(now);
    }

    fn save_soon(&mut self, now: Duration) {
        // At most once in that time, or a controller that sends many plans would wear out the disk.
        let earliest = self
            .saved_at
            .map_or(now, |saved| now.max(saved + SAVE_EVERY));
        self.save_at.get_or_insert(earliest);
    }

    fn next_message(&mut self, now: Duration) -> Option<ToController> {
        if self.stage.owes_hello() {
            let mut hello = self.hello.clone();
            hello.holds = self.held.plan_version();
            return Some(ToController::Hello(hello));
        }
        if !self.stage.is_joined() {
            return None;
        }
        if let Some(answer) = self.answer.take() {
            return Some(answer);
        }
        if let Some(question) = self.time.question(now) {
            return Some(question);
        }
        // Before the links: with these the controller has what it plans with.
        if !self.destinations.is_empty() {
            let destinations = std::mem::take(&mut self.destinations);
            return Some(ToController::Destinations(destinations));
        }
        if !self.news.is_empty() {
            let links = std::mem::take(&mut self.news);
            let links = links.into_iter().filter_map(|to| {
                let state = *self.links.get(&to)?;
                Some(Link { to, state })
            });
            return Some(ToController::Links(links.collect()));
        }
        None
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
