// SPDX-License-Identifier: Apache-2.0
//! What is known of CUBIC, Reno and BBR, shown by their models; and that no schedule stalls.

use std::time::Duration;

use super::{Acks, Bbr, Cubic, Discipline, Loss, PACKET, Policer, Reno, Rule, Sender};
use super::{mbits, percent, product, trials};
use crate::{Rng, schedules, simulate};

type Path = super::Path<Box<dyn Rule>>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn cubic(starts: Duration) -> Sender<Box<dyn Rule>> {
    Sender::new(Box::new(Cubic::default()), starts)
}

fn reno(starts: Duration) -> Sender<Box<dyn Rule>> {
    Sender::new(Box::new(Reno::default()), starts)
}

fn bbr(starts: Duration, seed: u64) -> Sender<Box<dyn Rule>> {
    Sender::new(Box::new(Bbr::new(seed)), starts)
}

/// A path without a limit that matters, which loses so many packets in a million.
fn lossy(round: Duration, per_million: u64, sender: Sender<Box<dyn Rule>>) -> Path {
    let mut path = Path::new(1, mbits(2000), round, vec![sender]);
    path.link.loss = Loss::random(per_million);
    path
}

/// Packets in flight on average, by what is delivered in a time.
fn mean_window(mut path: Path, round: Duration, time: Duration) -> f64 {
    path.run(s(20));
    let packets = path.run(time)[0] as f64 / PACKET as f64;
    packets / (time.as_secs_f64() / round.as_secs_f64())
}

/// RFC 9438 section 5.1: 1.054 by the round trip to 0.75 and the loss to -0.75.
#[test]
fn cubic_has_its_response_function() {
    for (round, per_million) in [(ms(100), 200), (ms(200), 500)] {
        let expected =
            1.054 * round.as_secs_f64().powf(0.75) / (per_million as f64 / 1e6).powf(0.75);
        let window = mean_window(lossy(round, per_million, cubic(s(0))), round, s(800));
        let part = window / expected;
        assert!((0.8..1.25).contains(&part), "{window:.0} of {expected:.0}");
    }
}

/// RFC 9438 section 4.3: where the round trip is short, it is as fast as Reno.
#[test]
fn cubic_is_friendly_to_reno() {
    let window = mean_window(lossy(ms(10), 1000, cubic(s(0))), ms(10), s(60));
    let of_reno = mean_window(lossy(ms(10), 1000, reno(s(0))), ms(10), s(60));
    let part = window / of_reno;
    assert!((0.8..1.3).contains(&part), "{window:.0} of {of_reno:.0}");
}

/// RFC 5681 and its response function: the root of 1.5 by the loss.
#[test]
fn reno_has_its_response_function() {
    for per_million in [500, 2000] {
        let expected = (1.5 / (per_million as f64 / 1e6)).sqrt();
        let window = mean_window(lossy(ms(50), per_million, reno(s(0))), ms(50), s(400));
        let part = window / expected;
        assert!((0.8..1.2).contains(&part), "{window:.1} of {expected:.1}");
    }
}

#[test]
fn equals_share() {
    for (name, first, second) in [
        ("cubic", cubic(s(0)), cubic(s(5))),
        ("reno", reno(s(0)), reno(s(5))),
        ("bbr", bbr(s(0), 1), bbr(s(5), 2)),
    ] {
        let mut path = Path::new(1, mbits(20), ms(40), vec![first, second]);
        path.run(s(30));
        let got = path.run(s(60));
        let ratio = got[0] as f64 / got[1] as f64;
        assert!((0.6..1.6).contains(&ratio), "{name}: {ratio:.2}");
        let used = percent(got.iter().sum(), mbits(20), s(60));
        assert!(used >= 95, "{name}: {used} %");
    }
}

/// Alone, CUBIC fills a queue, and BBR has little more than what the path holds in flight.
#[test]
fn deep_queue_is_filled_by_cubic_only() {
    for (name, sender, least, most) in [
        ("cubic", cubic(s(0)), 250, 400),
        ("reno", reno(s(0)), 200, 400),
        ("bbr", bbr(s(0), 1), 0, 60),
    ] {
        let mut path = Path::new(1, mbits(20), ms(40), vec![sender]);
        path.link.queue.bytes_max *= 4;
        path.run(s(20));
        let used = percent(path.run(s(60))[0], mbits(20), s(60));
        let queue = path.link.queue.mean() * 100 / product(mbits(20), ms(40));
        assert!(used >= 95, "{name}: {used} %");
        assert!((least..=most).contains(&queue), "{name}: {queue} %");
    }
}

/// Two products, and what bursts need.
#[test]
fn bbr_may_have_two_products_in_flight() {
    let mut path = Path::new(1, mbits(20), ms(40), vec![bbr(s(0), 1)]);
    path.run(s(3));
    for _ in 0..50 {
        path.run(ms(100));
        let window = path.senders[0].rule.window() * 100 / product(mbits(20), ms(40));
        assert!((190..=240).contains(&window), "{window} %");
    }
}

