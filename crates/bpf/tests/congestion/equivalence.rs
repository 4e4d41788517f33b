// SPDX-License-Identifier: Apache-2.0
//! The control in C beside the one in Rust: the same bits after each acknowledgement.

use posthaste_congestion::{Ack, Control, Known};
use posthaste_testkit::bottleneck::trials::{self, Limit, Other, Site, Step};
use posthaste_testkit::bottleneck::{Acked, Loss, PACKET, Rule, Sender};
use posthaste_testkit::{Rng, schedules, simulate};
use std::time::Duration;

/// `struct control`, whose names and order are those of [`Control`], so that both are written alike.
mod mirror {
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    struct Count {
        sent: u16,
        lost: u16,
    }

    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    struct Losses {
        low: Count,
        high: Count,
        are_random: bool,
    }

    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    struct Rival {
        empty_ms: u16,
        dip_ms: u16,
        dips: u8,
        rounds: u8,
        is_empty: bool,
    }

    #[expect(dead_code, reason = "the code in C makes the others")]
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(u8)]
    enum Phase {
        #[default]
        Startup,
        Steady,
        Drain,
        Refill,
    }

    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    pub(super) struct Control {
        pub(super) window: u32,
        former: u32,
        largest: u32,
        carried: u32,
        k_ms: u32,
        epoch_ms: u32,
        reno: u32,
        congested_ms: u32,
        least_us: u32,
        since_us: u32,
        round_us: u32,
        last_us: u32,
        round_ends: u32,
        round_at_us: u32,
        acked: u32,
        lost: u32,
        rate_before: u32,
        rate: u32,
        drain_ms: u32,
        losses: Losses,
        rival: Rival,
        mss: u16,
        phase: Phase,
        contended: u8,
        free: u8,
        queued: u8,
        tried: u8,
        flat: u8,
        flags: u8,
    }

    const _: () = assert!(size_of::<Control>() == 104);
}

/// `struct control_ack`
#[repr(C)]
struct HostAck {
    now_ms: u32,
    now_us: u32,
    acked: u32,
    lost: u32,
    marked: u32,
    former_in_flight: u32,
    rtt_us: u32,
    delivered: u32,
    prior_delivered: u32,
    is_app_limited: u32,
}

/// `struct control_known`
#[derive(Debug, Default, PartialEq)]
#[repr(C)]
struct HostKnown {
    rate: u32,
    rtt_us: u32,
    loss: u32,
}

impl From<Known> for HostKnown {
    fn from(known: Known) -> Self {
        Self {
            rate: known.rate,
            rtt_us: known.rtt_us,
            loss: known.loss.into(),
        }
    }
}

// SAFETY: as `control.c` defines them.
unsafe extern "C" {
    fn host_control_begin(control: *mut mirror::Control, mss: u16, known: *const HostKnown);
    fn host_control_on_ack(control: *mut mirror::Control, ack: *const HostAck);
    fn host_control_on_timeout(control: *mut mirror::Control, now_ms: u32);
    fn host_control_pacing_rate(control: *const mirror::Control) -> u32;
    fn host_control_known(control: *const mirror::Control, known: *mut HostKnown) -> bool;
}

/// Both, with the same input.
#[derive(Debug)]
struct Both {
    rust: Control,
    c: mirror::Control,
    /// What the clocks and the counter of bytes have more than those of the simulation, so that they wrap.
    ahead: [u32; 3],
    acks: u32,
}

/// The state is compared in full after one of so many acknowledgements, which writing it down permits; what is sent by
/// it, after each.
const FULL_EVERY: u32 = 8;

impl Both {
    fn new(mss: u16, known: Option<Known>, ahead: [u32; 3]) -> Self {
        let mut c = mirror::Control::default();
        let of_c = known.map(HostKnown::from);
        let of_c = of_c.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both structures are as in C, and the second one may be null.
        unsafe { host_control_begin(&raw mut c, mss, of_c) };
        let both = Self {
            rust: Control::new(mss, known),
            c,
            ahead,
            acks: 0,
        };
        both.compare_states();
        both
    }

