// SPDX-License-Identifier: Apache-2.0
//! A posthaste controller in a namespace, as an operator would run it: the real program, a
//! configuration file, its API.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use posthaste_control::identity::{Identity, KEY_BYTES, PublicKey};
use posthaste_control::message::NodeNumber;
use serde_json::Value;

use crate::boot::memory;
use crate::http;
use crate::netns::Namespace;
use crate::process::Process;
use crate::scratch::Scratch;

/// Port for nodes.
pub(crate) const PORT: u16 = 4490;
/// Port of the API, on the loopback address.
const API: u16 = 9465;
/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running controller. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Controller {
    process: Process,
    key: PublicKey,
    _files: Scratch,
}

/// A node that a controller accepts.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) number: NodeNumber,
    pub(crate) name: String,
    /// The prefix of destinations that it serves.
    pub(crate) prefix: String,
}

/// Resources used by a controller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Processor time, in seconds.
    pub(crate) seconds: f64,
    /// Memory that is resident and backed by no file, in bytes.
    pub(crate) memory: f64,
}

/// The secret of a node with this number; the lab's secrets are public.
fn secret(number: NodeNumber) -> [u8; KEY_BYTES] {
    let mut secret = [7; KEY_BYTES];
    secret[..8].copy_from_slice(&number.to_be_bytes());
    secret
}

/// The identity of a node with this number.
pub(crate) fn identity(number: NodeNumber) -> Identity {
    Identity::new(&secret(number))
}

/// The content of that node's secret file.
pub(crate) fn secret_text(number: NodeNumber) -> String {
    let mut text = String::new();
    for byte in secret(number) {
        let _ = write!(text, "{byte:02x}");
    }
    text + "\n"
}

impl Controller {
    /// Starts one that accepts these nodes, and waits until it is ready.
    /// `more` is the rest of its configuration.
    pub(crate) fn start(
        namespace: &Namespace,
        binary: &Path,
        nodes: &[Member],
        more: &str,
    ) -> Result<Self> {
        let files = Scratch::new()?;
        let path = |name: &str| files.path().join(name);
        // Distinct from all nodes, whose numbers are small.
        fs::write(path("secret"), secret_text(u64::MAX))
            .context("write the controller's secret")?;
        let mut text = format!(
            "version = 1\n[server]\nlisten = [\"0.0.0.0:{PORT}\", \"[::]:{PORT}\"]\n\
             identity_file = {:?}\nstore = {:?}\n{more}",
            path("secret"),
            path("store.redb")
        );
        for Member {
            number,
            name,
            prefix,
        } in nodes
        {
            let key = identity(*number).public();
            text.push_str(&format!(
                "[[node]]\nname = \"{name}\"\nid = {number}\nkey = \"{key}\"\n\
                 [[prefix]]\ndestinations = [\"{prefix}\"]\nnode = \"{name}\"\n"
            ));
        }
        fs::write(path("controller.toml"), text).context("write the controller's configuration")?;
        let mut command = namespace.command(binary)?;
        command
            .args(["controller", "-c"])
            .arg(path("controller.toml"));
        let mut process = Process::spawn("the controller", command)?;
        process.wait_until("word that it is ready", PATIENCE, |process| {
            process.stdout().contains("is ready\"")
        })?;
        Ok(Self {
            process,
            key: identity(u64::MAX).public(),
            _files: files,
        })
    }

    /// Its public key.
    pub(crate) fn key(&self) -> PublicKey {
        self.key
    }

    /// The process.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Resources used so far.
    pub(crate) fn used(&self) -> Result<Used> {
        let pid = self.process.pid();
        let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?));
        let time = clock.and_then(ClockId::now);
        let time = time.context("read the controller's processor time")?;
        Ok(Used {
            seconds: Duration::from(time).as_secs_f64(),
            // Pages of files can be dropped at any time, and are not part of what a plan takes.
            memory: memory::of(pid)?.anonymous as f64,
        })
    }
}

/// A document of the API of the controller in the calling thread's namespace.
pub(crate) fn query(target: &str) -> Result<Value> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, API));
    let stream =
        TcpStream::connect_timeout(&address, PATIENCE).context("reach the controller's API")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    http::get(stream, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_secrets() {
        let text = secret_text(7);
        let same = Identity::from_hex(text.trim()).unwrap();
        assert_eq!(same.public(), identity(7).public());
        assert_ne!(same.public(), identity(8).public());
    }
}
