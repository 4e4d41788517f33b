// SPDX-License-Identifier: Apache-2.0
//! The part of the process that is replaced. Until the last step everything can be reverted, and is
//! if the other process fails.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use socket2::Socket;

use super::wire::{self, Channel, Message, Offer, Peer, Routing};
use super::{Descriptor, START_TIME_MAX, STEP_TIME_MAX};
use crate::host::{self, Claim};
use posthaste_config::Transparent;

/// How long a process that is refused may take for its first word.
const WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// Sent to all but the first of processes that request a place at once.
const TAKEN: &str = "another upgrade is under way: try again when it has ended";

/// What a node provides to its successor.
pub(crate) trait Giver {
    /// Checks whether it may be replaced now.
    ///
    /// # Errors
    /// Why it may not.
    fn ensure_replaceable(&self) -> anyhow::Result<()>;
    /// The information that its successor needs.
    fn offer(&self) -> Offered;
    /// Duplicates of the sockets that its successor continues with.
    ///
    /// # Errors
    /// They cannot be made.
    fn descriptors(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>>;
    /// Sets whether a successor's programs run behind those of this node.
    ///
    /// # Errors
    /// The programs cannot be changed.
    fn set_followed(&self, followed: bool) -> anyhow::Result<()>;
    /// Takes no new flows from now on, and ends with the open ones.
    fn replace(&self, successor: i32);
}

/// The information that a successor needs.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) transparent: Transparent,
    /// The nodes that this one has replaced.
    pub(crate) predecessors: Vec<Peer>,
    /// Its admin socket once it is replaced.
    pub(crate) aside: PathBuf,
}

/// The socket where a node waits for a successor. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    path: PathBuf,
}

impl Listener {
    /// The caller has the claim: an existing file belongs to a dead node.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let path = host::handover_socket()?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
        let socket = wire::socket()?;
        let bound = socket.bind(&wire::address(&path)?);
        bound.with_context(|| format!("bind {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .context("set the mode of the hand-over socket")?;
        // Successors are admitted one after the other.
        socket.listen(1).context("listen for a successor")?;
        socket
            .set_nonblocking(true)
            .context("prepare the hand-over socket")?;
        Ok(Self { socket, path })
    }

    /// The next process that connects, if any.
    pub(crate) fn accept(&self) -> Option<Successor> {
        let (socket, _) = self.socket.accept().ok()?;
        socket.set_nonblocking(false).ok()?;
        Some(Successor(Channel::new(socket)))
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A process that wants to replace a node.
#[derive(Debug)]
pub(crate) struct Successor(Channel);

impl Successor {
    /// Gives it the place of `node`. Takes as long as the other process takes to start.
    ///
    /// # Errors
    /// The other process failed, or may not replace it; `node` continues.
    pub(crate) fn admit(self, node: &impl Giver, claim: &Claim) -> anyhow::Result<Replacing> {
        let pid = self.check(node).inspect_err(|error| {
            let reason = format!("{error:#}");
            // It may be gone, or of another version.
            let _ = self.0.send(&Message::Refused { reason });
        })?;
        self.equip(node)?;
        self.0.expect(&Message::Attached, START_TIME_MAX)?;
        node.set_followed(true)?;
        let stepped = self.step_back(claim);
        if let Err(error) = stepped {
            // The other process has failed: the programs of this one handle every packet again.
            node.set_followed(false)?;
            return Err(error);
        }
        // Nothing is reverted from here on: the successor may have the claim.
        node.replace(pid);
        Ok(Replacing(self.0))
    }

    /// Rejects it since another process is about to have the place.
    pub(crate) fn refuse(self) {
        // With a word unread, the other process would read no answer.
        let _ = self.0.receive(WORD_TIME_MAX);
        let _ = self.0.send(&Message::Refused {
            reason: TAKEN.into(),
        });
    }

    fn check(&self, node: &impl Giver) -> anyhow::Result<i32> {
        let peer = getsockopt(self.0.socket(), PeerCredentials)
            .context("read the credentials of the requester")?;
        // Besides the mode of the file: with the answer goes every listener of the node.
        if peer.uid() != 0 && peer.uid() != geteuid().as_raw() {
            bail!("it runs as another user");
        }
        match self.0.receive(STEP_TIME_MAX)?.0 {
            Message::TakeOver { version } if version == wire::VERSION => {}
            Message::TakeOver { .. } => bail!(
                "the running node is of a version that cannot hand over to this one: restart it"
            ),
            other => bail!("{other:?} was not expected"),
        }
        node.ensure_replaceable()?;
        Ok(peer.pid())
    }

    /// Sends the information and the sockets to the successor.
    fn equip(&self, node: &impl Giver) -> anyhow::Result<()> {
        let offered = node.offer();
        let mut nodes = offered.predecessors;
        nodes.push(Peer {
            pid: std::process::id(),
            socket: offered.aside,
        });
        let routing = Routing::of(&offered.transparent);
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let output: [BorrowedFd<'_>; 2] = [stdout.as_fd(), stderr.as_fd()];
        let offer = Message::Offer(Offer { routing, nodes });
        self.0.send_with(&offer, &output)?;
        for (descriptor, socket) in node.descriptors()? {
            let message = Message::Descriptor(descriptor);
            self.0.send_with(&message, &[socket.as_fd()])?;
        }
        self.0.send(&Message::Offered)
    }

    /// The last step that can be reverted.
    fn step_back(&self, claim: &Claim) -> anyhow::Result<()> {
        self.0.send(&Message::Followed)?;
        self.0.expect(&Message::Taking, STEP_TIME_MAX)?;
        claim.step_back()
    }
}

/// The end of a hand-over: the node takes no new flows.
#[derive(Debug)]
#[must_use = "the successor waits for it"]
pub(crate) struct Replacing(Channel);

impl Replacing {
    /// Reports it to the successor, once no other process can request this place.
    pub(crate) fn finish(self, listener: Listener) {
        while let Some(other) = listener.accept() {
            other.refuse();
        }
        drop(listener);
        // If the successor has died, this node has none: the next node starts as the first.
        let _ = self.0.send(&Message::Replaced);
    }
}
