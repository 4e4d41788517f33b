// SPDX-License-Identifier: Apache-2.0
//! The system calls of the data plane behind safe functions. The only module of this crate with
//! `unsafe`.
//!
//! Submodules: sockets, their options, the kernel's information about them, ICMP errors. Here:
//! waking a worker, pipes, random numbers, clocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

mod bypass;
mod icmp;
mod info;
mod multipath;
mod options;
mod sockets;

pub(crate) use bypass::{LegState, is_empty, leg_state, set_window_clamp, silence, unread_bytes};
pub use icmp::IcmpError;
pub(crate) use icmp::{keep_icmp_errors, take_icmp_error};
pub use info::TcpInfo;
#[cfg(test)]
pub(crate) use info::pacing;
pub(crate) use info::{
    Segments, Sending, cookie, is_gone, is_handshaking, is_unacknowledged, leg, local_address,
    min_rtt, peer_options, receive_round, round_and_window, segment_bytes, segments, sending,
    sent_in_vain, syn_unsent, tcp_info, unacked_bytes,
};
pub use multipath::{MultipathInfo, PathInfo, is_multipath, supports_multipath};
pub(crate) use multipath::{
    fell_back, join_address, join_listener, multipath_listener, restore_tcp, token,
};
pub use options::set_own_congestion;
pub(crate) use options::{
    apply, apply_at_birth, apply_when_full, apply_when_old, bind_to_interface, bound_interface,
    bound_receive_buffer, hop_limit_of_client, set_hop_limit, set_impatient, set_pacing,
    set_quick_ack, set_reset_on_close, set_user_timeout,
};
pub use sockets::{
    SocketSettings, addressed_multipath_listener, explicit_listener, fixed_listener,
    is_own_address, leads_here, prefer_cpu, transparent_listener,
};
pub(crate) use sockets::{
    accept, apply_to_accepted, connect, connect_with_data, hop_socket, local_address_toward,
    multipath_upstream_socket, own_upstream_socket, tcp_socket, upstream_socket,
};

/// From asm-generic/socket.h (Linux 5.14); not in the libc crate.
const SO_NETNS_COOKIE: i32 = 71;

/// Wakes a thread that waits from another thread.
#[derive(Debug)]
pub struct Waker(EventFd);

impl Waker {
    /// A waker that is not used yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Makes the thread's next wait return.
    pub fn wake(&self) {
        // Fails only when the counter is at its limit, and then the thread is awake already.
        let _ = self.0.write(1);
    }

    /// Called by the thread when it is awake: the next wait waits again.
    pub fn acknowledge(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Moves up to `max_bytes` between two descriptors without copying through user space. One of them
/// is a pipe.
pub(crate) fn splice(from: &impl AsFd, to: &impl AsFd, max_bytes: usize) -> io::Result<usize> {
    use nix::fcntl::SpliceFFlags;
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(nix::fcntl::splice(from, None, to, None, max_bytes, flags)?)
}

/// A pipe of about `capacity_bytes`, or less where the user's limit on pipe memory is used up.
pub(crate) fn pipe(capacity_bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let capacity = i32::try_from(capacity_bytes).unwrap_or(i32::MAX);
    // EPERM past /proc/sys/fs/pipe-user-pages-soft: the smaller pipe serves.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(capacity));
    Ok((read, write))
}

/// `N` bytes from the kernel's cryptographic random number generator.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // SAFETY: the length passed is that of the rest of `bytes`.
        let got = unsafe { libc::getrandom(bytes[filled..].as_mut_ptr().cast(), N - filled, 0) };
        // Fails only before the kernel has gathered entropy, or on a signal.
        filled += usize::try_from(got).unwrap_or(0);
    }
    bytes
}

/// The cookie of this thread's network namespace, as eBPF programs read it.
///
/// # Errors
/// The kernel does not support it (before Linux 5.14).
pub fn netns_cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    options::get_option(&socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Repeats a call that a signal has interrupted.
pub(crate) fn retry(mut call: impl FnMut() -> nix::Result<usize>) -> nix::Result<usize> {
    loop {
        match call() {
            Err(nix::errno::Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// CLOCK_MONOTONIC, which the redirect program uses too.
pub fn monotonic() -> Duration {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME: it cannot be set, and it runs while the host sleeps.
pub(crate) fn since_start() -> Duration {
    read_clock(libc::CLOCK_BOOTTIME)
}

/// Reads a clock that every kernel has.
fn read_clock(clock: libc::clockid_t) -> Duration {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel fills `now`; callers pass only clocks that always exist.
    let now = unsafe {
        libc::clock_gettime(clock, now.as_mut_ptr());
        now.assume_init()
    };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
