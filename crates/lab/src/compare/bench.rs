// SPDX-License-Identifier: Apache-2.0
//! Runs all measurements in order: loads in rounds, placement by placement, then memory and starts.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::idle::{self, Footprint};
use super::load::{self, Load, Placement, Yield};
use super::start::{self, Starts};
use super::subject::{Mode, Subject};
use super::targets::EARLY;
use super::testbed::{CONNECTIONS_MAX, Testbed};
use super::{Args, Results};
use crate::load::Work;
use crate::record::Record;
use crate::rng::shuffled;

/// Idle relays of a node with several workers.
const FEW_RELAYS: usize = 2000;

/// Prefix of remarks about failed measurements.
const FAILED: &str = "FAILED";

/// The requested measurements, where they run, and the results.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) args: &'a Args,
    pub(super) loads: Vec<Load>,
    pub(super) subjects: Vec<Subject>,
    /// The usable CPUs, the first choice first.
    pub(super) cpus: Vec<usize>,
    pub(super) record: Record,
    pub(super) results: Results,
    /// Loads and subjects that could not be measured.
    pub(super) failed: BTreeSet<(&'static str, &'static str)>,
}

impl Bench<'_> {
    /// Runs all loads with all subjects.
    pub(super) fn put_through(&mut self) {
        for placement in Placement::ALL {
            let loads = self.loads.iter().filter(|load| load.placement == placement);
            let loads: Vec<Load> = loads.cloned().collect();
            if loads.is_empty() {
                continue;
            }
            // The last CPUs, see `cpus`: other work prefers the first.
            let Some(cpus) = self.cpus.get(..placement.cpus()).map(<[usize]>::to_vec) else {
                let names: Vec<_> = loads.iter().map(|load| load.name).collect();
                let what = format!("Not measured for want of CPUs: {}.", names.join(", "));
                self.record.remarks.push(what);
                continue;
            };
            // All networks of a placement exist at once, so that subjects can take turns within a
            // round.
            let beds = self.prepare(placement, &cpus, &loads);
            self.take_turns(&beds, &loads);
        }
        // A round is missing there.
        self.results.retain(|key, _| !self.failed.contains(key));
    }

    /// Runs loads with subjects, round by round.
    fn take_turns(&mut self, beds: &[Testbed], loads: &[Load]) {
        let order: Vec<usize> = (0..beds.len()).collect();
        let rounds = self.args.rounds();
        for round in 0..rounds {
            for load in loads {
                eprintln!("compare: round {} of {rounds}: {}", round + 1, load.name);
                // In a fixed order the subject after a heavy one would always find its warm or cold
                // caches.
                for index in shuffled(&order, self.args.common.seed, round) {
                    self.take(&beds[index], load);
                }
            }
        }
    }

    /// Runs a load with a subject. After a failure the pair is not tried again.
    fn take(&mut self, testbed: &Testbed, load: &Load) {
        let name = testbed.subject.name;
        let key = (load.name, name);
        if skips(load, &testbed.subject) || self.failed.contains(&key) {
            return;
        }
        let mut times = self.args.times();
        if testbed.subject.mode == Mode::Reference {
            // All others are compared with it, so it is measured for longer.
            times.window *= 2;
        }
        match testbed.measure(load, times) {
            Ok(measured) => {
                for problem in &measured.problems {
                    eprintln!("compare: {} by {name}: {problem}", load.name);
                }
                self.results.entry(key).or_default().push(measured);
            }
            Err(error) => {
                self.fail(&format!("{} by {name}", load.name), &error);
                // Figures are compared within a round, so one missing round makes the others
                // useless.
                self.failed.insert(key);
            }
        }
    }

    /// Builds the networks of all subjects that have one of the loads, and records their
    /// configurations. Those that do not start are left out and reported.
    fn prepare(&mut self, placement: Placement, cpus: &[usize], loads: &[Load]) -> Vec<Testbed> {
        let mut beds = Vec::new();
        for subject in self.subjects.clone() {
            if loads.iter().all(|load| skips(load, &subject)) {
                continue;
            }
            let what = format!("{} on {} CPU", subject.name, placement.cpus());
            eprintln!("compare: {what}");
            match self.try_out(subject, placement, cpus) {
                Ok((testbed, configuration)) => {
                    let name = format!("{}, {placement:?}", subject.name);
                    self.record.parameter(&name, configuration);
                    beds.push(testbed);
                }
                Err(error) => self.fail(&what, &error),
            }
        }
        beds
    }

    /// Builds a subject's network, starts it once, and returns its configuration.
    fn try_out(
        &self,
        subject: Subject,
        placement: Placement,
        cpus: &[usize],
    ) -> Result<(Testbed, String)> {
        let testbed = self.testbed(subject, placement, cpus)?;
        let running = testbed.start(CONNECTIONS_MAX)?;
        let configuration = running.configuration.clone();
        // Stopped at once: only one relay may run while loads are measured.
        running.stop()?;
        Ok((testbed, configuration))
    }

    fn testbed(&self, subject: Subject, placement: Placement, cpus: &[usize]) -> Result<Testbed> {
        Testbed::new(subject, placement, cpus, &self.args.binary)
    }

    /// Whether a measurement without a load was requested.
    fn wants(&self, (name, _): (&str, &str)) -> bool {
        self.args.loads.is_empty() || self.args.loads.iter().any(|wanted| wanted == name)
    }

    /// The subjects that relay, each in its usual form.
    fn relays(&self) -> Vec<Subject> {
        let relays = |subject: &&Subject| subject.relays() && !subject.bulk_only;
        self.subjects.iter().filter(relays).copied().collect()
    }

    pub(super) fn measure_memory(&mut self) -> Result<Vec<Footprint>> {
        let mut footprints = Vec::new();
        if self.wants(load::MEMORY) {
            let relays = idle::relays()?;
            for subject in self.relays() {
                // The promises of our node hold for one worker and for two.
                let most = if subject.name == EARLY { 2 } else { 1 };
                for threads in 1..=most.min(self.cpus.len()) {
                    let name = subject.name;
                    eprintln!("compare: memory of {name}, threads: {threads}");
                    match self.footprint(subject, threads, relays) {
                        Ok(footprint) => footprints.push(footprint),
                        Err(error) => self.fail(&format!("memory of {name}"), &error),
                    }
                }
            }
        }
        Ok(footprints)
    }

    fn footprint(&self, subject: Subject, threads: usize, relays: usize) -> Result<Footprint> {
        let placement = match threads {
            1 => Placement::One,
            _ => Placement::Two,
        };
        let testbed = self.testbed(subject, placement, &self.cpus[..threads])?;
        // Each worker has its share of the node's limit, and the kernel distributes unevenly.
        let relays = if threads > 1 {
            relays.min(FEW_RELAYS)
        } else {
            relays
        };
        idle::measure(&testbed, relays)
    }

    pub(super) fn measure_starts(&self) -> Result<Vec<Starts>> {
        if !self.wants(load::BOOT) {
            return Ok(Vec::new());
        }
        eprintln!("compare: boot");
        // A start takes milliseconds and varies more than a load of a window does.
        let repeats = self.args.rounds() * 4;
        start::measure(&self.relays(), &self.cpus, &self.args.binary, repeats)
    }

    pub(super) fn finish(&self) -> Result<()> {
        let Self {
            record, results, ..
        } = self;
        record.publish(&self.args.common.output)?;
        let problems: usize = results.values().flatten().map(|m| m.problems.len()).sum();
        let failed = record
            .remarks
            .iter()
            .filter(|what| what.starts_with(FAILED));
        let failed = failed.count();
        ensure!(
            problems + failed == 0,
            "{failed} loads failed, and {problems} things did not add up: see the record"
        );
        Ok(())
    }

    /// Reports a failed measurement in one line, which is also printed.
    fn fail(&mut self, what: &str, error: &anyhow::Error) {
        let why = format!("{error:#}");
        let why: Vec<&str> = why.split_whitespace().collect();
        let remark = format!("{FAILED}: {what}: {}.", why.join(" "));
        eprintln!("compare: {remark}");
        self.record.remarks.push(remark);
    }
}

/// Whether a load shows nothing specific about a subject.
fn skips(load: &Load, subject: &Subject) -> bool {
    let much = ["bulk-1", "bulk-16", "1m", "mixed"].contains(&load.name);
    // Flows over warm hops have no SYN between the nodes, and two nodes on the CPU of both ends can
    // hardly carry a rate that is low for one.
    let not_for_two = load.yields == Yield::SynDelay || matches!(load.work, Work::Open { .. });
    subject.bulk_only && !much || subject.nodes > 1 && not_for_two
}
