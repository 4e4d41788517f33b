// SPDX-License-Identifier: Apache-2.0
//! Which worker gets the flows whose SYNs arrive on a CPU.
//!
//! By default the one of that CPU: its packets, sockets and thread share a cache. Where packets
//! arrive on fewer CPUs than there are workers, as from a network card with one queue, these CPUs
//! are full while the others idle. Then a part of the flows that begin goes to the worker whose CPU
//! is the most idle, and back once the own CPU has time again.

use std::fs;

use posthaste_bpf::PLACEMENT_SLOTS as SLOTS;

/// A CPU that idles less is full; in percent, as all shares of time here.
const FULL: u64 = 10;
/// How much more another CPU must idle to get flows.
const AWAY: u64 = 15;
/// How much more the own CPU must idle to get them back.
const HOME: u64 = 25;
/// A CPU that idles more gets its flows back in any case.
const AT_EASE: u64 = 50;
/// With fewer new flows between two looks the workers are not what fills a CPU.
const FLOWS_MIN: u64 = 500;

/// Time that a CPU idled and all time, in ticks since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    idle: u64,
    total: u64,
}

/// The workers of new flows.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The CPU of each worker.
    cpus: Vec<usize>,
    /// By the worker whose CPU receives the SYN: the workers of each part of the flows.
    slots: Vec<[u16; SLOTS]>,
    /// Flows that each worker had opened at the last look.
    opened: Vec<u64>,
    /// Times of the CPUs then, if they mattered.
    times: Vec<CpuTime>,
}

impl Placement {
    /// Every flow stays on its CPU. `cpus` are those of the workers; `None` if they are too many.
    pub(crate) fn new(cpus: Vec<usize>) -> Option<Self> {
        let workers = u16::try_from(cpus.len()).ok()?;
        Some(Self {
            slots: (0..workers).map(|worker| [worker; SLOTS]).collect(),
            opened: vec![0; cpus.len()],
            times: Vec::new(),
            cpus,
        })
    }

    /// The workers of the flows whose SYNs arrive on the CPU of a worker.
    pub(crate) fn of(&self, worker: u16) -> &[u16; SLOTS] {
        &self.slots[usize::from(worker)]
    }

    /// Decides by what happened since the last look. `opened` is the number of flows that each
    /// worker has opened so far, and `times` reads those of CPUs. Returns the worker whose flows go
    /// elsewhere than before, if any.
    pub(crate) fn look(
        &mut self,
        opened: Vec<u64>,
        times: impl FnOnce(&[usize]) -> Vec<CpuTime>,
    ) -> Option<u16> {
        let before = std::mem::replace(&mut self.opened, opened);
        let flows = self.opened.iter().zip(before);
        let flows: Vec<u64> = flows.map(|(now, then)| now - then).collect();
        let matters = self.is_divided() || flows.iter().any(|flows| *flows >= FLOWS_MIN);
        let now = if matters {
            times(&self.cpus)
        } else {
            Vec::new()
        };
        let then = std::mem::replace(&mut self.times, now);
        if [&then, &self.times]
            .iter()
            .any(|times| times.len() != self.cpus.len())
        {
            return None;
        }
        let idle: Vec<u64> = then.iter().zip(&self.times).map(idle_share).collect();
        self.bring_home(&idle)
            .or_else(|| self.send_away(&idle, &flows))
    }

    /// Whether any flow leaves its CPU.
    fn is_divided(&self) -> bool {
        let mut each = (0_u16..).zip(&self.slots);
        each.any(|(worker, slots)| slots.iter().any(|to| *to != worker))
    }

    /// Brings a part of the flows back to a CPU that has time for them.
    fn bring_home(&mut self, idle: &[u64]) -> Option<u16> {
        for (worker, slots) in (0_u16..).zip(&mut self.slots) {
            let own = idle[usize::from(worker)];
            let busier = |to: u16| own >= idle[usize::from(to)] + HOME;
            let returns = |to: &&mut u16| **to != worker && (own >= AT_EASE || busier(**to));
            if let Some(slot) = slots.iter_mut().find(returns) {
                *slot = worker;
                return Some(worker);
            }
        }
        None
    }

    /// Sends flows of the fullest CPU to the most idle one: more at once the more that idles.
    fn send_away(&mut self, idle: &[u64], flows: &[u64]) -> Option<u16> {
        let workers = 0..idle.len();
        let most = workers.clone().max_by_key(|worker| idle[*worker])?;
        let is_full = |worker: &usize| idle[*worker] < FULL && flows[*worker] >= FLOWS_MIN;
        let fullest = workers.filter(is_full).min_by_key(|worker| idle[*worker])?;
        let gap = idle[most] - idle[fullest];
        if gap < AWAY {
            return None;
        }
        let (from, to) = (u16::try_from(fullest).ok()?, u16::try_from(most).ok()?);
        let own = self.slots[fullest].iter_mut().filter(|slot| **slot == from);
        // A quarter of the gap, since what moves changes both its ends, and packets stay.
        let parts = (usize::try_from(gap).unwrap_or(0) * SLOTS).div_ceil(400);
        let moved = own.take(parts).map(|slot| *slot = to).count();
        (moved > 0).then_some(from)
    }
}

