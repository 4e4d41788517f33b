// SPDX-License-Identifier: Apache-2.0
//! Which nodes are in a network namespace: one that takes flows, and replaced ones that still carry
//! relays. Two that take flows would remove each other's rules.
//!
//! The claim is a file named after the namespace, with locks on single bytes of it (open file
//! description locks: the kernel releases them when the last copy of the descriptor is closed). A
//! node shares its claim with its guard, so that a node that is restarted at once waits until the
//! guard of its predecessor has cleaned up.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Directory of the files, independent of the configuration.
const DIRECTORY: &str = "/run/posthaste";
/// How long a guard may take to clean up.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(5);
/// Bound on replaced nodes that still carry relays. Each is a process with its own memory, and a
/// program in the path of every packet.
pub(crate) const REPLACED_MAX: usize = 3;

/// The bytes: the node that takes flows, the first of the replaced ones, the one about to replace
/// the node, and the right to change any of this or the host.
const NODE: i64 = 0;
const REPLACED: i64 = 1;
const SUCCESSOR: i64 = 7;
const CHANGE: i64 = 8;

/// A node's part of the claim on a network namespace. Its locks end with its last copy.
#[derive(Debug)]
pub(crate) struct Claim {
    file: File,
    path: PathBuf,
}

/// While it exists no other node takes or gives up a part of the claim.
#[derive(Debug)]
pub(crate) struct Change<'a>(&'a Claim);

impl Claim {
    /// Claims the network namespace of this thread for a node that takes flows. Waits up to
    /// [`WAIT_MAX`] if the claim is taken, because a guard may be about to finish.
    pub(crate) fn take() -> anyhow::Result<Self> {
        Self::take_in(Path::new(DIRECTORY), WAIT_MAX)
    }

    fn take_in(directory: &Path, wait: Duration) -> anyhow::Result<Self> {
        let deadline = Instant::now() + wait;
        loop {
            let claim = Self::open_in(directory)?;
            if claim.try_take()? {
                return Ok(claim);
            }
            if Instant::now() >= deadline {
                bail!("another node runs in this network namespace: stop it first")
            }
            std::thread::sleep(WAIT_STEP);
        }
    }

    /// The claim of the parent, which passed its file descriptor to this process: locks belong to
    /// the open file description, which both share.
    pub(crate) fn inherited(lock: OwnedFd) -> anyhow::Result<Self> {
        let path = path_in(Path::new(DIRECTORY), "lock")?;
        let claim = Self {
            file: lock.into(),
            path,
        };
        if !claim.is_current() {
            bail!("this is not the lock of the network namespace");
        }
        Ok(claim)
    }

    fn try_take(&self) -> anyhow::Result<bool> {
        // Another node starts or ends now: only afterwards it is clear what there is.
        if !self.lock(CHANGE)? {
            return Ok(false);
        }
        let _change = Change(self);
        // The last owner may have removed the file after it was opened here.
        Ok(self.is_current() && self.lock(NODE)?)
    }

    /// Claims for a node that is to replace the running one. Whatever happens to that meanwhile,
    /// the file and its installation on the host stay.
    pub(crate) fn succeed() -> anyhow::Result<Self> {
        Self::succeed_in(Path::new(DIRECTORY))
    }

    fn succeed_in(directory: &Path) -> anyhow::Result<Self> {
        let claim = Self::open_in(directory)?;
        if !claim.lock(SUCCESSOR)? {
            bail!("another process is about to take the node's place");
        }
        if !claim.is_current() {
            bail!("the node that was to be replaced has ended");
        }
        Ok(claim)
    }

    fn open_in(directory: &Path) -> anyhow::Result<Self> {
        let path = path_in(directory, "lock")?;
        let opened = File::options()
            .create(true)
            // The file contains the number of successions.
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let file = opened.with_context(|| format!("open {}", path.display()))?;
        give_to_owner_of_directory(&path);
        Ok(Self { file, path })
    }

