// SPDX-License-Identifier: Apache-2.0
//! A simulation of the congestion control of hops: its own source, compiled for this host, drives
//! senders that share a bottleneck.

#![allow(
    clippy::unwrap_used,
    reason = "all of this is a test, its helpers included"
)]

mod equivalence;

use std::ffi::{c_int, c_long};
use std::time::Duration;

use posthaste_testkit::bottleneck::{
    self, Acked, Cubic, Loss, PACKET, Rule, mbits, percent, product,
};
use posthaste_testkit::{schedules, simulate};

type Sender = bottleneck::Sender<Box<dyn Rule>>;
type Path = bottleneck::Path<Box<dyn Rule>>;

/// What the clock of a host shows at first: never zero.
const CLOCK_NS: u64 = 1_000_000_000;

/// More than a socket of `host.c` has.
const SOCKET_WORDS: usize = 32;

// SAFETY: as `host.c` defines them.
unsafe extern "C" {
    fn host_begin(limit: u64);
    fn host_socket_bytes() -> usize;
    fn host_connect(socket: *mut u64, address: u32, mss: u32);
    fn host_send(socket: *mut u64, now: u64);
    fn host_ack(
        socket: *mut u64,
        now: u64,
        rtt_us: c_long,
        acked: u32,
        lost: c_int,
        before: u32,
        after: u32,
        has_more: u32,
    );
    fn host_end(socket: *mut u64);
    fn host_window(socket: *const u64) -> u32;
    fn host_pacing_rate(socket: *const u64) -> u64;
}

/// A connection with the control. Those of one address share a path.
#[derive(Debug)]
struct Connection {
    socket: Box<[u64; SOCKET_WORDS]>,
    /// Bytes lost that no acknowledgement has shown yet.
    lost: u64,
}

impl Connection {
    fn new(address: u32) -> Self {
        let mut socket = Box::new([0; SOCKET_WORDS]);
        let mss = u32::try_from(PACKET).unwrap();
        // SAFETY: the socket has room.
        unsafe {
            assert!(host_socket_bytes() <= size_of_val(&*socket));
            host_connect(socket.as_mut_ptr(), address, mss);
        }
        Self { socket, lost: 0 }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: `host_connect` has made the socket.
        unsafe { host_end(self.socket.as_mut_ptr()) }
    }
}

fn packets(bytes: u64) -> u32 {
    u32::try_from(bytes / PACKET).unwrap()
}

impl Rule for Connection {
    fn window(&self) -> u64 {
        // SAFETY: as above.
        u64::from(unsafe { host_window(self.socket.as_ptr()) }) * PACKET
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        // SAFETY: as above.
        match unsafe { host_pacing_rate(self.socket.as_ptr()) } {
            // As TCP paces until the control sets a rate, in slow start.
            0 => 2 * self.window() * 1_000_000_000 / smoothed_ns,
            rate => rate,
        }
    }

