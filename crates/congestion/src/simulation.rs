// SPDX-License-Identifier: Apache-2.0
//! The control beside models of others at a simulated bottleneck.

use std::time::Duration;

use posthaste_testkit::bottleneck::trials::{self, Limit, Other, Site, Step};
use posthaste_testkit::bottleneck::{Acked, Acks, PACKET, Rule, Sender, mbits, percent};
use posthaste_testkit::{Rng, schedules, simulate};

use super::{Ack, Control, Known};

#[derive(Debug)]
struct Own(Control);

fn own() -> Box<dyn Rule> {
    started(None)
}

fn started(known: Option<Known>) -> Box<dyn Rule> {
    Box::new(Own(Control::new(u16::try_from(PACKET).unwrap(), known)))
}

/// The lower bits, as those of a kernel's counters.
fn narrow(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap()
}

impl Rule for Own {
    fn window(&self) -> u64 {
        self.0.window().into()
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        match self.0.pacing_rate() {
            0 => 2 * self.window() * 1_000_000_000 / smoothed_ns,
            rate => u64::from(rate) * 1000,
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        self.0.on_ack(&Ack {
            now_ms: narrow(acked.now_ns / 1_000_000),
            now_us: narrow(acked.now_ns / 1000),
            acked: narrow(acked.acked),
            lost: narrow(acked.lost),
            marked: narrow(acked.marked),
            former_in_flight: narrow(acked.former_in_flight),
            rtt_us: narrow(acked.rtt_ns / 1000),
            delivered: narrow(acked.delivered),
            prior_delivered: narrow(acked.rate.prior_delivered),
            is_app_limited: acked.rate.is_app_limited,
        });
    }

    fn on_timeout(&mut self, now_ns: u64, _lost: u64) {
        self.0.on_timeout(narrow(now_ns / 1_000_000));
    }
}

/// Rates in Mbit/s and round trips in milliseconds.
const PATHS: [(u64, u64); 4] = [(20, 20), (20, 100), (100, 20), (100, 100)];

fn sites(limit: Limit) -> impl Iterator<Item = Site> {
    PATHS.into_iter().map(move |(rate, round_ms)| Site {
        rate,
        round_ms,
        limit,
    })
}

/// The geometric mean of what seeds show.
fn mean(figure: impl Fn(u64) -> f64) -> f64 {
    let count = schedules(4);
    let sum: f64 = (0..count).map(|seed| figure(seed).ln()).sum();
    (sum / count as f64).exp()
}

#[test]
fn state_fits_a_kernels_socket() {
    assert!(size_of::<Control>() <= 104, "{}", size_of::<Control>());
}

fn shares_with_cubic(limit: Limit, least: f64, most: f64) {
    for site in sites(limit) {
        for count in [1, 4] {
            let share = mean(|seed| trials::share(site, seed, own(), Other::Cubic(count)));
            println!("{site:?} beside {count}: {share:.2}");
            assert!(
                (least..=most).contains(&share),
                "{site:?} beside {count}: {share:.2}"
            );
        }
    }
}

/// At 20 Mbit/s and 20 ms this queue has four packets.
#[test]
fn shares_a_tenth_with_cubic() {
    shares_with_cubic(Limit::Queue(100), 0.5, 2.5);
}

#[test]
fn shares_a_fourth_with_cubic() {
    shares_with_cubic(Limit::Queue(250), 0.5, 2.0);
}

#[test]
fn shares_one_product_with_cubic() {
    shares_with_cubic(Limit::Queue(1000), 0.5, 2.0);
}

#[test]
fn shares_four_products_with_cubic() {
    shares_with_cubic(Limit::Queue(4000), 0.5, 2.0);
}

#[test]
fn shares_codel_with_cubic() {
    shares_with_cubic(Limit::CoDel, 0.5, 2.0);
}

#[test]
fn shares_marks_with_cubic() {
    shares_with_cubic(Limit::CoDelEcn, 0.5, 2.0);
}

/// The bursts of CUBIC find the bucket empty.
#[test]
fn shares_policers_with_cubic() {
    shares_with_cubic(Limit::Policer, 0.5, 3.5);
}

#[test]
fn shares_with_bbr() {
    for (part, least) in [(1000, 0.1), (4000, 0.3)] {
        for site in sites(Limit::Queue(part)) {
            let share = mean(|seed| trials::share(site, seed, own(), Other::Bbr(1)));
            println!("{site:?}: {share:.2}");
            assert!(share >= least, "{site:?}: {share:.2}");
        }
    }
}

#[test]
fn shares_with_its_like() {
    for limit in [
        Limit::Queue(100),
        Limit::Queue(250),
        Limit::Queue(1000),
        Limit::Queue(4000),
        Limit::CoDel,
        Limit::CoDelEcn,
        Limit::Policer,
    ] {
        for site in sites(limit) {
            let share = mean(|seed| trials::share_of_second(site, seed, [own(), own()]));
            println!("{site:?}: {share:.2}");
            assert!((0.6..=1.5).contains(&share), "{site:?}: {share:.2}");
        }
    }
}

#[test]
fn alone_fills_the_path_and_no_queue() {
    for (limit, least, queue) in [
        (Limit::Queue(100), 0.85, 0.1),
        (Limit::Queue(250), 0.87, 0.2),
        (Limit::Queue(1000), 0.95, 0.6),
        (Limit::Queue(4000), 0.95, 0.6),
        (Limit::CoDel, 0.87, 0.3),
        (Limit::CoDelEcn, 0.87, 0.3),
        (Limit::Policer, 0.87, 0.1),
    ] {
        for site in sites(limit) {
            let alone = trials::alone(site, 1, own(), 0);
            println!("{site:?}: {alone:?}");
            let is_good = alone.used >= least && alone.queue <= queue && alone.dropped < 0.015;
            assert!(is_good, "{site:?}: {alone:?}");
        }
    }
}

/// A short queue that overflows hides what is lost at random.
#[test]
fn random_loss_costs_little() {
    for (limit, at_one, at_five) in [
        (Limit::Queue(250), 0.75, 0.75),
        (Limit::Queue(1000), 0.93, 0.87),
        (Limit::Queue(4000), 0.93, 0.87),
        (Limit::CoDel, 0.9, 0.85),
    ] {
        for (loss, least) in [(10_000, at_one), (50_000, at_five)] {
            for site in sites(limit) {
                let used = mean(|seed| trials::alone(site, seed, own(), loss).used);
                let what = format!("{site:?}, {loss} in a million lost: {used:.2}");
                println!("{what}");
                assert!(used >= least, "{what}");
            }
        }
    }
}

#[test]
fn changes_are_followed() {
    for (rate, round_ms, step) in [
        (20, 40, Step::Round(250)),
        (20, 100, Step::Round(200)),
        (20, 250, Step::Round(40)),
        (20, 40, Step::Rate(100)),
        (20, 100, Step::Rate(100)),
        (20, 40, Step::Rate(5)),
    ] {
        let site = Site {
            rate,
            round_ms,
            limit: Limit::Queue(1000),
        };
        let mut times: Vec<Duration> = (0..schedules(9))
            .map(|seed| trials::recovery(site, seed, own(), step))
            .collect();
        times.sort();
        println!("{site:?}, {step:?}: {times:?}");
        assert!(
            times[times.len() / 2] <= Duration::from_secs(2),
            "{site:?}, {step:?}: {times:?}"
        );
    }
}

/// A connection over a path that another one knows.
#[test]
fn known_path_is_filled_at_once() {
    let site = Site {
        rate: 400,
        round_ms: 100,
        limit: Limit::Queue(1000),
    };
    for (loss, cold, warm) in [(0, 1100, 250), (10_000, 1250, 450), (50_000, 1350, 550)] {
        let known = Known {
            rate: 50_000,
            rtt_us: 100_000,
            loss: narrow16(loss),
        };
        let time = |known| {
            mean(|seed| trials::transfer(site, seed, started(known), 5_000_000, loss).as_secs_f64())
        };
        let (without, with) = (time(None) * 1000.0, time(Some(known)) * 1000.0);
        println!("{loss} in a million lost: {without:.0} and {with:.0} ms");
        assert!(
            without <= f64::from(cold) && with <= f64::from(warm),
            "{loss} in a million lost: {without:.0} and {with:.0} ms"
        );
    }
}

/// No other connection knows that the path loses packets at random.
#[test]
fn unknown_path_is_filled_soon() {
    for part in [250, 1000] {
        let site = Site {
            rate: 20,
            round_ms: 40,
            limit: Limit::Queue(part),
        };
        for (loss, most) in [(0, 2.4), (10_000, 3.2), (50_000, 3.2)] {
            let time =
                mean(|seed| trials::transfer(site, seed, own(), 5_000_000, loss).as_secs_f64());
            let what = format!("{site:?}, {loss} in a million lost: {time:.2} s");
            println!("{what}");
            assert!(time <= most, "{what}");
        }
    }
}

fn narrow16(per_million: u64) -> u16 {
    u16::try_from((per_million << 16) / 1_000_000).unwrap()
}

/// Few ACKs, ACKs in groups, jitter, and packets that overtake others.
#[test]
fn coarse_acks_cost_little() {
    let site = Site {
        rate: 20,
        round_ms: 40,
        limit: Limit::Queue(1000),
    };
    for (every, interval, jitter, reordered, least) in [
        (16, 0, 0, 0, 85),
        (2, 8, 0, 0, 85),
        (2, 0, 4, 0, 85),
        (2, 0, 0, 20, 85),
    ] {
        let ms = Duration::from_millis;
        let mut path = site.path(1, vec![Sender::new(own(), Duration::ZERO)]);
        path.acks = Acks {
            every,
            interval: ms(interval),
            ..Acks::default()
        };
        path.link.jitter = ms(jitter);
        path.link.reordered = (reordered, ms(8));
        path.run(Duration::from_secs(10));
        let time = Duration::from_secs(30);
        let used = percent(path.run(time)[0], mbits(20), time);
        println!("every {every}, {interval} ms, jitter {jitter}, reordered {reordered}: {used} %");
        assert!(
            used >= least,
            "every {every}, {interval} ms, jitter {jitter}, reordered {reordered}: {used} %"
        );
    }
}

/// Small requests cost a transfer beside them no more than they send.
#[test]
fn bulk_bears_small_requests() {
    for per_s in [2, 10, 150] {
        let site = Site {
            rate: 50,
            round_ms: 40,
            limit: Limit::Queue(1000),
        };
        let every = Duration::from_secs(1) / per_s;
        let small = Sender::of_requests(own(), Duration::ZERO, 2000, every);
        let mut path = site.path(1, vec![Sender::new(own(), Duration::ZERO), small]);
        path.run(Duration::from_secs(10));
        let time = Duration::from_secs(30);
        let got = path.run(time);
        let used = percent(got[0], mbits(50), time);
        println!("{per_s} requests a second: {used} %");
        assert!(used >= 90, "{per_s} requests a second: {used} %");
    }
}

/// Many senders at a slow path: each has its part, and the queue bears them.
#[test]
fn many_share_a_slow_path() {
    let site = Site {
        rate: 10,
        round_ms: 40,
        limit: Limit::Queue(1000),
    };
    let starts = (0..30).map(|place| Duration::from_millis(100 * place));
    let mut path = site.path(1, starts.map(|at| Sender::new(own(), at)).collect());
    path.run(Duration::from_secs(20));
    let (sent, dropped) = (path.sent, path.dropped());
    let time = Duration::from_secs(60);
    let mut got = path.run(time);
    got.sort_unstable();
    let used = percent(got.iter().sum(), mbits(10), time);
    let dropped = (path.dropped() - dropped) * 100 / (path.sent - sent);
    println!("{used} %, {dropped} % dropped, {got:?}");
    assert!(used >= 95 && dropped <= 15, "{used} %, {dropped} % dropped");
    assert!(got[0] * 4 >= got[29], "{got:?}");
}

#[test]
fn no_transfer_stalls() {
    simulate(schedules(300), |mut rng| {
        let mut path = trials::any(&mut rng, |_| own());
        path.run(Duration::from_secs(3000));
        for sender in &path.senders {
            assert!(sender.finished.is_some(), "{} bytes", sender.delivered());
        }
    });
}

/// Whatever a receiver reports, the window stays within its bounds.
#[test]
fn any_acks_are_borne() {
    simulate(schedules(200), |mut rng| {
        let mss = 500 + rng.below(9000_u16);
        let known = rng.perhaps(|rng| Known {
            rate: any(rng),
            rtt_us: 1 + any(rng) / 2,
            loss: rng.below(u16::MAX),
        });
        let mut control = Control::new(mss, known);
        for _ in 0..2000 {
            control.on_ack(&Ack {
                now_ms: any(&mut rng),
                now_us: any(&mut rng),
                acked: any(&mut rng),
                lost: any(&mut rng),
                marked: any(&mut rng),
                former_in_flight: any(&mut rng),
                rtt_us: any(&mut rng),
                delivered: any(&mut rng),
                prior_delivered: any(&mut rng),
                is_app_limited: rng.once_in(2),
            });
            if rng.once_in(50) {
                control.on_timeout(any(&mut rng));
            }
            let least = 2 * u32::from(mss);
            assert!((least..=1 << 30).contains(&control.window()));
        }
    });
}

/// A number of any size, often zero.
fn any(rng: &mut Rng) -> u32 {
    if rng.once_in(3) {
        return 0;
    }
    narrow(rng.next() >> (32 + rng.below(32_u32)))
}
