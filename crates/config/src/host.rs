// SPDX-License-Identifier: Apache-2.0
//! What the host offers, as far as the configuration depends on it.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;

use crate::groups;

/// The host facts that defaults and checks use; fixed in tests.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// CPUs this process may use.
    pub cpus: usize,
    /// Most file descriptors this process may open (the hard limit).
    pub files: u64,
    /// Lists the congestion controls that are loaded or can be; nothing when
    /// unknown. A function, because only files that name one need the list
    /// and a node must boot in milliseconds.
    pub congestion: fn() -> Vec<String>,
    /// Reads a file that has a key in it.
    pub key_file: fn(&Path) -> io::Result<KeyFile>,
    /// The number of the group of a name.
    pub group: fn(&str) -> Option<u32>,
}

/// A file that has a key in it.
#[derive(Debug)]
pub struct KeyFile {
    /// Its text, or the beginning of a text that is too long for a key.
    pub text: String,
    /// Whether users who are neither its owner nor of its group may read or
    /// write it.
    pub for_all: bool,
}

impl Capacity {
    /// Those of this host.
    pub fn of_host() -> Self {
        Self {
            cpus: cpus().len().max(1),
            files: getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard),
            congestion: congestion_controls,
            key_file: read_key_file,
            group: groups::id_of,
        }
    }
}

/// The CPUs that this process may run on, in order; empty if unknown.
pub fn cpus() -> Vec<usize> {
    // PID 0 is the calling thread.
    let mask = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|cpu| mask.is_set(*cpu).unwrap_or(false))
        .collect()
}

/// Bytes read of a file with a key: a key and white space.
const KEY_FILE_BYTES_MAX: u64 = 256;

fn read_key_file(path: &Path) -> io::Result<KeyFile> {
    // A pipe must not make a node wait.
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(O_NONBLOCK).open(path)?;
    // Of the open file: the path may lead to another one by now.
    let metadata = file.metadata()?;
    // Reading a pipe or a terminal would take bytes away from another reader.
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    // A large file that is named by mistake must not be read whole.
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(KeyFile {
        text,
        for_all: is_for_all(&metadata),
    })
}

/// Whether users who are neither the owner nor of the group may use a file.
pub(super) fn is_for_all(file: &Metadata) -> bool {
    file.mode() & 0o007 != 0
}

/// The loaded ones, and those a `setsockopt` with CAP_NET_ADMIN would load.
fn congestion_controls() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let loaded = read("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let mut names: Vec<String> = loaded.split_whitespace().map(Into::into).collect();
    // Of the running kernel: modules of several may be installed.
    let release = read("/proc/sys/kernel/osrelease");
    let modules = read(&format!("/lib/modules/{}/modules.dep", release.trim()));
    // TCP_CONGESTION loads a module by its name if the caller has CAP_NET_ADMIN (tcp(7)).
    names.extend(modules.lines().filter_map(module_name));
    names
}

/// `kernel/net/ipv4/tcp_bbr.ko.xz: ...` names `bbr`.
fn module_name(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let name = path
        .strip_prefix("kernel/net/ipv4/tcp_")?
        .split(".ko")
        .next()?;
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_name_congestion_controls() {
        assert_eq!(
            module_name("kernel/net/ipv4/tcp_bbr.ko.xz: a b").as_deref(),
            Some("bbr")
        );
        assert_eq!(module_name("kernel/net/ipv4/ipip.ko:"), None);
    }

    #[test]
    fn congestion_control_of_host() {
        assert!(
            congestion_controls()
                .iter()
                .any(|name| name == "cubic" || name == "reno")
        );
    }
}
