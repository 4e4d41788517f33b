// SPDX-License-Identifier: Apache-2.0
//! Repeats of an experiment's transfers, each in another order, so that disturbances on the machine
//! affect all of them alike.

use anyhow::{Result, ensure};

use crate::rng::shuffled;

/// Failures after which an experiment is aborted.
const FAILURES_MAX: usize = 5;

/// The number of repeats, and their orders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeats {
    /// Its name, for progress messages.
    pub(crate) experiment: &'static str,
    pub(crate) count: u32,
    /// Seed of the orders.
    pub(crate) seed: u64,
}

impl Repeats {
    /// Runs all transfers. Failures are printed and added to `failures`; too many of them are an
    /// error.
    pub(crate) fn run<T: Clone>(
        self,
        transfers: &[T],
        failures: &mut Vec<String>,
        mut transfer: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let Self {
            experiment,
            count,
            seed,
        } = self;
        for repeat in 0..count {
            let (round, all) = (repeat + 1, transfers.len());
            eprintln!("{experiment}: repeat {round} of {count}, {all} transfers");
            // Another order each time, but the same for a seed, so that a run can be repeated.
            for one in shuffled(transfers, seed, repeat) {
                // One lost transfer of hundreds must not lose the others.
                if let Err(error) = transfer(one) {
                    let failure = format!("{error:#}");
                    eprintln!("{experiment}: {failure}");
                    failures.push(failure);
                }
                // A few failures are shown beside the rest; many mean that the set-up is wrong.
                ensure!(
                    failures.len() <= FAILURES_MAX,
                    "more than {FAILURES_MAX} transfers failed"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    const TWICE: Repeats = Repeats {
        experiment: "test",
        count: 2,
        seed: 1,
    };

    #[test]
    fn repeats_and_failures() {
        let (mut ran, mut failures) = ([0; 4], Vec::new());
        let all = TWICE.run(&[0, 1, 2, 3], &mut failures, |one: usize| {
            ran[one] += 1;
            ensure!(one != 3, "the last");
            Ok(())
        });
        assert!(all.is_ok());
        assert_eq!((ran, failures), ([2; 4], vec!["the last".to_owned(); 2]));
    }

    #[test]
    fn too_many_failures_end_it() {
        let mut failures = Vec::new();
        let all = TWICE.run(&[(); 20], &mut failures, |()| bail!("all of them"));
        assert!(all.is_err());
        assert_eq!(failures.len(), FAILURES_MAX + 1);
    }
}
