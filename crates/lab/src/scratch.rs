// SPDX-License-Identifier: Apache-2.0
//! Temporary directories, and the removal of everything a lab process leaves behind.
//!
//! Everything the lab creates on a host is named `ph-<pid>-<number>`: network namespaces under
//! `/run/netns`, control groups and directories under the temporary directory. The owner removes its things in
//! `Drop`; a process that gets a termination signal removes all of its own first; and a new process
//! removes those of processes that no longer exist. Nothing else is ever removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Where `ip netns` keeps namespaces by name.
pub(crate) const NAMESPACES: &str = "/run/netns";

/// Where version 2 of control groups is mounted: alone, or beside version 1.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The next number for a name of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that is unique on this host.
pub(crate) fn unique_name() -> String {
    format!(
        "{}{}",
        prefix(std::process::id()),
        // Only uniqueness matters, so no order with other memory is needed.
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn prefix(pid: u32) -> String {
    format!("ph-{pid}-")
}

/// A directory that is removed with everything in it when dropped, unless a panic drops it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty directory.
    pub fn new() -> Result<Self> {
        prepare();
        let path = std::env::temp_dir().join(unique_name());
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // For a look at what failed.
        if thread::panicking() {
            return;
        }
        // A leftover directory is harmless and the next run removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the leftovers of dead lab processes and prepares the cleanup of this one. Once per
/// process.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A lab killed by SIGKILL ran no destructor. A reused process id keeps its things until
        // that process ends.
        remove_matching(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        if let Err(e) = clean_up_on_signal() {
            eprintln!("cannot clean up on signals: {e}");
        }
    });
}

/// Removes the namespaces, control groups and directories whose owner's process id satisfies `chosen`.
fn remove_matching(chosen: impl Fn(u32) -> bool) {
    for path in entries(Path::new(NAMESPACES), &chosen) {
        remove_namespace(&path);
    }
    for path in groups().iter().flat_map(|groups| entries(groups, &chosen)) {
        let _ = remove_group(&path);
    }
    for path in entries(&std::env::temp_dir(), &chosen) {
        let _ = fs::remove_dir_all(path);
    }
}

fn entries(directory: &Path, chosen: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    let Ok(list) = fs::read_dir(directory) else {
        return Vec::new();
    };
    list.filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| owner(path).is_some_and(&chosen))
        .collect()
}

/// The process id in a name of the lab.
fn owner(path: &Path) -> Option<u32> {
    let (pid, number) = path
        .file_name()?
        .to_str()?
        .strip_prefix("ph-")?
        .split_once('-')?;
    // The whole name must match: /tmp also has names of others.
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Removes a namespace's name; it ends with the last process and interface in it.
pub(crate) fn remove_namespace(path: &Path) {
    // Another process may be cleaning up at the same time: then the name is gone.
    let _ = umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

/// The control group with all others, of version 2.
pub(crate) fn groups() -> Option<PathBuf> {
    let mut places = GROUPS.map(PathBuf::from).into_iter();
    places.find(|place| place.join("cgroup.procs").exists())
}

/// Removes a control group and those in it, which have no processes. That there is none is no error.
pub(crate) fn remove_group(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn clean_up_on_signal() -> io::Result<()> {
    // Waiting threads must not get EINTR from a signal that is not for them: the crate restarts
    // system calls, and child processes do not inherit a mask.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let clean_up = move || {
        if signals.forever().next().is_some() {
            remove_matching(|pid| pid == std::process::id());
            // Child processes are killed when this one ends.
            std::process::exit(130);
        }
    };
    let thread = thread::Builder::new().name("lab-signals".into());
    thread.spawn(clean_up).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_only() {
        assert_eq!(owner(Path::new("/run/netns/ph-12-3")), Some(12));
        for other in [
            "ph-12",
            "ph-x-3",
            "ph-12-x",
            "ph--3",
            "xph-12-3",
            "ph-12-3-4",
        ] {
            assert_eq!(owner(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn scratch_directory_removed() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(path.join("file"), "text").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn dead_process_rest_removed() {
        // Process ids end far below this one.
        let left = std::env::temp_dir().join("ph-999999999-0");
        fs::create_dir_all(&left).unwrap();
        remove_matching(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        assert!(!left.exists());
    }
}
