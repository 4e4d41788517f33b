// SPDX-License-Identifier: Apache-2.0
//! The kernel's settings that a node is better off with: named by `doctor`, changed by
//! `setup --tune` alone, and put back by `teardown`.

use std::fs;
use std::path::PathBuf;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Network;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use super::teardown::run;
use crate::support::{SOON, binary, line, start};
use crate::verbs::{assert_reports, failure_text};

/// Settings below `/proc/sys/net/ipv4`: at first, and with the values of `setup --tune`.
const SETTINGS: [(&str, &str, &str); 4] = [
    ("tcp_slow_start_after_idle", "1", "0"),
    ("tcp_rmem", "4096 131072 6291456", "4096 1048576 6291456"),
    ("tcp_fastopen", "1", "3"),
    ("tcp_mtu_probing", "0", "1"),
];

/// A node that listens, with a peer and its key in this directory.
fn tables(directory: &Scratch) -> String {
    let key = directory.path().join("a.key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    format!(
        "[node]\nid = 7\n[[listener]]\n[[peer]]\nname = \"a\"\nid = 8\n\
         address = \"192.0.2.8:4480\"\nkey_file = \"{}\"\n",
        key.display()
    )
}

/// A host with the settings that kernels come with, and the file of a node.
struct Host {
    network: Network,
    file: PathBuf,
    _directory: Scratch,
}

impl Host {
    fn new() -> Self {
        let directory = Scratch::new().unwrap();
        let file = directory.path().join("node.toml");
        fs::write(&file, format!("version = 1\n{}", tables(&directory))).unwrap();
        let network = line();
        for (name, first, _) in SETTINGS {
            set(network.node(0), name, first);
        }
        Self {
            network,
            file,
            _directory: directory,
        }
    }

    fn namespace(&self) -> &Namespace {
        self.network.node(0)
    }

    /// Runs a verb with the file and returns its words.
    fn run(&self, words: &str) -> String {
        run(
            self.namespace(),
            &format!("{words} -c {}", self.file.display()),
        )
    }

    /// The settings now.
    fn settings(&self) -> [String; 4] {
        SETTINGS.map(|(name, ..)| get(self.namespace(), name))
    }

    /// What `doctor` finds amiss with them: its words and the fix.
    fn complaints(&self) -> Vec<(String, String)> {
        let mut command = self.namespace().command(binary()).unwrap();
        let output = command
            .args(["doctor", "--json", "-c"])
            .arg(&self.file)
            .output();
        let answer: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let topics = [
            "slow start",
            "receive window",
            "fast open",
            "path MTU",
            "path limits",
        ];
        let findings = answer["findings"].as_array().unwrap().iter();
        let text =
            |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        findings
            .filter(|finding| topics.iter().any(|topic| finding["check"] == *topic))
            .filter(|finding| finding["level"] != "ok")
            .map(|finding| (text(finding, "what"), text(finding, "fix")))
            .collect()
    }
}

fn set(host: &Namespace, name: &str, value: &str) {
    host.sysctl(&format!("net.ipv4.{name}"), value).unwrap();
}