    /// Locks out other changes; waits for those in progress, such as another node that cleans up.
    pub(crate) fn change(&self) -> anyhow::Result<Change<'_>> {
        let deadline = Instant::now() + 2 * WAIT_MAX;
        while !self.lock(CHANGE)? {
            if Instant::now() >= deadline {
                bail!(
                    "{}: another node is about to start or to end",
                    self.path.display()
                );
            }
            std::thread::sleep(WAIT_STEP);
        }
        Ok(Change(self))
    }

    /// Becomes the node that takes flows, once its predecessor has stepped back.
    pub(crate) fn step_up(&self) -> anyhow::Result<()> {
        if !self.lock(NODE)? {
            bail!("another node takes flows in this network namespace");
        }
        Ok(self.unlock(SUCCESSOR)?)
    }

    /// Becomes a replaced node. The successor holds the lock against other changes.
    pub(crate) fn step_back(&self) -> anyhow::Result<()> {
        for byte in (REPLACED..).take(REPLACED_MAX) {
            if self.lock(byte)? {
                // In this order: without either lock, a node that starts now would remove what the
                // relays of this one need.
                return Ok(self.unlock(NODE)?);
            }
        }
        bail!("{REPLACED_MAX} nodes that were replaced still carry relays");
    }

    /// Whether there is no other node of either kind.
    pub(crate) fn is_alone(&self) -> anyhow::Result<bool> {
        // Reports only locks of other open file descriptions: the node's own need no exception.
        let mut range = range(NODE, CHANGE - NODE, libc::F_WRLCK);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut range)).context("look for other nodes")?;
        Ok(range.l_type == short(libc::F_UNLCK))
    }

    /// The number of successive nodes before this one: the number that the last one left, plus one;
    /// 0 without one.
    pub(crate) fn count_succession(&self) -> anyhow::Result<u16> {
        let mut text = String::new();
        let mut file = &self.file;
        file.rewind().context("read the claim")?;
        // Another version may have written something else.
        let _ = file.take(16).read_to_string(&mut text);
        // Without another node the number is a leftover, and counting starts anew.
        let former: Option<u16> = text.trim().parse().ok().filter(|_| !self.has_none());
        let count = former.map_or(0, |former| former.saturating_add(1));
        file.set_len(0).context("write the claim")?;
        file.rewind().context("write the claim")?;
        write!(file, "{count}").context("write the claim")?;
        Ok(count)
    }

    fn has_none(&self) -> bool {
        self.is_alone().unwrap_or(false)
    }

    /// Removes the file. The caller is alone, and holds the lock against changes.
    pub(crate) fn remove_file(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Whether other nodes use another file by now: then this node must remove nothing from the
    /// host.
    pub(crate) fn is_superseded(&self) -> bool {
        // Without a file there is no other node.
        self.path.exists() && !self.is_current()
    }

    /// Whether the path still leads to this file.
    fn is_current(&self) -> bool {
        let Ok(ours) = self.file.metadata() else {
            return false;
        };
        std::fs::metadata(&self.path).is_ok_and(|there| there.ino() == ours.ino())
    }

    /// Locks a byte; false when another process has it.
    fn lock(&self, byte: i64) -> io::Result<bool> {
        match fcntl(
            &self.file,
            FcntlArg::F_OFD_SETLK(&range(byte, 1, libc::F_WRLCK)),
        ) {
            Ok(_) => Ok(true),
            // POSIX allows either for a lock that another process has.
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn unlock(&self, byte: i64) -> io::Result<()> {
        fcntl(
            &self.file,
            FcntlArg::F_OFD_SETLK(&range(byte, 1, libc::F_UNLCK)),
        )?;
        Ok(())
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        // Cannot fail for a held lock.
        let _ = self.0.unlock(CHANGE);
    }
}

/// Gives a file or socket that root may have made to the owner of its directory, whose nodes would be
/// locked out after root's has died. Another user cannot, and need not: then the two are the same.
pub(crate) fn give_to_owner_of_directory(path: &Path) {
    let owner = path.parent().map(std::fs::metadata);
    if let (Some(Ok(owner)), Ok(found)) = (owner, std::fs::symlink_metadata(path))
        && owner.uid() != found.uid()
    {
        let _ = std::os::unix::fs::lchown(path, Some(owner.uid()), Some(owner.gid()));
    }
}

/// Path of a file of this network namespace with an extension.
pub(super) fn path_of(ending: &str) -> anyhow::Result<PathBuf> {
    path_in(Path::new(DIRECTORY), ending)
}

fn path_in(directory: &Path, ending: &str) -> anyhow::Result<PathBuf> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory);
    made.with_context(|| format!("create {}", directory.display()))?;
    let namespace =
        // Of the thread: it may be in another network namespace than its process.
        std::fs::metadata("/proc/thread-self/ns/net").context("read the network namespace")?;
    Ok(directory.join(format!("netns-{}.{ending}", namespace.ino())))
}

