// SPDX-License-Identifier: Apache-2.0
//! How commands end, what is left when they do, and what cannot begin.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;

use super::{
    LISTENER_PORT, Mirror, line_of, listener_address, printed, start_explicit, stderr, through,
};
use crate::support::{SOON, binary, until};
use crate::watch::{process_named, processes, sockets};

/// The exit code of a command that is run through a node.
fn code(network: &Network, words: &[&str]) -> (Option<i32>, String) {
    let via = listener_address(network, 0, Family::V4);
    let output = through(network, via, &[], words).output().unwrap();
    (output.status.code(), stderr(&output))
}

/// The directories of all commands' cgroups, wherever the hierarchy is mounted.
fn cgroups_of(process: u32) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let directory = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(directory))
    });
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.expect("cgroup v2").to_owned();
    let begins = format!("posthaste-run-{process}-");
    let mut found = Vec::new();
    for mount in mounts {
        for entry in fs::read_dir(mount.join(&own)).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&begins) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Starts a command in the background that reports when it runs.
fn start(network: &Network, script: &str) -> Process {
    let via = listener_address(network, 0, Family::V4);
    let script = format!("echo there; {script}");
    let command = through(network, via, &[], ["sh", "-c", &script]);
    let mut process = Process::spawn("run", command).unwrap();
    process
        .wait_until("command", SOON, |process| {
            process.stdout().contains("there")
        })
        .unwrap();
    assert_eq!(cgroups_of(process.pid()).len(), 1);
    process
}

/// Waits until nothing is left of a run: no cgroup, and so no program; no process; no listener.
fn expect_nothing_left(network: &Network, pid: u32) {
    until("end of the cgroup", || cgroups_of(pid).is_empty());
    until("end of the processes", || {
        processes(network.client())
            .iter()
            .all(|process| !process.contains("posthaste"))
    });
    assert_eq!(sockets(network.client(), "listening"), [""; 0]);
}

// promise: P6
#[test]
fn exit_codes_of_command() {
    let network = line_of(1);
    assert_eq!(code(&network, &["true"]).0, Some(0));
    assert_eq!(code(&network, &["sh", "-c", "exit 42"]).0, Some(42));
    assert_eq!(code(&network, &["sh", "-c", "kill -KILL $$"]).0, Some(137));
    assert_eq!(code(&network, &["sh", "-c", "kill -TERM $$"]).0, Some(143));
    let (missing, message) = code(&network, &["no-such-command"]);
    assert_eq!(missing, Some(127));
    assert!(
        message.contains("no-such-command: command not found"),
        "{message}"
    );
    let (denied, message) = code(&network, &["/proc/version"]);
    assert_eq!(denied, Some(126));
    assert!(
        message.contains("/proc/version: cannot be run"),
        "{message}"
    );
    assert_eq!(processes(network.client()), [""; 0]);
}

// promise: P6, P7
#[test]
fn signals_are_passed_on() {
    let network = line_of(1);
    for (name, signal) in [
        ("TERM", Signal::SIGTERM),
        ("INT", Signal::SIGINT),
        ("HUP", Signal::SIGHUP),
        ("USR1", Signal::SIGUSR1),
    ] {
        let script = format!("trap 'exit 7' {name}; echo trapped; while :; do sleep 0.01; done");
        let mut process = start(&network, &script);
        let pid = process.pid();
        let is_trapped = |process: &Process| process.stdout().contains("trapped");
        process.wait_until("trap", SOON, is_trapped).unwrap();
        process.signal(signal).unwrap();
        let ended = process.wait(SOON).unwrap();
        assert_eq!(ended.code(), Some(7), "{name}");
        expect_nothing_left(&network, pid);
    }
}

// promise: P7
#[test]
fn killed_run_goes_direct() {
    let network = line_of(1);
    let _node = start_explicit(&network, 0, "");
    let mirror = Mirror::start(network.server());
    let files = Scratch::new().unwrap();
    let go = files.path().join("go");
    let url = mirror.url(network.server_address(Family::V4));
    let script = format!(
        "curl -sS {url}; while ! test -e {}; do sleep 0.01; done; curl -sS {url}",
        go.display()
    );
    let mut process = start(&network, &script);
    let pid = process.pid();
    let lines = |process: &Process| process.stdout().lines().count();
    process
        .wait_until("first connection", SOON, |process| lines(process) == 2)
        .unwrap();
    process.signal(Signal::SIGKILL).unwrap();
    process.wait(SOON).unwrap();
    expect_nothing_left(&network, pid);
    fs::write(&go, "").unwrap();
    until("second connection", || lines(&process) == 3);
    let client = network.client_address(Family::V4).to_string();
    assert_eq!(process.stdout().lines().last(), Some(client.as_str()));
    until("end of the command", || {
        process_named(network.client(), "sh").is_none()
    });
}

