// SPDX-License-Identifier: Apache-2.0
//! Intercepts the system calls of other processes for the time of day (`seccomp_unotify(2)`), and
//! answers them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// The result of a system call, or its error with the name of the call.
fn check(call: &str, result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        let source = io::Error::last_os_error();
        return Err(io::Error::new(source.kind(), format!("{call}: {source}")));
    }
    Ok(result)
}

/// The architecture's identifier (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: libc::c_long = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: libc::c_long = 0xc000_00b7;

/// Offsets, in a filter's input, of the call's number, the architecture, and the low halves of
/// arguments (`struct seccomp_data`), on a little-endian machine.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENTS: [u32; 3] = [16, 24, 32];

/// Bytes of a descriptor, and size in words of a control message with one.
const DESCRIPTOR_BYTES: u32 = 4;
const CONTROL_WORDS: usize = 4;

/// A process that waits for the time.
#[derive(Debug)]
pub(super) struct TimeCall {
    id: u64,
    /// The thread.
    pub(super) caller: u32,
    /// Address in its memory for the seconds; the fraction follows.
    pub(super) address: u64,
    /// Whether the fraction is in microseconds rather than nanoseconds.
    pub(super) wants_micros: bool,
}

/// Makes the process that `command` starts, and its children, wait for an answer whenever it reads
/// the time of day; the descriptor for answers is sent to `to`. Packet timestamps, whose times
/// would be right, fail as on a kernel without them. The process stops at its `exec`.
pub(super) fn hand_time_calls_to(command: &mut Command, to: UnixStream) {
    let filter = filter();
    let prepare = move || {
        ptrace::traceme()?;
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).unwrap_or(0),
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: `program` and what it points to are valid for the call, which only reads them.
        let calls = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        let calls = check("seccomp", libc::c_int::try_from(calls).unwrap_or(-1))?;
        send_descriptor(&to, calls)
    };
    // SAFETY: the closure runs between fork and exec; on success it makes three system calls and
    // nothing else, all safe there. Only a failure allocates, for its message.
    unsafe { command.pre_exec(prepare) };
}

/// Intercepts `clock_gettime` of the two clocks of the time of day and `gettimeofday`; rejects
/// packet timestamps.
fn filter() -> Vec<libc::sock_filter> {
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict);
    // Jumps are relative to the next instruction: the target if equal, and if not.
    let is = |value: libc::c_long, jt, jf| libc::sock_filter {
        jt,
        jf,
        ..step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, low(value))
    };
    let refuse = libc::SECCOMP_RET_ERRNO | low(libc::ENOPROTOOPT.into());
    vec![
        load(MACHINE),
        is(ARCHITECTURE, 1, 0),
        end(libc::SECCOMP_RET_ALLOW),
        load(NUMBER),
        is(libc::SYS_gettimeofday, 0, 1),
        end(libc::SECCOMP_RET_USER_NOTIF),
        is(libc::SYS_clock_gettime, 0, 5),
        load(ARGUMENTS[0]),
        is(libc::CLOCK_REALTIME.into(), 1, 0),
        is(libc::CLOCK_REALTIME_COARSE.into(), 0, 1),
        end(libc::SECCOMP_RET_USER_NOTIF),
        end(libc::SECCOMP_RET_ALLOW),
        is(libc::SYS_setsockopt, 0, 5),
        load(ARGUMENTS[1]),
        is(libc::SOL_SOCKET.into(), 0, 3),
        load(ARGUMENTS[2]),
        is(libc::SO_TIMESTAMPING.into(), 0, 1),
        end(refuse),
        end(libc::SECCOMP_RET_ALLOW),
    ]
}

fn step(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt: 0,
        jf: 0,
        k,
    }
}

