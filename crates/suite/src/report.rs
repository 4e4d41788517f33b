// SPDX-License-Identifier: Apache-2.0
//! What a run prints: each failure at once and with its output, the slowest tests, how long each took.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::{Outcome, Round};

/// The file with the times of all tests, in cargo's target directory.
pub(crate) const TIMES: &str = "test-times.tsv";
const HEAD: &str = "ms\tcpu_ms\ttest";
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

/// Writes milliseconds, milliseconds of CPU time and names, the slowest first. What is known of tests
/// that were not in the run stays.
pub(crate) fn write_times(round: &Round, directory: &Path) -> Result<()> {
    let path = directory.join(TIMES);
    let former = fs::read_to_string(&path).unwrap_or_default();
    let names: HashSet<_> = round
        .outcomes
        .iter()
        .map(|outcome| outcome.test.full_name())
        .collect();
    let mut rows: Vec<_> = round.outcomes.iter().map(row).collect();
    rows.extend(others(&former, &names));
    rows.sort_by_key(|row| std::cmp::Reverse(milliseconds(row)));
    let text = format!("{HEAD}\n{}\n", rows.join("\n"));
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// The rows of a file of times that are not of the tests named.
fn others(text: &str, names: &HashSet<String>) -> Vec<String> {
    let rows = text.lines().filter(|line| *line != HEAD);
    rows.filter(|row| {
        row.splitn(3, '\t')
            .nth(2)
            .is_some_and(|name| !names.contains(name))
    })
    .map(str::to_owned)
    .collect()
}

fn milliseconds(row: &str) -> u64 {
    let (number, _) = row.split_once('\t').unwrap_or_default();
    number.parse().unwrap_or(0)
}

fn row(outcome: &Outcome) -> String {
    let (took, cpu) = (outcome.took.as_millis(), outcome.cpu.as_millis());
    format!("{took}\t{cpu}\t{}", outcome.test.full_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_tests_keep_their_times() {
        let file = format!("{HEAD}\n1200\t30\tposthaste/e2e a::b\n7\t7\tposthaste/e2e c\n");
        let names = HashSet::from(["posthaste/e2e c".to_owned()]);
        let kept = others(&file, &names);
        assert_eq!(kept, ["1200\t30\tposthaste/e2e a::b"]);
        assert_eq!(milliseconds(&kept[0]), 1200);
    }
}