// promise: P7
#[test]
fn leftover_processes_go_direct() {
    let network = line_of(1);
    let _node = start_explicit(&network, 0, "");
    let mirror = Mirror::start(network.server());
    let files = Scratch::new().unwrap();
    let (go, message) = (files.path().join("go"), files.path().join("message"));
    let url = mirror.url(network.server_address(Family::V6));
    let script = format!(
        "(while ! test -e {}; do sleep 0.01; done; curl -sS -o {} {url}) > /dev/null 2>&1 &",
        go.display(),
        message.display()
    );
    let via = listener_address(&network, 0, Family::V4);
    let started = printed(&mut through(&network, via, &[], ["sh", "-c", &script]));
    assert_eq!(started, "");
    fs::write(&go, "").unwrap();
    let client = network.client_address(Family::V6).to_string();
    until("connection", || {
        fs::read_to_string(&message).is_ok_and(|text| text.trim() == client)
    });
}

// promise: P8
#[test]
fn refusing_node_named() {
    let network = line_of(1);
    let server = network.server_address(Family::V4);
    let mirror = Mirror::start(network.server());
    let url = mirror.url(server);
    let failed = |via: SocketAddr, url: &str| {
        let mut curl = through(&network, via, &[], ["curl", "-sS", url]);
        let output = curl.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        stderr(&output)
    };
    let via = listener_address(&network, 0, Family::V4);
    let message = failed(via, &url);
    let expected = format!("the node {via} cannot be reached");
    assert!(message.contains(&expected), "{message}");

    let unauthorized = format!(
        "[access]\nclients = [\"192.0.2.1/32\"]\n[node]\nid = 1\n[transparent]\nenabled = false\n\
         [[listener]]\nmode = \"explicit\"\naddress = \"{via}\"\n"
    );
    let node = crate::support::start_in(network.node(0), &unauthorized);
    let message = failed(via, &url);
    assert!(message.contains("does not know this host"), "{message}");
    drop(node);

    let _node = start_explicit(&network, 0, "");
    // No socket listens there: the server's refusal is no error of `run`.
    let message = failed(via, &format!("http://{server}:81/"));
    assert!(!message.contains("posthaste"), "{message}");
    let message = failed(SocketAddr::new(server, mirror.port), "http://192.0.2.1/");
    assert!(message.contains("does not answer as a node"), "{message}");
}

// promise: P8
#[test]
fn unusable_command_reported_first() {
    let run = |words: &[&str]| {
        let mut command = Command::new(binary());
        let output = command.arg("run").args(words).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    };
    let (code, message) = run(&["--via", "192.0.2.1", "--", "true"]);
    assert!(
        code == 125 && message.contains("the port is missing"),
        "{message}"
    );
    let config = ["-c", "/nowhere/node.toml", "--", "true"];
    let (code, message) = run(&config);
    assert!(
        code == 2 && message.contains("/nowhere/node.toml"),
        "{message}"
    );
    let via = format!("192.0.2.1:{LISTENER_PORT}");
    let (code, message) = run(&["--via", &via, "--user", "no-such-user", "--", "true"]);
    assert!(code == 125 && message.contains("no such user"), "{message}");
    let (code, message) = run(&["--via", &via, "--direct", "10.0.0.1/8", "--", "true"]);
    assert!(
        code == 2 && message.contains("expected a prefix"),
        "{message}"
    );
    let (code, _) = run(&["--via", &via]);
    assert_eq!(code, 2);
    let mut stripped = Command::new("setpriv");
    stripped.args(["--bounding-set=-sys_admin", "--inh-caps=-all"]);
    let output = stripped
        .arg(binary())
        .args(["run", "--via", &via, "--", "true"])
        .output()
        .unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("CAP_SYS_ADMIN is missing"), "{message}");
}

// promise: P9
#[test]
fn command_as_other_user() {
    let network = line_of(1);
    let _node = start_explicit(&network, 0, "");
    let mirror = Mirror::start(network.server());
    let url = mirror.url(network.server_address(Family::V4));
    let via = listener_address(&network, 0, Family::V4);
    let script = format!("id -un; echo $USER; ulimit -n; curl -sS {url}");
    let limit = printed(Command::new("sh").args(["-c", "ulimit -n"]));
    let mut command = through(&network, via, &["--user", "nobody"], ["sh", "-c", &script]);
    let message = printed(&mut command);
    let [name, user, files, seen] = message.lines().collect::<Vec<_>>()[..] else {
        panic!("{message}")
    };
    assert_eq!((name, user, files), ("nobody", "nobody", limit.trim()));
    assert_ne!(seen, network.client_address(Family::V4).to_string());
}
