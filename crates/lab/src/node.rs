// SPDX-License-Identifier: Apache-2.0
//! A posthaste node in a namespace, as an operator would run it: the real program, a configuration
//! file, its admin socket. This module does not use the program's code.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::CpuSet;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::http;
use crate::netns::Namespace;
use crate::process::{Process, run};
use crate::scratch::Scratch;
use crate::sys;

/// The name of the product's program.
const PROGRAM: &str = "posthaste";

/// The name of a node's configuration file, in a directory of its own.
const CONFIG_FILE: &str = "node.toml";

/// Bound on the time until a node is ready, and until it answers; far longer than it should take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of the log of a node whose test fails.
const LOG_LINES_SHOWN: usize = 100;

/// A running node. It is killed when dropped.
#[derive(Debug)]
pub struct Node {
    process: Process,
    binary: PathBuf,
    /// The part of its configuration chosen by the lab.
    head: String,
    relays: bool,
    files: Scratch,
}

/// The parameters of a node.
#[derive(Clone, Debug)]
pub struct Builder<'a> {
    namespace: &'a Namespace,
    binary: PathBuf,
    config: String,
    metrics: String,
    relays: bool,
    confined: Option<(CpuSet, i32)>,
}

impl Builder<'_> {
    /// Runs the node on `cpus` only, with a nice value.
    #[must_use]
    pub fn confined(mut self, cpus: CpuSet, nice: i32) -> Self {
        self.confined = Some((cpus, nice));
        self
    }

    /// The node's configuration: TOML tables other than `[admin]` and `[metrics]`.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.config);
        self
    }

    /// Makes the node relay every flow by sockets from its first connection on, unless the
    /// configuration names a data path: for what is about relays. Users' nodes observe a
    /// destination first, and carry short flows as packets.
    #[must_use]
    pub fn relaying(mut self) -> Self {
        self.relays = true;
        self
    }

    /// Serves metrics on a port of the namespace's loopback address; off by default.
    #[must_use]
    pub fn metrics(mut self, port: u16) -> Self {
        self.metrics = format!("127.0.0.1:{port}");
        self
    }

    /// Starts the node and waits until it reports that it is ready.
    pub fn start(self) -> Result<Node> {
        self.start_by(Process::spawn)
    }

    /// As [`Self::start`], with another way to start the process than [`Process::spawn`].
    pub fn start_by(self, spawn: impl FnOnce(&str, Command) -> Result<Process>) -> Result<Node> {
        // The process exists before it is ready: a failure to start is reported with its output.
        let mut node = self.spawn(spawn)?;
        node.process
            // The node logs a message with this word; the format of the line is that of its log.
            .wait_until("word that it is ready", PATIENCE, |process| {
                process
                    .stdout()
                    .split(|c: char| !c.is_alphanumeric())
                    .any(|word| word == "ready")
            })?;
        Ok(node)
    }

    /// Starts the node and does not wait.
    pub fn start_unready(self) -> Result<Node> {
        self.spawn(Process::spawn)
    }

    fn spawn(self, spawn: impl FnOnce(&str, Command) -> Result<Process>) -> Result<Node> {
        let files = Scratch::new()?;
        let file = files.path().join(CONFIG_FILE);
        let head = self.head(files.path());
        let config = tables(&self.config, self.relays);
        fs::write(&file, format!("{head}{config}")).context("write the node's configuration")?;
        let mut command = self.namespace.command(&self.binary)?;
        command.arg("node").arg("-c").arg(&file);
        if let Some((cpus, nice)) = self.confined {
            sys::confine(&mut command, cpus, nice);
        }
        Ok(Node {
            process: spawn("the node", command)?,
            binary: self.binary,
            head,
            relays: self.relays,
            files,
        })
    }

    /// The part of the configuration chosen by the lab.
    fn head(&self, directory: &Path) -> String {
        let socket = socket_in(directory);
        let metrics = &self.metrics;
        format!("version = 1\n[admin]\nsocket = {socket:?}\n[metrics]\nlisten = {metrics:?}\n")
    }
}

/// The tables of a configuration; with `relays`, of a node that relays by sockets at once.
fn tables(config: &str, relays: bool) -> String {
    const TABLE: &str = "[defaults]\n";
    if !relays {
        return config.to_owned();
    }
    let mut defaults = format!("{TABLE}observe = false\n");
    if !config.contains("data_path") {
        defaults.push_str("data_path = \"socket\"\n");
    }
    if config.contains(TABLE) {
        // TOML allows a table once, so the lines go into the one that is there.
        config.replacen(TABLE, &defaults, 1)
    } else {
        // Appended, so that line numbers in errors stay right.
        format!("{config}\n{defaults}")
    }
}

impl Node {
    /// Describes a node in `namespace`, of the program `binary`.
    pub fn builder(namespace: &Namespace, binary: impl Into<PathBuf>) -> Builder<'_> {
        Builder {
            namespace,
            binary: binary.into(),
            config: String::new(),
            metrics: "off".to_owned(),
            relays: false,
            confined: None,
        }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The process, to wait for it.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The configuration file; rewrite it and `reload` to change the node.
    pub fn config_file(&self) -> PathBuf {
        self.files.path().join(CONFIG_FILE)
    }

