// SPDX-License-Identifier: Apache-2.0
//! The units as `make install` installs them, and services with their settings.

use std::fs;
use std::path::Path;
use std::process::Command;

use caps::{CapSet, Capability};
use posthaste_lab::scratch::Scratch;

use super::repository;
use crate::support::binary;

const UNITS: [&str; 2] = ["posthaste.service", "posthaste-controller.service"];

/// The settings of a service in its unit.
#[derive(Debug, Default)]
pub(super) struct Unit {
    user: String,
    capabilities: Vec<String>,
    /// What is run before it.
    pub(super) before: Vec<String>,
    pub(super) start: String,
}

impl Unit {
    /// The unit of a service with programs in `bin`.
    pub(super) fn read(service: &str, bin: &Path) -> Self {
        let path = repository(&format!("packaging/{service}.service.in"));
        let text = fs::read_to_string(path).unwrap();
        let text = text.replace("@bindir@", &bin.display().to_string());
        let mut unit = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "User" => unit.user = value.into(),
                "AmbientCapabilities" => {
                    // A container may lack one that a node can do without.
                    let each = value.split_whitespace().filter(|name| is_held(name));
                    let each = each.map(|name| name.trim_start_matches("CAP_").to_lowercase());
                    unit.capabilities.extend(each);
                }
                // What root does for it makes no difference here.
                "ExecStartPre" if value.starts_with("-+") => {}
                "ExecStartPre" => unit.before.push(value.into()),
                "ExecStart" => unit.start = value.into(),
                _ => {}
            }
        }
        unit
    }

    /// A command as the user of the service, with its capabilities and no others.
    pub(super) fn confined(&self, command: &str) -> Vec<String> {
        let given = self.capabilities.iter().map(|name| format!(",+{name}"));
        let set = format!("-all{}", given.collect::<String>());
        let user = &self.user;
        let head = [
            "setpriv".to_owned(),
            format!("--reuid={user}"),
            format!("--regid={user}"),
            "--clear-groups".into(),
            "--no-new-privs".into(),
            format!("--inh-caps={set}"),
            format!("--ambient-caps={set}"),
            format!("--bounding-set={set}"),
        ];
        let words = command.split_whitespace().map(Into::into);
        head.into_iter().chain(words).collect()
    }
}

/// Whether the user who runs the tests has a capability, to pass it on.
fn is_held(name: &str) -> bool {
    let capability = name.parse::<Capability>().unwrap();
    caps::has_cap(None, CapSet::Permitted, capability).unwrap()
}

// promise: W7
#[test]
fn units_are_valid() {
    let root = Scratch::new().unwrap();
    let prefix = root.path().display().to_string();
    let made = Command::new("make")
        .args(["--no-print-directory", "install-service", "DESTDIR="])
        .arg(format!("PREFIX={prefix}"))
        .current_dir(repository(""))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::create_dir(root.path().join("bin")).unwrap();
    std::os::unix::fs::symlink(binary(), root.path().join("bin/posthaste")).unwrap();
    for unit in UNITS {
        let file = root.path().join("lib/systemd/system").join(unit);
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("@bindir@"), "{text}");
        let commands = text.lines().filter(|line| line.starts_with("Exec"));
        let others = ["=/bin/kill ", "=-+/usr/bin/install "];
        for command in commands.filter(|line| !others.iter().any(|other| line.contains(other))) {
            let program = command.split_once('=').unwrap().1;
            assert!(
                program.starts_with(&format!("{prefix}/bin/posthaste ")),
                "{command}"
            );
        }
        let verified = Command::new("systemd-analyze")
            .arg("verify")
            .arg(&file)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&verified.stderr);
        let ours: Vec<&str> = message.lines().filter(|line| line.contains(unit)).collect();
        assert!(verified.status.success() && ours.is_empty(), "{message}");
    }
    let users = fs::read_to_string(root.path().join("lib/sysusers.d/posthaste.conf")).unwrap();
    assert!(
        users.lines().any(|line| line.starts_with("u posthaste ")),
        "{users}"
    );
}
