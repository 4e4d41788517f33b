// SPDX-License-Identifier: Apache-2.0
//! Hosts with directories of their own, on which the steps of a document are carried out.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste_lab::netns::Namespace;
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use super::markdown::{Block, Step};
use super::repository;
use super::service::Unit;
use crate::support::{SOON, binary};

/// The directories that a host has for itself.
const OWN: [&str; 3] = ["/etc", "/run", "/var/lib"];

/// Copies a file to another host, as `scp -p FILE HOST:DIRECTORY` does.
const SCP: &str = "#!/bin/sh\nexec cp -p \"$2\" \"$HOSTS/${3%%:*}${3#*:}\"\n";

/// Hosts by their names in a document.
pub(super) struct Hosts<'a> {
    hosts: Vec<(&'a str, &'a Namespace)>,
    root: Scratch,
    services: Vec<Process>,
    /// What the last command that makes a key has printed, by host.
    keys: Vec<(String, String)>,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(hosts: &[(&'a str, &'a Namespace)]) -> Self {
        let root = Scratch::new().unwrap();
        // The user of a service runs the program that is there.
        open_to_all(root.path());
        let made = Self {
            hosts: hosts.to_vec(),
            root,
            services: Vec::new(),
            keys: Vec::new(),
        };
        let bin = made.bin();
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("posthaste"), "").unwrap();
        fs::write(bin.join("scp"), SCP).unwrap();
        for file in ["posthaste", "scp"] {
            open_to_all(&bin.join(file));
        }
        for (name, _) in hosts {
            made.furnish(name);
        }
        made
    }

    /// Gives a host what one has on which posthaste is installed.
    fn furnish(&self, name: &str) {
        for directory in OWN {
            fs::create_dir_all(self.path(name, directory)).unwrap();
        }
        let etc = self.path(name, "/etc");
        let copied = Command::new("cp")
            .args(["-a", "/etc/."])
            .arg(&etc)
            .output()
            .unwrap();
        assert!(copied.status.success(), "{copied:?}");
        let users = repository("packaging/posthaste.sysusers");
        self.run(name, &format!("systemd-sysusers {}", users.display()));
        self.run(
            name,
            "mkdir -p /etc/posthaste /run/posthaste /var/lib/posthaste",
        );
        self.run(name, "chown posthaste /run/posthaste /var/lib/posthaste");
    }

    fn bin(&self) -> PathBuf {
        self.root.path().join("bin")
    }

    /// Where a path of a host is.
    fn path(&self, host: &str, path: &str) -> PathBuf {
        self.root
            .path()
            .join(host)
            .join(path.trim_start_matches('/'))
    }

    fn namespace(&self, name: &str) -> &'a Namespace {
        let mut hosts = self.hosts.iter();
        let host = hosts.find(|(host, _)| *host == name);
        host.unwrap_or_else(|| panic!("the document has no host {name}"))
            .1
    }

    /// A command on a host, given as words.
    fn command(&self, name: &str, words: &[String]) -> Command {
        let mut command = self.namespace(name).command("unshare").unwrap();
        let mut script = String::new();
        for directory in OWN {
            let own = self.path(name, directory);
            script += &format!("mount --bind {} {directory} && ", own.display());
        }
        let program = self.bin().join("posthaste");
        script += &format!(
            "mount --bind {} {} && ",
            binary().display(),
            program.display()
        );
        script += "exec \"$@\"";
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.bin().display()));
        command.env("HOSTS", self.root.path());
        command
            .args(["--mount", "sh", "-c", &script, "sh"])
            .args(words);
        command
    }

    /// Runs a line of a shell on a host; what it prints. It has to succeed.
    pub(super) fn run(&self, name: &str, line: &str) -> String {
        let words = ["sh", "-e", "-c", line].map(Into::into);
        let output = self.command(name, &words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {line}: {stdout}{stderr}");
        stdout
    }

    /// A counter of the node on a host.
    pub(super) fn counter(&self, name: &str, counter: &str) -> u64 {
        let status: Value =
            serde_json::from_str(&self.run(name, "posthaste status --json")).unwrap();
        status["counters"][counter].as_u64().unwrap()
    }

    /// Runs the blocks of a document; returns the output of each command.
    pub(super) fn carry_out(&mut self, blocks: &[Block]) -> Vec<String> {
        assert!(!blocks.is_empty());
        let mut printed = Vec::new();
        for block in blocks {
            for host in &block.hosts {
                match &block.step {
                    Step::File(file) => {
                        let text = self.with_keys(host, &block.text);
                        fs::write(self.path(host, file), text).unwrap();
                    }
                    Step::Commands => {
                        printed.extend(
                            block
                                .text
                                .lines()
                                .map(|line| self.carry_out_line(host, line)),
                        );
                    }
                }
            }
        }
        printed
    }

    fn carry_out_line(&mut self, host: &str, line: &str) -> String {
        if let Some(service) = service_of(line) {
            self.start(host, service);
            return String::new();
        }
        let printed = self.run(host, line);
        if line.starts_with("posthaste keys identity") {
            let mut words = printed.split(|c: char| !c.is_ascii_hexdigit());
            let key = words.find(|word| word.len() == 64);
            let key = key.unwrap_or_else(|| panic!("no key in {printed}"));
            self.keys.push((host.into(), key.into()));
        }
        printed
    }

    /// The text of a file with the keys that were printed in the place of the document's: those of
    /// a `[[node]]` by its name, and that of the controller.
    fn with_keys(&self, host: &str, text: &str) -> String {
        let mut named = "controller".to_owned();
        let mut lines = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("name = ") {
                named = name.trim_matches('"').into();
            }
            let key = self
                .keys
                .iter()
                .find(|(name, _)| *name == named && name != host);
            match key.filter(|_| line.starts_with("key = ")) {
                Some((_, key)) => lines.push(format!("key = \"{key}\"")),
                None => lines.push(line.into()),
            }
        }
        lines.join("\n") + "\n"
    }

    /// Starts a service as its unit specifies.
    fn start(&mut self, host: &str, service: &str) {
        let unit = Unit::read(service, &self.bin());
        for command in &unit.before {
            let output = self
                .command(host, &unit.confined(command))
                .output()
                .unwrap();
            assert!(output.status.success(), "{host}: {command}: {output:?}");
        }
        let command = self.command(host, &unit.confined(&unit.start));
        let mut process = Process::spawn(&format!("{service} on {host}"), command).unwrap();
        process
            .wait_until("word that it is ready", SOON, |process| {
                process.stdout().contains("is ready\"")
            })
            .unwrap();
        self.services.push(process);
    }
}

/// The service that a line starts.
fn service_of(line: &str) -> Option<&str> {
    let words = line.strip_prefix("systemctl ")?;
    ["restart ", "enable --now "]
        .iter()
        .find_map(|verb| words.strip_prefix(verb))
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}