    fn on_sent(&mut self, now_ns: u64, in_flight: u64) {
        if in_flight == 0 {
            // SAFETY: as above.
            unsafe { host_send(self.socket.as_mut_ptr(), CLOCK_NS + now_ns) }
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        let lost = std::mem::take(&mut self.lost) + acked.lost;
        // SAFETY: as above.
        unsafe {
            host_ack(
                self.socket.as_mut_ptr(),
                CLOCK_NS + acked.now_ns,
                (acked.rtt_ns / 1000).try_into().unwrap(),
                packets(acked.acked),
                packets(lost).try_into().unwrap(),
                packets(acked.former_in_flight),
                packets(acked.in_flight),
                acked.has_more.into(),
            );
        }
    }

    fn on_timeout(&mut self, _now_ns: u64, lost: u64) {
        self.lost += lost;
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A sender at one host.
fn own(starts: Duration) -> Sender {
    at(1, starts)
}

/// One at another host.
fn at(address: u32, starts: Duration) -> Sender {
    Sender::new(Box::new(Connection::new(address)), starts)
}

fn of_bytes(starts: Duration, bytes: u64) -> Sender {
    Sender::of_bytes(Box::new(Connection::new(1)), starts, bytes)
}

fn cubic(starts: Duration) -> Sender {
    Sender::new(Box::new(Cubic::default()), starts)
}

/// A path of 100 Mbit/s and 100 ms with a queue of one product, and no limit of its rate.
fn path(senders: impl FnOnce() -> Vec<Sender>) -> Path {
    // SAFETY: no socket of this thread is left.
    unsafe { host_begin(0) };
    Path::new(1, mbits(100), ms(100), senders())
}

/// Runs for so long; returns what was delivered, in percent of the rate, and how many packets in a
/// thousand had no place in the queue.
fn run(path: &mut Path, time: Duration) -> (u64, u64) {
    let (sent, dropped) = (path.sent, path.dropped());
    let got = path.run(time).iter().sum();
    let dropped = (path.dropped() - dropped) * 1000 / (path.sent - sent).max(1);
    (percent(got, mbits(100), time), dropped)
}

#[test]
fn random_loss_costs_what_it_takes() {
    for (loss, least) in [(0, 96), (10, 95), (50, 91), (100, 86)] {
        let mut path = path(|| vec![own(ms(0))]);
        path.link.loss = Loss::random(loss * 1000);
        path.run(ms(3000));
        let (got, dropped) = run(&mut path, ms(10_000));
        assert!(got >= least, "{loss} in 1000 lost: {got} %");
        assert_eq!(dropped, 0, "{loss} in 1000 lost");
    }
}

#[test]
fn start_overruns_a_queue_by_little() {
    for loss in [0, 50] {
        let mut path = path(|| vec![own(ms(0))]);
        path.link.loss = Loss::random(loss * 1000);
        let (got, dropped) = run(&mut path, ms(2000));
        assert!(
            got >= 55 && dropped <= 30,
            "{loss} in 1000 lost: {got} %, {dropped} in 1000 dropped"
        );
    }
}

/// Losses do not let it begin anew over and over.
#[test]
fn short_queues_are_not_overrun() {
    for (loss, least) in [(0, 88), (1, 88), (10, 87), (50, 87)] {
        let mut path = path(|| vec![own(ms(0))]);
        path.link.loss = Loss::random(loss * 1000);
        path.link.queue.bytes_max /= 10;
        path.run(ms(6000));
        let (got, dropped) = run(&mut path, ms(40_000));
        assert!(
            got >= least && dropped <= 15,
            "{loss} in 1000 lost: {got} %, {dropped} in 1000 dropped"
        );
    }
}

#[test]
fn change_of_rate_followed() {
    let mut path = path(|| vec![own(ms(0))]);
    path.link.rates = vec![
        (ms(0), mbits(100)),
        (ms(7000), mbits(20)),
        (ms(11_000), mbits(100)),
    ];
    path.run(ms(7000));
    let (sent, dropped) = (path.sent, path.dropped());
    path.run(ms(1000));
    let slow = percent(path.run(ms(3000))[0], mbits(20), ms(3000));
    path.run(ms(1500));
    let fast = percent(path.run(ms(1000))[0], mbits(100), ms(1000));
    assert!(slow >= 85 && fast >= 90, "{slow} % and {fast} %");
    let (sent, dropped) = (path.sent - sent, path.dropped() - dropped);
    assert!(dropped * 100 < sent * 3, "{dropped} of {sent}");
}

#[test]
fn connections_of_a_host_share_its_path() {
    let mut path = path(|| (0..8).map(|place| own(ms(1000 * place))).collect());
    path.run(ms(20_000));
    let got = path.run(ms(15_000));
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(most * 10 < least * 12, "{got:?}");
    assert!(path.dropped() * 1000 < path.sent, "{}", path.dropped());
}

#[test]
fn hosts_get_equal_shares() {
    for count in [2, 8] {
        let mut path = path(|| {
            let hosts = (1..).map(|address| at(address, ms(1000 * u64::from(address))));
            hosts.take(count).collect()
        });
        path.run(ms(40_000));
        let got = path.run(ms(15_000));
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(most < &(least * 2), "{got:?}");
    }
}

#[test]
fn fair_to_cubic() {
    // The queue in halves of the product.
    for (first, second, queue) in [(5000, 0, 2), (0, 5000, 4), (0, 0, 1)] {
        let mut path = path(|| vec![own(ms(first)), cubic(ms(second))]);
        path.link.queue.bytes_max = path.link.queue.bytes_max * queue / 2;
        path.run(ms(12_000));
        let got = path.run(ms(40_000));
        let ratio = got[0] as f64 / got[1] as f64;
        assert!((0.5..=2.0).contains(&ratio), "queue {queue}: {ratio:.2}");
    }
}

#[test]
fn limit_holds_for_all_connections() {
    let mut path = path(Vec::new);
    // SAFETY: there is no socket yet.
    unsafe { host_begin(mbits(20)) };
    path.senders.extend([0; 4].map(|starts| own(ms(starts))));
    path.run(ms(2000));
    let got = percent(path.run(ms(4000)).iter().sum(), mbits(20), ms(4000));
    assert!((85..=102).contains(&got), "{got} %");
}

/// Transfers over warm hops, some at once, take little longer than the path needs for their bytes.
#[test]
fn warm_hops_fill_the_path_at_once() {
    for (loss, count, bytes, most) in [
        (0, 1, 5_000_000, 125),
        (0, 16, 5_000_000, 105),
        (0, 64, 1_000_000, 105),
        (50, 16, 5_000_000, 120),
        (50, 64, 1_000_000, 125),
    ] {
        let mut path = path(|| vec![of_bytes(ms(0), 20_000_000)]);
        path.link.loss = Loss::random(loss * 1000);
        path.run(ms(4000));
        assert!(path.senders[0].finished.is_some());
        let (now, sent, dropped) = (path.now, path.sent, path.dropped());
        let transfers = (0..count).map(|_| of_bytes(now, bytes));
        path.senders.extend(transfers);
        path.run(ms(30_000));
        let ends = path.senders[1..].iter().map(|one| one.finished);
        let last = ends.map(|end| end.expect("it ends")).max().unwrap() - now;
        let ideal = Duration::from_secs_f64((count * bytes) as f64 / mbits(100) as f64) + ms(100);
        let what = format!("{loss} in 1000 lost, {count} of {bytes} bytes");
        assert!(last * 100 <= ideal * most, "{what}: {last:?} of {ideal:?}");
        assert_eq!(path.dropped(), dropped, "{what}");
        let wire = (path.sent - sent) * PACKET * 1000 / (count * bytes);
        assert!(wire <= 1010 + loss * 12 / 10, "{what}: {wire}");
    }
}

/// Whatever the path does, each transfer ends.
#[test]
fn no_transfer_stalls() {
    simulate(schedules(60), |mut rng| {
        let (slowest, count) = (5 + rng.below(50_u64), 1 + rng.below(6_u64));
        let mut path = path(|| {
            let transfer = |_| {
                let rule = Box::new(Connection::new(1 + rng.below(3_u32)));
                Sender::of_bytes(rule, ms(rng.below(8000_u64)), 1_000_000)
            };
            (0..count).map(transfer).collect()
        });
        path.link.loss = Loss::random(rng.below(100_000_u64));
        path.link.queue.bytes_max = product(mbits(slowest), ms(100)) * (1 + rng.below(30_u64)) / 10;
        path.link.queue.bytes_max = path.link.queue.bytes_max.max(20 * PACKET);
        let rate = |rng: &mut posthaste_testkit::Rng| mbits(slowest + rng.below(200_u64));
        path.link.rates = (0..20)
            .map(|place| (ms(1000 * place), rate(&mut rng)))
            .collect();
        let ideal = Duration::from_secs_f64((count * 1_000_000) as f64 / mbits(slowest) as f64);
        path.run(ms(28_000) + ideal * 4);
        for sender in &path.senders {
            assert!(sender.finished.is_some(), "of {count}");
        }
    });
}
