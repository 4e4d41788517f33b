// SPDX-License-Identifier: Apache-2.0
//! Medians of transfers compared with the model, and the targets for them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Case, Experiment, Goal, Moment, Timings};
use crate::model::Path;
use crate::names::Named;
use crate::stats::{deviation_percent, median};
use crate::target::Bound::{self, AtLeast, AtMost};
use crate::target::Target;

/// The measurements. Times are in milliseconds.
#[derive(Debug)]
pub(crate) struct Results {
    pub(super) experiment: Experiment,
    pub(super) timings: Timings,
    pub(super) paths: BTreeMap<Case, Path>,
    pub(super) ways: BTreeMap<Case, String>,
    pub(super) failures: Vec<String>,
}

impl Results {
    /// The samples of one moment.
    pub(super) fn values(&self, case: Case, moment: Moment) -> Vec<f64> {
        let timings = self.timings.get(&case).into_iter().flatten();
        timings.map(|timing| ms(moment.of(timing))).collect()
    }

    pub(super) fn median(&self, case: Case, moment: Moment) -> Option<f64> {
        median(&self.values(case, moment))
    }

    /// The number of timed transfers of these subjects.
    pub(crate) fn timed(&self, is_one: impl Fn(usize) -> bool) -> u64 {
        let timed = self.timings.iter().filter(|(case, _)| is_one(case.subject));
        timed.map(|(_, timings)| timings.len() as u64).sum()
    }

    pub(super) fn model(&self, case: Case, moment: Moment) -> Option<f64> {
        let path = self.paths.get(&case)?;
        Some(ms(match moment {
            Moment::Connect => path.connect(),
            Moment::FirstByte => path.first_byte(),
            Moment::Complete => path.complete(case.bytes + self.experiment.head_bytes),
        }))
    }

    /// How far the median of a moment is from the model, in percent.
    pub(super) fn off(&self, case: Case, moment: Moment) -> Option<f64> {
        let model = self.model(case, moment)?;
        Some(deviation_percent(self.median(case, moment)?, model))
    }

    /// How much longer completion takes than with another subject, in per cent.
    fn behind(&self, case: Case, subject: usize) -> Option<f64> {
        let median = |case| self.median(case, Moment::Complete);
        Some(deviation_percent(
            median(case)?,
            median(case.with(subject))?,
        ))
    }

    /// How much less time completion takes than without nodes, in per cent.
    pub(super) fn saved(&self, case: Case) -> Option<f64> {
        let reference = self.experiment.subjects[case.subject].reference?;
        Some(-self.behind(case, reference)?)
    }

    /// All targets, with what was measured.
    pub(super) fn targets(&self) -> Vec<Target> {
        let goals = |case: &Case| &self.experiment.subjects[case.subject].goals;
        let all = self.timings.keys().copied();
        let all = all.flat_map(|case| goals(&case).iter().map(move |goal| (case, goal)));
        all.filter_map(|(case, goal)| self.target(case, goal))
            .collect()
    }

    fn target(&self, case: Case, goal: &Goal) -> Option<Target> {
        let (figure, measured, bound) = match *goal {
            Goal::Model {
                moment,
                percent,
                may_be_less,
            } => {
                let off = self.off(case, moment)?;
                let distance = if may_be_less { off } else { off.abs() };
                let figure = format!("{} beside the model", moment.name());
                (figure, distance, AtMost(percent))
            }
            Goal::Behind { subject, percent } => {
                let other = &self.experiment.subjects[subject].name;
                let figure = format!("time to completion beside {other}");
                (figure, self.behind(case, subject)?, AtMost(percent))
            }
            Goal::Saved { by_size, tolerance } => {
                let (_, wanted) = by_size.iter().find(|(bytes, _)| *bytes == case.bytes)?;
                self.saved_or_shared(case, *wanted, tolerance)?
            }
        };
        let what = format!("{}: {figure}", self.experiment.describe(case));
        Some(Target::once(what, Some(measured), bound, "%"))
    }

    /// The time saved; where the rate of the links does not allow as much as wanted, the distance
    /// from the model, which shares the rate evenly.
    fn saved_or_shared(
        &self,
        case: Case,
        wanted: f64,
        tolerance: f64,
    ) -> Option<(String, f64, Bound)> {
        let saved = self.saved(case)?;
        let reference = self.experiment.subjects[case.subject].reference?;
        let without = self.median(case.with(reference), Moment::Complete)?;
        // The links can carry only so much: no node can save more than that.
        let possible = -deviation_percent(self.floor(case)?, without);
        if possible >= wanted {
            return Some(("time saved".to_owned(), saved, AtLeast(wanted)));
        }
        let figure = format!(
            "{saved:.1} % saved of {possible:.1} % possible; completion beside even shares of the rate"
        );
        Some((figure, self.off(case, Moment::Complete)?, AtMost(tolerance)))
    }

