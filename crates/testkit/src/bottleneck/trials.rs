// SPDX-License-Identifier: Apache-2.0
//! Trials of a control: what it gets beside others, and alone. The same for every control.

use std::time::Duration;

use super::{
    Acks, Bbr, Cubic, Discipline, Loss, PACKET, Path, Policer, Rule, Sender, mbits, product,
};
use crate::Rng;

/// A sender with any control.
pub type AnySender = Sender<Box<dyn Rule>>;

/// What the bottleneck does about a load beyond its rate.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// A queue of so many thousandths of the path's product, which drops its tail.
    Queue(u64),
    /// CoDel, which drops.
    CoDel,
    /// CoDel, which marks.
    CoDelEcn,
    /// A policer with a burst of one product.
    Policer,
}

/// A bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Mbit/s.
    pub rate: u64,
    /// The round trip in milliseconds.
    pub round_ms: u64,
    /// What happens to a load beyond.
    pub limit: Limit,
}

impl Site {
    /// Bytes that the path holds.
    pub fn product(&self) -> u64 {
        product(mbits(self.rate), self.round())
    }

    fn round(&self) -> Duration {
        Duration::from_millis(self.round_ms)
    }

    /// The path, for senders.
    pub fn path(&self, seed: u64, mut senders: Vec<AnySender>) -> Path<Box<dyn Rule>> {
        let is_ecn = matches!(self.limit, Limit::CoDelEcn);
        senders.iter_mut().for_each(|one| one.is_ecn = is_ecn);
        let link_rate = match self.limit {
            Limit::Policer => mbits(self.rate) * 10,
            _ => mbits(self.rate),
        };
        let mut path = Path::new(seed, link_rate, self.round(), senders);
        let held = self.product();
        let queue = &mut path.link.queue;
        match self.limit {
            Limit::Queue(part) => queue.bytes_max = (held * part / 1000).max(2 * PACKET),
            Limit::CoDel | Limit::CoDelEcn => {
                queue.bytes_max = (4 * held).max(100 * PACKET);
                queue.discipline = Discipline::CoDel;
            }
            Limit::Policer => {
                let burst = held.max(10 * PACKET);
                path.link.policer = Some(Policer::new(mbits(self.rate), burst));
            }
        }
        path
    }
}

/// Who else sends.
#[derive(Clone, Copy, Debug)]
pub enum Other {
    /// So many senders with CUBIC as in Linux.
    Cubic(u64),
    /// So many with BBR.
    Bbr(u64),
}

impl Other {
    fn senders(self, rng: &mut Rng) -> Vec<AnySender> {
        let count = match self {
            Self::Cubic(count) | Self::Bbr(count) => count,
        };
        let sender = |_| {
            let rule: Box<dyn Rule> = match self {
                Self::Cubic(_) => Box::new(Cubic::with_hystart()),
                Self::Bbr(_) => Box::new(Bbr::new(rng.next())),
            };
            Sender::new(rule, Duration::from_millis(rng.below(3000_u64)))
        };
        (0..count).map(sender).collect()
    }
}

/// The rate of a subject by the mean rate of the others, of a minute after 15 s. All begin within 3 s.
pub fn share(site: Site, seed: u64, subject: Box<dyn Rule>, other: Other) -> f64 {
    let mut rng = Rng::new(seed);
    let starts = Duration::from_millis(rng.below(3000_u64));
    let mut senders = vec![Sender::new(subject, starts)];
    senders.extend(other.senders(&mut rng));
    let count = senders.len() - 1;
    let mut path = site.path(seed, senders);
    path.run(Duration::from_secs(15));
    let got = path.run(Duration::from_secs(60));
    got[0] as f64 * count as f64 / got[1..].iter().sum::<u64>().max(1) as f64
}

/// What a subject alone shows.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// The part of the rate that it uses.
    pub used: f64,
    /// The mean queue, in products.
    pub queue: f64,
    /// The part of packets that the bottleneck drops.
    pub dropped: f64,
}

/// A subject alone, after 10 s, for half a minute, where so many packets in a million are lost.
pub fn alone(site: Site, seed: u64, subject: Box<dyn Rule>, loss: u64) -> Alone {
    let mut path = site.path(seed, vec![Sender::new(subject, Duration::ZERO)]);
    path.link.loss = Loss::random(loss);
    path.run(Duration::from_secs(10));
    let (sent, dropped) = (path.sent, path.dropped());
    let time = Duration::from_secs(30);
    let got = path.run(time)[0];
    Alone {
        used: got as f64 / product(mbits(site.rate), time) as f64,
        queue: path.link.queue.mean() as f64 / site.product() as f64,
        dropped: (path.dropped() - dropped) as f64 / (path.sent - sent).max(1) as f64,
    }
}

