// SPDX-License-Identifier: Apache-2.0
//! The system calls that neither `std` nor `nix` wraps.
//!
//! All `unsafe` of the lab is here, behind safe functions. Every error includes the name of the
//! failed call.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, chdir};

/// Adds the name of the call to an error.
fn named(call: &str, source: &io::Error) -> io::Error {
    io::Error::new(source.kind(), format!("{call}: {source}"))
}

fn check(call: &str, result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(named(call, &io::Error::last_os_error()));
    }
    Ok(result)
}

/// Opens a new TUN interface in the namespace of the calling thread.
///
/// Packets have no extra header, and the kernel segments what it hands out: one read is one
/// packet on the wire. The interface lives as long as the file.
pub(crate) fn open_tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        // The ferry reads until nothing is left.
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|e| named("open /dev/net/tun", &e))?;
    // No IFF_VNET_HDR: with it the kernel would hand out segments larger than the MTU.
    let mut request = interface_request(name, libc::IFF_TUN | libc::IFF_NO_PI)?;
    // SAFETY: `request` is a valid `ifreq` that outlives the call, as TUNSETIFF wants.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check("ioctl TUNSETIFF", result)?;
    Ok(file)
}

/// Brings up an interface in the namespace of the calling thread.
pub(crate) fn bring_up(name: &str) -> io::Result<()> {
    let request = interface_request(name, libc::IFF_UP)?;
    let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|e| named("bind", &e))?;
    // SAFETY: `request` is a valid `ifreq` that outlives the call, as SIOCSIFFLAGS wants.
    let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check("ioctl SIOCSIFFLAGS", result).map(drop)
}

/// What calls about an interface take: its name, and flags.
fn interface_request(name: &str, flags: libc::c_int) -> io::Result<libc::ifreq> {
    // The kernel needs the final zero byte, and would truncate a longer name silently.
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("interface name {name} is too long"),
        ));
    }
    // SAFETY: all zeroes is a valid `ifreq`, a plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
    Ok(request)
}

/// Limits the rate at which a TCP socket sends, in bytes per second (`SO_MAX_PACING_RATE`).
pub(crate) fn set_pacing_rate(socket: &impl AsFd, rate: u32) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of_val(&rate)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `size` bytes of `rate`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            size,
        )
    };
    check("setsockopt SO_MAX_PACING_RATE", result).map(drop)
}

/// Waits for events with a timeout in nanoseconds; `None` waits without end.
pub(crate) fn epoll_wait_precise(
    epoll: BorrowedFd<'_>,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let timespec = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let timeout = timespec
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // The kernel takes the room as a signed number and refuses none or a negative one.
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `events` has room for `room` entries; `timeout` is null or points to a `timespec`
    // that outlives the call; a null signal mask is allowed.
    let count = unsafe {
        // `epoll_wait` rounds to milliseconds, too coarse for the delay of a packet.
        libc::epoll_pwait2(
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            timeout,
            std::ptr::null(),
        )
    };
    match check("epoll_pwait2", count) {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        // Callers compute their timeouts anew, so an early return costs one turn.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

/// Makes the calling thread's timers fire without slack.
pub(crate) fn drop_timer_slack() -> io::Result<()> {
    prctl::set_timerslack(1).map_err(|e| named("prctl PR_SET_TIMERSLACK", &e.into()))
}

/// Puts the calling thread in the real-time class. Fails without the privilege.
pub(crate) fn become_realtime(priority: libc::c_int) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `param` is valid for the call; 0 names the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
    check("sched_setscheduler", result).map(drop)
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_namespace(namespace: impl AsFd) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|e| named("setns", &e.into()))
}

/// Gives the calling thread file systems of its own: what the host has, and will mount, and an empty
/// BPF file system at `bpf`. Returns their namespace.
pub(crate) fn separate_mounts(bpf: &str) -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| named("unshare", &e.into()))?;
    let none = None::<&str>;
    // Else the host would see what is mounted here.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(|e| named("mount --make-rslave", &e.into()))?;
    mount(Some("bpf"), bpf, Some("bpf"), MsFlags::empty(), none)
        .map_err(|e| named("mount a BPF file system", &e.into()))?;
    File::open("/proc/thread-self/ns/mnt").map_err(|e| named("open a mount namespace", &e))
}

/// Moves the calling thread into a mount namespace.
pub(crate) fn enter_mounts(mounts: impl AsFd) -> io::Result<()> {
    // Threads have one root and one working directory, unless they are given their own.
    unshare(CloneFlags::CLONE_FS).map_err(|e| named("unshare", &e.into()))?;
    setns(mounts, CloneFlags::CLONE_NEWNS).map_err(|e| named("setns", &e.into()))
}

/// Makes the process started by `command` begin in the namespaces `network` and `mounts`, in
/// `directory`, and die with its parent thread.
pub(crate) fn start_in_namespaces(
    command: &mut Command,
    network: File,
    mounts: File,
    directory: CString,
) {
    let prepare = move || {
        enter_namespace(&network)?;
        setns(&mounts, CloneFlags::CLONE_NEWNS).map_err(|e| named("setns", &e.into()))?;
        // A mount namespace is entered at its root.
        chdir(directory.as_c_str()).map_err(|e| named("chdir", &e.into()))?;
        // A killed lab runs no destructor: without this its processes would stay, with their
        // namespaces.
        prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|e| named("prctl PR_SET_PDEATHSIG", &e.into()))
    };
    // SAFETY: the closure runs between fork and exec; on success it makes four system calls and
    // nothing else, all safe there. Only a failure allocates, for its message.
    unsafe { command.pre_exec(prepare) };
}

/// Makes the process started by `command` run on `cpus` only, with a nice value.
pub(crate) fn confine(command: &mut Command, cpus: CpuSet, nice: libc::c_int) {
    let prepare = move || {
        sched_setaffinity(Pid::from_raw(0), &cpus)?;
        // SAFETY: takes integers and touches no memory of ours; 0 names the calling process.
        check("setpriority", unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, nice)
        })
        .map(drop)
    };
    // SAFETY: the closure runs between fork and exec; on success it makes two system calls and
    // nothing else, both safe there. Only a failure allocates, for its message.
    unsafe { command.pre_exec(prepare) };
}

/// Makes the process started by `command` write the nanoseconds from `start` to its `exec` into
/// `pipe`, in the byte order of this machine.
pub(crate) fn note_exec(command: &mut Command, start: Instant, mut pipe: PipeWriter) {
    let note = move || {
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        pipe.write_all(&nanoseconds.to_ne_bytes())
    };
    // SAFETY: the closure runs between fork and exec and only reads a clock and writes to a
    // descriptor, both safe there.
    unsafe { command.pre_exec(note) };
}