    /// The lower bound of the median of all clients.
    fn floor(&self, case: Case) -> Option<f64> {
        let clients = self.experiment.clients;
        let shared = self.paths.get(&case)?.clone();
        // `shared` has the rate of one client; together they have all of it.
        let alone = Path {
            rate: shared.rate * u64::from(clients),
            ..shared
        };
        Some(ms(alone.half_complete(case.bytes, clients)))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::super::{KB, Subject, Topology};
    use super::*;
    use crate::model::Hops;
    use crate::network::Family;
    use crate::transfer::Timing;

    const MS: Duration = Duration::from_millis(1);

    /// A direct path of 100 ms and one with warm nodes 2 ms from its ends, completing after so many
    /// milliseconds.
    fn results(goals: Vec<Goal>, direct_ms: u32, warm_ms: u32) -> Results {
        let subject = |name: &str, reference, goals| Subject {
            name: name.to_owned(),
            labels: vec![("subject", name.to_owned())],
            reference,
            goals,
        };
        let timing = |complete| Timing {
            connect: complete,
            first_byte: complete,
            complete,
            local: "10.0.0.1:1".parse().unwrap(),
        };
        let path = |hops: &[u32], between| Path {
            between,
            ..Path::new(
                hops.iter().map(|hop| *hop * MS).collect(),
                100_000_000,
                Family::V4,
            )
        };
        let [direct, warm] = [0, 1].map(|subject| Case {
            subject,
            bytes: 25 * KB,
        });
        Results {
            experiment: Experiment {
                name: "test",
                subjects: vec![
                    subject("direct", None, Vec::new()),
                    subject("warm", Some(0), goals),
                ],
                groups: Vec::new(),
                sizes: vec![25],
                head_bytes: 0,
                clients: 1,
                repeats: 1,
                conditions: String::new(),
                common: crate::record::Common {
                    seed: 1,
                    output: "none".into(),
                },
            },
            timings: [(direct, direct_ms), (warm, warm_ms)]
                .map(|(case, complete)| (case, vec![timing(complete * MS)]))
                .into(),
            paths: [
                (direct, path(&[50], Hops::Transparent)),
                (warm, path(&[2, 46, 2], Hops::Warm)),
            ]
            .into(),
            ways: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    fn met(goal: Goal, warm_ms: u32) -> Vec<bool> {
        let targets = results(vec![goal], 301, warm_ms).targets();
        targets.iter().map(Target::is_met).collect()
    }

    #[test]
    fn model_on_one_or_both_sides() {
        let near = |may_be_less| Goal::Model {
            moment: Moment::Complete,
            percent: 3.0,
            may_be_less,
        };
        // The model's time is 108.9 ms.
        assert_eq!(met(near(false), 110), [true]);
        assert_eq!(met(near(false), 90), [false]);
        assert_eq!(met(near(true), 90), [true]);
        assert_eq!(met(near(true), 113), [false]);
    }

    #[test]
    fn saved_and_behind() {
        let saved = || Goal::Saved {
            by_size: &[(25 * KB, 60.0)],
            tolerance: 3.0,
        };
        assert_eq!(met(saved(), 120), [true]);
        assert_eq!(met(saved(), 121), [false]);
        // More than the path allows: even shares of the rate decide.
        let all = Goal::Saved {
            by_size: &[(25 * KB, 70.0)],
            tolerance: 3.0,
        };
        assert_eq!(met(all.clone(), 112), [true]);
        assert_eq!(met(all, 113), [false]);
        let other_size = Goal::Saved {
            by_size: &[(10 * KB, 60.0)],
            tolerance: 3.0,
        };
        assert!(met(other_size, 300).is_empty());
        let behind = Goal::Behind {
            subject: 0,
            percent: 5.0,
        };
        assert_eq!(met(behind.clone(), 316), [true]);
        assert_eq!(met(behind, 317), [false]);
    }

    /// Carries the first subject's transfers only.
    struct Half;

    impl Topology for Half {
        fn fetch(&self, case: Case) -> anyhow::Result<Vec<Timing>> {
            anyhow::ensure!(case.subject == 0, "lost");
            Ok(results(Vec::new(), 1, 1).timings[&case].clone())
        }

        fn path(&self, _case: Case) -> Option<Path> {
            None
        }
    }

    #[test]
    fn few_transfers_may_fail() {
        let run = |repeats| {
            let experiment = Experiment {
                repeats,
                ..results(Vec::new(), 1, 1).experiment
            };
            experiment.run(&Half)
        };
        let few = run(5).unwrap();
        assert_eq!((few.timed(|_| true), few.failures.len()), (5, 5));
        assert!(few.failures[0].contains("warm: lost"), "{:?}", few.failures);
        assert!(run(6).unwrap_err().to_string().contains("more than 5"));
    }
}