fn idle_share((then, now): (&CpuTime, &CpuTime)) -> u64 {
    let total = now.total.saturating_sub(then.total);
    let idle = now.idle.saturating_sub(then.idle);
    (idle * 100).checked_div(total).unwrap_or(0)
}

/// Times of CPUs from `/proc/stat` (proc_stat(5)); fewer if they cannot be read.
pub(crate) fn cpu_times(cpus: &[usize]) -> Vec<CpuTime> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let times = cpus.iter().filter_map(|cpu| time_of(&text, *cpu));
    times.collect()
}

/// The time of one CPU: `cpu0 user nice system idle iowait irq softirq steal ...`.
fn time_of(stat: &str, cpu: usize) -> Option<CpuTime> {
    let name = format!("cpu{cpu}");
    let fields = stat.lines().find_map(|line| {
        let (found, fields) = line.split_once(' ')?;
        (found == name).then_some(fields)
    })?;
    // The two after `steal` are parts of the first two.
    let ticks = fields.split_whitespace().take(8);
    let ticks: Vec<u64> = ticks.map_while(|field| field.parse().ok()).collect();
    Some(CpuTime {
        idle: ticks.get(3)? + ticks.get(4)?,
        total: ticks.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs of which the first receives all packets: a thousand flows cost `packets` ticks there
    /// and `work` ticks where their worker is. A closed loop has as many flows as fit.
    struct Host {
        placement: Placement,
        opened: Vec<u64>,
        times: Vec<CpuTime>,
        packets: u64,
        work: u64,
    }

    impl Host {
        fn new() -> Self {
            Self {
                placement: Placement::new(vec![0, 1]).unwrap(),
                opened: vec![0; 2],
                times: vec![CpuTime::default(); 2],
                packets: 50,
                work: 80,
            }
        }

        /// One look of 1000 ticks with at most so many thousand flows; returns how many sixteenths
        /// of a thousand flows there were.
        fn run(&mut self, most: u64) -> u64 {
            let slots = SLOTS as u64;
            let away = self.placement.of(0).iter().filter(|to| **to == 1).count() as u64;
            // By sixteenths of a thousand flows.
            let costs = [
                self.packets * slots + self.work * (slots - away),
                self.work * away,
            ];
            let fit = costs
                .iter()
                .map(|cost| (1000 * slots * slots).checked_div(*cost));
            let flows = fit.flatten().fold(most * slots, u64::min);
            for (opened, part) in self.opened.iter_mut().zip([slots - away, away]) {
                *opened += 1000 * flows * part / slots / slots;
            }
            for (time, cost) in self.times.iter_mut().zip(costs) {
                time.total += 1000;
                time.idle += 1000_u64.saturating_sub(flows * cost / slots / slots);
            }
            let times = self.times.clone();
            self.placement.look(self.opened.clone(), |_| times);
            flows
        }
    }

    // promise: H10
    #[test]
    fn idle_cpu_gets_a_part() {
        let mut host = Host::new();
        let first = host.run(1000);
        let flows: Vec<u64> = (0..20).map(|_| host.run(1000)).collect();
        let last = flows[19];
        assert!(2 * last > 3 * first, "{first} {flows:?}");
        assert!(
            flows[10..].iter().all(|each| *each == last),
            "settled: {flows:?}"
        );
    }

    #[test]
    fn flows_return_when_there_is_time() {
        let mut host = Host::new();
        for _ in 0..20 {
            host.run(1000);
        }
        for _ in 0..20 {
            host.run(3);
        }
        assert_eq!(*host.placement.of(0), [0; SLOTS]);
    }

    #[test]
    fn few_flows_stay() {
        let mut host = Host::new();
        // A CPU that others fill.
        host.packets = 4000;
        for _ in 0..20 {
            host.run(1000);
        }
        assert_eq!(*host.placement.of(0), [0; SLOTS]);
    }

    #[test]
    fn even_load_stays() {
        let mut placement = Placement::new(vec![0, 1]).unwrap();
        for look in 1..20 {
            let time = CpuTime {
                idle: look * 5,
                total: look * 100,
            };
            let changed = placement.look(vec![look * 10_000; 2], |_| vec![time; 2]);
            assert_eq!(changed, None);
        }
    }

    #[test]
    fn cpu_times_read() {
        let stat = "cpu  3 0 3 60 2 0 0 0 0 0\ncpu1 1 2 3 40 5 6 7 8 9 10\nintr 1\n";
        let (idle, total) = (45, 72);
        assert_eq!(time_of(stat, 1), Some(CpuTime { idle, total }));
        assert_eq!(time_of(stat, 0), None);
        assert_eq!(time_of("cpu1 1 2\n", 1), None);
    }
}