    /// Replaces the tables given to [`Builder::config`]. The node sees it at its next reload.
    pub fn write_config(&self, toml: &str) -> Result<()> {
        let text = format!("{}{}", self.head, tables(toml, self.relays));
        fs::write(self.config_file(), text).context("write the node's configuration")
    }

    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.files.path())
    }

    /// Runs an admin verb, given as the words after `posthaste`, and returns its output.
    pub fn admin(&self, words: &str) -> Result<String> {
        // In the namespace of the lab: the admin socket is a file, which every namespace reaches.
        let mut command = Command::new(&self.binary);
        command
            .args(words.split_whitespace())
            .arg("--socket")
            .arg(self.socket());
        run(&mut command)
    }

    /// Runs an admin verb with `--json` and returns its output.
    pub fn admin_json(&self, words: &str) -> Result<Value> {
        let text = self.admin(&format!("{words} --json"))?;
        serde_json::from_str(&text).with_context(|| format!("posthaste {words} printed {text}"))
    }

    /// The document of its admin API for a path, such as `/chains`. Unlike a verb it starts no
    /// process, so waiting for a value costs next to nothing.
    pub fn get(&self, target: &str) -> Result<Value> {
        let stream = UnixStream::connect(self.socket()).context("reach the node")?;
        // A node that is stopped does not answer.
        stream.set_read_timeout(Some(PATIENCE))?;
        http::get(stream, target)
    }

    /// Its state and its counters.
    pub fn status(&self) -> Result<Value> {
        self.get("/status")
    }

    /// CPU time of the process so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// A counter of the node's status by its name, wherever it is in the document.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let status = self.status()?;
        find_number(&status, name).with_context(|| format!("no number {name} in {status}"))
    }

    /// Its open relays, at most 1000.
    pub fn relays(&self) -> Result<Value> {
        self.get("/relays?limit=1000")
    }

    /// Lines that the node has printed so far.
    pub fn log(&self) -> Vec<String> {
        self.process.stdout().lines().map(str::to_owned).collect()
    }

    /// What the node has counted, its open relays, and the end of its log.
    fn situation(&self) -> String {
        let mut text = format!("node {}:\n", self.process.pid());
        match self.status() {
            Ok(status) => ["counters", "ended", "redirect"]
                .iter()
                .for_each(|group| text += &format!("{group}:{}\n", counted(&status[group]))),
            Err(error) => text += &format!("status: {error:#}\n"),
        }
        match self.relays() {
            Ok(relays) => text += &format!("relays: {relays}\n"),
            Err(error) => text += &format!("relays: {error:#}\n"),
        }
        let log = self.log();
        let end = log.len().saturating_sub(LOG_LINES_SHOWN);
        text + &log[end..].join("\n") + "\n" + &self.process.stderr()
    }

    /// Drains the node (SIGTERM) and waits for its end.
    pub fn stop(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(deadline)
    }

    /// Kills the node at once (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(PATIENCE).map(drop)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Of a test that fails: what it waited for in vain is in here.
        if thread::panicking() {
            eprintln!("{}", self.situation());
        }
    }
}

/// Those of a group of counters that are not zero.
fn counted(group: &Value) -> String {
    let counters = group.as_object().into_iter().flatten();
    let counted = counters.filter(|(_, value)| value.as_u64() != Some(0));
    counted
        .map(|(name, value)| format!(" {name}={value}"))
        .collect()
}

fn find_number(value: &Value, name: &str) -> Option<u64> {
    // Counters move between groups of the status, and experiments need only their values.
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|inner| find_number(inner, name))),
        Value::Array(items) => items.iter().find_map(|inner| find_number(inner, name)),
        _ => None,
    }
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("admin.sock")
}

/// Which product program to run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Binary {
    /// The program `posthaste` [default: beside this program, else found in PATH]
    #[arg(long, value_name = "FILE")]
    pub node_binary: Option<PathBuf>,
}

impl Binary {
    /// The program's path. An error names the ways to give one.
    pub fn find(&self) -> Result<PathBuf> {
        if let Some(path) = &self.node_binary {
            // Absolute, because processes may start in another directory.
            return fs::canonicalize(path).with_context(|| format!("find {}", path.display()));
        }
        let own = std::env::current_exe().context("find this program's own path")?;
        let beside = own.parent().map(|directory| directory.join(PROGRAM));
        let path = std::env::var_os("PATH").unwrap_or_default();
        beside
            .into_iter()
            .chain(std::env::split_paths(&path).map(|directory| directory.join(PROGRAM)))
            .find(|candidate| candidate.is_file())
            .context(
                "no program posthaste beside this one or in PATH; build it or give --node-binary",
            )
    }

    /// The version that the program reports.
    pub fn version(&self) -> Result<String> {
        let program = self.find()?;
        let version = run(Command::new(&program).arg("--version"))?;
        Ok(version.trim().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_any_depth() {
        let status = serde_json::json!({"name": "x", "workers": [{"syns": 3}], "syns": "none"});
        assert_eq!(find_number(&status, "syns"), Some(3));
        assert_eq!(find_number(&status, "name"), None);
    }

    #[test]
    fn a_missing_binary_is_named() {
        let binary = Binary {
            node_binary: Some("/nowhere/posthaste".into()),
        };
        assert!(format!("{:#}", binary.find().unwrap_err()).contains("/nowhere/posthaste"));
    }
}
