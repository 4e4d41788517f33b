// SPDX-License-Identifier: Apache-2.0
//! CPU time of the participating processes, at one instant.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use super::{Call, Outcome};

/// The client's own name among the groups.
const OWN: &str = "client";

/// The clocks. A process's clock includes its ended threads, and softirqs that ran on top of it
/// where the kernel does not account for them separately.
#[derive(Debug)]
pub(super) struct Meter {
    parties: BTreeMap<String, Vec<ClockId>>,
}

impl Meter {
    pub(super) fn new(call: &Call) -> Result<Self> {
        let clock = |&pid: &i32| {
            clock_getcpuclockid(Pid::from_raw(pid))
                .with_context(|| format!("CPU clock of process {pid}"))
        };
        let mut parties = BTreeMap::new();
        for (name, pids) in &call.parties {
            let clocks = pids.iter().map(clock).collect::<Result<_>>()?;
            parties.insert(name.clone(), clocks);
        }
        parties.insert(OWN.to_owned(), vec![ClockId::CLOCK_PROCESS_CPUTIME_ID]);
        Ok(Self { parties })
    }

    /// CPU seconds used so far, by group.
    fn read(&self) -> Result<BTreeMap<String, f64>> {
        let sum = |(name, clocks): (&String, &Vec<ClockId>)| {
            let mut total = Duration::ZERO;
            for clock in clocks {
                total += clock.now().context("read a CPU clock")?.into();
            }
            Ok((name.clone(), total.as_secs_f64()))
        };
        self.parties.iter().map(sum).collect()
    }
}

/// The measuring window of a client: after the warm-up, for the configured time.
#[derive(Debug)]
pub(super) struct Window {
    meter: Meter,
    begin: Instant,
    length: Duration,
    at_begin: Option<(Instant, BTreeMap<String, f64>)>,
    over: bool,
}

impl Window {
    /// A window for a load that starts now.
    pub(super) fn new(call: &Call) -> Result<Self> {
        let meter = Meter::new(call)?;
        Ok(Self {
            meter,
            begin: Instant::now() + Duration::from_millis(call.warm_up_ms),
            length: Duration::from_millis(call.window_ms),
            at_begin: None,
            over: false,
        })
    }

    /// Opens or closes the window when it is time, and returns whether it is open. It has its full
    /// length, however late it opens.
    pub(super) fn check(&mut self, outcome: &mut Outcome) -> Result<bool> {
        let now = Instant::now();
        match &self.at_begin {
            None if now >= self.begin => self.at_begin = Some((now, self.meter.read()?)),
            Some((start, before)) if !self.over && now >= *start + self.length => {
                // Read at once with the decision, so that CPU time and counters cover the same
                // window.
                let mut used = self.meter.read()?;
                for (name, seconds) in &mut used {
                    *seconds -= before.get(name).copied().unwrap_or_default();
                }
                outcome.cpu_s = used;
                outcome.window_s = now.duration_since(*start).as_secs_f64();
                self.over = true;
            }
            _ => {}
        }
        Ok(self.at_begin.is_some() && !self.over)
    }

    /// Whether it has closed.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}
