// SPDX-License-Identifier: Apache-2.0
//! `posthaste-lab`: one subcommand per experiment.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use posthaste_lab::{establish, record, synflood, transfer_times};

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
    /// Time transfers with no node and with nodes on the path, beside the model.
    TransferTimes(transfer_times::Args),
    /// Measure how long connections take to open, many at once.
    Establish(establish::Args),
    /// Flood a server behind a node with spoofed SYNs.
    Synflood(synflood::Args),
    /// Print records as Markdown.
    Report(record::Args),
}

fn main() -> ExitCode {
    let result = match &Cli::parse().command {
        Command::Establish(args) => establish::run(args),
        Command::TransferTimes(args) => transfer_times::run(args),
        Command::Synflood(args) => synflood::run(args),
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
