// SPDX-License-Identifier: Apache-2.0
//! Measures durations of transfers. One experiment over several topologies: a [`line`] of nodes, an
//! [`overlay`], and the networks of [`demo`](crate::demo).
//!
//! A topology lists its subjects (ways of carrying a transfer, one of them without nodes), groups
//! them into tables and charts, and carries out single transfers. The rest is common: the transfers
//! of a repeat are shuffled, so that disturbances on the machine affect all subjects alike; medians
//! are compared with the model and with the subjects' targets; record, tables and charts follow
//! from the same lists.

pub mod line;
pub mod overlay;
mod report;
mod results;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::model::Path;
use crate::names::named;
use crate::record::Common;
use crate::rng::shuffled;
use crate::transfer::Timing;
pub(crate) use results::Results;

/// Failures after which an experiment is aborted.
const FAILURES_MAX: usize = 5;

/// Bytes in a KB.
pub(crate) const KB: u64 = 1000;

named! {
    /// A moment of a transfer, from the start of `connect()`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Moment {
        Connect = "time to connect",
        FirstByte = "time to first byte",
        Complete = "time to completion",
    }
}

impl Moment {
    fn of(self, timing: &Timing) -> Duration {
        match self {
            Self::Connect => timing.connect,
            Self::FirstByte => timing.first_byte,
            Self::Complete => timing.complete,
        }
    }
}

/// A way of carrying transfers.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Name in tables and legends.
    pub name: String,
    /// Labels in the record, besides its name.
    pub labels: Vec<(&'static str, String)>,
    /// The subject without nodes with which its gain is computed.
    pub reference: Option<usize>,
    pub goals: Vec<Goal>,
}

impl Subject {
    /// The labels of its samples.
    fn labels(&self) -> Vec<(&str, &str)> {
        let labels = self.labels.iter();
        let labels = labels.map(|(name, value)| (*name, value.as_str()));
        labels.chain([("subject", self.name.as_str())]).collect()
    }
}

/// The bounds on a subject's medians, in percent.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// This moment lies this close to the model; `may_be_less` allows any smaller value.
    Model {
        moment: Moment,
        percent: f64,
        may_be_less: bool,
    },
    /// Completion takes at most this much longer than with another subject.
    Behind { subject: usize, percent: f64 },
    /// Transfers of these sizes (bytes) complete in this much less time than the reference's. Where
    /// the links' rate does not allow that, within `tolerance` of even shares of the rate.
    Saved {
        by_size: &'static [(u64, f64)],
        tolerance: f64,
    },
}

/// One table and one chart.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The end of the chart's file name, without extension.
    pub file: String,
    /// The conditions that differ between groups.
    pub title: String,
    /// Side by side, the reference first.
    pub subjects: Vec<usize>,
}

/// A transfer's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    /// An index of [`Experiment::subjects`].
    pub subject: usize,
    pub bytes: u64,
}

impl Case {
    /// The same transfer with another subject.
    fn with(self, subject: usize) -> Self {
        Self { subject, ..self }
    }
}

/// Carries out transfers.
pub(crate) trait Topology {
    /// Runs one transfer, or as many at once as the experiment has clients.
    fn fetch(&self, case: Case) -> Result<Vec<Timing>>;

    /// The path in terms of the model, whose rate is each client's share. `None` without a model.
    fn path(&self, case: Case) -> Option<Path>;

    /// The nodes that carry it, where they depend on the size.
    fn way(&self, _case: Case) -> Option<String> {
        None
    }
}

/// The parameters of the experiment.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub name: &'static str,
    pub subjects: Vec<Subject>,
    pub groups: Vec<Group>,
    /// In KB.
    pub sizes: Vec<u64>,
    /// Bytes that a server sends before those of a transfer.
    pub head_bytes: u64,
    pub clients: u32,
    pub repeats: u32,
    /// Common conditions of all groups, as text.
    pub conditions: String,
    pub common: Common,
}

/// All times of a run, in the order of the measurements.
type Timings = BTreeMap<Case, Vec<Timing>>;

impl Experiment {
    /// The transfers of a subject, one per size.
    fn cases_of(&self, subject: usize) -> impl Iterator<Item = Case> + '_ {
        let sizes = self.sizes.iter();
        sizes.map(move |size| Case {
            subject,
            bytes: size * KB,
        })
    }

    /// All transfers of one repeat.
    fn cases(&self) -> Vec<Case> {
        let subjects = 0..self.subjects.len();
        subjects
            .flat_map(|subject| self.cases_of(subject))
            .collect()
    }

    /// A description for messages.
    fn describe(&self, case: Case) -> String {
        let subject = &self.subjects[case.subject];
        let labels = subject.labels();
        let labels: Vec<_> = labels.iter().map(|(_, value)| *value).collect();
        format!("{} KB, {}", case.bytes / KB, labels.join(", "))
    }

    /// Runs all transfers, `repeats` times, each time in another order.
    pub(crate) fn run<T: Topology>(self, topology: &T) -> Result<Results> {
        let (mut timings, mut failures) = (Timings::new(), Vec::new());
        let (cases, count) = (self.cases(), self.repeats);
        for repeat in 0..count {
            let (name, round, all) = (self.name, repeat + 1, cases.len());
            eprintln!("{name}: repeat {round} of {count}, {all} transfers");
            // All transfers of a repeat are mixed, so that a disturbance affects all subjects alike;
            // the same for a seed, so that a run can be repeated.
            for case in shuffled(&cases, self.common.seed, repeat) {
                match topology.fetch(case).with_context(|| self.describe(case)) {
                    Ok(more) => timings.entry(case).or_default().extend(more),
                    // One lost transfer of hundreds must not lose the others.
                    Err(error) => {
                        eprintln!("{name}: {error:#}");
                        failures.push(format!("{error:#}"));
                    }
                }
                // A few failures are shown beside the rest; many mean that the set-up is wrong.
                ensure!(
                    failures.len() <= FAILURES_MAX,
                    "more than {FAILURES_MAX} transfers failed"
                );
            }
        }
        let of = |case: &Case| Some((*case, topology.path(*case)?));
        let ways = |case: &Case| Some((*case, topology.way(*case)?));
        Ok(Results {
            paths: cases.iter().filter_map(of).collect(),
            ways: cases.iter().filter_map(ways).collect(),
            experiment: self,
            timings,
            failures,
        })
    }
}
