// SPDX-License-Identifier: Apache-2.0
//! The links from this node to its peers: what to measure, and the results. Pure: no I/O, no clock.
//! The driver carries out [`Links::poll_action`], reports events, and forwards the reports.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_relay::rng::Rng;
use posthaste_wire::header::NodeId;

use super::link::{Counts, Errand, Link, State};
use super::report::Report;
use super::wanted::bounded;
use posthaste_config::Schedule;

/// A call that is later than this means that the host was stalled, and that answers are unread.
const STALL: Duration = Duration::from_millis(200);
/// First probes are spread over this time per link.
const SPREAD: Duration = Duration::from_millis(10);

/// An action for one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) peer: NodeId,
    pub(crate) errand: Errand,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) report: Report,
    /// Time since the last measurement.
    pub(crate) age: Option<Duration>,
    pub(crate) in_use: bool,
    /// Whether TCP passes and UDP does not.
    pub(crate) udp_blocked: bool,
    /// Interval of measurements.
    pub(crate) interval: Duration,
    pub(crate) counts: Counts,
    /// Number of reports about it.
    pub(crate) reports: u64,
}

/// All links of this node: at most as many as there can be peers, 1024.
#[derive(Debug)]
pub(crate) struct Links {
    schedule: Schedule,
    links: Vec<(Link, Reported)>,
    /// By link: when the next action may be due. Scanned at each call, so it is stored compactly.
    dues: Vec<Duration>,
    /// Links with events since they were last checked for reports.
    touched: Vec<usize>,
    places: HashMap<NodeId, usize>,
    /// Intervals that a controller requests, within this node's bounds.
    wanted: HashMap<NodeId, Duration>,
    rng: Rng,
    /// The next deadline that was returned.
    promised: Option<Duration>,
}

/// The last report about a link.
#[derive(Debug, Default)]
struct Reported {
    last: Option<Report>,
    count: u64,
}

impl Links {
    pub(crate) fn new(schedule: Schedule, seed: u64) -> Self {
        Self {
            schedule,
            links: Vec::new(),
            dues: Vec::new(),
            touched: Vec::new(),
            places: HashMap::new(),
            wanted: HashMap::new(),
            rng: Rng::new(seed),
            promised: None,
        }
    }

    /// Replaces the peers to measure. Measurements of those that stay are kept.
    pub(crate) fn set_peers(&mut self, schedule: Schedule, peers: &[NodeId], now: Duration) {
        let mut former = std::mem::take(&mut self.links);
        if schedule.ports != self.schedule.ports {
            // Times are kept by port: those of another number of ports do not fit.
            former.clear();
        }
        self.schedule = schedule;
        let spread = SPREAD * u32::try_from(peers.len()).unwrap_or(u32::MAX);
        for peer in peers {
            let at = former.iter().position(|(link, _)| link.peer == *peer);
            let kept = at.map(|at| former.swap_remove(at));
            let (mut link, reported) = kept.unwrap_or_else(|| {
                let due = now + spread.mul_f64(self.rng.below(1000) as f64 / 1000.0);
                (Link::new(*peer, schedule, due), Reported::default())
            });
            link.set_schedule(schedule, now, &mut self.rng);
            // A reload does not undo what the controller requested.
            link.set_wanted(self.wanted.get(peer).copied(), now, &mut self.rng);
            self.links.push((link, reported));
        }
        self.sort_out();
    }

    /// Measures links at the intervals that a controller requests, within the bounds of
    /// [`bounded`]; others by the schedule.
    pub(crate) fn set_wanted(&mut self, wanted: HashMap<NodeId, Duration>, now: Duration) {
        // Stored for all: a reload may add a peer that the controller has already named.
        self.wanted = bounded(wanted);
        for (link, _) in &mut self.links {
            let wanted = self.wanted.get(&link.peer).copied();
            link.set_wanted(wanted, now, &mut self.rng);
        }
        self.sort_out();
    }

    /// Discards the measurements of a link: the node has another address now.
    pub(crate) fn forget(&mut self, peer: NodeId) {
        self.links.retain(|(link, _)| link.peer != peer);
        self.sort_out();
    }

    /// Rebuilds the indexes for the current links.
    fn sort_out(&mut self) {
        let links = || self.links.iter().map(|(link, _)| link);
        self.dues = links().map(Link::deadline).collect();
        self.places = links().map(|link| link.peer).zip(0..).collect();
        // Links have other places now, so those of the touched ones are unknown.
        self.touched = (0..self.links.len()).collect();
    }

