// SPDX-License-Identifier: Apache-2.0
//! A node with an unusable configuration, or on a host where it may not run: it reports the
//! mistake, its place and the accepted form before it changes anything.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Network;
use posthaste_lab::node::Node;
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use crate::support::{SOON, binary, line, listen_at};
use crate::verbs::{assert_reports, failure_text, posthaste};
use crate::watch::assert_nothing_left;

/// A file in a directory of its own.
struct File {
    path: PathBuf,
    _directory: Scratch,
}

impl File {
    fn new(content: impl AsRef<[u8]>) -> Self {
        let directory = Scratch::new().unwrap();
        let path = directory.path().join("node.toml");
        fs::write(&path, content).unwrap();
        Self {
            path,
            _directory: directory,
        }
    }
}

/// Files with a mistake, its position, and the message.
const WRONG: &[(&str, &str, &[&str])] = &[
    (
        "version = 1\n[node]\nworker = 2\n",
        ":3:1",
        &["node.worker", "unknown key", "did you mean \"workers\"?"],
    ),
    (
        "version = 1\n[metric]\n",
        ":2:2",
        &["metric", "unknown key", "did you mean \"metrics\"?"],
    ),
    ("version = 2\n", ":1:11", &["version = 2", "expected 1"]),
    ("", "", &["version is missing", "version = 1"]),
    (
        "version = 1\n[node]\nworkers = \"many\"\n",
        ":3:11",
        &["node.workers = \"many\"", "a whole number from 1 to"],
    ),
    (
        "version = 1\n[node]\ndrain_timeout = 30\n",
        ":3:17",
        &[
            "node.drain_timeout = 30",
            "expected a duration such as",
            "\"30s\"",
        ],
    ),
    (
        "version = 1\n[half_open]\ntotal = 100\nreserve = 200\n",
        ":4:11",
        &[
            "half_open.reserve = 200",
            "at most half_open.total, which is 100",
        ],
    ),
    (
        "version = 1\n[defaults.upstream]\ncongestion = \"warp\"\n",
        ":3:14",
        &[
            "defaults.upstream.congestion = \"warp\"",
            "\"auto\"",
            "cubic",
        ],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\ndestinations = [\"10.1.2.3/8\"]\n",
        ":4:17",
        &[
            "rule \"web\": destinations = \"10.1.2.3/8\"",
            "\"10.0.0.0/8\"",
        ],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\nsources = [\"fd00::/129\"]\n",
        ":4:12",
        &["rule \"web\": sources = \"fd00::/129\"", "from 0 to 128"],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\nports = [80, \"9000-8000\"]\n",
        ":4:14",
        &["rule \"web\": ports = \"9000-8000\"", "\"8000-9000\""],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\nports = [65536]\n",
        ":4:10",
        &["rule \"web\": ports = 65536", "from 1 to 65535"],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\n[[rule]]\nname = \"web\"\n",
        ":5:8",
        &["rule.name = \"web\"", "rule 1 already"],
    ),
    (
        "version = 1\n[[rule]]\nname = \"web\"\naction = \"accept\"\n",
        ":4:10",
        &[
            "action = \"accept\"",
            "\"relay\", \"forward\" or \"reject\"",
        ],
    ),
    ("version = 1\n[node\n", ":2:6", &[]),
];

// promise: H6
#[test]
fn mistakes_with_places() {
    for (text, place, words) in WRONG {
        let file = File::new(text);
        let message = failure_text(&posthaste([Path::new("check"), &file.path]), 2);
        let start = format!("posthaste: {}{place}: ", file.path.display());
        assert!(message.starts_with(&start), "{message} at {start}");
        assert_reports(&message, words);
    }
}

// promise: H6
#[test]
fn same_mistakes_every_verb() {
    let file = File::new("version = 1\n[node]\nworkers = 0\n");
    let expected = failure_text(&posthaste([Path::new("check"), &file.path]), 2);
    for verb in ["node", "doctor", "setup", "teardown"] {
        let output = posthaste([Path::new(verb), Path::new("-c"), &file.path]);
        assert_eq!(failure_text(&output, 2), expected, "{verb}");
    }
}

// promise: H6
#[test]
fn unreadable_files_named() {
    let missing = Path::new("/nowhere/node.toml");
    let message = failure_text(&posthaste([Path::new("check"), missing]), 2);
    assert_reports(
        &message,
        &["/nowhere/node.toml: cannot be read", "No such file"],
    );
    let directory = Scratch::new().unwrap();
    let message = failure_text(&posthaste([Path::new("check"), directory.path()]), 2);
    assert_reports(
        &message,
        &[&directory.path().display().to_string(), "cannot be read"],
    );
    let binary = File::new([0xff, 0xfe, 0x00]);
    let message = failure_text(&posthaste([Path::new("check"), &binary.path]), 2);
    assert_reports(
        &message,
        &[&binary.path.display().to_string(), "cannot be read"],
    );
}

// promise: H7
#[test]
fn check_prints_configuration() {
    let file = File::new(
        "version = 1\n[[rule]]\nname = \"web\"\nports = [80, \"8000-8999\"]\naccept = \"strict\"\n",
    );
    let meaning = posthaste([Path::new("check"), &file.path]);
    assert_eq!(meaning.status.code(), Some(0), "{meaning:?}");
    let text = String::from_utf8(meaning.stdout).unwrap();
    assert_reports(
        &text,
        &["is valid", "name = \"web\"", "workers = ", "relays_max = "],
    );
    let again = File::new(&text);
    let as_json = |file: &File| {
        let output = posthaste([Path::new("check"), &file.path, Path::new("--json")]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let meaning = as_json(&file);
    assert_eq!(as_json(&again), meaning);
    assert_eq!(meaning["rule"][0]["accept"], "strict", "{meaning:#}");
}

// promise: W5
#[test]
fn wrong_arguments_exit_2() {
    for (words, help) in [
        (&["nod"][..], "'node'"),
        (&[], "Usage: posthaste"),
        (&["status", "--jason"], "'--json'"),
        (&["top", "--interval", "x"], "such as 2 or 0.5"),
    ] {
        let output = posthaste(words);
        assert_reports(&failure_text(&output, 2), &[help]);
    }
}

/// Starts a node that cannot run and returns its words. Nothing of it remains.
fn refused(network: &Network, toml: &str) -> String {
    let node = Node::builder(network.node(0), binary())
        .relaying()
        .config(toml);
    let message = format!("{:#}", node.start().unwrap_err());
    assert!(message.contains("exit status: 1"), "{message}");
    assert_nothing_left(network.node(0));
    message
}

// promise: H5
#[test]
fn failed_start_leaves_nothing() {
    let network = line();
    let message = refused(&network, "[transparent]\ninterfaces = [\"c0\", \"eth7\"]\n");
    assert_reports(&message, &["transparent.interfaces", "eth7"]);

    let metrics = "127.0.0.1:9464";
    let taken = listen_at(network.node(0), metrics.parse().unwrap());
    let node = Node::builder(network.node(0), binary()).metrics(9464);
    let message = format!("{:#}", node.start().unwrap_err());
    drop(taken);
    assert_reports(
        &message,
        &[
            "exit status: 1",
            "metrics.listen",
            metrics,
            "\"off\"",
            "in use",
        ],
    );
    assert_nothing_left(network.node(0));
}

/// Runs the program in a namespace by way of `setpriv`.
fn run_with(host: &Namespace, setpriv: &[&str], program: &Path, words: &[&str]) -> Output {
    let mut command = host.command("setpriv").unwrap();
    command.args(setpriv).arg(program).args(words);
    command.output().unwrap()
}

// promise: H5
#[test]
fn missing_capabilities_are_named() {
    let network = line();
    for (capability, purpose) in [
        ("net_admin", "routing rules"),
        ("net_raw", "a client's address"),
        ("bpf", "redirect program"),
        ("perfmon", "redirect program"),
    ] {
        // Root without it. One that has CAP_SYS_ADMIN needs no CAP_BPF.
        let bounds = format!("--bounding-set=-{capability},-sys_admin");
        let output = run_with(network.node(0), &[&bounds], &binary(), &["node"]);
        let message = failure_text(&output, 1);
        let name = format!("CAP_{}", capability.to_uppercase());
        assert_reports(&message, &[&format!("{name} is missing"), purpose]);
        assert_reports(&message, &["run as root", "AmbientCapabilities=", "setcap"]);
        assert_eq!(message.matches("is missing").count(), 1, "{message}");
    }
    assert_nothing_left(network.node(0));
}

// promise: R4
#[test]
fn initial_window_unprivileged() {
    let network = line();
    let files = Scratch::new().unwrap();
    let file = files.path().join("node.toml");
    let socket = files.path().join("admin.sock");
    let text = format!(
        "version = 1\n[admin]\nsocket = {socket:?}\n[metrics]\nlisten = \"off\"\n\
         [defaults.upstream]\ninitial_window = 20\n"
    );
    fs::write(&file, text).unwrap();
    let node = format!(
        "exec setpriv --bounding-set=-sys_admin {} node -c {}",
        binary().display(),
        file.display()
    );
    let mounted = format!("mount -t cgroup2 none /sys/fs/cgroup && {node}");
    let hidden = format!("mount -t tmpfs none /sys/fs/cgroup && {node}");
    let run = |script: &str| {
        let mut command = network.node(0).command("unshare").unwrap();
        command.args(["-m", "sh", "-c", script]);
        Process::spawn("node", command).unwrap()
    };
    let mut without = run(&hidden);
    assert!(!without.wait(SOON).unwrap().success());
    assert_reports(&without.stderr(), &["`initial_window` needs the cgroup v2"]);
    let mut with = run(&mounted);
    let is_ready = |process: &Process| process.stdout().contains("is ready\"");
    let ready = with.wait_until("word that it is ready", SOON, is_ready);
    assert!(ready.is_ok(), "{}", with.stderr());
}

// promise: H5
#[test]
fn missing_privileges_named() {
    let network = line();
    // Where an ordinary user may run it.
    let directory = Scratch::new().unwrap();
    let program = directory.path().join("posthaste");
    // By another process, so that none of ours holds the file open for writing.
    let copied = Command::new("cp").arg(binary()).arg(&program).status();
    assert!(copied.unwrap().success());
    let absent_host = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let run = |words: &[&str]| run_with(network.node(0), &absent_host, &program, words);
    let message = failure_text(&run(&["node"]), 1);
    assert_reports(
        &message,
        &["CAP_NET_ADMIN is missing", "CAP_NET_RAW is missing"],
    );
    for verb in ["setup", "teardown"] {
        assert_reports(
            &failure_text(&run(&[verb]), 1),
            &["CAP_NET_ADMIN is missing"],
        );
    }
    // What needs no privilege works.
    let file = File::new("version = 1\n");
    let output = run(&["check", &file.path.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

// promise: H6
#[test]
fn all_mistakes_at_once() {
    let file = File::new(
        "version = 1\n[transparent]\ninterfaces = \"eth0\"\n[node]\nworkers = 0\nwrkers = 2\n\
         [[rule]]\nname = \"web\"\nports = 443\naccept = \"soon\"\n",
    );
    let message = failure_text(&posthaste([Path::new("check"), &file.path]), 2);
    let name = file.path.display();
    for (place, words) in [
        (
            ":3:14",
            "transparent.interfaces = \"eth0\": expected a list: [\"eth0\"]",
        ),
        (":5:11", "node.workers = 0: expected a whole number"),
        (
            ":6:1",
            "node.wrkers: unknown key; did you mean \"workers\"?",
        ),
        (":9:9", "ports = 443: expected a list: [443]"),
        (":10:10", "accept = \"soon\": expected \"early\""),
    ] {
        let line = message
            .lines()
            .find(|line| line.contains(&format!("{name}{place}: ")));
        assert!(
            line.is_some_and(|line| line.contains(words)),
            "{place} {words}: {message}"
        );
    }
    assert_eq!(message.lines().count(), 5, "{message}");
}

/// What `check` warns of in a namespace, where the file is right.
fn warnings(host: &Namespace, text: &str) -> String {
    let file = File::new(format!("version = 1\n{text}"));
    let mut command = host.command(binary()).unwrap();
    let output = command.arg("check").arg(&file.path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

// promise: H14
#[test]
fn doubtful_values_warned() {
    let network = line();
    let host = network.node(0);
    let rules = "[[rule]]\nname = \"all\"\n[[rule]]\nname = \"late\"\nsources = []\n";
    assert_reports(
        &warnings(host, rules),
        &["rule \"late\" can never apply: rule \"all\" goes first"],
    );
    assert_eq!(
        warnings(
            host,
            "[[rule]]\nname = \"a\"\n[[rule]]\nname = \"b\"\nports = [80]\n"
        ),
        ""
    );
    let listener = |address: &str| {
        format!(
            "[[listener]]\naddress = \"{address}\"\nmode = \"fixed\"\ndestination = \"192.0.2.9:80\"\n"
        )
    };
    let node = "[node]\nid = 7\n";
    let both = format!(
        "{node}{}{}",
        listener("0.0.0.0:4480"),
        listener("127.0.0.1:4480")
    );
    assert_reports(
        &warnings(host, &both),
        &["\"127.0.0.1:4480\": the listener \"0.0.0.0:4480\""],
    );
    let lacking = format!("{node}{}", listener("192.0.2.77:4480"));
    assert_reports(
        &warnings(host, &lacking),
        &["this host has no address 192.0.2.77"],
    );
    let lacking = format!("{node}{}", listener("[2001:db8::77]:4480"));
    assert_reports(
        &warnings(host, &lacking),
        &["this host has no address 2001:db8::77"],
    );
    assert_eq!(
        warnings(host, &format!("{node}{}", listener("127.0.0.1:4480"))),
        ""
    );
    // Such a node cannot start, and reports why.
    let metrics = format!("{node}{}", listener("127.0.0.1:9464"));
    assert_reports(
        &warnings(host, &metrics),
        &["a node cannot start with both"],
    );
}

// promise: H14
#[test]
fn doctor_tries_listeners() {
    let network = line();
    let host = network.node(0);
    let directory = Scratch::new().unwrap();
    let socket = directory.path().join("admin.sock");
    let file = File::new(format!(
        "version = 1\n[node]\nid = 7\n[admin]\nsocket = {socket:?}\n[[listener]]\n\
         address = \"127.0.0.1:4480\"\n[access]\nclients = [\"10.0.0.0/8\"]\n"
    ));
    let findings = || {
        let mut command = host.command(binary()).unwrap();
        let output = command
            .args(["doctor", "--json", "-c"])
            .arg(&file.path)
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = answer["findings"].as_array().unwrap().clone();
        let of = all
            .into_iter()
            .filter(|finding| finding["check"] == "listening");
        of.map(|finding| {
            format!(
                "{} {} {}",
                finding["level"], finding["what"], finding["fix"]
            )
        })
        .collect::<Vec<_>>()
    };
    let free = findings();
    assert!(free.len() == 1 && free[0].contains("\"ok\""), "{free:?}");
    let metrics = listen_at(host, "127.0.0.1:9464".parse().unwrap());
    let listener = listen_at(host, "127.0.0.1:4480".parse().unwrap());
    let taken = findings();
    assert_eq!(taken.len(), 2, "{taken:?}");
    for (finding, key) in taken.iter().zip(["metrics.listen", "listener.address"]) {
        assert_reports(
            finding,
            &["\"fail\"", key, "another program listens there", "ss -tlnp"],
        );
    }
    drop((metrics, listener));
    // Of a node that runs nothing is tried.
    let mut command = host.command(binary()).unwrap();
    command.arg("node").arg("-c").arg(&file.path);
    let mut node = Process::spawn("the node", command).unwrap();
    let is_ready = |node: &Process| node.stdout().contains("is ready\"");
    node.wait_until("word that it is ready", SOON, is_ready)
        .unwrap();
    let runs = findings();
    assert!(runs.len() == 1 && runs[0].contains("\"ok\""), "{runs:?}");
}
