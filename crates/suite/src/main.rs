// SPDX-License-Identifier: Apache-2.0
//! `posthaste-suite`: runs each test in a process of its own, the slowest first, and fails if the
//! tests leave anything on the host.
//!
//! Tests of one process would inherit each other's sockets to the programs that they start. A test
//! that fails leaves its directory with the files of its nodes.

mod catalogue;
mod host;
mod order;
mod process;
mod report;
mod run;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::host::Host;

/// Runs tests, each in a process of its own.
#[derive(Debug, Parser)]
struct Args {
    /// Tests at once [default: 7 for each CPU, since most wait for links and timers]
    #[arg(long)]
    jobs: Option<usize>,
    /// How often to run all of them
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Processes that use a CPU each meanwhile, to show that no test depends on time
    #[arg(long, default_value_t = 0)]
    burners: usize,
    /// Only tests whose name has one of these in it
    filters: Vec<String>,
    /// What to build, in the words of `cargo test`
    #[arg(last = true, required = true)]
    cargo: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suite: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all rounds; whether everything passed and nothing is left.
fn run(args: &Args) -> Result<bool> {
    let catalogue = catalogue::build(&args.cargo, &args.filters)?;
    let tests = order::slowest_first(catalogue.tests, &catalogue.directory);
    ensure!(!tests.is_empty(), "no test has such a name");
    let cpus = std::thread::available_parallelism().context("count the CPUs")?;
    let jobs = args.jobs.unwrap_or_else(|| 7 * cpus.get());
    process::adopt_orphans()?;
    let _burners = process::Burners::start(args.burners)?;
    let mut sound = true;
    for _ in 0..args.rounds {
        let before = Host::look()?;
        let round = run::all(&tests, jobs)?;
        let left = host::left_behind(&before)?;
        report::write_times(&round, &catalogue.directory)?;
        sound &= report::print(&round, catalogue.ignored, &left);
    }
    Ok(sound)
}
