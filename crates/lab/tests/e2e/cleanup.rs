// SPDX-License-Identifier: Apache-2.0
//! A lab that is stopped or killed leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use posthaste_lab::process::{Process, wait_until};
use posthaste_lab::scratch::Scratch;

const SOON: Duration = Duration::from_secs(60);

/// Starts an experiment that takes `repeats` times a fifth of a second.
fn start_lab(output: &Scratch, repeats: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste-lab"));
    let words = [
        "transfer-times",
        "--nodes",
        "0",
        "--sizes",
        "1",
        "--repeats",
    ];
    command
        .args(words)
        .arg(repeats)
        .args(["--tolerance", "1e9", "--output"])
        .arg(output.path());
    Process::spawn("the lab", command).expect("the lab starts")
}

fn left_by(pid: u32) -> Vec<String> {
    let prefix = format!("ph-{pid}-");
    let temporary = std::env::temp_dir();
    [Path::new("/run/netns"), &temporary]
        .into_iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// Starts a long experiment and ends it with `signal` when its network exists.
fn interrupt(signal: Signal) -> u32 {
    let output = Scratch::new().expect("a directory for the output");
    let mut lab = start_lab(&output, "1000000");
    let pid = lab.pid();
    let working = |lab: &Process| lab.stderr().contains("repeat");
    lab.wait_until("its first transfers", SOON, working)
        .expect("the lab works");
    assert!(left_by(pid).len() >= 2, "{:?}", left_by(pid));
    lab.signal(signal).expect("the lab can be signalled");
    lab.wait(SOON).expect("the lab ends");
    pid
}

#[test]
fn ended_lab_cleans_up() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let pid = interrupt(signal);
        assert_eq!(left_by(pid), Vec::<String>::new());
    }
}

#[test]
fn killed_lab_rest_removed() {
    let pid = interrupt(Signal::SIGKILL);
    let output = Scratch::new().unwrap();
    // Its process directory lasts until the kernel is done with it.
    wait_until("end of the killed lab", SOON, || {
        !Path::new("/proc").join(pid.to_string()).exists()
    })
    .unwrap();
    let mut next = start_lab(&output, "1");
    let status = next.wait(SOON).unwrap();
    assert!(status.success(), "{}{}", next.stdout(), next.stderr());
    assert_eq!(left_by(pid), Vec::<String>::new());
}
