// SPDX-License-Identifier: Apache-2.0
//! Runs all measurements in order: loads in rounds, placement by placement, then memory and starts.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::load::{self, Load, Placement, Yield};
use super::subject::{Loads, Mode, Subject};
use super::targets::EARLY;
use super::testbed::{CONNECTIONS_MAX, Testbed};
use super::{Args, Results, idle, is_wanted, start};
use crate::load::Work;
use crate::record::Record;
use crate::rng::shuffled;

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
        let rounds = self.args.rounds;
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
        let mut window = self.args.window();
        if testbed.subject.mode == Mode::Reference {
            // All others are compared with it, so it is measured for longer.
            window *= 2;
        }
        match testbed.measure(load, window) {
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

    /// Measures the memory and the start of our node, if requested.
    pub(super) fn measure_node(&mut self) -> Result<()> {
        let node = self.subjects.iter().find(|one| one.name == EARLY).copied();
        let wants = |(name, _): (&str, &str)| is_wanted(&self.args.loads, name);
        let (wants_memory, wants_boot) = (wants(load::MEMORY), wants(load::BOOT));
        let Some(node) = node else { return Ok(()) };
        if wants_memory {
            // The promises hold for one worker and for two.
            for (threads, placement) in [(1, Placement::One), (2, Placement::Two)] {
                let what = format!("memory, threads: {threads}");
                eprintln!("compare: {what}");
                if let Err(error) = self.measure_memory(node, threads, placement) {
                    self.fail(&what, &error);
                }
            }
            idle::table(&mut self.record);
        }
        if wants_boot {
            eprintln!("compare: boot");
            // A start takes milliseconds and varies more than a load of a window does.
            let repeats = self.args.rounds * 4;
            let binary = &self.args.binary;
            start::measure(&self.cpus, binary, repeats, &mut self.record)?;
        }
        Ok(())
    }

    fn measure_memory(
        &mut self,
        node: Subject,
        threads: usize,
        placement: Placement,
    ) -> Result<()> {
        let cpus = self.cpus.get(..threads).context("too few CPUs")?;
        let testbed = self.testbed(node, placement, cpus)?;
        idle::measure(&testbed, &mut self.record)
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
    let same_as_others = match subject.loads {
        Loads::All => false,
        Loads::Bulk => !much,
        Loads::Multipath => !load.multipath,
    };
    same_as_others || subject.nodes > 1 && not_for_two
}
