// SPDX-License-Identifier: Apache-2.0
//! Runs the router's node, and kills, upgrades, drains and reloads it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::DataPath;
use super::plan::Fault;
use crate::netns::Namespace;
use crate::node::Node;
use crate::process::{run, wait_until};

/// How long a drain waits for open relays: longer than connections last.
const DRAIN: &str = "[node]\ndrain_timeout = \"20s\"\n";
/// How long a process may take to end after a signal, with a generous margin.
const ENDING: Duration = Duration::from_secs(60);

/// The accept modes of successive reloads.
const MODES: [&str; 3] = ["early", "strict", "late"];

/// The node of a router, and its predecessors that still have relays.
#[derive(Debug)]
pub(super) struct Keeper {
    binary: PathBuf,
    data_path: DataPath,
    node: Node,
    former: Vec<Node>,
    /// Processes that replaced another. They are not children of the lab, so they are killed by id.
    successors: Vec<Pid>,
    opened: u64,
    reloads: usize,
    /// The output of nodes that have ended.
    log: Vec<String>,
}

impl Keeper {
    pub(super) fn start(router: &Namespace, binary: PathBuf, data_path: DataPath) -> Result<Self> {
        Ok(Self {
            node: start(router, &binary, &config(0, data_path))?,
            binary,
            data_path,
            former: Vec::new(),
            successors: Vec::new(),
            opened: 0,
            reloads: 0,
            log: Vec::new(),
        })
    }

    /// Begins a fault of the node.
    pub(super) fn begin(&mut self, router: &Namespace, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill => {
                // A killed node takes its counters with it.
                self.count()?;
                signal(self.pid()?, Signal::SIGKILL)
            }
            Fault::Drain => {
                self.count()?;
                let pid = self.pid()?;
                signal(pid, Signal::SIGTERM)?;
                wait_for_end(pid)
            }
            Fault::Upgrade => self.upgrade(router),
            Fault::Reload => self.reload(),
            _ => Ok(()),
        }
    }

    /// Ends it: there is a node again.
    pub(super) fn end(&mut self, router: &Namespace, fault: Fault) -> Result<()> {
        if !matches!(fault, Fault::Kill | Fault::Drain) {
            return Ok(());
        }
        let node = start(router, &self.binary, &config(self.reloads, self.data_path))?;
        let former = std::mem::replace(&mut self.node, node);
        self.former.push(former);
        // Nodes that were replaced by an upgrade before a kill may still have relays.
        for mut node in std::mem::take(&mut self.former) {
            if node.process_mut().ended()?.is_none() {
                self.former.push(node);
            } else {
                self.log.extend(node.log());
            }
        }
        Ok(())
    }

    /// The output of all nodes.
    pub(super) fn log(&self) -> Vec<String> {
        let nodes = self.former.iter().chain([&self.node]);
        let log = self.log.iter().cloned();
        log.chain(nodes.flat_map(Node::log)).collect()
    }

    /// The number of connections that all nodes have carried so far.
    pub(super) fn opened(&mut self) -> Result<u64> {
        let counters = self.data_path.counters().iter();
        let opened: u64 = counters
            .map(|name| self.node.counter(name))
            .sum::<Result<_>>()?;
        Ok(self.opened + opened)
    }

    /// Adds those of a process that is about to be replaced.
    fn count(&mut self) -> Result<()> {
        self.opened = self.opened()?;
        Ok(())
    }

    /// Ends the node, and its flows of the packet path: they would keep its guard for two hours.
    pub(super) fn tear_down(&mut self, router: &Namespace) -> Result<()> {
        let pid = self.pid()?;
        signal(pid, Signal::SIGKILL)?;
        wait_for_end(pid)?;
        let mut command = router.command(&self.binary)?;
        let config = self.node.config_file();
        run(command.arg("teardown").arg("--config").arg(config)).map(drop)
    }

    fn pid(&self) -> Result<Pid> {
        // After an upgrade another process answers at the same socket.
        let status = self.node.status()?;
        let pid = status["pid"].as_i64().context("a node has a number")?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    fn upgrade(&mut self, router: &Namespace) -> Result<()> {
        self.count()?;
        let mut command = router.command(&self.binary)?;
        run(command
            .args(["upgrade", "--socket"])
            .arg(self.node.socket()))?;
        let pid = self.pid()?;
        self.successors.push(pid);
        Ok(())
    }

    fn reload(&mut self) -> Result<()> {
        self.reloads += 1;
        self.node
            .write_config(&config(self.reloads, self.data_path))?;
        self.node.admin("reload").map(drop)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        for pid in self.successors.iter().filter(|pid| !has_ended(**pid)) {
            // It may be ending.
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }
}

fn config(reloads: usize, data_path: DataPath) -> String {
    // Each reload changes something that applies to new connections only.
    let mode = MODES[reloads % MODES.len()];
    let data_path = data_path.config();
    format!("{DRAIN}[defaults]\naccept = \"{mode}\"\n{data_path}")
}

fn start(router: &Namespace, binary: &PathBuf, config: &str) -> Result<Node> {
    let builder = Node::builder(router, binary).config(config);
    builder.start().context("start the node")
}

fn signal(pid: Pid, signal: Signal) -> Result<()> {
    kill(pid, signal).with_context(|| format!("send {signal} to process {pid}"))
}

fn wait_for_end(pid: Pid) -> Result<()> {
    wait_until(&format!("end of process {pid}"), ENDING, || has_ended(pid))
}

/// Whether the process does not exist, or is a zombie.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("Z", |(_, state)| state);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    // The main thread of a process may be a zombie while others still run.
    state.starts_with(['Z', 'X']) && threads <= 1
}
