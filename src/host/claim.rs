// SPDX-License-Identifier: Apache-2.0
//! One node per network namespace: two would take each other's rules away.
//!
//! The claim is a locked file named after the namespace. The guard process
//! shares it, so that a node that is started again at once waits until the
//! guard of its predecessor has cleaned up.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};

/// Where the lock files are, whatever the configuration says.
const DIRECTORY: &str = "/run/posthaste";
/// How long a guard may take to clean up.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(5);

/// The right to change this network namespace. Ends, with its file, when
/// dropped; a process that dies without dropping it leaves an unlocked file.
#[derive(Debug)]
pub(crate) struct Claim {
    lock: Flock<File>,
    path: PathBuf,
}

impl Claim {
    /// Claims the network namespace of this thread; waits a little when it is
    /// taken, because it may be a guard that is about to finish.
    pub(crate) fn take() -> anyhow::Result<Self> {
        Self::take_in(Path::new(DIRECTORY), WAIT_MAX)
    }

    fn take_in(directory: &Path, wait: Duration) -> anyhow::Result<Self> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory);
        made.with_context(|| format!("create {}", directory.display()))?;
        let path = path_in(directory)?;
        let deadline = Instant::now() + wait;
        loop {
            match try_lock(&path).with_context(|| format!("lock {}", path.display()))? {
                Some(lock) => return Ok(Self { lock, path }),
                None if Instant::now() >= deadline => {
                    bail!("another node runs in this network namespace: stop it first")
                }
                None => std::thread::sleep(WAIT_STEP),
            }
        }
    }

    /// The claim of the parent, which handed its descriptor of the file to this process.
    pub(crate) fn inherited(lock: OwnedFd) -> anyhow::Result<Self> {
        let path = path_in(Path::new(DIRECTORY))?;
        let file = File::from(lock);
        let same = std::fs::metadata(&path).context("look at the lock file")?;
        if file.metadata()?.ino() != same.ino() {
            bail!("this is not the lock of the network namespace");
        }
        // Of one description of an open file, which holds the lock already.
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { lock, path }),
            Err((_, error)) => Err(error).context("lock the network namespace"),
        }
    }

    /// Takes the file away, when the process will not drop the claim.
    pub(crate) fn remove_file(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Still locked, so nobody else can have claimed this very file.
        self.remove_file();
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

/// Where the lock of this thread's network namespace is.
fn path_in(directory: &Path) -> anyhow::Result<PathBuf> {
    let namespace =
        std::fs::metadata("/proc/thread-self/ns/net").context("read the network namespace")?;
    Ok(directory.join(format!("netns-{}.lock", namespace.ino())))
}

/// Opens and locks the file; `None` when somebody else has it.
fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
        Err((_, error)) => return Err(error.into()),
    };
    // The last owner may have removed the file between our open and our lock.
    let ours = lock.metadata()?.ino();
    let current = std::fs::metadata(path).is_ok_and(|there| there.ino() == ours);
    Ok(current.then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_excludes_others_until_it_ends() {
        let directory = std::env::temp_dir().join(format!("ph-claim-{}", std::process::id()));
        let take = |wait| Claim::take_in(&directory, wait);
        let first = take(Duration::ZERO).unwrap();
        let error = take(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("another node"), "{error}");
        let path = first.path.clone();
        let waiting = std::thread::spawn({
            let directory = directory.clone();
            move || Claim::take_in(&directory, Duration::from_secs(60)).map(drop)
        });
        drop(first);
        waiting.join().unwrap().unwrap();
        assert!(!path.exists());
        std::fs::remove_dir(&directory).unwrap();
    }
}
