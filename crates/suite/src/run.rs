// SPDX-License-Identifier: Apache-2.0
//! Runs tests: some at once, each in a process and a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::wait::WaitStatus;

use crate::catalogue::Test;
use crate::process::{self, Ended, Own};
use crate::report;

/// A test that takes longer hangs.
const TIME_MAX: Duration = Duration::from_secs(900);
/// What a test prints, in its directory.
const OUTPUT: &str = "output";

/// What became of a test.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    pub(crate) failure: Option<Failure>,
    pub(crate) took: Duration,
    /// CPU time of the test and of the processes that it waited for.
    pub(crate) cpu: Duration,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) output: String,
    /// It stays, for a look.
    pub(crate) directory: PathBuf,
}

/// All outcomes of a run.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) took: Duration,
}

/// Runs tests, `jobs` at once, in their order.
pub(crate) fn all(tests: &[Test], jobs: usize) -> Result<Round> {
    let began = Instant::now();
    let root = root();
    // A former process with this id may have left something.
    let _ = fs::remove_dir_all(&root);
    fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(test) = tests.get(index) else {
                return Ok(outcomes);
            };
            let outcome = one(test, &root.join(index.to_string()))?;
            report::progress(&outcome);
            outcomes.push(outcome);
        }
    };
    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        outcomes.collect::<Result<Vec<_>>>()
    })?;
    // Kept if a failed test has its directory there.
    let _ = fs::remove_dir(&root);
    Ok(Round {
        outcomes: outcomes.into_iter().flatten().collect(),
        took: began.elapsed(),
    })
}

/// A short path: those of unix sockets, which are in it, have at most 107 bytes.
fn root() -> PathBuf {
    std::env::temp_dir().join(format!("ph-suite.{}", std::process::id()))
}

fn one(test: &Test, directory: &Path) -> Result<Outcome> {
    fs::create_dir(directory).with_context(|| format!("create {}", directory.display()))?;
    let began = Instant::now();
    let test_process = start(test, directory)?;
    let (ended, why) = watch(&test_process);
    let failure = why.map(|why| Failure {
        why,
        output: fs::read_to_string(directory.join(OUTPUT)).unwrap_or_default(),
        directory: directory.to_owned(),
    });
    if failure.is_none() {
        // What a guard of a killed node still writes there goes with the next of this process.
        let _ = fs::remove_dir_all(directory);
    }
    Ok(Outcome {
        test: test.clone(),
        failure,
        took: began.elapsed(),
        cpu: ended.cpu,
    })
}

fn start(test: &Test, directory: &Path) -> Result<Own> {
    let output = File::create(directory.join(OUTPUT)).context("make a file for output")?;
    let mut command = Command::new(&test.program.file);
    command
        .args(["--exact", &test.name, "--nocapture", "--test-threads=1"])
        .current_dir(&test.program.package)
        .env("CARGO_MANIFEST_DIR", &test.program.package)
        .env("TMPDIR", directory)
        // The messages of failed checks name their places; backtraces of many threads hide them.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("share a file for output")?)
        .stderr(output);
    process::own(&mut command).map(|(own, _)| own)
}

/// Waits until a test has ended, which it does not later than [`TIME_MAX`], and why it failed.
fn watch(test: &Own) -> (Ended, Option<String>) {
    if let Some(ended) = test.wait(TIME_MAX) {
        return (ended, how(ended.status));
    }
    // What it started ends with it.
    test.kill();
    let ended = test.wait(Duration::MAX).expect("it was killed");
    let why = format!("did not end in {} s", TIME_MAX.as_secs());
    (ended, Some(why))
}

fn how(status: WaitStatus) -> Option<String> {
    match status {
        WaitStatus::Exited(_, 0) => None,
        WaitStatus::Exited(..) => Some("failed".to_owned()),
        WaitStatus::Signaled(_, signal, _) => Some(format!("ended by {signal}")),
        other => Some(format!("ended: {other:?}")),
    }
}
