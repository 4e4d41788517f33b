// SPDX-License-Identifier: Apache-2.0
//! A node as a service manager runs it: as an ordinary user, with the capabilities it needs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use posthaste_lab::netns::Namespace;
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;

use crate::support::{SOON, binary};

/// What the unit grants; a node needs these.
const CAPABILITIES: [&str; 4] = ["net_admin", "net_raw", "bpf", "perfmon"];

/// The user that nodes and unauthorized senders are, and that user's group.
pub(super) const NOBODY: u32 = 65534;

/// The files of a node that an ordinary user runs.
pub(super) struct Service {
    directory: Scratch,
}

impl Service {
    /// With more lines for `[admin]`.
    pub(super) fn new(admin: &str) -> Self {
        let directory = Scratch::new().unwrap();
        let service = Self { directory };
        for (name, mode) in [("", 0o755), ("run", 0o777), ("admin", 0o777)] {
            let path = service.path(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        // By another process, so that none of ours holds the file open for writing.
        let copied = Command::new("cp")
            .arg(binary())
            .arg(service.program())
            .status();
        assert!(copied.unwrap().success());
        let socket = service.socket();
        let text = format!(
            "version = 1\n[admin]\nsocket = {socket:?}\n{admin}\n[metrics]\nlisten = \"off\"\n"
        );
        fs::write(service.file(), text).unwrap();
        service
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The program, where an ordinary user may run it.
    pub(super) fn program(&self) -> PathBuf {
        self.path("posthaste")
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path("node.toml")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path("admin/admin.sock")
    }

    /// Spawns the node as an ordinary user who is in `groups` too, with a `/run` of its own.
    pub(super) fn spawn(&self, host: &Namespace, groups: &[u32]) -> Process {
        let granted: Vec<String> = CAPABILITIES.map(|name| format!("+{name}")).into();
        let granted = granted.join(",");
        let groups = match groups {
            [] => "--clear-groups".to_owned(),
            some => {
                let all: Vec<String> = some.iter().map(ToString::to_string).collect();
                format!("--groups={}", all.join(","))
            }
        };
        let script = format!(
            "mount --bind {} /run && exec setpriv --reuid={NOBODY} --regid={NOBODY} {groups} \
             --inh-caps=+{} --ambient-caps={granted} {} node -c {}",
            self.path("run").display(),
            CAPABILITIES.join(",+"),
            self.program().display(),
            self.file().display()
        );
        let mut command = host.command("unshare").unwrap();
        command.args(["-m", "sh", "-c", &script]);
        Process::spawn("the service", command).unwrap()
    }

    /// Starts the node and waits until it reports that it is ready.
    pub(super) fn start(&self, host: &Namespace, groups: &[u32]) -> Process {
        let mut node = self.spawn(host, groups);
        let is_ready = |node: &Process| node.stdout().contains("is ready\"");
        let ready = node.wait_until("word that it is ready", SOON, is_ready);
        assert!(ready.is_ok(), "{}", node.stderr());
        node
    }

    /// Runs a verb as an ordinary user of a group and of `groups` too.
    pub(super) fn run_as(&self, group: u32, groups: &str, words: &str) -> Output {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={NOBODY}"))
            .arg(format!("--regid={group}"))
            .arg(groups)
            .arg(self.program())
            .args(words.split(' '));
        command.output().unwrap()
    }
}
