// SPDX-License-Identifier: Apache-2.0
//! Where a subject is started, and the running subject.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::CpuSet;

use crate::boot::memory;
use crate::flood::counts::{LISTEN, read, sockets};
use crate::netns::Namespace;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::process::Process;
use crate::sys;

/// The port of the server, and of relays that clients address directly.
pub(super) const PORT: u16 = 8000;

/// The nice value of all measured processes, to reduce disturbance by others on the machine.
pub(super) const NICE: i32 = -10;

/// How long a subject may take to start, and to end.
pub(super) const READY: Duration = Duration::from_secs(30);

/// Where a subject is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) network: &'a Network,
    /// The CPUs that it may use.
    pub(super) cpus: &'a [usize],
    /// Number of relaying threads.
    pub(super) threads: usize,
    /// Bound on simultaneous connections.
    pub(super) connections: usize,
    pub(super) binary: &'a Binary,
}

impl Site<'_> {
    pub(super) fn node(&self) -> &Namespace {
        self.network.node(0)
    }

    pub(super) fn server(&self) -> SocketAddr {
        SocketAddr::new(self.network.server_address(Family::V4), PORT)
    }

    /// The address of the relay, for clients that address it directly.
    pub(super) fn relay(&self) -> SocketAddr {
        SocketAddr::new(self.network.node_address(0, Family::V4), PORT)
    }

    /// Starts a program on some of its CPUs and waits until a process of the node's namespace
    /// listens on [`PORT`].
    pub(super) fn spawn(
        &self,
        name: &str,
        mut command: Command,
        cpus: &[usize],
    ) -> Result<Process> {
        sys::confine(&mut command, cpu_set(cpus)?, NICE);
        let mut process = Process::spawn(name, command)?;
        process.wait_until("listener", READY, |_| self.node().run_in(is_listening))?;
        Ok(process)
    }
}

/// The set of these CPUs.
pub(super) fn cpu_set(cpus: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    Ok(set)
}

/// A subject that relays. Its processes end with it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) processes: Vec<Process>,
    pub(super) nodes: Vec<Node>,
    /// The address that clients connect to.
    pub(super) target: SocketAddr,
    /// The destination that they request there, by RFC 8803.
    pub(super) request_for: Option<SocketAddr>,
    /// Its configuration, for the record.
    pub(super) configuration: String,
}

impl Running {
    /// A subject without processes.
    pub(super) fn bare(target: SocketAddr, configuration: impl Into<String>) -> Self {
        Self {
            processes: Vec::new(),
            nodes: Vec::new(),
            target,
            request_for: None,
            configuration: configuration.into(),
        }
    }

    /// Ends it with a signal, so that nothing is left for the next one.
    pub(super) fn stop(self) -> Result<()> {
        // By SIGTERM, as operators do: a killed node would leave its guard to clean up during the
        // next load.
        for mut node in self.nodes {
            node.stop(READY).context("stop a node")?;
        }
        Ok(())
    }

    /// All its processes and their descendants.
    pub(super) fn pids(&self) -> Result<Vec<u32>> {
        let own = self.processes.iter().map(Process::pid);
        let all = own.chain(self.nodes.iter().map(|node| node.process().pid()));
        let families = all.map(memory::family).collect::<Result<Vec<_>>>()?;
        Ok(families.concat())
    }
}

/// Whether a process listens on [`PORT`] in the namespace of the calling thread.
fn is_listening() -> bool {
    // The kernel lists listeners by family, and a relay may listen for one or both.
    let text = ["tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
    let port = format!(":{PORT:04X}");
    let mut listeners = text.iter().flat_map(|text| sockets(text));
    listeners.any(|(local, _, state)| state == LISTEN && local.ends_with(&port))
}