    /// For a simulation.
    fn rule(known: Option<Known>, rng: &mut Rng) -> Box<dyn Rule> {
        // Some seconds or megabytes before they wrap, and of the milliseconds, at any phase of the drains.
        let ahead = [
            u32::MAX - rng.below(40_000_u32),
            u32::MAX - rng.below(40_000_000_u32),
            u32::MAX - rng.below(40_000_000_u32),
        ];
        Box::new(Self::new(u16::try_from(PACKET).unwrap(), known, ahead))
    }

    fn on_ack(&mut self, ack: &Ack) {
        let of_c = HostAck {
            now_ms: ack.now_ms,
            now_us: ack.now_us,
            acked: ack.acked,
            lost: ack.lost,
            marked: ack.marked,
            former_in_flight: ack.former_in_flight,
            rtt_us: ack.rtt_us,
            delivered: ack.delivered,
            prior_delivered: ack.prior_delivered,
            is_app_limited: ack.is_app_limited.into(),
        };
        self.rust.on_ack(ack);
        // SAFETY: both structures are as in C.
        unsafe { host_control_on_ack(&raw mut self.c, &raw const of_c) };
        self.compare(ack);
    }

    fn time_out(&mut self, now_ms: u32) {
        self.rust.on_timeout(now_ms);
        // SAFETY: as above.
        unsafe { host_control_on_timeout(&raw mut self.c, now_ms) };
        self.compare_states();
    }

    fn compare(&mut self, ack: &Ack) {
        let mut known = HostKnown::default();
        // SAFETY: as above.
        let (rate, is_known) = unsafe {
            (
                host_control_pacing_rate(&raw const self.c),
                host_control_known(&raw const self.c, &raw mut known),
            )
        };
        let of_c = (self.c.window, rate, is_known.then_some(known));
        let of_rust = (
            self.rust.window(),
            self.rust.pacing_rate(),
            self.rust.known().map(HostKnown::from),
        );
        self.acks = self.acks.wrapping_add(1);
        if of_c != of_rust || self.acks.is_multiple_of(FULL_EVERY) {
            self.compare_states();
        }
        assert_eq!(of_c, of_rust, "{ack:?}");
    }

    fn compare_states(&self) {
        assert_eq!(format!("{:?}", self.c), format!("{:?}", self.rust));
    }

    fn now_ms(&self, ns: u64) -> u32 {
        narrow(ns / 1_000_000).wrapping_add(self.ahead[0])
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.compare_states();
        }
    }
}

/// The lower bits, as those of a kernel's counters.
fn narrow(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap()
}

