// SPDX-License-Identifier: Apache-2.0
//! Medians of transfers compared with the model, and with their targets. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Case, Experiment, Moment, Target, Timings};
use crate::model::Path;
use crate::stats::{deviation_percent, median};

/// The measurements. Times are in milliseconds.
#[derive(Debug)]
pub(crate) struct Results {
    pub(super) experiment: Experiment,
    pub(super) timings: Timings,
    pub(super) paths: BTreeMap<Case, Path>,
    pub(super) ways: BTreeMap<Case, String>,
    pub(super) failures: Vec<String>,
}

/// The result of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub text: String,
    pub is_met: bool,
    /// Whether the tables do not have it already.
    pub is_remark: bool,
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
        let mode = self.experiment.subjects[case.subject].mode;
        Some(ms(match moment {
            Moment::Connect => path.connect(mode),
            Moment::FirstByte => path.first_byte(mode),
            Moment::Complete => path.complete(mode, case.bytes + self.experiment.head_bytes),
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

    /// How much longer completion takes than without nodes, in per cent.
    pub(super) fn gain(&self, case: Case) -> Option<f64> {
        let reference = self.experiment.subjects[case.subject].reference?;
        self.behind(case, reference)
    }

    /// The results of all targets.
    pub(super) fn checks(&self) -> Vec<Check> {
        let targets = |case: &Case| &self.experiment.subjects[case.subject].targets;
        let all = self.timings.keys().copied();
        let all = all.flat_map(|case| targets(&case).iter().map(move |target| (case, target)));
        all.filter_map(|(case, target)| self.check(case, target))
            .collect()
    }

    fn check(&self, case: Case, target: &Target) -> Option<Check> {
        match *target {
            Target::Model {
                moment,
                percent,
                may_be_less,
            } => self.near_model(case, moment, percent, may_be_less),
            Target::Behind { subject, percent } => self.not_behind(case, subject, percent),
            Target::Gain { by_size, tolerance } => {
                let (_, wanted) = by_size.iter().find(|(bytes, _)| *bytes == case.bytes)?;
                self.gains(case, *wanted, tolerance)
            }
        }
    }

    fn near_model(
        &self,
        case: Case,
        moment: Moment,
        percent: f64,
        may_be_less: bool,
    ) -> Option<Check> {
        let off = self.off(case, moment)?;
        let distance = if may_be_less { off } else { off.abs() };
        let what = self.experiment.describe(case);
        Some(Check {
            text: format!("{what}: {} is {off:+.1} % off the model", moment.name()),
            is_met: distance <= percent,
            is_remark: false,
        })
    }

    fn not_behind(&self, case: Case, subject: usize, percent: f64) -> Option<Check> {
        let behind = self.behind(case, subject)?;
        let what = self.experiment.describe(case);
        let other = &self.experiment.subjects[subject].name;
        Some(Check {
            text: format!("{what}: {behind:+.1} % beside {other}, at most {percent:+.1} % wanted"),
            is_met: behind <= percent,
            is_remark: true,
        })
    }

    fn gains(&self, case: Case, wanted: f64, tolerance: f64) -> Option<Check> {
        let gain = -self.gain(case)?;
        let reference = self.experiment.subjects[case.subject].reference?;
        let without = self.median(case.with(reference), Moment::Complete)?;
        let floor = self.floor(case)?;
        let possible = -deviation_percent(floor, without);
        let what = self.experiment.describe(case);
        let mut text = format!("{what}: {gain:.1} % less than without nodes, {wanted} % wanted");
        let is_met = if possible >= wanted {
            gain >= wanted
        } else {
            let even = self.model(case, Moment::Complete)?;
            text += &format!(
                " and {possible:.1} % possible; even shares of the rate take {even:.1} ms"
            );
            self.off(case, Moment::Complete)? <= tolerance
        };
        Some(Check {
            text,
            is_met,
            is_remark: true,
        })
    }

    /// The lower bound of the median of all clients.
    fn floor(&self, case: Case) -> Option<f64> {
        let clients = self.experiment.clients;
        let shared = self.paths.get(&case)?.clone();
        let alone = Path {
            rate: shared.rate * u64::from(clients),
            ..shared
        };
        let mode = self.experiment.subjects[case.subject].mode;
        Some(ms(alone.half_complete(mode, case.bytes, clients)))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::super::{KB, Subject};
    use super::*;
    use crate::model::{Hops, Mode};
    use crate::network::Family;
    use crate::transfer::Timing;

    const MS: Duration = Duration::from_millis(1);

    /// A direct path of 100 ms and one with warm nodes 2 ms from its ends, completing after so many
    /// milliseconds.
    fn results(targets: Vec<Target>, direct_ms: u32, warm_ms: u32) -> Results {
        let subject = |name: &str, reference, targets| Subject {
            name: name.to_owned(),
            labels: vec![("subject", name.to_owned())],
            mode: Mode::Early,
            reference,
            targets,
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
                    subject("warm", Some(0), targets),
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

    fn met(target: Target, warm_ms: u32) -> Vec<bool> {
        let checks = results(vec![target], 301, warm_ms).checks();
        checks.iter().map(|check| check.is_met).collect()
    }

    #[test]
    fn model_on_one_or_both_sides() {
        let near = |may_be_less| Target::Model {
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
    fn gain_and_lag() {
        let gain = || Target::Gain {
            by_size: &[(25 * KB, 60.0)],
            tolerance: 3.0,
        };
        assert_eq!(met(gain(), 120), [true]);
        assert_eq!(met(gain(), 121), [false]);
        // More than the path allows: even shares of the rate decide.
        let all = Target::Gain {
            by_size: &[(25 * KB, 70.0)],
            tolerance: 3.0,
        };
        assert_eq!(met(all.clone(), 112), [true]);
        assert_eq!(met(all, 113), [false]);
        let other_size = Target::Gain {
            by_size: &[(10 * KB, 60.0)],
            tolerance: 3.0,
        };
        assert!(met(other_size, 300).is_empty());
        let behind = Target::Behind {
            subject: 0,
            percent: 5.0,
        };
        assert_eq!(met(behind.clone(), 316), [true]);
        assert_eq!(met(behind, 317), [false]);
    }
}
