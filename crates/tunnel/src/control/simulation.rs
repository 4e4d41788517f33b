// SPDX-License-Identifier: Apache-2.0
//! Senders with this control, and with CUBIC, that share a bottleneck.

use std::time::Duration;

use posthaste_testkit::bottleneck::{
    self, Acked, Cubic, Loss, PACKET, Path, Sender, mbits, percent,
};

use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Debug)]
enum Rule {
    Own(Box<Control>),
    Cubic(Cubic),
}

impl bottleneck::Rule for Rule {
    fn window(&self) -> u64 {
        match self {
            Self::Own(control) => control.window(),
            Self::Cubic(cubic) => cubic.window(),
        }
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        match self {
            // As the pacer of quinn-proto: 1.25 windows in a round trip.
            Self::Own(control) => control.window() * 1_250_000_000 / smoothed_ns,
            Self::Cubic(_) => 0,
        }
    }

    fn on_sent(&mut self, now_ns: u64, in_flight: u64) {
        match self {
            Self::Own(control) => control.on_sent(Duration::from_nanos(now_ns), PACKET),
            Self::Cubic(cubic) => cubic.on_sent(now_ns, in_flight),
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        match self {
            Self::Own(control) => {
                let now = Duration::from_nanos(acked.now_ns);
                if acked.acked > 0 {
                    control.on_ack(now, Duration::from_nanos(acked.sent_ns), acked.acked);
                }
                // As quinn-proto: what is lost is found, and reported, afterwards.
                control.on_acks(now, acked.in_flight + acked.lost, !acked.has_more);
                if acked.lost > 0 {
                    control.on_loss(acked.lost, false);
                }
            }
            Self::Cubic(cubic) => cubic.on_acked(acked),
        }
    }

    fn on_timeout(&mut self, now_ns: u64, lost: u64) {
        match self {
            Self::Own(control) => control.on_loss(lost, false),
            Self::Cubic(cubic) => cubic.on_timeout(now_ns, lost),
        }
    }
}

fn own(starts: Duration) -> Sender<Rule> {
    Sender::new(rule(&Arc::default()), starts)
}

/// One of the connections of a node that share what they know of the path.
fn rule(path: &Arc<super::Path>) -> Rule {
    Rule::Own(Box::new(Control::new(PACKET, path)))
}

fn cubic(starts: Duration) -> Sender<Rule> {
    Sender::new(Rule::Cubic(Cubic::default()), starts)
}

/// A path of 100 Mbit/s and 100 ms with a queue of one product.
fn path(senders: Vec<Sender<Rule>>) -> Path<Rule> {
    Path::new(1, mbits(100), ms(100), senders)
}

#[test]
fn random_loss_costs_what_it_takes() {
    for (loss, least) in [(0, 96), (10, 95), (50, 90), (100, 83)] {
        let mut path = path(vec![own(ms(0))]);
        path.link.loss = Loss::random(loss * 1000);
        path.run(ms(3000));
        let (sent, dropped) = (path.sent, path.dropped());
        let got = percent(path.run(ms(8000))[0], mbits(100), ms(8000));
        assert!(got >= least, "{loss} in 1000 lost: {got} %");
        assert_eq!(path.dropped(), dropped, "of {}", path.sent - sent);
    }
}

#[test]
fn start_overruns_a_queue_by_little() {
    let mut path = path(vec![own(ms(0))]);
    let got = percent(path.run(ms(2000))[0], mbits(100), ms(2000));
    assert!(got >= 65, "{got} %");
    assert!(
        path.dropped() * 100 < path.sent * 2,
        "{} of {}",
        path.dropped(),
        path.sent
    );
}

// promise: K23
#[test]
fn change_of_rate_followed_within_a_second() {
    let mut path = path(vec![own(ms(0))]);
    path.link.rates = vec![
        (ms(0), mbits(100)),
        (ms(7000), mbits(20)),
        (ms(11000), mbits(100)),
    ];
    path.run(ms(7000));
    let (sent, dropped) = (path.sent, path.dropped());
    path.run(ms(1000));
    let slow = percent(path.run(ms(3000))[0], mbits(20), ms(3000));
    path.run(ms(1000));
    let fast = percent(path.run(ms(1000))[0], mbits(100), ms(1000));
    assert!(slow >= 85 && fast >= 90, "{slow} % and {fast} %");
    let (sent, dropped) = (path.sent - sent, path.dropped() - dropped);
    assert!(dropped * 100 < sent * 2, "{dropped} of {sent}");
}

// promise: K23
#[test]
fn fair_to_its_like() {
    for count in [2, 8] {
        let senders = (0..count).map(|place| own(ms(1000 * place)));
        let mut path = path(senders.collect());
        path.run(ms(1000 * count + 20_000));
        let dropped = path.dropped();
        let got = path.run(ms(15_000));
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(*most < least * 2, "{got:?}");
        assert_eq!(path.dropped(), dropped);
    }
}

// promise: K23
#[test]
fn fair_to_cubic() {
    // The queue in halves of the product, and the least ratio: in a deep queue CUBIC gets more.
    for (first, second, rate, queue, least) in [
        (0, 5000, 100, 2, 0.5),
        (5000, 0, 100, 2, 0.5),
        (0, 5000, 100, 4, 0.35),
        (0, 5000, 20, 2, 0.5),
    ] {
        let senders = vec![own(ms(first)), cubic(ms(second))];
        let mut path = Path::new(1, mbits(rate), ms(100), senders);
        path.link.queue.bytes_max = path.link.queue.bytes_max * queue / 2;
        path.run(ms(12_000));
        let got = path.run(ms(40_000));
        let ratio = got[0] as f64 / got[1] as f64;
        assert!(
            (least..=2.0).contains(&ratio),
            "{rate} Mbit/s, queue {queue}: {ratio:.2}"
        );
    }
}

#[test]
fn loss_of_a_sixth_sends_less() {
    let mut path = path(vec![own(ms(0))]);
    path.link.loss = Loss::random(300_000);
    path.run(ms(4000));
    let got = percent(path.run(ms(4000))[0], mbits(100), ms(4000));
    assert!(got < 60, "{got} %");
}

/// A control after 3 s over 100 Mbit/s and 100 ms, as many packets in each millisecond as the path carries.
fn warm() -> (Control, Duration) {
    let mut control = Control::new(PACKET, &Arc::default());
    let mut now = ms(0);
    for _ in 0..3000 {
        now += ms(1);
        control.on_sent(now, PACKET);
        if now > ms(100) {
            on_acks_of(&mut control, now, now - ms(100));
        }
    }
    (control, now)
}

/// All packets of a millisecond are acknowledged.
fn on_acks_of(control: &mut Control, now: Duration, sent: Duration) {
    for _ in 0..mbits(100) / 1000 / PACKET {
        control.on_ack(now, sent, PACKET);
    }
    control.on_acks(now, mbits(100) / 10, false);
}

/// A host stops its processes for a while: all ACKs of that time arrive at once.
#[test]
fn stall_of_the_sender_leaves_the_rate() {
    let (mut control, sent) = warm();
    let rate = control.rate.value();
    for late in (0..100).rev() {
        on_acks_of(&mut control, sent + ms(1200), sent - ms(late));
    }
    assert!(control.rate.value() >= rate * 9 / 10);
}

/// The first packets after a pause are few, and show nothing of the path.
#[test]
fn pause_of_the_sender_leaves_the_rate() {
    let (mut control, mut now) = warm();
    let (rate, window) = (control.rate.value(), control.window());
    for late in (0..100).rev() {
        on_acks_of(&mut control, now + ms(100 - late), now - ms(late));
    }
    control.on_acks(now + ms(100), 0, true);
    now += ms(60_000);
    for _ in 0..20 {
        now += ms(1);
        control.on_sent(now, PACKET);
    }
    for late in (0..20).rev() {
        on_acks_of(&mut control, now + ms(100 - late), now - ms(late));
        assert!(control.rate.value() >= rate * 9 / 10);
        assert!(control.window() >= window * 9 / 10);
    }
}

/// Connections of a node that have sent alone, one after another, and then send all at once.
#[test]
fn connections_that_resume_take_shares() {
    for (count, loss) in [(2, 0), (4, 0), (4, 50), (8, 0)] {
        let known = Arc::default();
        let senders =
            (0..count).map(|place| Sender::of_bytes(rule(&known), ms(4000 * place), 20_000_000));
        let mut path = path(senders.collect());
        path.link.loss = Loss::random(loss * 1000);
        path.run(ms(4000 * count + 5000));
        assert!(path.senders.iter().all(|one| one.finished.is_some()));
        let (dropped, now) = (path.dropped(), path.now);
        path.senders
            .iter_mut()
            .for_each(|one| one.add(now, 20_000_000));
        let got = path.run(ms(1000));
        assert_eq!(
            path.dropped(),
            dropped,
            "{count} senders, {loss} in 1000 lost"
        );
        let sum = percent(got.iter().sum(), mbits(100), ms(900));
        assert!(sum >= 85, "{count} senders, {loss} in 1000 lost: {sum} %");
    }
}

/// Packets of ACKs are reported as sent, and never acknowledged.
#[test]
fn acks_take_no_share() {
    let known = Arc::default();
    let mut path = path(vec![Sender::of_bytes(rule(&known), ms(0), 20_000_000)]);
    path.run(ms(4000));
    let mut others = [(); 3].map(|()| Control::new(PACKET, &known));
    for control in &mut others {
        control.on_sent(path.now, 40);
    }
    let now = path.now;
    path.senders[0].add(now, 10_000_000);
    let got = percent(path.run(ms(1000))[0], mbits(100), ms(900));
    assert!(got >= 85, "{got} %");
}

/// Repair symbols that are lost are not sent again, and no ACK follows.
#[test]
fn lost_repairs_take_no_share() {
    let known = Arc::default();
    let mut path = path(vec![Sender::of_bytes(rule(&known), ms(0), 20_000_000)]);
    path.run(ms(4000));
    let mut other = Control::new(PACKET, &known);
    let mut now = path.now;
    other.on_sent(now, 10 * PACKET);
    let sent = std::mem::replace(&mut now, path.now + ms(100));
    other.on_ack(now, sent, 4 * PACKET);
    other.on_acks(now, 6 * PACKET, true);
    other.on_sent(now, 40);
    other.on_loss(6 * PACKET, false);
    path.senders[0].add(now, 10_000_000);
    path.run(ms(1000));
    let share = Member::of(&known).share().unwrap();
    assert!(share >= mbits(85), "{share}");
}

/// A new connection beside one that knows the path needs no start.
#[test]
fn new_connection_takes_its_share() {
    let known = Arc::default();
    let mut path = path(vec![
        Sender::of_bytes(rule(&known), ms(0), 20_000_000),
        Sender::of_bytes(rule(&known), ms(4000), 10_000_000),
    ]);
    path.run(ms(4000));
    let dropped = path.dropped();
    let got = percent(path.run(ms(1000))[1], mbits(100), ms(800));
    assert!(got >= 85, "{got} %");
    assert_eq!(path.dropped(), dropped);
}

/// Sends a burst, whose packets are acknowledged together 100 ms later.
fn exchange(control: &mut Control, now: &mut Duration, packets: u64, is_limited: bool) {
    control.on_sent(*now, PACKET);
    let sent = std::mem::replace(now, *now + ms(100));
    for _ in 0..packets {
        control.on_ack(*now, sent, PACKET);
    }
    control.on_acks(*now, 0, is_limited);
}

#[test]
fn first_round_trip_shows_what_the_assumed_rate_takes() {
    let mut control = Control::new(PACKET, &Arc::default());
    assert_eq!(control.window(), INITIAL_WINDOW);
    exchange(&mut control, &mut ms(0), 1, true);
    assert_eq!(control.window(), ASSUMED_RATE / 10);
}

#[test]
fn unused_window_does_not_grow() {
    let mut control = Control::new(PACKET, &Arc::default());
    let mut now = ms(0);
    for _ in 0..100 {
        exchange(&mut control, &mut now, 20, true);
    }
    assert_eq!(control.window(), ASSUMED_RATE / 10);
    exchange(&mut control, &mut now, 20, false);
    assert_eq!(control.window(), ASSUMED_RATE / 10 + 20 * PACKET);
}
