// SPDX-License-Identifier: Apache-2.0
//! The command line: which verbs there are, and which module answers each.
//!
//! Exit codes: 0 done, 1 it failed, 2 the command line or the configuration is
//! wrong.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::host::{Kept, Tuning};
use crate::verb::{AdminArgs, ConfigArgs, print};
use crate::{client, doctor, guard, host, keys, node, plan, run, tryout, upgrade};
use posthaste_config::Config;
use posthaste_config::controller::Controller;
use posthaste_daemon::journal;
use posthaste_daemon::log::Level;

const EXAMPLES: &str = "\
Examples:
  posthaste doctor                     check this host, and print how to fix each problem
  posthaste try 60                     relay for 60 s, then print the time saved
  posthaste node                       relay every TCP connection this host forwards
  posthaste check /etc/posthaste/node.toml
  posthaste node -c /etc/posthaste/node.toml
  posthaste status                     show the state of the node on this host
  posthaste relays list
  posthaste chains explain 198.51.100.7:443
  posthaste plan links.csv --from paris --to tokyo
  posthaste controller -c /etc/posthaste/controller.toml
  posthaste status --controller http://127.0.0.1:9465
  posthaste run --via 192.0.2.1:4480 -- curl https://example.org/
  posthaste upgrade                    replace the running node by this program
  posthaste teardown                   remove what a killed node left behind

Exit codes: 0 success, 1 failure, 2 invalid command line or configuration.";

