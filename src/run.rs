// SPDX-License-Identifier: Apache-2.0
//! The `run` verb: runs a command whose TCP connections go through a node.
//!
//! The command runs in its own cgroup, where eBPF programs redirect its connections to listeners of
//! this process. A worker, the same as in nodes, relays them to the node and requests the original
//! destination.
//!
//! Threads and processes: this thread waits for the command and for signals; one thread is the
//! worker; one reports problems with the node; a child process removes the cgroup, however this
//! process ends.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use caps::Capability;
use clap::Args;
use nix::sys::resource::{Resource, getrlimit};
use posthaste_bpf as bpf;
use posthaste_relay::policy::Prefix;
use posthaste_relay::sys;

use posthaste_daemon::privileges;

mod cgroup;
mod child;
mod complaint;
mod exempt;
mod policy;
mod user;
mod via;
mod worker;

use cgroup::Cgroup;
use child::{Child, Launch};
use user::User;
use worker::Worker;

/// Exit codes as of env(1): posthaste failed; 126: the command cannot be executed; 127: it was not
/// found.
const FAILED: u8 = 125;

const ABOUT: &str = "\
Sends the TCP connections of COMMAND and of its children through NODE, which is the address and
port of an explicit listener, or with a configuration file the name of a peer in it. Without a key
NODE knows this host by its address: list that in its `[access] clients`. Connections to loopback,
link-local and multicast addresses, to addresses of this host and to NODE itself go direct.

Exit codes: that of COMMAND, or 128 and the number of the signal that ended it; 127 when there is no
such command, 126 when it cannot be run, 125 when posthaste failed, 2 wrong command line or
configuration.";

#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(crate) struct RunArgs {
    /// ADDRESS:PORT of the node, or the name of a peer (default: the only peer in the configuration)
    #[arg(long, value_name = "NODE")]
    via: Option<String>,
    /// Configuration file with the peers and their keys [default: /etc/posthaste/node.toml]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connect directly to these addresses, for example 10.0.0.0/8; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = exempt::prefix)]
    direct: Vec<Prefix>,
    /// Run the command as this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The command and its arguments
    #[arg(
        required = true,
        value_name = "COMMAND",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

/// Runs the command; returns its exit code, or that of a failure.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    run_command(args).or_else(|error| {
        // These have an exit code of their own.
        if error.is::<posthaste_config::Error>() {
            return Err(error);
        }
        eprintln!("posthaste: {error:#}");
        Ok(ExitCode::from(FAILED))
    })
}

fn run_command(args: RunArgs) -> anyhow::Result<ExitCode> {
    let via = via::find(args.via.as_deref(), args.config.as_deref())?;
    let user = args.user.as_deref().map(User::find).transpose()?;
    privileges::require(&privileges::RUN)?;
    // Before they are raised: the command gets the limits that it would have without posthaste.
    let files = getrlimit(Resource::RLIMIT_NOFILE).context("read RLIMIT_NOFILE")?;
    privileges::raise_open_files()?;
    // The process has one thread until here, as a fork requires.
    let cgroup = Cgroup::make()?;
    let signals = child::block_signals()?;
    let programs = programs(&cgroup, &args.direct, via.address())?;
    let worker = Worker::start(programs, via)?;
    let launch = Launch {
        command: &args.command,
        cgroup: cgroup.members()?,
        files,
        mask: signals.former(),
        user: user.as_ref(),
    };
    let code = match Child::start(launch) {
        Ok(child) => {
            // The rest is waiting and passing signals on.
            privileges::keep_only(&[Capability::CAP_KILL])?;
            child.wait(&signals)?
        }
        Err(failure) => failure.report(&args.command),
    };
    worker.finish(&signals);
    cgroup.remove();
    Ok(ExitCode::from(code))
}

/// The programs, active in the cgroup as soon as they get listeners. They end with this process,
/// and before its listeners do: the kernel closes descriptors in ascending order.
fn programs(
    cgroup: &Cgroup,
    direct: &[Prefix],
    node: std::net::SocketAddr,
) -> anyhow::Result<Arc<bpf::Capture>> {
    let mut programs = bpf::Capture::load()?;
    for prefix in exempt::all(direct, node)? {
        programs.exempt(prefix)?;
    }
    programs.attach(cgroup.directory()).context(
        "the kernel needs CONFIG_CGROUP_BPF, and no other owner of this cgroup who forbids more \
         programs",
    )?;
    Ok(Arc::new(programs))
}

/// The cookie of this thread's network namespace.
fn netns() -> anyhow::Result<u64> {
    sys::netns_cookie().context("read the cookie of this network namespace")
}
