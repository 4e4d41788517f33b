// SPDX-License-Identifier: Apache-2.0
//! Socket options.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::time::Duration;

use socket2::SockRef;

use super::bypass::set_window_clamp;
use super::info::{memory_info, out_of_order_and_window};
use super::multipath::is_multipath;
use crate::policy::{OWN_CONGESTION, SideOptions};

/// Initial size of a send buffer, in bytes; the kernel doubles it.
const SEND_BUFFER_BYTES: u32 = 512 << 10;
/// The largest receive buffer where the kernel's own is not to be read: its default before Linux 6.16.
const RECEIVE_BUFFER_BYTES_MAX: u64 = 6 << 20;
/// Used where the kernel does not take [`OWN_CONGESTION`].
const INSTEAD_OF_OWN: &str = "bbr";
/// Before the second retransmission of a SYN. It must not be shorter: the kernel fires the timer of
/// the retransmission at the time-out, so this is also what bounds the wait for the answer.
const IMPATIENT: Duration = Duration::from_millis(1900);
/// The kernel has one list of congestion controls, so this is one of the process.
static OWN_CONGESTION_NAME: OnceLock<String> = OnceLock::new();
/// From asm-generic/socket.h (Linux 5.14); not in the libc crate.
pub(super) const SO_BUF_LOCK: i32 = 72;
/// From include/net/sock.h: the size of the receive buffer was set.
const SOCK_RCVBUF_LOCK: i32 = 2;

/// Applies a rule's settings to one side of a relay, or to the listener from which such sides
/// inherit them.
pub(crate) fn apply(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    apply_at_birth(fd, options)?;
    apply_when_full(fd, options)?;
    apply_when_old(fd, options)
}

/// Applies the settings that a socket needs before it connects.
pub(crate) fn apply_at_birth(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    let socket = SockRef::from(fd);
    if let Some(name) = &options.congestion {
        if_known(set_congestion(&socket, name))?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    Ok(())
}

/// The result of setting an option, unless the kernel does not know it: older ones have few for
/// sockets of Multipath TCP (Linux 6.1 has no TCP_NOTSENT_LOWAT), which then keep their defaults.
fn if_known(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        set => set,
    }
}

fn set_congestion(socket: &SockRef<'_>, name: &str) -> io::Result<()> {
    if name != OWN_CONGESTION {
        return socket.set_tcp_congestion(name.as_bytes());
    }
    if let Some(name) = OWN_CONGESTION_NAME.get() {
        return socket.set_tcp_congestion(name.as_bytes());
    }
    // A kernel that has neither keeps its default.
    let _ = socket.set_tcp_congestion(INSTEAD_OF_OWN.as_bytes());
    Ok(())
}

/// Sets the name under which the kernel knows [`OWN_CONGESTION`]. Sockets before the first call get
/// BBR; later calls change nothing.
pub fn set_own_congestion(name: &str) {
    OWN_CONGESTION_NAME.get_or_init(|| name.to_owned());
}

/// Applies the settings that matter once a socket has more to send than the kernel takes at once,
/// which is rare.
pub(crate) fn apply_when_full(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    if options.send_buffer_bytes.is_none() {
        widen_send_buffer(fd)?;
    }
    if_known(SockRef::from(fd).set_tcp_notsent_lowat(options.notsent_lowat_bytes))
}

/// Applies the settings that matter after seconds; most connections are shorter.
pub(crate) fn apply_when_old(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    if options.keepalive_idle.is_zero() {
        return Ok(());
    }
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(options.keepalive_idle)
        .with_interval(options.keepalive_interval)
        .with_retries(options.keepalive_probes);
    if_known(SockRef::from(fd).set_tcp_keepalive(&keepalive))
}

/// Bounds how long sent bytes may stay unacknowledged and windows closed; `None` leaves the
/// kernel's limits.
pub(crate) fn set_user_timeout(fd: &impl AsFd, most: Option<Duration>) -> io::Result<()> {
    SockRef::from(fd).set_tcp_user_timeout(most)
}

/// Raises the initial size of a send buffer and leaves its tuning to the kernel. Initially it has
/// room for 20 segments written one at a time, and grows only when an acknowledgement finds it
/// full: a relay in slow start, which writes segments as they arrive, would lose a round trip of
/// the hop.
///
/// A socket of Multipath TCP keeps its size: the kernel refuses to tune one again whose size was
/// set (EOPNOTSUPP). A fixed one lets the slow path queue what the fast path would send sooner.
fn widen_send_buffer(socket: &impl AsFd) -> io::Result<()> {
    let locks: i32 = get_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    let kept = locks & SOCK_RCVBUF_LOCK;
    if set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, kept).is_err() {
        return Ok(());
    }
    // It may have grown beyond on its own.
    if SockRef::from(socket).send_buffer_size()? >= 2 * SEND_BUFFER_BYTES as usize {
        return Ok(());
    }
    set_option(
        socket,
        libc::SOL_SOCKET,
        // Not SO_SNDBUF, which `net.core.wmem_max` bounds.
        libc::SO_SNDBUFFORCE,
        SEND_BUFFER_BYTES.cast_signed(),
    )?;
    // SO_SNDBUFFORCE has locked the size; unlock it so that autotuning continues.
    set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, kept)
}