    /// An action that is due; call again until there is none. Report received answers before.
    pub(crate) fn poll_action(&mut self, now: Duration) -> Option<Action> {
        // Taken: of the calls after one wait only the first can show a stall.
        let late = self.promised.take().map(|due| now.saturating_sub(due));
        if late.is_some_and(|late| late > STALL) {
            self.links
                .iter_mut()
                .for_each(|(link, _)| link.on_stall(now));
            self.sort_out();
        }
        while let Some(place) = self.dues.iter().position(|due| *due <= now) {
            let (link, _) = &mut self.links[place];
            let peer = link.peer;
            let errand = link.next_errand(now, &mut self.rng);
            self.dues[place] = link.deadline();
            self.touched.push(place);
            match errand {
                Some(errand) => return Some(Action { peer, errand }),
                // Prevents an endless loop over one link at the same time.
                None => self.dues[place] = self.dues[place].max(now + Duration::from_nanos(1)),
            }
        }
        None
    }

    /// When to call [`Self::poll_action`] next. `None` without links.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        // Stored, since the next call finds a stall by it.
        self.promised = self.dues.iter().min().copied();
        self.promised
    }

    /// The next report, and the link's state at the report before; call again until there is none.
    pub(crate) fn next_report(&mut self, now: Duration) -> Option<(Report, State)> {
        // A link may be in it several times: only the first has news.
        while let Some(place) = self.touched.pop() {
            let (link, reported) = &mut self.links[place];
            let report = report(link, now);
            if report.is_news(reported.last.as_ref()) {
                reported.count += 1;
                let last = reported.last.replace(report);
                return Some((report, last.map_or(State::Unmeasured, |last| last.state)));
            }
        }
        None
    }

    /// The state of all links.
    pub(crate) fn status(&self, now: Duration) -> Vec<Status> {
        let status = |(link, reported): &(Link, Reported)| Status {
            report: report(link, now),
            age: link.estimate(now).map(|known| now.saturating_sub(known.at)),
            in_use: link.in_use,
            udp_blocked: link.blocked,
            interval: link.interval(),
            counts: link.counts,
            reports: reported.count,
        };
        self.links.iter().map(status).collect()
    }

    /// A probe was answered. The time is `None` if it is invalid. Returns whether the probe was in
    /// flight.
    pub(crate) fn on_answer(
        &mut self,
        peer: NodeId,
        probe: (u8, u32),
        rtt_us: Option<u32>,
        now: Duration,
    ) -> bool {
        let mut waited = false;
        self.touch(peer, |link, _| waited = link.on_answer(probe, rtt_us, now));
        waited
    }

    /// A probe was not sent, or the network reported that it did not arrive.
    pub(crate) fn on_refused(&mut self, peer: NodeId, probe: (u8, u32), now: Duration) {
        self.touch(peer, |link, _| link.on_refused(probe, now));
    }

    /// The result of a handshake.
    pub(crate) fn on_handshake(&mut self, peer: NodeId, rtt_us: Option<u32>, now: Duration) {
        self.touch(peer, |link, _| link.on_handshake(rtt_us, now));
    }

    /// The round trip time of a connection to the node, measured at `at`.
    pub(crate) fn on_hop(&mut self, peer: NodeId, rtt_us: u32, at: Duration, now: Duration) {
        self.touch(peer, |link, _| link.on_hop(rtt_us, at, now));
    }

    /// Sets whether flows use the link.
    pub(crate) fn set_in_use(&mut self, peer: NodeId, in_use: bool, now: Duration) {
        self.touch(peer, |link, rng| link.set_in_use(in_use, now, rng));
    }

    /// Another source reports that the node is down.
    pub(crate) fn suspect(&mut self, peer: NodeId, now: Duration) {
        self.touch(peer, |link, _| link.suspect(now));
    }

    /// Applies an event to a link, if it is measured.
    fn touch(&mut self, peer: NodeId, happen: impl FnOnce(&mut Link, &mut Rng)) {
        // Answers may arrive after a reload removed their peer.
        let Some(place) = self.places.get(&peer).copied() else {
            return;
        };
        let (link, _) = &mut self.links[place];
        happen(link, &mut self.rng);
        self.dues[place] = link.deadline();
        self.touched.push(place);
    }
}

fn report(link: &Link, now: Duration) -> Report {
    let known = link.estimate(now);
    // What has expired is omitted: a value of 0 would read as measured.
    let smoothed = known.and_then(|_| link.smoothed_us());
    Report {
        peer: link.peer,
        state: match known {
            // It has expired, and the link has not been polled since.
            None if link.state == State::Up => State::Unmeasured,
            _ => link.state,
        },
        rtt_us: known.map(|known| known.rtt_us),
        source: known.map(|known| known.source),
        smoothed_us: smoothed.map(|(mean, _)| mean),
        jitter_us: smoothed.map(|(_, deviation)| deviation),
        loss_ppm: known.and_then(|_| link.loss_ppm()),
    }
}

#[cfg(test)]
mod simulation;
