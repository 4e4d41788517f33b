// SPDX-License-Identifier: Apache-2.0
//! A protocol in which the server sends first, and both ends later at the same time: ssh.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;

use super::{program, run, settle, succeed};
use crate::payload::send;
use crate::run::{led, start_open};
use crate::support::{MODES, SOON, accepting, counter, line, start_relaying, until_ended};
use crate::watch::{Accounts, sockets};

/// Without this directory sshd does not start; on Debian only its service makes it.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// Bytes sent each way.
const BYTES: u64 = 3_000_000;

// promise: T7, T8
#[test]
fn ssh_login_and_copy() {
    let network = line();
    let files = Scratch::new().unwrap();
    let _sshd = start_sshd(&network, files.path());
    let document = files.path().join("document");
    send(&mut File::create(&document).unwrap(), 1, BYTES).unwrap();
    let sum = run(Command::new(program("sha256sum")).stdin(File::open(&document).unwrap()));
    for mode in MODES {
        let node = start_relaying(&network, &accepting(mode));
        let accounts = Accounts::of(&node);
        for family in Family::ALL {
            let remote = format!("cat {}", document.display());
            let down = succeed(&mut ssh(&network, family, files.path(), &remote));
            assert!(
                down.stdout == fs::read(&document).unwrap(),
                "{mode}, {family}"
            );
            let mut up = ssh(&network, family, files.path(), "sha256sum");
            let message = run(up.stdin(File::open(&document).unwrap()));
            assert_eq!(message, sum, "{mode}, {family}");
        }
        assert_eq!(settle(&node, &accounts), 4);
        assert_eq!(counter(&node, mode), 4);
    }
}

// promise: P1
#[test]
fn ssh_through_run() {
    let network = line();
    let files = Scratch::new().unwrap();
    let _sshd = start_sshd(&network, files.path());
    let document = files.path().join("document");
    send(&mut File::create(&document).unwrap(), 1, BYTES).unwrap();
    let (node, via) = start_open(&network, Family::V4);
    for (count, family) in (1..).zip(Family::ALL) {
        let remote = format!("echo ${{SSH_CONNECTION%% *}}; cat {}", document.display());
        let ssh = ssh(&network, family, files.path(), &remote);
        let down = succeed(&mut led(&network, via, &ssh)).stdout;
        let end = down.iter().position(|byte| *byte == b'\n').unwrap();
        let client = network.client_address(family).to_string();
        assert_ne!(down[..end], *client.as_bytes(), "sshd sees the node");
        assert!(down[end + 1..] == fs::read(&document).unwrap(), "{family}");
        until_ended(&node, "finished", count);
    }
}

/// Starts an sshd on the server that accepts the key beside its own.
fn start_sshd(network: &Network, files: &Path) -> Process {
    fs::create_dir_all(PRIVILEGE_SEPARATION).unwrap();
    for key in ["host", "user"] {
        let mut keygen = Command::new(program("ssh-keygen"));
        keygen
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(files.join(key));
        succeed(&mut keygen);
    }
    let files = files.display();
    let configuration = format!(
        "HostKey {files}/host
AuthorizedKeysFile {files}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
UseDNS no
"
    );
    let file = format!("{files}/sshd_config");
    fs::write(&file, configuration).unwrap();
    let mut command = network.server().command(program("sshd")).unwrap();
    command.args(["-D", "-e", "-f", &file]);
    let mut sshd = Process::spawn("sshd", command).unwrap();
    sshd.wait_until("listener of either family", SOON, |_| {
        sockets(network.server(), "listening").len() == 2
    })
    .unwrap();
    sshd
}

/// An ssh of the client that runs a command on the server.
fn ssh(network: &Network, family: Family, files: &Path, remote: &str) -> Command {
    let mut ssh = network.client().command(program("ssh")).unwrap();
    ssh.args(["-F", "none", "-l", "root", "-i"])
        .arg(files.join("user"));
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
        "ConnectTimeout=30",
    ] {
        ssh.args(["-o", option]);
    }
    ssh.arg(network.server_address(family).to_string())
        .arg(remote)
        .stdin(Stdio::null());
    ssh
}