fn get(host: &Namespace, name: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/{name}");
    let text = host.run_in(|| fs::read_to_string(path).unwrap());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const FIRST: [&str; 4] = [SETTINGS[0].1, SETTINGS[1].1, SETTINGS[2].1, SETTINGS[3].1];
const TUNED: [&str; 4] = [SETTINGS[0].2, SETTINGS[1].2, SETTINGS[2].2, SETTINGS[3].2];

// promise: H2, H9
#[test]
fn tune_and_restore() {
    let host = Host::new();
    // By itself, neither the verb nor a node changes any.
    host.run("setup");
    assert_eq!(host.settings(), FIRST);
    host.run("teardown");

    let reported = host.run("setup --tune");
    assert_eq!(host.settings(), TUNED);
    for (name, first, tuned) in SETTINGS {
        let line = format!("net.ipv4.{name} = {tuned} (was {first})\n");
        assert!(reported.contains(&line), "{reported}");
    }
    assert_eq!(host.run("setup --tune"), "nothing to do\n");
    assert_eq!(host.settings(), TUNED);
    let reported = host.run("teardown");
    assert_eq!(host.settings(), FIRST);
    for (name, first, tuned) in SETTINGS {
        let line = format!("net.ipv4.{name} = {first} (was {tuned})\n");
        assert!(reported.contains(&line), "{reported}");
    }
    assert_eq!(host.run("teardown"), "nothing to do\n");
    assert_eq!(host.settings(), FIRST);
}

// promise: H9
#[test]
fn stopped_service_keeps_tuning() {
    let host = Host::new();
    host.run("setup --tune");
    host.run("teardown --keep-tuning");
    assert_eq!(host.settings(), TUNED);
    // A node that comes and goes neither.
    let directory = Scratch::new().unwrap();
    let mut node = start(&host.network, &tables(&directory));
    assert_eq!(host.settings(), TUNED);
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_eq!(host.settings(), TUNED);
    // Any teardown puts it back, also one without the file.
    run(host.namespace(), "teardown");
    assert_eq!(host.settings(), FIRST);
}

// promise: H9
#[test]
fn foreign_changes_kept() {
    let host = Host::new();
    host.run("setup --tune");
    set(host.namespace(), "tcp_rmem", "4096 2000000 8000000");
    let reported = host.run("teardown");
    assert!(
        reported.contains("net.ipv4.tcp_rmem was changed by another program"),
        "{reported}"
    );
    assert_eq!(host.settings(), ["1", "4096 2000000 8000000", "1", "0"]);
    assert_eq!(host.run("teardown"), "nothing to do\n");

    // Again worse than the tuned value: `teardown` restores this one.
    host.run("setup --tune");
    set(host.namespace(), "tcp_rmem", "4096 65536 8000000");
    host.run("setup --tune");
    assert_eq!(get(host.namespace(), "tcp_rmem"), "4096 1048576 8000000");
    host.run("teardown");
    assert_eq!(host.settings(), ["1", "4096 65536 8000000", "1", "0"]);
}

// promise: H8, H9
#[test]
fn doctors_fixes_work() {
    let host = Host::new();
    let complaints = host.complaints();
    assert_eq!(complaints.len(), 4, "{complaints:?}");
    for ((name, first, _), (what, _)) in SETTINGS.iter().zip(&complaints) {
        assert!(
            what.contains(&format!("net.ipv4.{name} = {first}: ")),
            "{what}"
        );
    }
    host.run("setup --tune");
    assert_eq!(host.complaints(), []);
    host.run("teardown");
    for (_, fix) in host.complaints() {
        let (command, rest) = fix.split_once(", or ").unwrap();
        assert_eq!(
            rest,
            "posthaste setup --tune -c FILE (with --persist over a reboot too)"
        );
        let mut shell = host.namespace().command("sh").unwrap();
        let output = shell.args(["-c", command]).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    assert_eq!(host.complaints(), []);
    assert_eq!(host.settings(), TUNED);
}

/// A host that starts with nothing in `/etc` and `/run`, in the network of a [`Host`].
struct Machine {
    host: Host,
    directory: Scratch,
}

impl Machine {
    fn new(host: Host) -> Self {
        let directory = Scratch::new().unwrap();
        for name in ["etc/sysctl.d", "run"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        Self { host, directory }
    }

    /// The file that is applied at boot.
    fn boot_file(&self) -> PathBuf {
        self.directory.path().join("etc/sysctl.d/90-posthaste.conf")
    }

    /// Runs a verb as on a machine with process 1 in this network namespace.
    fn run(&self, words: &str) -> String {
        let directory = self.directory.path().display();
        let (program, file) = (binary(), self.host.file.display());
        let (program, words) = (program.display(), format!("{words} -c {file}"));
        let script = format!(
            "mount --bind {directory}/etc /etc && mount --bind {directory}/run /run && exec {program} {words}"
        );
        let mut command = self.host.namespace().command("unshare").unwrap();
        command.args(["-m", "-p", "-f", "--mount-proc", "sh", "-c", &script]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The machine restarts: kernel defaults first, then the settings in the file.
    fn reboot(&self) {
        let run = self.directory.path().join("run");
        fs::remove_dir_all(&run).unwrap();
        fs::create_dir(&run).unwrap();
        for (name, first, _) in SETTINGS {
            set(self.host.namespace(), name, first);
        }
        let text = fs::read_to_string(self.boot_file()).unwrap_or_default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.split_once(" = ").unwrap();
            self.host.namespace().sysctl(name, value).unwrap();
        }
    }
}

// promise: H11
#[test]
fn persistent_tuning() {
    let machine = Machine::new(Host::new());
    machine.run("setup --tune");
    assert!(!machine.boot_file().exists());
    let reported = machine.run("setup --tune --persist");
    assert!(
        reported.contains("/etc/sysctl.d/90-posthaste.conf"),
        "{reported}"
    );
    machine.reboot();
    assert_eq!(machine.host.settings(), TUNED);
    // Again is nothing new, and forgets nothing.
    let written = fs::read_to_string(machine.boot_file()).unwrap();
    assert!(!machine.run("setup --tune --persist").contains("sysctl.d"));
    assert_eq!(fs::read_to_string(machine.boot_file()).unwrap(), written);
    machine.run("teardown --keep-tuning");
    assert_eq!(machine.host.settings(), TUNED);
    assert!(machine.boot_file().exists());
    let reported = machine.run("teardown");
    assert!(
        reported.contains("removed /etc/sysctl.d/90-posthaste.conf"),
        "{reported}"
    );
    assert_eq!(machine.host.settings(), FIRST);
    assert!(!machine.boot_file().exists());
    machine.reboot();
    assert_eq!(machine.host.settings(), FIRST);
}

// promise: H11
#[test]
fn foreign_file_kept() {
    let machine = Machine::new(Host::new());
    machine.run("setup --tune --persist");
    let edited = fs::read_to_string(machine.boot_file()).unwrap() + "net.ipv4.tcp_sack = 1\n";
    fs::write(machine.boot_file(), &edited).unwrap();
    let reported = machine.run("teardown");
    assert!(
        reported.contains("was changed by another program"),
        "{reported}"
    );
    assert_eq!(fs::read_to_string(machine.boot_file()).unwrap(), edited);
}

// promise: H11
#[test]
fn persist_in_other_namespace() {
    let host = Host::new();
    // Process 1 of a namespace of its own stays in the network of the test.
    let mut command = host.namespace().command("unshare").unwrap();
    let script = format!(
        "unshare -n {} setup --tune --persist -c {}; exit $?",
        binary().display(),
        host.file.display()
    );
    command.args(["-m", "-p", "-f", "--mount-proc", "sh", "-c", &script]);
    let message = failure_text(&command.output().unwrap(), 1);
    assert_reports(&message, &["--persist", "network namespace of process 1"]);
    assert_eq!(host.settings(), FIRST);
}

// promise: H9
#[test]
fn listeners_and_controllers_tuned() {
    let host = Host::new();
    let tune = |text: &str| {
        fs::write(&host.file, format!("version = 1\n{text}")).unwrap();
        host.run("setup --tune");
        let changed = host.settings();
        host.run("teardown");
        assert_eq!(host.settings(), FIRST);
        changed
    };
    let fixed = "[node]\nid = 7\n[[listener]]\nmode = \"fixed\"\naddress = \"127.0.0.1:4480\"\ndestination = \"192.0.2.1:443\"\n";
    assert_eq!(tune(fixed), [FIRST[0], TUNED[1], FIRST[2], TUNED[3]]);
    let explicit = "[node]\nid = 7\n[[listener]]\n";
    assert_eq!(tune(explicit), [FIRST[0], TUNED[1], TUNED[2], TUNED[3]]);
    // Where nothing is intercepted, no relay has to find out a path by itself.
    let requested = format!("{explicit}[transparent]\nenabled = false\n");
    assert_eq!(tune(&requested), [FIRST[0], TUNED[1], TUNED[2], FIRST[3]]);
}

// promise: H9
#[test]
fn transit_only_tuned_less() {
    let host = Host::new();
    fs::write(&host.file, "version = 1\n").unwrap();
    host.run("setup --tune");
    let tuned = [FIRST[0], FIRST[1], FIRST[2], TUNED[3]];
    assert_eq!(host.settings(), tuned);
    host.run("teardown");
    assert_eq!(host.settings(), FIRST);
}

/// The limits of the path manager of Multipath TCP, which are no sysctls.
// promise: H9
#[test]
fn path_limits_tuned() {
    let host = Host::new();
    let limits = || {
        let shown = host.namespace().ip_output("mptcp limits show");
        shown.unwrap().trim().to_owned()
    };
    let limit = |words: &str| {
        let set = format!("mptcp limits set {words}");
        host.namespace().ip(&set).unwrap();
    };
    let path_complaints = || {
        let mut complaints = host.complaints();
        complaints.retain(|(what, _)| what.starts_with("mptcp limits "));
        complaints
    };
    limit("add_addr_accepted 0 subflows 2");
    let first = limits();
    let tuned = |rule: &str| {
        let text = format!("version = 1\n[defaults]\n{rule}\n");
        fs::write(&host.file, text).unwrap();
        assert!(!path_complaints().is_empty(), "{rule}");
        host.run("setup --tune");
        assert_eq!(path_complaints(), [], "{rule}");
        let tuned = limits();
        let reported = host.run("teardown");
        assert!(
            reported.contains("mptcp limits subflows = 2 (was 4)\n"),
            "{reported}"
        );
        assert_eq!(limits(), first, "{rule}");
        tuned
    };
    assert_eq!(
        tuned("multipath = \"convert\""),
        "add_addr_accepted 0 subflows 4"
    );
    assert_eq!(
        tuned("upstream_multipath = true"),
        "add_addr_accepted 4 subflows 4"
    );
    // The fixes that `doctor` prints work, and one limit leaves the other.
    for (_, fix) in path_complaints() {
        let (command, _) = fix.split_once(", or ").unwrap();
        let (_, words) = command.split_once(' ').unwrap();
        host.namespace().ip(words).unwrap();
    }
    assert_eq!(limits(), "add_addr_accepted 4 subflows 4");
    // What another program changed stays.
    limit("subflows 2");
    host.run("setup --tune");
    limit("subflows 6");
    let reported = host.run("teardown");
    assert!(
        reported.contains("mptcp limits subflows was changed by another program"),
        "{reported}"
    );
    assert_eq!(limits(), "add_addr_accepted 4 subflows 6");
}