impl Rule for Both {
    fn window(&self) -> u64 {
        self.c.window.into()
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        match self.rust.pacing_rate() {
            0 => 2 * self.window() * 1_000_000_000 / smoothed_ns,
            rate => u64::from(rate) * 1000,
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        let [_, us, bytes] = self.ahead;
        self.on_ack(&Ack {
            now_ms: self.now_ms(acked.now_ns),
            now_us: narrow(acked.now_ns / 1000).wrapping_add(us),
            acked: narrow(acked.acked),
            lost: narrow(acked.lost),
            marked: narrow(acked.marked),
            former_in_flight: narrow(acked.former_in_flight),
            rtt_us: narrow(acked.rtt_ns / 1000),
            delivered: narrow(acked.delivered).wrapping_add(bytes),
            prior_delivered: narrow(acked.rate.prior_delivered).wrapping_add(bytes),
            is_app_limited: acked.rate.is_app_limited,
        });
    }

    fn on_timeout(&mut self, now_ns: u64, _lost: u64) {
        self.time_out(self.now_ms(now_ns));
    }
}

fn site(rate: u64, round_ms: u64, limit: Limit) -> Site {
    Site {
        rate,
        round_ms,
        limit,
    }
}

/// Paths of any kind, which change, with all that happens to packets and ACKs, and time-outs.
#[test]
fn same_bits_over_any_path() {
    simulate(schedules(40), |mut rng| {
        let mut path = trials::any(&mut rng, |rng| {
            let known = rng.perhaps(|rng| Known {
                rate: rng.below(10_000),
                rtt_us: rng.below(300_000),
                loss: rng.below(6000),
            });
            Both::rule(known, rng)
        });
        path.run(Duration::from_secs(60));
    });
}

/// For a minute beside others, of which drains and dips show what they are.
#[test]
fn same_bits_beside_others() {
    let mut rng = Rng::new(1);
    for limit in [
        Limit::Queue(100),
        Limit::Queue(1000),
        Limit::Queue(4000),
        Limit::CoDelEcn,
        Limit::Policer,
    ] {
        for other in [Other::Cubic(1), Other::Bbr(1)] {
            trials::share(site(20, 40, limit), 1, Both::rule(None, &mut rng), other);
        }
    }
}

/// Losses at random, alone and with those of a queue.
#[test]
fn same_bits_with_random_loss() {
    let mut rng = Rng::new(2);
    for (part, loss) in [(250, 10_000), (1000, 2000), (1000, 50_000), (1000, 200_000)] {
        let site = site(20, 40, Limit::Queue(part));
        trials::alone(site, 1, Both::rule(None, &mut rng), loss);
    }
    // So few segments that the load is low.
    let mut path = site(1, 40, Limit::Queue(1000)).path(
        1,
        vec![Sender::new(Both::rule(None, &mut rng), Duration::ZERO)],
    );
    path.link.loss = Loss::random(50_000);
    path.run(Duration::from_secs(60));
}

#[test]
fn same_bits_at_changes() {
    let mut rng = Rng::new(3);
    for step in [
        Step::Round(250),
        Step::Round(60),
        Step::Rate(100),
        Step::Rate(5),
    ] {
        for seed in 0..3 {
            let rule = Both::rule(None, &mut rng);
            trials::recovery(site(20, 40, Limit::Queue(1000)), seed, rule, step);
        }
    }
}

/// A queue that is empty for a moment, at intervals about those of BBR.
#[test]
fn same_bits_at_dips() {
    simulate(schedules(20), |mut rng| {
        let known = Known {
            rate: 2500,
            rtt_us: 20_000,
            loss: 0,
        };
        let mut both = Both::new(1250, Some(known), [0; 3]);
        let (mut dip_ms, mut delivered) = (3000, 0);
        for now_ms in (0..90_000).step_by(30) {
            if now_ms >= dip_ms + 240 {
                dip_ms = now_ms + 8000 + rng.below(3500_u32);
            }
            let prior_delivered = delivered;
            delivered += 50_000;
            both.on_ack(&Ack {
                now_ms,
                now_us: now_ms * 1000,
                acked: 50_000,
                former_in_flight: 100_000,
                rtt_us: if now_ms >= dip_ms { 20_000 } else { 40_000 },
                delivered,
                prior_delivered,
                ..Ack::default()
            });
        }
    });
}

/// The largest window, of so many segments that the time of CUBIC is bounded.
#[test]
fn same_bits_at_bounds() {
    let mut both = Both::new(20, None, [0; 3]);
    let mut delivered = 0_u32;
    for round in 0..40 {
        let prior_delivered = delivered;
        delivered = delivered.wrapping_add(1 << 28);
        both.on_ack(&Ack {
            now_ms: 100 * round,
            now_us: 100_000 * round,
            acked: 1 << 28,
            marked: u32::from(round == 10),
            former_in_flight: 1 << 30,
            rtt_us: 20_000,
            delivered,
            prior_delivered,
            ..Ack::default()
        });
    }
}

/// Whatever a receiver reports.
#[test]
fn same_bits_with_any_acks() {
    simulate(schedules(300), |mut rng| {
        let mss = 500 + rng.below(9000_u16);
        let known = rng.perhaps(|rng| Known {
            rate: any(rng),
            rtt_us: 1 + any(rng) / 2,
            loss: rng.below(u16::MAX),
        });
        let mut both = Both::new(mss, known, [0; 3]);
        for _ in 0..1000 {
            both.on_ack(&Ack {
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
                both.time_out(any(&mut rng));
            }
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