fn low(value: libc::c_long) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Sends a descriptor, between fork and exec: nothing is allocated.
fn send_descriptor(to: &UnixStream, descriptor: libc::c_int) -> io::Result<()> {
    with_control(|message| {
        // SAFETY: the message has room for one header and one descriptor behind it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(DESCRIPTOR_BYTES) as usize;
            libc::CMSG_DATA(head)
                .cast::<libc::c_int>()
                .write_unaligned(descriptor);
            (*message).msg_controllen = libc::CMSG_SPACE(DESCRIPTOR_BYTES) as usize;
            libc::sendmsg(to.as_raw_fd(), message, 0)
        }
    })
}

/// Receives a descriptor.
pub(super) fn receive_descriptor(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut descriptor = None;
    with_control(|message| {
        // SAFETY: as above; the kernel stores a new descriptor there, with no other owner.
        unsafe {
            let count = libc::recvmsg(from.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC);
            let head = libc::CMSG_FIRSTHDR(message);
            if count > 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
                let number = libc::CMSG_DATA(head).cast::<libc::c_int>();
                descriptor = Some(OwnedFd::from_raw_fd(number.read_unaligned()));
            }
            count
        }
    })?;
    descriptor.ok_or_else(|| io::Error::other("no descriptor came"))
}

/// Sends or receives a message of one byte with room for a descriptor.
fn with_control(pass: impl FnOnce(*mut libc::msghdr) -> isize) -> io::Result<()> {
    let mut byte = 0_u8;
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: all zeroes is a valid `msghdr`, a plain C structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    if pass(&raw mut message) < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits until a traced process has stopped at its `exec`. Call it from the parent thread, as
/// [`release`].
pub(super) fn await_exec(pid: u32) -> io::Result<()> {
    match waitpid(process(pid)?, None)? {
        WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(()),
        other => Err(io::Error::other(format!("not stopped: {other:?}"))),
    }
}

/// Continues the process.
pub(super) fn release(pid: u32) -> io::Result<()> {
    Ok(ptrace::detach(process(pid)?, None)?)
}

fn process(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}

/// Waits for the next call; `None` if the caller has gone meanwhile.
///
/// # Errors
/// No process with the filter is left.
pub(super) fn next_time_call(calls: &OwnedFd) -> io::Result<Option<TimeCall>> {
    let mut ready = [PollFd::new(calls.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::NONE)?;
    let events = ready[0].revents().unwrap_or(PollFlags::empty());
    if !events.contains(PollFlags::POLLIN) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: all zeroes is a valid structure, and what the kernel wants to find.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills `call`, which is of the kind that this request has.
    let result = unsafe {
        libc::ioctl(
            calls.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut call,
        )
    };
    if result < 0 {
        return Ok(None);
    }
    let wants_micros = libc::c_long::from(call.data.nr) == libc::SYS_gettimeofday;
    Ok(Some(TimeCall {
        id: call.id,
        caller: call.pid,
        address: call.data.args[usize::from(!wants_micros)],
        wants_micros,
    }))
}

/// Checks that the caller still waits.
///
/// # Errors
/// It does not.
pub(super) fn check_time_call(calls: &OwnedFd, call: &TimeCall) -> io::Result<()> {
    // SAFETY: the kernel reads the number, and nothing else.
    let result = unsafe {
        libc::ioctl(
            calls.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const call.id,
        )
    };
    check("ioctl SECCOMP_IOCTL_NOTIF_ID_VALID", result).map(drop)
}

/// Continues the caller, with the time in its memory or with an error.
pub(super) fn answer_time_call(
    calls: &OwnedFd,
    call: &TimeCall,
    answer: io::Result<()>,
) -> io::Result<()> {
    let answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: answer.map_or(-libc::EFAULT, |()| 0),
        flags: 0,
    };
    // SAFETY: the kernel reads `answer`, which is of the kind that this request has.
    let result = unsafe {
        libc::ioctl(
            calls.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const answer,
        )
    };
    check("ioctl SECCOMP_IOCTL_NOTIF_SEND", result).map(drop)
}
