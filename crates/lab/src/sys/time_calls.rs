// SPDX-License-Identifier: Apache-2.0
//! System calls of other processes that ask for the time of day: having them handed over
//! (`seccomp_unotify(2)`), and answering them.

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

use super::check;

/// How this machine's calls are numbered (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: libc::c_long = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: libc::c_long = 0xc000_00b7;

/// Where a filter finds the number of a call, the architecture, and the low halves of arguments
/// (`struct seccomp_data`), on a machine with the low half first.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENTS: [u32; 3] = [16, 24, 32];

/// Bytes of a descriptor, and words of room for one with its head beside a message.
const DESCRIPTOR_BYTES: u32 = 4;
const CONTROL_WORDS: usize = 4;

/// A process waits to be told the time.
#[derive(Debug)]
pub(crate) struct TimeCall {
    id: u64,
    /// The thread.
    pub(crate) caller: u32,
    /// Where in its memory seconds are wanted, and behind them the rest.
    pub(crate) address: u64,
    /// Whether the rest is microseconds, and not nanoseconds.
    pub(crate) wants_micros: bool,
}

/// Has the process that `command` starts, and all that it starts, wait for somebody to tell it the time
/// whenever it asks for that of the day; the descriptor for that is sent to `to`. Stamps of packets,
/// which would be of the right time, are refused as by a kernel without. The process stops at its `exec`.
pub(crate) fn hand_time_calls_to(command: &mut Command, to: UnixStream) {
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

/// Hands over `clock_gettime` of the two clocks of the time of day and `gettimeofday`; refuses stamps.
fn filter() -> Vec<libc::sock_filter> {
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict);
    // Jumps are counted from the next step: where it is that, and where it is not.
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

/// Takes the descriptor that came.
pub(crate) fn receive_descriptor(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut descriptor = None;
    with_control(|message| {
        // SAFETY: as above; what the kernel puts there is a descriptor that is nobody else's.
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

/// Has a message of one byte sent or received that has room for a descriptor.
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

/// Waits until a process that asked for it has stopped at its `exec`. To be called by its parent's
/// thread, as is [`release`].
pub(crate) fn await_exec(pid: u32) -> io::Result<()> {
    match waitpid(process(pid)?, None)? {
        WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(()),
        other => Err(io::Error::other(format!("not stopped: {other:?}"))),
    }
}

/// Has it go on.
pub(crate) fn release(pid: u32) -> io::Result<()> {
    Ok(ptrace::detach(process(pid)?, None)?)
}

fn process(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}

/// Waits for the next call; nothing if who made it has gone meanwhile.
///
/// # Errors
/// Nobody is left who could make one.
pub(crate) fn next_time_call(calls: &OwnedFd) -> io::Result<Option<TimeCall>> {
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

/// Whether the caller still waits.
///
/// # Errors
/// It does not.
pub(crate) fn check_time_call(calls: &OwnedFd, call: &TimeCall) -> io::Result<()> {
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

/// Has the caller go on, with the time where it wants it or with an error.
pub(crate) fn answer_time_call(
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
