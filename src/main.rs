// SPDX-License-Identifier: Apache-2.0
//! The one binary of posthaste: nodes, and the tools of their operators.

use std::process::ExitCode;

use clap::Parser;
use posthaste_daemon::journal;
use posthaste_daemon::log::Level;

mod admin;
mod affinity;
mod api;
mod aside;
mod chains;
mod cli;
mod client;
mod control_client;
mod destinations;
mod doctor;
mod guard;
mod host;
mod intercept;
mod keys;
mod memory;
mod node;
mod placement;
mod plan;
mod reach;
mod run;
mod saved;
mod signals;
mod tryout;
mod upgrade;
mod verb;

fn main() -> ExitCode {
    cli::Cli::parse().run().unwrap_or_else(|error| {
        journal::report(Level::Error, &format!("posthaste: {error:#}"));
        // clap exits with 2 for a wrong command line; a wrong configuration is the same to a
        // script.
        let usage = error.is::<posthaste_config::Error>();
        ExitCode::from(if usage { 2 } else { 1 })
    })
}