/// A change of the path at a time.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// To so many Mbit/s.
    Rate(u64),
    /// To a round trip of so many milliseconds.
    Round(u64),
}

/// How long after a change of the path, within 15 to 20 s, a subject alone first delivers 90 % of the new rate for half a second
/// or two round trips. At most 20 s.
pub fn recovery(site: Site, seed: u64, subject: Box<dyn Rule>, step: Step) -> Duration {
    let mut path = site.path(seed, vec![Sender::new(subject, Duration::ZERO)]);
    let at = Duration::from_millis(15_000 + Rng::new(seed).below(5000_u64));
    let mut rate = mbits(site.rate);
    let mut round = site.round();
    match step {
        Step::Rate(to) => {
            rate = mbits(to);
            path.link.rates.push((at, rate));
        }
        Step::Round(to) => {
            round = Duration::from_millis(to);
            path.link.rounds.push((at, round));
        }
    }
    path.run(at);
    let slice = Duration::from_millis(50);
    let needed = (round * 2).max(slice * 10);
    let slices = needed.as_millis().div_ceil(slice.as_millis());
    let slices = usize::try_from(slices).unwrap_or(usize::MAX);
    let mut got = Vec::new();
    while path.now < at + Duration::from_secs(20) {
        got.push(path.run(slice)[0]);
        let recent: u64 = got.iter().rev().take(slices).sum();
        if got.len() >= slices && recent * 10 >= product(rate, slice) * slices as u64 * 9 {
            return (path.now - at).saturating_sub(slice * u32::try_from(slices).unwrap_or(0));
        }
    }
    path.now - at
}

/// The rate of the second of two subjects by that of the first, which began 10 s before, of 40 s after another 15 s.
pub fn share_of_second(site: Site, seed: u64, subjects: [Box<dyn Rule>; 2]) -> f64 {
    let began = Duration::from_millis(Rng::new(seed).below(1000_u64));
    let [first, second] = subjects;
    let senders = vec![
        Sender::new(first, began),
        Sender::new(second, began + Duration::from_secs(10)),
    ];
    let mut path = site.path(seed, senders);
    path.run(Duration::from_secs(25));
    let got = path.run(Duration::from_secs(40));
    got[1] as f64 / got[0].max(1) as f64
}

/// How long a transfer takes where so many packets in a million are lost. At most a minute.
pub fn transfer(site: Site, seed: u64, subject: Box<dyn Rule>, bytes: u64, loss: u64) -> Duration {
    let sender = Sender::of_bytes(subject, Duration::ZERO, bytes);
    let mut path = site.path(seed, vec![sender]);
    path.link.loss = Loss::random(loss);
    let most = Duration::from_secs(60);
    path.run(most);
    path.senders[0].finished.unwrap_or(most)
}

/// A path of any kind, which changes, with some senders of some bytes.
pub fn any(rng: &mut Rng, subject: impl Fn(&mut Rng) -> Box<dyn Rule>) -> Path<Box<dyn Rule>> {
    let (rate, round) = (mbits(4 + rng.below(40_u64)), 5 + rng.below(150_u64));
    let senders = rng.some(4, |rng| {
        let starts = Duration::from_millis(rng.below(3000_u64));
        let size = 1 + rng.below(1_000_000_u64);
        let mut sender = Sender::of_bytes(subject(rng), starts, size);
        sender.is_ecn = rng.once_in(2);
        sender.behind(Duration::from_millis(rng.below(40_u64)))
    });
    let mut path = Path::new(rng.next(), rate, Duration::from_millis(round), senders);
    let ms = Duration::from_millis;
    let link = &mut path.link;
    link.queue.bytes_max = (link.queue.bytes_max * (1 + rng.below(40_u64)) / 10).max(4 * PACKET);
    link.queue.discipline = match rng.below(3) {
        0 => Discipline::TailDrop,
        1 => Discipline::CoDel,
        _ => Discipline::MarkBeyond(link.queue.bytes_max / 2),
    };
    link.policer = rng.perhaps(|rng| Policer::new(rate / 2, 10_000 + rng.below(100_000_u64)));
    link.loss = Loss::bursts(rng.below(50_000_u64), 1 + rng.below(6_u64));
    link.jitter = ms(rng.below(10_u64));
    link.reordered = (rng.below(30_u64), ms(rng.below(20_u64)));
    link.rates.push((ms(1500), rate / (1 + rng.below(4_u64))));
    link.rounds.push((ms(2500), ms(5 + rng.below(250_u64))));
    path.acks = Acks {
        every: 1 + rng.below(16_u32),
        delay: ms(rng.below(40_u64)),
        interval: ms(rng.below(10_u64)),
    };
    path
}