fn range(first: i64, count: i64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: short(kind),
        l_whence: short(libc::SEEK_SET),
        l_start: first,
        l_len: count,
        // Required for open file description locks.
        l_pid: 0,
    }
}

/// The constants are wider than their fields.
fn short(constant: libc::c_int) -> libc::c_short {
    constant.try_into().expect("a small number")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("ph-claim-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn take(&self) -> anyhow::Result<Claim> {
            Claim::take_in(&self.0, Duration::ZERO)
        }

        fn succeed(&self) -> anyhow::Result<Claim> {
            Claim::succeed_in(&self.0)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// As at the end of a node.
    fn leave(claim: Claim) -> bool {
        let change = claim.change().unwrap();
        let alone = claim.is_alone().unwrap();
        if alone {
            claim.remove_file();
        }
        drop(change);
        alone
    }

    #[test]
    fn lock_excludes_others() {
        let directory = Directory::new("excludes");
        let first = directory.take().unwrap();
        let error = directory.take().unwrap_err().to_string();
        assert!(error.contains("another node"), "{error}");
        let path = first.path.clone();
        let waiting = std::thread::spawn({
            let directory = directory.0.clone();
            move || leave(Claim::take_in(&directory, Duration::from_secs(60)).unwrap())
        });
        assert!(leave(first));
        assert!(waiting.join().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn successor_takes_over() {
        let directory = Directory::new("succession");
        let first = directory.take().unwrap();
        assert_eq!(first.count_succession().unwrap(), 0);
        let second = directory.succeed().unwrap();
        assert!(directory.succeed().is_err(), "one successor at a time");
        assert!(second.step_up().is_err());
        let change = second.change().unwrap();
        first.step_back().unwrap();
        assert!(
            directory.take().is_err(),
            "another process changes the claim"
        );
        second.step_up().unwrap();
        drop(change);
        assert_eq!(second.count_succession().unwrap(), 1);
        assert!(directory.take().is_err());
        assert!(!first.is_alone().unwrap() && !second.is_alone().unwrap());
        assert!(!leave(first));
        assert!(leave(second));
    }

    #[test]
    fn start_beside_replaced_nodes() {
        let directory = Directory::new("beside");
        let first = directory.take().unwrap();
        first.step_back().unwrap();
        let next = directory.take().unwrap();
        assert_eq!(next.count_succession().unwrap(), 0);
        assert!(!next.is_alone().unwrap());
    }

    #[test]
    fn orphaned_successor_keeps_file() {
        let directory = Directory::new("dies");
        let first = directory.take().unwrap();
        let second = directory.succeed().unwrap();
        assert!(!leave(first), "its guard removes nothing");
        let third = directory.take().unwrap();
        assert!(!second.is_superseded());
        assert!(!leave(second), "nor does a successor that has failed");
        assert!(leave(third));
    }

    #[test]
    fn former_file_removes_nothing() {
        let directory = Directory::new("former");
        let first = directory.take().unwrap();
        first.remove_file();
        assert!(!first.is_superseded(), "nobody else is there");
        let _second = directory.take().unwrap();
        assert!(first.is_superseded());
    }

    #[test]
    fn replaced_nodes_are_bounded() {
        let directory = Directory::new("bound");
        let claims: Vec<Claim> = (0..=REPLACED_MAX)
            .map(|_| directory.take().unwrap())
            .inspect(|claim| {
                let _ = claim.step_back();
            })
            .collect();
        let last = claims.last().unwrap();
        assert!(last.step_back().is_err());
        assert!(directory.take().is_err(), "the last has kept its place");
    }
}
