// SPDX-License-Identifier: Apache-2.0
//! The processes that a node has replaced and that still carry relays.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use super::wire::Peer;
use crate::client;
use crate::guard::open_pidfd;

/// How long a process may take to end after an immediate drain.
const END_TIME_MAX: Duration = Duration::from_secs(20);
/// The same after it has removed its socket.
const ENDING_TIME_MAX: Duration = Duration::from_secs(5);

/// The predecessors, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Predecessors(Vec<Predecessor>);

#[derive(Debug)]
struct Predecessor {
    peer: Peer,
    /// Becomes readable when the process has ended.
    process: OwnedFd,
}

impl Predecessors {
    /// Those that still run.
    pub(super) fn of(peers: Vec<Peer>) -> Self {
        let live = peers.into_iter().filter_map(|peer| {
            // Refers to this process for good; its id may be given to another one.
            let process = open_pidfd(Pid::from_raw(i32::try_from(peer.pid).ok()?))?;
            Some(Predecessor { peer, process })
        });
        Self(live.collect())
    }

    /// Those of a node that has died: replaced nodes have their admin sockets beside the one of the node.
    pub(crate) fn left_beside(socket: &Path) -> Self {
        let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Self::default();
        };
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let peers = entries.filter_map(|entry| {
            let aside = entry.file_name();
            let number = aside
                .to_str()?
                .strip_prefix(name.to_str()?)?
                .strip_prefix('.')?;
            let pid: u32 = number.parse().ok()?;
            let socket = entry.path();
            // Only an answer shows a node: files of killed ones stay, and process ids are used again.
            let status = client::status_of(&socket).ok()?;
            let peer = Peer { pid, socket };
            (status.pid == pid).then_some((status.uptime_seconds, peer))
        });
        let mut peers: Vec<_> = peers.collect();
        peers.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        Self::of(peers.into_iter().map(|(_, peer)| peer).collect())
    }

    /// Ends the oldest until there are no more than `most`. Returns their number.
    pub(super) fn make_room(&mut self, most: usize) -> anyhow::Result<usize> {
        let many = self.0.len().saturating_sub(most);
        for oldest in self.0.drain(..many) {
            let pid = oldest.peer.pid;
            let drained = drain(&oldest.peer.socket, Duration::ZERO);
            // One that is ending anyway may have removed its socket already.
            let most = drained.as_ref().map_or(ENDING_TIME_MAX, |()| END_TIME_MAX);
            if !oldest.ends_within(most) {
                drained?;
                bail!("node {pid}, which was replaced long ago, does not end");
            }
        }
        Ok(many)
    }

    /// Process and admin socket of each that still runs.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Path)> {
        let live = self.0.iter().filter(|one| !one.ends_within(Duration::ZERO));
        live.map(|one| (one.peer.pid, one.peer.socket.as_path()))
    }

    /// The same, for a successor.
    pub(crate) fn live_nodes(&self) -> Vec<Peer> {
        let live = self.live();
        live.map(|(pid, socket)| Peer {
            pid,
            socket: socket.into(),
        })
        .collect()
    }

    /// Drains each with the deadline. Returns at once; one that cannot be reached shows when they
    /// are waited for.
    pub(crate) fn drain(&self, deadline: Duration) {
        for one in &self.0 {
            let peer = one.peer.clone();
            let report = move || drain(&peer.socket, deadline);
            // In threads: one that hangs must not delay the others.
            let _ = std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn(report);
        }
    }

    /// Waits for all of them; returns those that still run after `most`.
    pub(crate) fn wait(&self, most: Duration) -> Vec<u32> {
        let until = Instant::now() + most;
        let left = || until.saturating_duration_since(Instant::now());
        let late = self.0.iter().filter(|one| !one.ends_within(left()));
        late.map(|one| one.peer.pid).collect()
    }
}

impl Predecessor {
    fn ends_within(&self, most: Duration) -> bool {
        let mut waiting = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
        let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX);
        poll(&mut waiting, most).is_ok_and(|ready| ready > 0)
    }
}

fn drain(socket: &Path, deadline: Duration) -> anyhow::Result<()> {
    client::end_within(socket, deadline)
        .with_context(|| format!("end the node at {}", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_predecessors_listed() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let peer = |pid| Peer {
            pid,
            socket: "/nowhere/admin.sock".into(),
        };
        let mut all = Predecessors::of(vec![peer(child.id()), peer(std::process::id())]);
        assert_eq!(all.live().count(), 2);
        child.kill().unwrap();
        assert!(all.0[0].ends_within(Duration::from_secs(60)));
        let live: Vec<u32> = all.live().map(|(pid, _)| pid).collect();
        assert_eq!(live, [std::process::id()]);
        assert_eq!(all.wait(Duration::ZERO), live);
        // One that has ended needs no drain.
        assert_eq!(all.make_room(1).unwrap(), 1);
        assert!(all.make_room(0).is_err());
        child.wait().unwrap();
    }

    /// A process removes its socket some time before it ends.
    #[test]
    fn one_that_is_ending_is_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("0.5")
            .spawn()
            .unwrap();
        let peer = Peer {
            pid: child.id(),
            socket: "/nowhere/admin.sock".into(),
        };
        assert_eq!(Predecessors::of(vec![peer]).make_room(0).unwrap(), 1);
        child.wait().unwrap();
    }
}
