// SPDX-License-Identifier: Apache-2.0
//! What tests could leave on the host: processes, namespaces, mounts, interfaces, rules, files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::wait::WaitStatus;

use crate::process;

/// How long what ends by itself may take: guards see the end of their nodes once a second.
const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(100);

/// Directories with the things of network namespaces, nodes and commands.
const DIRECTORIES: [&str; 5] = [
    "/run/netns",
    "/run/posthaste",
    "/sys/fs/bpf/posthaste",
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
];

/// Commands that list what is configured. A host may lack a program, and then has nothing of it.
const LISTS: [&[&str]; 5] = [
    &["ip", "-brief", "link"],
    &["ip", "-4", "rule"],
    &["ip", "-6", "rule"],
    &["ip", "-4", "route", "show", "table", "all"],
    &["nft", "list", "ruleset"],
];

/// All of that at one time, a line each.
#[derive(Debug)]
pub(crate) struct Host(BTreeSet<String>);

impl Host {
    pub(crate) fn look() -> Result<Self> {
        let mut lines = BTreeSet::new();
        for (pid, command) in process::children() {
            lines.insert(format!("process {pid}: {command}"));
        }
        for directory in DIRECTORIES {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            lines.extend(entries.map(|entry| format!("file {}", entry.path().display())));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
        lines.extend(mounts.lines().map(|line| format!("mount {line}")));
        for words in LISTS {
            let listed = list(words)?;
            let shown = words.join(" ");
            lines.extend(
                listed
                    .lines()
                    .map(|line| format!("{shown}: {}", line.trim_end())),
            );
        }
        Ok(Self(lines))
    }
}

/// What was not there before, after a while in which it could have ended.
pub(crate) fn left_behind(before: &Host) -> Result<Vec<String>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let now = Host::look()?;
        let left: Vec<_> = now.0.difference(&before.0).cloned().collect();
        if left.is_empty() || Instant::now() > until {
            return Ok(left);
        }
        sleep(INTERVAL);
    }
}

fn list(words: &[&str]) -> Result<String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdout(Stdio::piped());
    let Ok((program, stdout)) = process::own(&mut command) else {
        return Ok(String::new());
    };
    let mut text = String::new();
    let mut stdout = stdout.expect("it is piped");
    stdout.read_to_string(&mut text)?;
    let ended = program.wait(PATIENCE);
    let status = ended.with_context(|| format!("{} does not end", words.join(" ")))?;
    let is_done = matches!(status.status, WaitStatus::Exited(_, 0));
    ensure!(is_done, "{}: {:?}", words.join(" "), status.status);
    Ok(text)
}