/// Bounds a receive buffer, which the kernel then tunes no longer, to this many bytes and to what it would tune it
/// to. What the socket holds and what it has promised the sender stays, since segments that find no room are lost.
pub(crate) fn bound_receive_buffer(socket: &impl AsFd, bytes: u64) -> io::Result<()> {
    if is_multipath(socket) {
        return Ok(());
    }
    let (_, window) = out_of_order_and_window(socket)?;
    let [held, ..] = memory_info(socket)?;
    let former = SockRef::from(socket).recv_buffer_size()? as u64;
    // Packets take up to twice their bytes.
    let promised = u64::from(held) + 2 * u64::from(window);
    let bytes = if bytes < former {
        bytes.max(promised).min(former)
    } else {
        bytes.min(receive_buffer_max()).max(former)
    };
    // Not SO_RCVBUF, which `net.core.rmem_max` bounds. The kernel doubles it.
    let half = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, half)?;
    if bytes > former {
        // Tuning would raise it with the buffer.
        set_window_clamp(socket, None)?;
    }
    Ok(())
}

/// The most that the kernel tunes a receive buffer to, in bytes (tcp(7), `tcp_rmem`).
fn receive_buffer_max() -> u64 {
    static MOST: OnceLock<u64> = OnceLock::new();
    *MOST.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
        let most = text.split_ascii_whitespace().nth(2);
        most.and_then(|most| most.parse().ok())
            .unwrap_or(RECEIVE_BUFFER_BYTES_MAX)
    })
}

/// With `quick` false, delays the ACK that completes a handshake until the first bytes, which most
/// clients have sent by then: that saves a packet. With `quick` true, sends it now.
pub(crate) fn set_quick_ack(socket: &impl AsFd, quick: bool) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, quick.into())
}

/// Turns the armed reset-on-close off (or on again).
pub(crate) fn set_reset_on_close(socket: &impl AsFd, reset: bool) -> io::Result<()> {
    SockRef::from(socket).set_linger(reset.then_some(Duration::ZERO))
}

/// Bounds the rate at which a socket sends, in bytes per second; `None` removes the bound. After
/// the first bound the kernel keeps pacing the socket, at the rate of its congestion control.
pub(crate) fn set_pacing(socket: &impl AsFd, rate: Option<u32>) -> io::Result<()> {
    // All ones in 32 bits mean no bound (sk_setsockopt in net/core/sock.c).
    let rate = rate.map_or(-1, |rate| rate.min(u32::MAX - 1).cast_signed());
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

/// Makes a connecting socket fail before its SYN would be retransmitted a second time, or reverts
/// that. `TCP_SYNCNT` cannot express it: the kernel adds `tcp_syn_linear_timeouts`.
pub(crate) fn set_impatient(socket: &impl AsFd, impatient: bool) -> io::Result<()> {
    let timeout = impatient.then_some(IMPATIENT);
    SockRef::from(socket).set_tcp_user_timeout(timeout)
}

/// Sets the TTL or hop limit of what a socket sends.
pub(crate) fn set_hop_limit(socket: &impl AsFd, ipv6: bool, hops: u8) -> io::Result<()> {
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
    } else {
        (libc::IPPROTO_IP, libc::IP_TTL)
    };
    set_option(socket, level, name, hops.into())
}

/// Binds a socket to one interface (`SO_BINDTOIFINDEX`): it sends by that one, regardless of
/// routes, and receives by it alone.
pub(crate) fn bind_to_interface(socket: &impl AsFd, ifindex: u32) -> io::Result<()> {
    let index = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// The interface that a socket is bound to, 0 for none.
pub(crate) fn bound_interface(socket: &impl AsFd) -> io::Result<u32> {
    let index: i32 = get_option(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?;
    u32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The TTL or hop limit of the segment that opened an accepted socket. The kernel stores it in the
/// field for received multicast packets, which TCP does not use (`tcp_v4_syn_recv_sock`,
/// `tcp_v6_syn_recv_sock`).
pub(crate) fn hop_limit_of_client(socket: &impl AsFd, ipv6: bool) -> Option<u8> {
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS)
    } else {
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL)
    };
    let hops: i32 = get_option(socket, level, name).ok()?;
    u8::try_from(hops).ok()
}

/// The value of a socket option.
///
/// # Safety
/// Every sequence of bytes is a value of the type, all zeros too.
pub(super) unsafe trait OptionValue: Copy {}

// SAFETY: integers.
unsafe impl OptionValue for i32 {}
// SAFETY: as above.
unsafe impl OptionValue for u64 {}

/// Reads a socket option. What an older kernel does not fill is zero.
pub(super) fn get_option<T: OptionValue>(
    socket: &impl AsFd,
    level: i32,
    name: i32,
) -> io::Result<T> {
    // SAFETY: any bytes are a value.
    let zero = unsafe { MaybeUninit::<T>::zeroed().assume_init() };
    read_option(socket, level, name, zero)
}

/// The same for an option that reads `value` too.
pub(super) fn read_option<T: OptionValue>(
    socket: &impl AsFd,
    level: i32,
    name: i32,
    mut value: T,
) -> io::Result<T> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: `value` lives through the call and `length` is its size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

pub(super) fn set_option(socket: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(4);
    // SAFETY: `value` lives through the call and `length` is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::OwnedFd;
    use std::thread;
    use std::time::Instant;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A listener that drops SYNs, and what fills its queue.
    fn full() -> (Socket, SocketAddr, Vec<TcpStream>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let waiting = TcpStream::connect(address).unwrap();
        (listener, address, vec![waiting])
    }

    // promise: K19
    #[test]
    fn retransmitted_syn_has_time() {
        let (_listener, address, _waiting) = full();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        let _ = socket.connect(&address.into());
        let socket = OwnedFd::from(socket);
        set_impatient(&socket, true).unwrap();
        let error = loop {
            if let Some(error) = SockRef::from(&socket).take_error().unwrap() {
                break error;
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        // The kernel retransmits after one second.
        let lasted = begun.elapsed();
        assert!(lasted > Duration::from_millis(1800), "{lasted:?}");
    }
}
