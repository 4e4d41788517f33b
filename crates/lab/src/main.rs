// SPDX-License-Identifier: Apache-2.0
//! `posthaste-lab`: one subcommand per experiment.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use posthaste_lab::{
    compare, demo, fleet, handover, link, load, mix, multipath, planning, record, router_churn,
    senders, synflood,
    transfers::{line, overlay},
    tunnels,
};

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
    /// Fetch web objects of nginx, with and without a node halfway.
    Demo(demo::Args),
    /// Time transfers with no node, with nodes on and beside the path and in chains, beside the model.
    TransferTimes(line::Args),
    /// Flood a server behind a node with spoofed SYNs.
    Synflood(synflood::Args),
    /// Play many connections over a masquerading router while it changes and its node dies, with and
    /// without the node.
    RouterChurn(router_churn::Args),
    /// Play a web-like mix of connections over routers, and count how many a node accelerates and what that
    /// saves.
    Mix(mix::Args),
    /// Measure what nodes cost beside IP forwarding, HAProxy and nginx.
    Compare(compare::Args),
    /// Generate load, or serve it, for `compare`.
    #[command(hide = true)]
    Load(load::Args),
    /// Compare ways to choose chains, and time planning, on matrices of others.
    Planning(planning::Args),
    /// Have a thousand nodes follow one controller, and links and nodes die.
    Fleet(fleet::Args),
    /// Time transfers over an overlay with a controller, beside a reverse proxy, while links change.
    Overlay(overlay::Args),
    /// Time downloads of a client with two paths and Multipath TCP from a server with TCP.
    Multipath(multipath::Args),
    /// Have relays leave their connections in the middle of transfers over long paths.
    Handover(handover::Args),
    /// Time uploads and downloads by the congestion control of their ends, and the place of a node.
    Senders(senders::Args),
    /// Time transfers between two nodes over lossy links, by the congestion control of their hops.
    Tunnels(tunnels::Args),
    /// Print records as Markdown, and draw their charts again.
    Report(record::Args),
}

fn main() -> ExitCode {
    link::run_in_real_time();
    let result = match &Cli::parse().command {
        Command::Demo(args) => demo::run(args),
        Command::TransferTimes(args) => line::run(args),
        Command::Synflood(args) => synflood::run(args),
        Command::RouterChurn(args) => router_churn::run(args),
        Command::Mix(args) => mix::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Load(args) => load::run(args),
        Command::Planning(args) => planning::run(args),
        Command::Fleet(args) => fleet::run(args),
        Command::Overlay(args) => overlay::run(args),
        Command::Multipath(args) => multipath::run(args),
        Command::Handover(args) => handover::run(args),
        Command::Senders(args) => senders::run(args),
        Command::Tunnels(args) => tunnels::run(args),
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
