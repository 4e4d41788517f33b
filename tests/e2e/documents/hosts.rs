// SPDX-License-Identifier: Apache-2.0
//! Hosts with systemd, on which the steps of a document are carried out.

use std::fs;

use posthaste_lab::machine::{Machine, Release};
use posthaste_lab::netns::Namespace;
use serde_json::Value;

use super::markdown::{Block, Step};
use crate::systemd::{boot_all, installed};

/// Hosts by their names in a document.
pub(super) struct Hosts<'a> {
    hosts: Vec<(&'a str, Machine)>,
    /// What the last command that makes a key has printed, by host.
    keys: Vec<(String, String)>,
}

impl<'a> Hosts<'a> {
    /// Boots them, each with what `make install` installs and the user of the services.
    pub(super) fn new(release: Release, hosts: &[(&'a str, &Namespace)]) -> Self {
        let (names, namespaces): (Vec<_>, Vec<_>) = hosts.iter().copied().unzip();
        let machines = boot_all(&namespaces, release, installed());
        for machine in &machines {
            machine.run("systemd-sysusers").unwrap();
        }
        Self {
            hosts: names.into_iter().zip(machines).collect(),
            keys: Vec::new(),
        }
    }

    fn machine(&self, name: &str) -> &Machine {
        let mut hosts = self.hosts.iter();
        let host = hosts.find(|(host, _)| *host == name);
        &host
            .unwrap_or_else(|| panic!("the document has no host {name}"))
            .1
    }

    /// Runs a line of a shell on a host; what it prints. It has to succeed.
    pub(super) fn run(&self, name: &str, line: &str) -> String {
        let machine = self.machine(name);
        machine.run(line).unwrap_or_else(|error| {
            let log =
                machine.run("journalctl --sync; journalctl --no-pager -b -n 50 -u 'posthaste*'");
            panic!("{name}: {error:#}\n{}", log.unwrap_or_default())
        })
    }

    /// A counter of the node on a host.
    pub(super) fn counter(&self, name: &str, counter: &str) -> u64 {
        let status: Value =
            serde_json::from_str(&self.run(name, "posthaste status --json")).unwrap();
        status["counters"][counter].as_u64().unwrap()
    }

    /// What the services on a host have logged as warnings and errors.
    pub(super) fn warnings(&self, name: &str) -> Vec<String> {
        let shown = self.run(
            name,
            "journalctl --sync && journalctl --no-pager -o cat -t posthaste -p warning",
        );
        shown.lines().map(Into::into).collect()
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
                        fs::write(self.machine(host).path(file), text).unwrap();
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
        if let Some(copied) = line.strip_prefix("scp -p ") {
            self.copy(host, copied);
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

    /// Copies a file to another host, as `scp -p FILE HOST:DIRECTORY` does.
    fn copy(&self, from: &str, words: &str) {
        let (file, to) = words.split_once(' ').unwrap();
        let (to, directory) = to.split_once(':').unwrap();
        let name = file.rsplit('/').next().unwrap();
        let to = self.machine(to).path(&format!("{directory}/{name}"));
        fs::copy(self.machine(from).path(file), to).unwrap();
    }
}