/// Every 10 s BBR has four packets in flight for 200 ms, if the least round trip was not seen since.
#[test]
fn bbr_probes_the_round_trip() {
    let mut path = Path::new(1, mbits(20), ms(40), vec![bbr(s(0), 1), bbr(s(0), 2)]);
    path.run(s(20));
    let mut empty: Vec<u64> = Vec::new();
    for step in 0..3000 {
        path.run(ms(10));
        if path
            .senders
            .iter()
            .all(|one| one.rule.window() <= 4 * PACKET)
        {
            empty.push(step * 10);
        }
    }
    let begins: Vec<u64> = empty
        .iter()
        .copied()
        .filter(|at| !empty.contains(&at.wrapping_sub(10)))
        .collect();
    assert!((2..=4).contains(&begins.len()), "{begins:?}");
    assert!(
        begins.windows(2).all(|two| two[1] - two[0] >= 9900),
        "{begins:?}"
    );
    let each = empty.len() as u64 * 10 / begins.len() as u64;
    assert!((150..=400).contains(&each), "{each} ms");
}

#[test]
fn random_loss_stops_cubic_but_not_bbr() {
    let mut got = Vec::new();
    for sender in [cubic(s(0)), bbr(s(0), 1)] {
        let mut path = Path::new(1, mbits(40), ms(80), vec![sender]);
        path.link.loss = Loss::random(20_000);
        path.run(s(5));
        got.push(percent(path.run(s(30))[0], mbits(40), s(30)));
    }
    assert!(got[0] <= 8 && got[1] >= 85, "{got:?}");
}

/// In a short queue BBR leaves little to CUBIC.
#[test]
fn bbr_takes_short_queues() {
    let mut path = Path::new(1, mbits(20), ms(40), vec![cubic(s(0)), bbr(s(1), 1)]);
    path.link.queue.bytes_max /= 4;
    path.run(s(10));
    let got = path.run(s(40));
    assert!(got[0] * 4 < got[1], "{got:?}");
}

#[test]
fn bbr_finds_a_policer() {
    let mut path = Path::new(1, mbits(100), ms(40), vec![bbr(s(0), 1)]);
    path.link.policer = Some(Policer::new(mbits(20), 50_000));
    path.run(s(10));
    let (sent, dropped) = (path.sent, path.dropped());
    let used = percent(path.run(s(40))[0], mbits(20), s(40));
    let lost = (path.dropped() - dropped) * 100 / (path.sent - sent);
    assert!(used >= 85 && lost <= 15, "{used} %, {lost} % lost");
}

#[test]
fn codel_keeps_the_queue_of_cubic_short() {
    for is_ecn in [false, true] {
        let mut sender = cubic(s(0));
        sender.is_ecn = is_ecn;
        let mut path = Path::new(1, mbits(20), ms(40), vec![sender]);
        path.link.queue.bytes_max *= 4;
        path.link.queue.discipline = Discipline::CoDel;
        path.run(s(10));
        let (dropped, marked) = (path.dropped(), path.link.queue.marked);
        let used = percent(path.run(s(40))[0], mbits(20), s(40));
        let queue = path.link.queue.mean() * 1000 / mbits(20);
        assert!(used >= 85 && queue <= 10, "{used} %, {queue} ms");
        let (dropped, marked) = (path.dropped() - dropped, path.link.queue.marked - marked);
        assert_eq!(dropped > 0, !is_ecn);
        assert_eq!(marked > 0, is_ecn);
    }
}

#[test]
fn hystart_spares_losses() {
    let dropped = |sender| {
        let mut path = Path::new(1, mbits(100), ms(100), vec![sender]);
        path.run(s(5));
        path.dropped()
    };
    let careful = Sender::new(Box::new(Cubic::with_hystart()) as Box<dyn Rule>, s(0));
    let (without, with) = (dropped(cubic(s(0))), dropped(careful));
    assert!(without > 300 && with < without / 5, "{without}, {with}");
}

/// Packets that overtake others are not taken for lost for long, and what was is restored.
#[test]
fn reordering_costs_cubic_little() {
    let mut path = Path::new(1, mbits(20), ms(40), vec![cubic(s(0))]);
    path.link.reordered = (20, ms(8));
    path.run(s(5));
    let used = percent(path.run(s(30))[0], mbits(20), s(30));
    assert!(used >= 85, "{used} %");
}

/// An ACK for many packets is as good as many ACKs.
#[test]
fn thin_acks_carry_as_much() {
    for acks in [
        Acks {
            every: 16,
            ..Acks::default()
        },
        Acks {
            interval: ms(8),
            ..Acks::default()
        },
    ] {
        for sender in [cubic(s(0)), bbr(s(0), 1)] {
            let mut path = Path::new(1, mbits(20), ms(40), vec![sender]);
            path.acks = acks;
            path.run(s(10));
            let used = percent(path.run(s(30))[0], mbits(20), s(30));
            assert!(used >= 90, "{acks:?}: {used} %");
        }
    }
}

#[test]
fn schedules_follow_from_the_seed() {
    let run = |seed| {
        let mut path = Path::new(seed, mbits(10), ms(40), vec![cubic(s(0)), bbr(s(1), 1)]);
        path.link.loss = Loss::bursts(10_000, 3);
        path.link.jitter = ms(3);
        path.run(s(10))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

fn any_rule(rng: &mut Rng) -> Box<dyn Rule> {
    match rng.below(4) {
        0 => Box::new(Cubic::default()),
        1 => Box::new(Cubic::with_hystart()),
        2 => Box::new(Reno::default()),
        _ => Box::new(Bbr::new(rng.next())),
    }
}

/// Whatever the path does, each transfer ends, and no more is delivered than was to be.
#[test]
fn no_transfer_stalls() {
    simulate(schedules(300), |mut rng| {
        let mut path = trials::any(&mut rng, any_rule);
        // A burst of losses may take a single packet many times, at doubling intervals.
        path.run(s(3000));
        for sender in &path.senders {
            assert!(sender.finished.is_some(), "{} bytes", sender.delivered());
        }
    });
}
