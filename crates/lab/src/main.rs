// SPDX-License-Identifier: Apache-2.0
//! `posthaste-lab`: one subcommand per experiment.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use posthaste_lab::{establish, record};

/// Builds networks, runs experiments on posthaste and records the results.
///
/// Experiments need root: they make network namespaces, and remove them again.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how long connections take to open, many at once.
    Establish(establish::Args),
    /// Print records as Markdown.
    Report(record::Args),
}

fn main() -> ExitCode {
    let result = match &Cli::parse().command {
        Command::Establish(args) => establish::run(args),
        Command::Report(args) => record::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("posthaste-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
