// SPDX-License-Identifier: Apache-2.0
//! What a run prints: each failure at once and with its output, the slowest tests, how long each took.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::{Outcome, Round};

/// The file with the times of all tests, in cargo's target directory.
pub(crate) const TIMES: &str = "test-times.tsv";
/// How many of the slowest a summary names.
const SLOWEST: usize = 10;

/// Prints what became of a test.
pub(crate) fn progress(outcome: &Outcome) {
    let name = outcome.test.full_name();
    let seconds = outcome.took.as_secs_f64();
    match &outcome.failure {
        None => println!("ok      {seconds:7.2} s  {name}"),
        Some(failure) => println!(
            "FAILED  {seconds:7.2} s  {name}: {}\n{}\n{name}: see {}",
            failure.why,
            failure.output.trim_end(),
            failure.directory.display()
        ),
    }
}

/// Prints what became of a run; whether everything passed and nothing is left.
pub(crate) fn print(round: &Round, ignored: usize, left: &[String]) -> bool {
    let mut slowest: Vec<_> = round.outcomes.iter().collect();
    slowest.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    println!("\nslowest:");
    for outcome in slowest.iter().take(SLOWEST) {
        println!("  {}", row(outcome).replace('\t', "  "));
    }
    let cpu: Duration = round.outcomes.iter().map(|outcome| outcome.cpu).sum();
    println!(
        "{:.1} s, {:.1} s of CPU time, {ignored} ignored",
        round.took.as_secs_f64(),
        cpu.as_secs_f64()
    );
    let failed: Vec<_> = slowest
        .iter()
        .filter(|outcome| outcome.failure.is_some())
        .collect();
    for outcome in &failed {
        println!("failed: {}", outcome.test.full_name());
    }
    for line in left {
        println!("left behind: {line}");
    }
    let passed = round.outcomes.len() - failed.len();
    println!(
        "{passed} passed, {} failed",
        failed.len() + usize::from(!left.is_empty())
    );
    failed.is_empty() && left.is_empty()
}

/// Writes milliseconds, milliseconds of CPU time and names, the slowest first.
pub(crate) fn write_times(round: &Round, directory: &Path) -> Result<()> {
    let mut outcomes: Vec<_> = round.outcomes.iter().collect();
    outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    let mut text = String::from("ms\tcpu_ms\ttest\n");
    for outcome in outcomes {
        let _ = writeln!(text, "{}", row(outcome));
    }
    let path = directory.join(TIMES);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn row(outcome: &Outcome) -> String {
    let (took, cpu) = (outcome.took.as_millis(), outcome.cpu.as_millis());
    format!("{took}\t{cpu}\t{}", outcome.test.full_name())
}
