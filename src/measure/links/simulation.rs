// SPDX-License-Identifier: Apache-2.0
//! Links in a world of seeded chance: ways that become longer, lose, block UDP
//! and end, against what the links say of them and within which time.

use super::*;
use crate::measure::series::differs;
use crate::measure::window::Source;

const SCHEDULE: Schedule = Schedule {
    interval: Duration::from_secs(10),
    interval_in_use: Duration::from_secs(1),
    ports: 4,
};

/// A way as it really is.
#[derive(Clone, Debug)]
struct Way {
    rtt_us: Vec<u32>,
    /// Added to a round trip, at most.
    jitter_us: usize,
    /// Probes of a hundred that are lost.
    loss: usize,
    there: bool,
    udp: bool,
}

impl Way {
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

/// One link and what it is about.
struct World {
    links: Links,
    way: Way,
    rng: Rng,
    now: Duration,
    events: Vec<(Duration, Event)>,
    reports: Vec<(Duration, Report)>,
    probes: u64,
}

fn peer() -> NodeId {
    NodeId::new(7).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl World {
    fn new(seed: u64, way: Way) -> Self {
        let now = secs(1_000);
        let mut links = Links::new(SCHEDULE, seed);
        links.set_peers(SCHEDULE, &[peer()], now);
        Self {
            links,
            way,
            rng: Rng::new(seed ^ 0x5eed),
            now,
            events: Vec::new(),
            reports: Vec::new(),
            probes: 0,
        }
    }

    /// With flows over the link, and the first times known.
    fn settled(seed: u64, way: Way, in_use: bool) -> Self {
        let mut world = Self::new(seed, way);
        let now = world.now;
        world.links.set_in_use(peer(), in_use, now);
        world.run(secs(60));
        world
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        while self.step(end) {}
        self.now = end;
    }

    /// Until a report says so; returns how long that took.
    fn until(&mut self, within: Duration, told: impl Fn(&Report) -> bool) -> Duration {
        let (begin, end) = (self.now, self.now + within);
        let before = self.reports.len();
        let mut goes_on = true;
        while goes_on {
            goes_on = self.step(end);
            let new = &self.reports[before..];
            if let Some((at, _)) = new.iter().find(|(_, report)| told(report)) {
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
        while let Some(order) = self.links.next_order(self.now) {
            assert_eq!(order.peer, peer());
            self.carry_out(order.errand);
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
        let next = self
            .events
            .iter()
            .map(|(at, _)| *at)
            .fold(due, Duration::min);
        if next >= end {
            return false;
        }
        self.now = next;
        let (now, rest): (Vec<_>, Vec<_>) = self.events.drain(..).partition(|(at, _)| *at <= next);
        self.events = rest;
        for (_, event) in now {
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
        let jitter = u32::try_from(self.rng.below(self.way.jitter_us + 1)).unwrap();
        match errand {
            Errand::Probe { port, sequence } => {
                self.probes += 1;
                let lost = self.rng.below(100) < self.way.loss;
                if self.way.there && self.way.udp && !lost {
                    let rtt_us = self.way.rtt_us[usize::from(port)] + jitter;
                    let at = self.now + Duration::from_micros(rtt_us.into());
                    self.events
                        .push((at, Event::Answer((port, sequence), rtt_us)));
                }
            }
            Errand::Handshake { within } => {
                let rtt_us = self.way.shortest() + jitter;
                let event = if self.way.there {
                    let at = self.now + Duration::from_micros(rtt_us.into());
                    (at, Event::Handshake(Some(rtt_us)))
                } else {
                    (self.now + within, Event::Handshake(None))
                };
                self.events.push(event);
            }
        }
    }

    fn status(&self) -> Status {
        self.links.status(self.now)[0]
    }
}

/// Runs a scenario with many seeds, and names the one that fails.
fn simulate(count: u64, scenario: impl Fn(u64)) {
    struct Witness(u64);
    impl Drop for Witness {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("to see this again: POSTHASTE_SEED={}", self.0);
            }
        }
    }
    let first = std::env::var("POSTHASTE_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + count {
        let _witness = Witness(seed);
        scenario(seed);
    }
}

fn some_rtt(seed: u64) -> u32 {
    [300, 2_000, 20_000, 80_000, 250_000, 600_000][usize::try_from(seed % 6).unwrap()]
}

#[test]
fn a_link_is_measured_soon_and_then_says_nothing_new() {
    simulate(24, |seed| {
        let mut way = Way::of(some_rtt(seed));
        way.jitter_us = 900;
        let mut world = World::new(seed, way);
        world.until(secs(2), |report| report.state == State::Up);
        world.run(secs(30));
        let before = world.reports.len();
        world.run(secs(3_600));
        assert!(world.reports.len() - before <= 1, "{:?}", world.reports);
        let status = world.status();
        assert_eq!(status.report.loss_ppm, Some(0));
        assert_eq!(status.report.source, Some(Source::Stamp));
        assert!(!differs(status.report.rtt_us.unwrap(), some_rtt(seed)));
    });
}

#[test]
fn probes_are_as_frequent_as_the_schedule_says() {
    simulate(6, |seed| {
        for (in_use, expected) in [(false, 360.0), (true, 3_600.0)] {
            let mut world = World::settled(seed, Way::of(20_000), in_use);
            let before = world.probes;
            world.run(secs(3_600));
            let ratio = (world.probes - before) as f64 / expected;
            assert!((0.9..1.1).contains(&ratio), "{in_use}: {ratio}");
        }
    });
}

#[test]
fn noise_costs_no_more_than_its_budget() {
    simulate(8, |seed| {
        let mut way = Way::of(20_000);
        (way.jitter_us, way.loss) = (50_000, 30);
        let mut world = World::settled(seed, way, false);
        let before = world.probes;
        world.run(secs(3_600));
        let most = 360 * 11 / 10 + 16 + 1_800;
        assert!(world.probes - before <= most, "{}", world.probes - before);
    });
}

#[test]
fn a_link_in_use_that_becomes_longer_is_known_within_three_seconds() {
    simulate(60, |seed| {
        let mut world = World::settled(seed, Way::of(some_rtt(seed)), true);
        let longer = some_rtt(seed) * 2 + 5_000;
        world.way.rtt_us = vec![longer; 4];
        let limit = secs(3) + Duration::from_micros(u64::from(longer) * 4);
        world.until(limit, |report| {
            report.rtt_us.is_some_and(|rtt| !differs(rtt, longer))
        });
        world.way.rtt_us = vec![some_rtt(seed); 4];
        let shorter = some_rtt(seed);
        world.until(limit, |report| {
            report.rtt_us.is_some_and(|rtt| !differs(rtt, shorter))
        });
    });
}

#[test]
fn of_several_ways_the_shortest_that_is_left_counts() {
    simulate(50, |seed| {
        let mut way = Way::of(40_000);
        way.rtt_us[usize::try_from(seed % 4).unwrap()] = 20_000;
        let mut world = World::settled(seed, way, true);
        assert_eq!(world.status().report.rtt_us, Some(20_000));
        world.way.rtt_us = vec![40_000; 4];
        world.until(secs(8), |report| report.rtt_us == Some(40_000));
    });
}

#[test]
fn a_link_in_use_that_ends_is_dead_within_seconds_and_comes_back() {
    simulate(48, |seed| {
        let mut world = World::settled(seed, Way::of(some_rtt(seed)), true);
        world.way.there = false;
        let patience = Duration::from_micros(u64::from(some_rtt(seed)) * 2);
        let patience = patience.max(Duration::from_millis(300));
        // The next probe, half of another wait, and a handshake.
        let handshake = (patience * 3).clamp(secs(1), secs(2));
        let limit = Duration::from_millis(1_350) + patience * 3 / 2 + handshake;
        let took = world.until(limit, |report| report.state == State::Dead);
        let most = if some_rtt(seed) <= 150_000 { 3 } else { 6 };
        assert!(took <= secs(most), "{took:?}");
        assert_eq!(world.status().report.rtt_us, None, "absent, not 0");
        world.run(secs(300));
        world.way.there = true;
        let limit = secs(4) + Duration::from_micros(u64::from(some_rtt(seed)) * 4);
        world.until(limit, |report| report.state == State::Up);
        world.run(secs(60));
        let status = world.status();
        assert_eq!(status.report.rtt_us, Some(some_rtt(seed)));
        assert!(!status.udp_blocked);
    });
}

#[test]
fn a_link_that_nobody_uses_is_dead_within_an_interval_and_a_few_seconds() {
    simulate(50, |seed| {
        let mut world = World::settled(seed, Way::of(some_rtt(seed)), false);
        world.way.there = false;
        world.until(secs(12) + secs(6), |report| report.state == State::Dead);
    });
}

#[test]
fn where_udp_is_blocked_handshakes_tell_and_udp_is_tried_again() {
    simulate(24, |seed| {
        let mut way = Way::of(some_rtt(seed));
        way.udp = false;
        let mut world = World::new(seed, way);
        world.until(secs(5), |report| report.state == State::Up);
        world.run(secs(120));
        let status = world.status();
        assert!(status.udp_blocked);
        assert_eq!(status.report.source, Some(Source::Handshake));
        assert_eq!(status.report.rtt_us, Some(some_rtt(seed)));
        assert_eq!(
            status.report.loss_ppm, None,
            "that UDP is blocked is no loss"
        );
        let before = world.probes;
        world.run(secs(3_600));
        assert!(world.probes - before <= 170, "{}", world.probes - before);
        world.way.udp = true;
        world.run(secs(60));
        let status = world.status();
        assert_eq!(status.report.source, Some(Source::Stamp), "{status:?}");
        assert!(!status.udp_blocked);
        // A short failure of UDP alone is over soon.
        world.way.udp = false;
        world.run(secs(14));
        assert!(world.status().udp_blocked);
        world.way.udp = true;
        world.run(secs(12));
        assert!(!world.status().udp_blocked);
        // And it may be gone for good.
        world.way.udp = false;
        world.run(secs(60));
        assert!(world.status().udp_blocked);
        world.way.there = false;
        world.until(secs(20), |report| report.state == State::Dead);
    });
}

#[test]
fn loss_is_measured_and_kills_no_link() {
    simulate(30, |seed| {
        let mut way = Way::of(some_rtt(seed));
        way.loss = 10;
        let mut world = World::settled(seed, way, true);
        world.run(secs(3_000));
        let loss_ppm = world.status().report.loss_ppm.unwrap();
        // Of 128 probes; four standard deviations.
        assert!((1..=206_000).contains(&loss_ppm), "{loss_ppm}");
        let dead = |(_, report): &(Duration, Report)| report.state == State::Dead;
        assert!(!world.reports.iter().any(dead), "{:?}", world.reports);
    });
}

#[test]
fn a_host_that_was_stopped_does_not_call_links_dead() {
    simulate(30, |seed| {
        let mut world = World::settled(seed, Way::of(20_000), true);
        let before = world.links.status(world.now)[0].counts.lost;
        // A probe is on its way when the host stops; its answer waits meanwhile.
        while world.events.is_empty() {
            assert!(world.step(world.now + secs(10)));
            while let Some(order) = world.links.next_order(world.now) {
                world.carry_out(order.errand);
            }
        }
        world.links.deadline();
        world.now += secs(60);
        let (_, event) = world.events.remove(0);
        assert_eq!(world.links.next_order(world.now - secs(60)), None);
        world.links.deadline();
        let first = world.links.next_order(world.now);
        first
            .into_iter()
            .for_each(|order| world.carry_out(order.errand));
        let Event::Answer(probe, rtt_us) = event else {
            panic!("no handshake is needed");
        };
        assert!(
            world
                .links
                .on_answer(peer(), probe, Some(rtt_us), world.now)
        );
        world.run(secs(10));
        let status = world.status();
        assert_eq!(
            (status.counts.lost, status.report.state),
            (before, State::Up)
        );
    });
}

#[test]
fn whatever_happens_in_the_end_it_tells_the_truth() {
    simulate(200, |seed| {
        let mut world = World::new(seed, Way::of(some_rtt(seed)));
        for _ in 0..12 {
            let chance = |world: &mut World, times| world.rng.below(times);
            match chance(&mut world, 7) {
                0 => world.way.there = !world.way.there,
                1 => world.way.udp = !world.way.udp,
                2 => world.way.loss = chance(&mut world, 60),
                3 => world.way.jitter_us = chance(&mut world, 200_000),
                4 => {
                    let port = chance(&mut world, 4);
                    world.way.rtt_us[port] =
                        300 + u32::try_from(chance(&mut world, 700_000)).unwrap();
                }
                5 => {
                    let now = world.now;
                    let in_use = chance(&mut world, 2) == 0;
                    world.links.set_in_use(peer(), in_use, now);
                }
                _ => {
                    let now = world.now;
                    let rtt_us = world.way.shortest();
                    world.links.on_hop(peer(), rtt_us, now, now);
                    world.links.suspect(peer(), now);
                }
            }
            let length = Duration::from_millis(u64::try_from(chance(&mut world, 40_000)).unwrap());
            world.run(length);
        }
        (world.way.loss, world.way.jitter_us) = (0, 0);
        world.run(secs(600));
        let report = world.status().report;
        if world.way.there {
            assert_eq!(report.state, State::Up);
            let (known, truth) = (report.rtt_us.unwrap(), world.way.shortest());
            assert!(!differs(known, truth), "{known} {truth} {:#?}", world.links);
        } else {
            assert_eq!((report.state, report.rtt_us), (State::Dead, None));
        }
        let (_, last) = world.reports.last().unwrap();
        assert!(!report.is_news(Some(last)), "{report:?} {last:?}");
    });
}

#[test]
fn a_link_that_is_to_be_measured_more_often_does_not_become_unknown() {
    simulate(60, |seed| {
        let mut way = Way::of(some_rtt(seed));
        way.udp = !seed.is_multiple_of(3);
        let mut world = World::settled(seed, way, false);
        world.run(secs(120));
        let before = world.reports.len();
        let leisurely = secs(100);
        for _ in 0..6 {
            let wait = Duration::from_millis(world.rng.below(20_000) as u64);
            world.run(wait);
            let now = world.now;
            world.links.set_in_use(peer(), true, now);
            world.run(secs(20));
            let now = world.now;
            world.links.set_in_use(peer(), false, now);
            let wait = Duration::from_millis(world.rng.below(200_000) as u64);
            world.run(wait);
            let now = world.now;
            world.links.set_wanted([(peer(), secs(1))].into(), now);
            world.run(secs(20));
            let now = world.now;
            world.links.set_wanted([(peer(), leisurely)].into(), now);
        }
        let unknown = |(_, report): &&(Duration, Report)| report.state != State::Up;
        let reports = &world.reports[before..];
        assert_eq!(reports.iter().find(unknown), None);
    });
}

#[test]
fn a_link_is_measured_as_often_as_the_controller_wants() {
    simulate(6, |seed| {
        let mut world = World::settled(seed, Way::of(20_000), false);
        for (seconds, in_use, expected) in
            [(2, false, 1800.0), (100, false, 36.0), (100, true, 3600.0)]
        {
            let now = world.now;
            world.links.set_in_use(peer(), in_use, now);
            world
                .links
                .set_wanted([(peer(), secs(seconds))].into(), now);
            let peers = [peer()];
            // Other nodes may come at any time.
            world.links.set_peers(SCHEDULE, &peers, now);
            let before = world.probes;
            world.run(secs(3_600));
            let ratio = (world.probes - before) as f64 / expected;
            assert!((0.8..1.2).contains(&ratio), "{seconds}: {ratio}");
        }
        let now = world.now;
        world.links.set_wanted(HashMap::new(), now);
        assert_eq!(world.status().interval, SCHEDULE.interval_in_use);
    });
}
