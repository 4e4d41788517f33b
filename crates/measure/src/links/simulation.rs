// SPDX-License-Identifier: Apache-2.0
//! Links over random paths that become longer, lose packets, block UDP and fail: checks what the
//! links report, and how fast.

use posthaste_testkit::{Rng, Timeline, seeds};

use super::*;
use crate::series::differs;
use crate::window::Source;

const SCHEDULE: Schedule = Schedule {
    interval: Duration::from_secs(10),
    interval_in_use: Duration::from_secs(1),
    ports: 4,
};

/// The actual state of a path.
#[derive(Clone, Debug)]
struct Path {
    rtt_us: Vec<u32>,
    /// Upper bound of the random part of a round trip.
    jitter_us: usize,
    /// Lost probes per hundred.
    loss: usize,
    there: bool,
    udp: bool,
}

impl Path {
    fn of(rtt_us: u32) -> Self {
        Self {
            rtt_us: vec![rtt_us; 4],
            jitter_us: 0,
            loss: 0,
            there: true,
            udp: true,
        }
    }

    fn shortest(&self) -> u32 {
        self.rtt_us.iter().copied().min().unwrap()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answer((u8, u32), u32),
    Handshake(Option<u32>),
}

/// One link and its world.
struct Simulation {
    links: Links,
    path: Path,
    rng: Rng,
    now: Duration,
    events: Timeline<Duration, Event>,
    reports: Vec<(Duration, Report)>,
    probes: u64,
}

fn peer() -> NodeId {
    NodeId::new(7).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Simulation {
    fn new(seed: u64, path: Path) -> Self {
        let now = secs(1_000);
        let mut links = Links::new(SCHEDULE, seed);
        links.set_peers(SCHEDULE, &[peer()], now);
        Self {
            links,
            path,
            rng: Rng::new(seed ^ 0x5eed),
            now,
            events: Timeline::default(),
            reports: Vec::new(),
            probes: 0,
        }
    }

    /// With flows over the link, after the first measurements.
    fn settled(seed: u64, path: Path, in_use: bool) -> Self {
        let mut simulation = Self::new(seed, path);
        let now = simulation.now;
        simulation.links.set_in_use(peer(), in_use, now);
        simulation.run(secs(60));
        simulation
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until a matching report; returns how long that took.
    fn until(&mut self, within: Duration, reported: impl Fn(&Report) -> bool) -> Duration {
        let (begin, end) = (self.now, self.now + within);
        let before = self.reports.len();
        let mut goes_on = true;
        while goes_on {
            goes_on = self.step(end);
            let new = &self.reports[before..];
            if let Some((at, _)) = new.iter().find(|(_, report)| reported(report)) {
                return *at - begin;
            }
        }
        panic!(
            "not within {within:?}: {:?}\n{:#?}",
            &self.reports[before..],
            self.links
        );
    }

    fn step(&mut self, end: Duration) -> bool {
        while let Some(action) = self.links.poll_action(self.now) {
            assert_eq!(action.peer, peer());
            self.carry_out(action.errand);
        }
        while let Some((report, _)) = self.links.next_report(self.now) {
            let measured = report.rtt_us.is_some_and(|rtt_us| rtt_us > 0);
            assert_eq!(measured, report.state == State::Up, "{report:?}");
            self.reports.push((self.now, report));
        }
        let due = self.links.deadline().expect("there is a link");
        assert!(
            due > self.now,
            "nothing was done that was due: {:#?}",
            self.links
        );
        let next = self.events.first().map_or(due, |at| at.min(due));
        if next >= end {
            return false;
        }
        self.now = next;
        while self.events.first().is_some_and(|at| at <= next) {
            let (_, event) = self.events.pop().unwrap();
            match event {
                Event::Answer(probe, rtt_us) => {
                    let waited = self.links.on_answer(peer(), probe, Some(rtt_us), next);
                    assert!(waited || rtt_us > 4_000_000, "{probe:?} was sent");
                }
                Event::Handshake(rtt_us) => self.links.on_handshake(peer(), rtt_us, next),
            }
        }
        true
    }

    fn carry_out(&mut self, errand: Errand) {
        let jitter = u32::try_from(self.rng.below(self.path.jitter_us + 1)).unwrap();
        match errand {
            Errand::Probe { port, sequence } => {
                self.probes += 1;
                let lost = self.rng.below(100) < self.path.loss;
                if self.path.there && self.path.udp && !lost {
                    let rtt_us = self.path.rtt_us[usize::from(port)] + jitter;
                    let at = self.now + Duration::from_micros(rtt_us.into());
                    self.events.add(at, Event::Answer((port, sequence), rtt_us));
                }
            }
            Errand::Handshake { within } => {
                let rtt_us = self.path.shortest() + jitter;
                let (after, answer) = if self.path.there {
                    (Duration::from_micros(rtt_us.into()), Some(rtt_us))
                } else {
                    (within, None)
                };
                self.events.add(self.now + after, Event::Handshake(answer));
            }
        }
    }

    fn status(&self) -> Status {
        self.links.status(self.now)[0]
    }
}

fn some_rtt(seed: u64) -> u32 {
    [300, 2_000, 20_000, 80_000, 250_000, 600_000][usize::try_from(seed % 6).unwrap()]
}

// promise: L8
#[test]
fn steady_link_reports_once() {
    seeds(24, |seed| {
        let mut path = Path::of(some_rtt(seed));
        path.jitter_us = 900;
        let mut simulation = Simulation::new(seed, path);
        simulation.until(secs(2), |report| report.state == State::Up);
        simulation.run(secs(30));
        let before = simulation.reports.len();
        simulation.run(secs(3_600));
        assert!(
            simulation.reports.len() - before <= 1,
            "{:?}",
            simulation.reports
        );
        let status = simulation.status();
        assert_eq!(status.report.loss_ppm, Some(0));
        assert_eq!(status.report.source, Some(Source::Stamp));
        assert!(!differs(status.report.rtt_us.unwrap(), some_rtt(seed)));
    });
}

// promise: L8
#[test]
fn probes_follow_schedule() {
    seeds(6, |seed| {
        for (in_use, expected) in [(false, 360.0), (true, 3_600.0)] {
            let mut simulation = Simulation::settled(seed, Path::of(20_000), in_use);
            let before = simulation.probes;
            simulation.run(secs(3_600));
            let ratio = (simulation.probes - before) as f64 / expected;
            assert!((0.9..1.1).contains(&ratio), "{in_use}: {ratio}");
        }
    });
}

// promise: L8
#[test]
fn noise_within_budget() {
    seeds(8, |seed| {
        let mut path = Path::of(20_000);
        (path.jitter_us, path.loss) = (50_000, 30);
        let mut simulation = Simulation::settled(seed, path, false);
        let before = simulation.probes;
        simulation.run(secs(3_600));
        let most = 360 * 11 / 10 + 16 + 1_800;
        assert!(
            simulation.probes - before <= most,
            "{}",
            simulation.probes - before
        );
    });
}

// promise: L3
#[test]
fn longer_link_within_three_seconds() {
    seeds(60, |seed| {
        let mut simulation = Simulation::settled(seed, Path::of(some_rtt(seed)), true);
        let longer = some_rtt(seed) * 2 + 5_000;
        simulation.path.rtt_us = vec![longer; 4];
        let limit = secs(3) + Duration::from_micros(u64::from(longer) * 4);
        simulation.until(limit, |report| {
            report.rtt_us.is_some_and(|rtt| !differs(rtt, longer))
        });
        simulation.path.rtt_us = vec![some_rtt(seed); 4];
        let shorter = some_rtt(seed);
        simulation.until(limit, |report| {
            report.rtt_us.is_some_and(|rtt| !differs(rtt, shorter))
        });
    });
}

// promise: L3
#[test]
fn shortest_path_counts() {
    seeds(50, |seed| {
        let mut path = Path::of(40_000);
        path.rtt_us[usize::try_from(seed % 4).unwrap()] = 20_000;
        let mut simulation = Simulation::settled(seed, path, true);
        assert_eq!(simulation.status().report.rtt_us, Some(20_000));
        simulation.path.rtt_us = vec![40_000; 4];
        simulation.until(secs(8), |report| report.rtt_us == Some(40_000));
    });
}

// promise: L2
#[test]
fn used_link_dies_and_returns() {
    seeds(48, |seed| {
        let mut simulation = Simulation::settled(seed, Path::of(some_rtt(seed)), true);
        simulation.path.there = false;
        let patience = Duration::from_micros(u64::from(some_rtt(seed)) * 2);
        let patience = patience.max(Duration::from_millis(300));
        // The next probe, half of another wait, and a handshake.
        let handshake = (patience * 3).clamp(secs(1), secs(2));
        let limit = Duration::from_millis(1_350) + patience * 3 / 2 + handshake;
        let took = simulation.until(limit, |report| report.state == State::Dead);
        let most = if some_rtt(seed) <= 150_000 { 3 } else { 6 };
        assert!(took <= secs(most), "{took:?}");
        assert_eq!(simulation.status().report.rtt_us, None, "absent, not 0");
        simulation.run(secs(300));
        simulation.path.there = true;
        let limit = secs(4) + Duration::from_micros(u64::from(some_rtt(seed)) * 4);
        simulation.until(limit, |report| report.state == State::Up);
        simulation.run(secs(60));
        let status = simulation.status();
        assert_eq!(status.report.rtt_us, Some(some_rtt(seed)));
        assert!(!status.udp_blocked);
    });
}

// promise: L2
#[test]
fn idle_link_dies_later() {
    seeds(50, |seed| {
        let mut simulation = Simulation::settled(seed, Path::of(some_rtt(seed)), false);
        simulation.path.there = false;
        simulation.until(secs(12) + secs(6), |report| report.state == State::Dead);
    });
}

// promise: L4
#[test]
fn blocked_udp_uses_handshakes() {
    seeds(24, |seed| {
        let mut path = Path::of(some_rtt(seed));
        path.udp = false;
        let mut simulation = Simulation::new(seed, path);
        simulation.until(secs(5), |report| report.state == State::Up);
        simulation.run(secs(120));
        let status = simulation.status();
        assert!(status.udp_blocked);
        assert_eq!(status.report.source, Some(Source::Handshake));
        assert_eq!(status.report.rtt_us, Some(some_rtt(seed)));
        assert_eq!(
            status.report.loss_ppm, None,
            "that UDP is blocked is no loss"
        );
        let before = simulation.probes;
        simulation.run(secs(3_600));
        assert!(
            simulation.probes - before <= 170,
            "{}",
            simulation.probes - before
        );
        simulation.path.udp = true;
        simulation.run(secs(60));
        let status = simulation.status();
        assert_eq!(status.report.source, Some(Source::Stamp), "{status:?}");
        assert!(!status.udp_blocked);
        // A short failure of UDP alone ends soon.
        simulation.path.udp = false;
        simulation.run(secs(14));
        assert!(simulation.status().udp_blocked);
        simulation.path.udp = true;
        simulation.run(secs(12));
        assert!(!simulation.status().udp_blocked);
        // And it may be permanent.
        simulation.path.udp = false;
        simulation.run(secs(60));
        assert!(simulation.status().udp_blocked);
        simulation.path.there = false;
        simulation.until(secs(20), |report| report.state == State::Dead);
    });
}

// promise: L6
#[test]
fn loss_kills_no_link() {
    seeds(30, |seed| {
        let mut path = Path::of(some_rtt(seed));
        path.loss = 10;
        let mut simulation = Simulation::settled(seed, path, true);
        simulation.run(secs(3_000));
        let loss_ppm = simulation.status().report.loss_ppm.unwrap();
        // Of 128 probes; four standard deviations.
        assert!((1..=206_000).contains(&loss_ppm), "{loss_ppm}");
        let dead = |(_, report): &(Duration, Report)| report.state == State::Dead;
        assert!(
            !simulation.reports.iter().any(dead),
            "{:?}",
            simulation.reports
        );
    });
}

// promise: L9
#[test]
fn stopped_host_blames_none() {
    seeds(30, |seed| {
        let mut simulation = Simulation::settled(seed, Path::of(20_000), true);
        let before = simulation.links.status(simulation.now)[0].counts.lost;
        // A probe is in flight when the host stalls; its answer is queued meanwhile.
        while simulation.events.first().is_none() {
            assert!(simulation.step(simulation.now + secs(10)));
            while let Some(action) = simulation.links.poll_action(simulation.now) {
                simulation.carry_out(action.errand);
            }
        }
        simulation.links.deadline();
        simulation.now += secs(60);
        let (_, event) = simulation.events.pop().unwrap();
        assert_eq!(
            simulation.links.poll_action(simulation.now - secs(60)),
            None
        );
        simulation.links.deadline();
        let first = simulation.links.poll_action(simulation.now);
        first
            .into_iter()
            .for_each(|action| simulation.carry_out(action.errand));
        let Event::Answer(probe, rtt_us) = event else {
            panic!("no handshake is needed");
        };
        assert!(
            simulation
                .links
                .on_answer(peer(), probe, Some(rtt_us), simulation.now)
        );
        simulation.run(secs(10));
        let status = simulation.status();
        assert_eq!(
            (status.counts.lost, status.report.state),
            (before, State::Up)
        );
    });
}

// promise: L7
#[test]
fn random_events_end_true() {
    seeds(200, |seed| {
        let mut simulation = Simulation::new(seed, Path::of(some_rtt(seed)));
        for _ in 0..12 {
            let chance = |simulation: &mut Simulation, times| simulation.rng.below(times);
            match chance(&mut simulation, 7) {
                0 => simulation.path.there = !simulation.path.there,
                1 => simulation.path.udp = !simulation.path.udp,
                2 => simulation.path.loss = chance(&mut simulation, 60),
                3 => simulation.path.jitter_us = chance(&mut simulation, 200_000),
                4 => {
                    let port = chance(&mut simulation, 4);
                    simulation.path.rtt_us[port] =
                        300 + u32::try_from(chance(&mut simulation, 700_000)).unwrap();
                }
                5 => {
                    let now = simulation.now;
                    let in_use = chance(&mut simulation, 2) == 0;
                    simulation.links.set_in_use(peer(), in_use, now);
                }
                _ => {
                    let now = simulation.now;
                    let rtt_us = simulation.path.shortest();
                    simulation.links.on_hop(peer(), rtt_us, now, now);
                    simulation.links.suspect(peer(), now);
                }
            }
            let length =
                Duration::from_millis(u64::try_from(chance(&mut simulation, 40_000)).unwrap());
            simulation.run(length);
        }
        (simulation.path.loss, simulation.path.jitter_us) = (0, 0);
        simulation.run(secs(600));
        let report = simulation.status().report;
        if simulation.path.there {
            assert_eq!(report.state, State::Up);
            let (known, truth) = (report.rtt_us.unwrap(), simulation.path.shortest());
            assert!(
                !differs(known, truth),
                "{known} {truth} {:#?}",
                simulation.links
            );
        } else {
            assert_eq!((report.state, report.rtt_us), (State::Dead, None));
        }
        let (_, last) = simulation.reports.last().unwrap();
        assert!(!report.is_news(Some(last)), "{report:?} {last:?}");
    });
}

// promise: E8
#[test]
fn faster_schedule_keeps_state() {
    seeds(60, |seed| {
        let mut path = Path::of(some_rtt(seed));
        path.udp = !seed.is_multiple_of(3);
        let mut simulation = Simulation::settled(seed, path, false);
        simulation.run(secs(120));
        let before = simulation.reports.len();
        let leisurely = secs(100);
        for _ in 0..6 {
            let wait = Duration::from_millis(simulation.rng.below(20_000));
            simulation.run(wait);
            let now = simulation.now;
            simulation.links.set_in_use(peer(), true, now);
            simulation.run(secs(20));
            let now = simulation.now;
            simulation.links.set_in_use(peer(), false, now);
            let wait = Duration::from_millis(simulation.rng.below(200_000));
            simulation.run(wait);
            let now = simulation.now;
            simulation.links.set_wanted([(peer(), secs(1))].into(), now);
            simulation.run(secs(20));
            let now = simulation.now;
            simulation
                .links
                .set_wanted([(peer(), leisurely)].into(), now);
        }
        let unknown = |(_, report): &&(Duration, Report)| report.state != State::Up;
        let reports = &simulation.reports[before..];
        assert_eq!(reports.iter().find(unknown), None);
    });
}

// promise: E7
#[test]
fn controller_sets_interval() {
    seeds(6, |seed| {
        let mut simulation = Simulation::settled(seed, Path::of(20_000), false);
        for (seconds, in_use, expected) in
            [(2, false, 1800.0), (100, false, 36.0), (100, true, 3600.0)]
        {
            let now = simulation.now;
            simulation.links.set_in_use(peer(), in_use, now);
            simulation
                .links
                .set_wanted([(peer(), secs(seconds))].into(), now);
            let peers = [peer()];
            // Peers may change at any time.
            simulation.links.set_peers(SCHEDULE, &peers, now);
            let before = simulation.probes;
            simulation.run(secs(3_600));
            let ratio = (simulation.probes - before) as f64 / expected;
            assert!((0.8..1.2).contains(&ratio), "{seconds}: {ratio}");
        }
        let now = simulation.now;
        simulation.links.set_wanted(HashMap::new(), now);
        assert_eq!(simulation.status().interval, SCHEDULE.interval_in_use);
    });
}
