// SPDX-License-Identifier: Apache-2.0
//! Opens the cgroup of this process without a mount point: inside a container or under `ip netns
//! exec`, /sys/fs/cgroup may be hidden. Or at the usual mount points, which needs no privilege.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const FSCONFIG_CMD_CREATE: u32 = 6;
/// Usual mount points of version 2: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Opens the directory of this process' cgroup (version 2). Needs
/// CAP_SYS_ADMIN.
///
/// # Errors
/// No cgroup v2 in this kernel, or no right to mount it.
pub fn own() -> io::Result<OwnedFd> {
    let path = own_path()?;
    let root = mount()?;
    open(&format!("/proc/self/fd/{}/{path}", root.as_raw_fd()))
}

/// As [`own`] without privilege, where cgroups are mounted at the usual place.
pub(crate) fn own_as_mounted() -> io::Result<OwnedFd> {
    let path = own_path()?;
    let me = std::process::id().to_string();
    // A mount may show another part of the tree than the one of this process.
    let is_ours = |directory: &String| {
        let members = fs::read_to_string(format!("{directory}/cgroup.procs"));
        members.is_ok_and(|members| members.lines().any(|member| member == me))
    };
    let mut places = MOUNTS.iter().map(|mount| format!("{mount}/{path}"));
    let directory = places.find(is_ours);
    open(&directory.ok_or(io::ErrorKind::NotFound)?)
}

/// The path of this process' cgroup from the root of the tree, without the first slash.
fn own_path() -> io::Result<String> {
    let list = fs::read_to_string("/proc/self/cgroup")?;
    let path = list.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.ok_or_else(|| io::Error::other("this process is in no cgroup v2"))?;
    Ok(path.to_owned())
}

fn open(directory: &str) -> io::Result<OwnedFd> {
    Ok(File::open(directory)?.into())
}

/// A mount of the cgroup v2 file system that is reachable only by this descriptor.
fn mount() -> io::Result<OwnedFd> {
    // SAFETY: the strings are constant and NUL-terminated; each call returns a
    // new descriptor or an error.
    unsafe {
        let context = owned(libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), 1))?;
        let null = std::ptr::null::<libc::c_void>();
        let created = libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            null,
            null,
            0,
        );
        if created < 0 {
            return Err(io::Error::last_os_error());
        }
        owned(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0))
    }
}

/// # Safety
/// `result` is what a system call returned that makes a descriptor.
unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the descriptor is new, as the caller promises.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