/// Accelerates TCP connections over long paths, without changes to clients or servers.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a node until SIGTERM or SIGINT; SIGHUP reloads the configuration
    Node {
        #[command(flatten)]
        config: ConfigArgs,
        /// Replace the running node (`upgrade` starts a node with this option)
        #[arg(long, hide = true)]
        take_over: bool,
    },
    /// Run a controller until SIGTERM or SIGINT; SIGHUP reloads the configuration
    Controller {
        /// Configuration file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check the configuration file of a node or a controller, and print it with all defaults
    Check {
        /// Configuration file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print only mistakes and warnings
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
    },
    /// Check whether a node can work on this host, and print how to fix each problem
    Doctor {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Install the routing rule and the local route that a node otherwise installs when it starts
    Setup {
        #[command(flatten)]
        config: ConfigArgs,
        /// Also change the kernel settings that doctor recommends
        #[arg(long)]
        tune: bool,
        /// With --tune: keep these settings across reboots, by a file in /etc/sysctl.d
        #[arg(long, requires = "tune")]
        persist: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the rules, routes, programs and sockets that a node left behind
    Teardown {
        #[command(flatten)]
        config: ConfigArgs,
        /// Keep the kernel settings that setup --tune changed
        #[arg(long)]
        keep_tuning: bool,
        /// Keep open flows of the packet path, which the node's guard looks after, instead of resetting them
        #[arg(long)]
        keep_flows: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the state of the running node and the time it saved, or of a controller and its nodes
    Status(client::StatusArgs),
    /// Watch the busiest relays of the running node and the time saved
    Top(client::TopArgs),
    /// List or end relays of the running node
    #[command(subcommand)]
    Relays(client::RelaysVerb),
    /// List peers, chains and routes of the running node, or explain the route of one flow
    Chains(client::ChainsArgs),
    /// List the destinations that the running node has measured by observing handshakes
    Observed {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print at most COUNT destinations
        #[arg(long, value_name = "COUNT", default_value_t = 1000)]
        limit: usize,
    },
    /// Relay for a limited time, then print the time saved for each service
    Try(tryout::TryArgs),
    /// Show round-trip time, loss and state of the links to peers
    Links(AdminArgs),
    /// Generate shared keys of nodes, and identities of nodes and controllers
    #[command(subcommand)]
    Keys(keys::KeysVerb),
    /// Compute which nodes should carry connections, from a file of measured links
    Plan(plan::PlanArgs),
    /// Run a command with its TCP connections sent through a node
    Run(run::RunArgs),
    /// Stop the running node: accept no new connections, finish its relays, exit
    Drain(client::DrainArgs),
    /// Reload the configuration of the running node
    Reload(AdminArgs),
    /// Replace the running node by this program; the old node keeps its relays until they end
    Upgrade(upgrade::UpgradeArgs),
    /// Clean up after a node that dies; every node starts this process
    #[command(hide = true)]
    Guard(guard::GuardArgs),
}

impl Cli {
    /// Executes the verb.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Node { config, take_over } => {
                // A successor has another working directory.
                let path = config.config.map(std::path::absolute).transpose()?;
                if take_over {
                    return node::take_over(path);
                }
                let config = Config::load_or_default(path.as_deref())?;
                node::run(path, config)?;
            }
            Verb::Controller { config } => {
                let read = Controller::load(&config)?;
                posthaste_controller::run(&config, read)?;
            }
            Verb::Check { file, json, quiet } => check(&file, (json, quiet))?,
            Verb::Doctor { config, json } => {
                let config = Config::load_or_default(config.config.as_deref())?;
                return doctor::run(&config, json);
            }
            Verb::Setup {
                config,
                tune,
                persist,
                json,
            } => {
                let config = Config::load_or_default(config.config.as_deref())?;
                let tuning = match (tune, persist) {
                    (false, _) => Tuning::Off,
                    (true, false) => Tuning::UntilReboot,
                    (true, true) => Tuning::Persistent,
                };
                host::setup(&config, tuning, json)?;
            }
            Verb::Teardown {
                config,
                keep_tuning,
                keep_flows,
                json,
            } => {
                let config = Config::load_or_default(config.config.as_deref())?;
                let kept = Kept {
                    tuning: keep_tuning,
                    flows: keep_flows,
                };
                host::teardown(&config, kept, json)?;
            }
            Verb::Status(args) => client::status(&args)?,
            Verb::Top(args) => client::top(&args)?,
            Verb::Relays(verb) => client::relays(&verb)?,
            Verb::Chains(args) => client::chains(&args)?,
            Verb::Links(args) => client::links(&args)?,
            Verb::Keys(verb) => keys::run(&verb)?,
            Verb::Observed { admin, limit } => client::observed(&admin, limit)?,
            Verb::Try(args) => return tryout::run(&args),
            Verb::Plan(args) => plan::run(&args)?,
            Verb::Run(args) => return run::run(args),
            Verb::Drain(args) => client::drain(&args)?,
            Verb::Reload(args) => client::reload(&args)?,
            Verb::Guard(args) => guard::run(&args)?,
            Verb::Upgrade(args) => upgrade::run(&args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The `check` verb, which prints JSON, or only mistakes and warnings.
fn check(file: &std::path::Path, form: (bool, bool)) -> anyhow::Result<()> {
    // An unreadable file passes for a node's: `Config::load` then reports why it cannot be read.
    let text = std::fs::read_to_string(file).unwrap_or_default();
    if Controller::is_meant_by(&text) {
        let config = Controller::load(file)?;
        return explain(file, &config.warnings, form, &config, config.to_json()?);
    }
    let config = Config::load(file)?;
    // Warnings, not errors: the file may be meant for another host than the one that checks it.
    let conflicts = host::conflicts(&config);
    let conflicts = conflicts
        .iter()
        .map(|conflict| format!("on this host: {conflict}"));
    let warnings: Vec<String> = config.warnings.iter().cloned().chain(conflicts).collect();
    explain(file, &warnings, form, &config, config.to_json()?)
}

/// Explains a valid file: as JSON, or only by its warnings.
fn explain(
    file: &std::path::Path,
    warnings: &[String],
    (as_json, quiet): (bool, bool),
    config: &impl std::fmt::Display,
    json: String,
) -> anyhow::Result<()> {
    for warning in warnings {
        let text = format!("warning: {}: {warning}", file.display());
        journal::report(Level::Warn, &text);
    }
    if quiet {
        return Ok(());
    }
    if as_json {
        return print(&(json + "\n"));
    }
    print(&format!(
        "# {} is valid and means:\n{config}",
        file.display()
    ))
}
