// SPDX-License-Identifier: Apache-2.0
//! Every system call of the data plane, behind safe functions. The only file of
//! this crate with `unsafe` in it.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::policy::SideOptions;

/// A send buffer's size at the start, in bytes; the kernel doubles it.
const SEND_BUFFER_BYTES: u32 = 512 << 10;
/// From asm-generic/socket.h (Linux 5.14); not in the libc crate.
const SO_BUF_LOCK: i32 = 72;
const SO_NETNS_COOKIE: i32 = 71;
/// From linux/tcp.h.
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
/// From include/net/tcp_states.h.
const TCP_SYN_SENT: u8 = 2;
const TCP_SYN_RECV: u8 = 3;
/// Numbers that `SO_MEMINFO` tells, and the place of the bytes of packets that the
/// socket has made and this host still holds (linux/sock_diag.h).
const MEMINFO_VARS: usize = 9;
const MEMINFO_WMEM_ALLOC: usize = 2;
/// What the timestamps option takes of each segment (RFC 7323 appendix A).
const TIMESTAMPS_BYTES: u32 = 12;

/// Wakes a worker from another thread.
#[derive(Debug)]
pub struct Waker(EventFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Makes the worker's next wait return.
    pub fn wake(&self) {
        // Fails only when the counter is at its limit: it is awake already.
        let _ = self.0.write(1);
    }

    pub(crate) fn acknowledge(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The marks and bounds that all our sockets share.
#[derive(Clone, Copy, Debug)]
pub struct SocketSettings {
    /// `SO_MARK`, by which the redirect program knows our sockets.
    pub mark: u32,
    /// Length of the accept queue of each listener.
    pub backlog: i32,
}

/// Opens a transparent listener on the loopback address of the family, on a
/// port of the kernel's choice. Flows reach it by redirection only: a
/// connection made to its own address is refused by the worker.
///
/// # Errors
/// Any of the system calls; `EPERM` without `CAP_NET_ADMIN`, and
/// `EAFNOSUPPORT` or `EADDRNOTAVAIL` where IPv6 is off.
pub fn transparent_listener(ipv6: bool, settings: SocketSettings) -> io::Result<Socket> {
    let socket = tcp_socket(ipv6, settings.mark)?;
    let loopback = if ipv6 {
        IpAddr::V6(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    };
    // Inherited by what it accepts: a crash resets instead of truncating.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::new(loopback, 0).into())?;
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Opens a listener on `address` for those who name the destination themselves.
/// Several may share the address: the kernel spreads connections over them.
/// A request in a SYN (TCP Fast Open, RFC 7413) is there before the handshake
/// is complete; no cookie is asked for, since a request has a seal or waits.
///
/// # Errors
/// Any of the system calls; `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn explicit_listener(address: SocketAddr, settings: SocketSettings) -> io::Result<Socket> {
    let socket = bound_listener(address, settings)?;
    // Without it requests come one round trip later.
    let _ = set_option(&socket, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1);
    let _ = set_option(
        &socket,
        libc::IPPROTO_TCP,
        libc::TCP_FASTOPEN,
        settings.backlog,
    );
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Opens a listener on `address` for clients whose handshake is complete. Several may
/// share the address, as those of [`explicit_listener`].
///
/// # Errors
/// Any of the system calls; `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn fixed_listener(address: SocketAddr, settings: SocketSettings) -> io::Result<Socket> {
    let socket = bound_listener(address, settings)?;
    socket.listen(settings.backlog)?;
    Ok(socket)
}

/// Has a listener take the connections that arrive on one CPU, of those that it shares
/// an address with others for (Linux 6.2).
///
/// # Errors
/// The kernel's.
pub fn prefer_cpu(listener: &Socket, cpu: usize) -> io::Result<()> {
    let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
    set_option(listener, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, cpu)
}

fn bound_listener(address: SocketAddr, settings: SocketSettings) -> io::Result<Socket> {
    let socket = tcp_socket(address.is_ipv6(), settings.mark)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sends the SYN of a connection to `address`.
pub(crate) fn connect(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an address is one of this host's.
pub fn is_own_address(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// Sends the SYN of a connection to `address`, with as much of `bytes` in it as
/// goes, and returns how many that are: none where the kernel does not offer it.
pub(crate) fn connect_saying(
    socket: &Socket,
    address: SocketAddr,
    bytes: &[u8],
) -> io::Result<usize> {
    let without = || connect(socket, address).map(|()| 0);
    if set_option(socket, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1).is_err() {
        return without();
    }
    let flags = libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL;
    match socket.send_to_with_flags(bytes, &address.into(), flags) {
        Ok(sent) => Ok(sent),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINPROGRESS) => Ok(0),
            // Switched off by `net.ipv4.tcp_fastopen`.
            Some(libc::EOPNOTSUPP) => without(),
            _ => Err(error),
        },
    }
}

/// Whether a connection was accepted with its SYN, and its handshake is not
/// complete: who opened it may be anybody.
pub(crate) fn is_handshaking(socket: &impl AsFd) -> bool {
    raw_tcp_info(socket).is_ok_and(|info| info.tcpi_state == TCP_SYN_RECV)
}

/// The options of the SYN-ACK that the peer of an open connection sent (RFC 8803
/// §6.2.6), as far as the kernel remembers them: timestamps are not.
pub(crate) fn peer_options(socket: &impl AsFd) -> Vec<u8> {
    let Ok(info) = raw_tcp_info(socket) else {
        return Vec::new();
    };
    let has = |option: u8| info.tcpi_options & option != 0;
    let mut options = Vec::new();
    if let Some(mss) = segment_bytes(socket) {
        options.extend_from_slice(&[2, 4]);
        options.extend_from_slice(&mss.to_be_bytes());
    }
    if has(TCPI_OPT_SACK) {
        options.extend_from_slice(&[4, 2]);
    }
    if has(TCPI_OPT_WSCALE) {
        // The kernel packs both shifts into one byte, the peer's low.
        let scales = info.tcpi_snd_rcv_wscale;
        options.extend_from_slice(&[3, 3, scales & 0xf]);
    }
    options
}

/// A fresh number of `N` bytes that nobody can foresee.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // SAFETY: the rest of `bytes` is as long as is said.
        let got = unsafe { libc::getrandom(bytes[filled..].as_mut_ptr().cast(), N - filled, 0) };
        // Fails only until the kernel has gathered enough, or for a signal.
        filled += usize::try_from(got).unwrap_or(0);
    }
    bytes
}

/// The number by which eBPF programs know the network namespace of this thread.
///
/// # Errors
/// The kernel does not tell (before Linux 5.14).
pub fn netns_cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut cookie = 0_u64;
    let mut bytes = libc::socklen_t::try_from(size_of::<u64>()).expect("eight");
    // SAFETY: the option is a u64, which is what the pointers are for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A non-blocking TCP socket with our mark that may use foreign addresses.
pub(crate) fn tcp_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(
        domain,
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    if ipv6 {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
    }
    socket.set_mark(mark)?;
    // Urgent bytes stay in their place among the others; inherited by what a
    // listener accepts. Else they would be lost.
    socket.set_out_of_band_inline(true)?;
    Ok(socket)
}

/// A socket for an upstream connection: armed so that a crash resets instead of
/// truncating, and free to share an address that another connection uses.
pub(crate) fn upstream_socket(ipv6: bool, mark: u32) -> io::Result<Socket> {
    let socket = tcp_socket(ipv6, mark)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Takes a connection whose handshake is complete: the socket, its client and
/// its original destination.
pub(crate) fn accept(listener: &Socket) -> io::Result<(OwnedFd, SocketAddr, SocketAddr)> {
    let (socket, client) = listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
    let address = |address: socket2::SockAddr| {
        address
            .as_socket()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    };
    let (client, server) = (address(client)?, address(socket.local_addr()?)?);
    Ok((socket.into(), client, server))
}

/// The segment size that the peer of an open connection announced, as far as
/// the path allows. The kernel tells it less the options of each segment.
pub(crate) fn segment_bytes(socket: &impl AsFd) -> Option<u16> {
    let info = raw_tcp_info(socket).ok()?;
    let timestamps = info.tcpi_options & TCPI_OPT_TIMESTAMPS != 0;
    let options = if timestamps { TIMESTAMPS_BYTES } else { 0 };
    u16::try_from(info.tcpi_snd_mss + options).ok()
}

/// Applies a rule's settings to one side of a relay, or to the listener that
/// such sides inherit them from.
pub(crate) fn apply(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    apply_at_birth(fd, options)?;
    apply_when_full(fd, options)?;
    apply_when_old(fd, options)
}

/// Applies those of a rule's settings that a socket needs before it connects.
pub(crate) fn apply_at_birth(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    let socket = SockRef::from(fd);
    if let Some(name) = &options.congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    Ok(())
}

/// Applies those that matter once a socket has more to send than it takes at
/// once, which most never have.
pub(crate) fn apply_when_full(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    if options.send_buffer_bytes.is_none() {
        widen_send_buffer(fd)?;
    }
    SockRef::from(fd).set_tcp_notsent_lowat(options.notsent_lowat_bytes)
}

/// Applies those that matter after seconds, which most connections do not last.
pub(crate) fn apply_when_old(fd: &impl AsFd, options: &SideOptions) -> io::Result<()> {
    let socket = SockRef::from(fd);
    if !options.user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(options.user_timeout))?;
    }
    if !options.keepalive_idle.is_zero() {
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(options.keepalive_idle)
            .with_interval(options.keepalive_interval);
        socket.set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}

/// Raises the size that a send buffer starts with and leaves its tuning to the
/// kernel. It starts with room for 20 segments written one at a time, and grows
/// only when an acknowledgement finds it full: a relay in slow start, which
/// writes segments as they come, would lose a round trip of the hop.
fn widen_send_buffer(socket: &impl AsFd) -> io::Result<()> {
    // It may have grown beyond on its own.
    if SockRef::from(socket).send_buffer_size()? >= 2 * SEND_BUFFER_BYTES as usize {
        return Ok(());
    }
    set_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        SEND_BUFFER_BYTES.cast_signed(),
    )?;
    // Setting a size has switched the tuning off.
    set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0)
}

/// Has the ACK that completes a handshake wait for the bytes that most clients
/// have sent by then, and saves a packet and its handling; or has it sent now.
pub(crate) fn set_quick_ack(socket: &impl AsFd, quick: bool) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, quick.into())
}

/// Turns the armed reset-on-close off (or on again).
pub(crate) fn set_reset_on_close(socket: &impl AsFd, reset: bool) -> io::Result<()> {
    SockRef::from(socket).set_linger(reset.then_some(Duration::ZERO))
}

/// Bounds the rate at which a socket sends, in bytes per second, or no longer.
/// Once bounded, the kernel paces what the socket sends for good, by the rate
/// that its congestion control thinks right.
pub(crate) fn set_pacing(socket: &impl AsFd, rate: Option<u32>) -> io::Result<()> {
    // All ones in 32 bits stand for no bound (sk_setsockopt in net/core/sock.c).
    let rate = rate.map_or(-1, |rate| rate.min(u32::MAX - 1).cast_signed());
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

/// The bound that [`set_pacing`] has set; all ones for none.
#[cfg(test)]
pub(crate) fn pacing(socket: &impl AsFd) -> io::Result<u64> {
    Ok(raw_tcp_info(socket)?.tcpi_max_pacing_rate)
}

/// The address of this host that would reach `destination`. Sends nothing.
pub(crate) fn local_address_toward(destination: SocketAddr) -> io::Result<IpAddr> {
    let any = if destination.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}

/// Asks for the sender and kind of ICMP errors to be kept for
/// [`take_icmp_error`], or no longer.
pub(crate) fn keep_icmp_errors(socket: &impl AsFd, ipv6: bool, keep: bool) -> io::Result<()> {
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    set_option(socket, level, name, i32::from(keep))
}

/// An ICMP or ICMPv6 error that a socket received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Who sent it.
    pub offender: IpAddr,
    /// ICMP or ICMPv6 type, by the family of `offender`.
    pub kind: u8,
    /// ICMP or ICMPv6 code.
    pub code: u8,
}

/// The ICMP error behind a failed connection attempt, if there was one. Needs
/// [`keep_icmp_errors`] before connecting.
pub(crate) fn take_icmp_error(socket: &impl AsFd) -> Option<IcmpError> {
    let mut control = [0_u64; 32];
    let mut payload = [0_u8; 64];
    let mut iov = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: an all-zero msghdr is valid; the pointers set below outlive the call.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `message` describes live buffers of the stated lengths.
    let received = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE) };
    if received < 0 {
        return None;
    }
    // SAFETY: the kernel filled `control` with well-formed headers.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, and inside `control` as CMSG_NXTHDR promises.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        let is_error = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        if is_error {
            // SAFETY: this control message carries a sock_extended_err that
            // the offender's socket address follows; read unaligned.
            let data = unsafe { libc::CMSG_DATA(header) };
            return icmp_error(data);
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    None
}

fn icmp_error(data: *const u8) -> Option<IcmpError> {
    // SAFETY: `data` points at a sock_extended_err followed by room for a
    // sockaddr_in6 within the 256-byte control buffer.
    unsafe {
        let error: libc::sock_extended_err =
            data.cast::<libc::sock_extended_err>().read_unaligned();
        let address = data.add(size_of::<libc::sock_extended_err>());
        let offender = match error.ee_origin {
            libc::SO_EE_ORIGIN_ICMP => {
                let v4: libc::sockaddr_in = address.cast::<libc::sockaddr_in>().read_unaligned();
                IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))
            }
            libc::SO_EE_ORIGIN_ICMP6 => {
                let v6: libc::sockaddr_in6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
            }
            _ => return None,
        };
        Some(IcmpError {
            offender,
            kind: error.ee_type,
            code: error.ee_code,
        })
    }
}

/// Moves up to `max_bytes` from one descriptor to the other, one of which is a
/// pipe, without copying through user space.
pub(crate) fn splice(from: &impl AsFd, to: &impl AsFd, max_bytes: usize) -> io::Result<usize> {
    use nix::fcntl::SpliceFFlags;
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(nix::fcntl::splice(from, None, to, None, max_bytes, flags)?)
}

/// A pipe with room for about `capacity_bytes`, or less where the user's limit
/// on pipe memory is used up.
pub(crate) fn pipe(capacity_bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let capacity = i32::try_from(capacity_bytes).unwrap_or(i32::MAX);
    // EPERM past /proc/sys/fs/pipe-user-pages-soft: the smaller pipe serves.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(capacity));
    Ok((read, write))
}

/// CLOCK_MONOTONIC, the clock of the redirect program too.
pub fn monotonic() -> Duration {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME: nobody sets it either, and it goes on while the host sleeps.
pub(crate) fn since_start() -> Duration {
    read_clock(libc::CLOCK_BOOTTIME)
}

/// A clock that every kernel has.
fn read_clock(clock: libc::clockid_t) -> Duration {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel fills `now`; only clocks are asked for that always exist.
    let now = unsafe {
        libc::clock_gettime(clock, now.as_mut_ptr());
        now.assume_init()
    };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// What the kernel knows of one TCP connection (`TCP_INFO`, `tcp(7)`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Kernel state, for example `ESTABLISHED`.
    pub state: &'static str,
    /// Congestion control in use.
    pub congestion: String,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Mean deviation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// Lowest round-trip time seen, in microseconds.
    pub min_rtt_us: u32,
    /// Retransmission timeout in microseconds.
    pub rto_us: u32,
    /// Congestion window in segments.
    pub cwnd_segments: u32,
    /// Largest segment we send, in bytes.
    pub send_mss_bytes: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Segments retransmitted since the start.
    pub retransmitted_segments: u32,
    /// Of these, what the peer had already (by duplicate SACKs, RFC 2883).
    pub needless_segments: u32,
    /// Bytes acknowledged by the peer.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes written and not sent yet.
    pub notsent_bytes: u32,
    /// Rate at which the peer took data of late, in bytes per second.
    pub delivery_rate_bytes_per_second: u64,
}

impl TcpInfo {
    /// The lowest round-trip time, if one was measured: all ones stand for none.
    pub fn min_rtt(&self) -> Option<Duration> {
        let measured = ![0, u32::MAX].contains(&self.min_rtt_us);
        measured.then(|| Duration::from_micros(self.min_rtt_us.into()))
    }
}

/// Reads `TCP_INFO` and the congestion control's name.
pub(crate) fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let info = raw_tcp_info(socket)?;
    let name = SockRef::from(socket).tcp_congestion().unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    Ok(TcpInfo {
        state: state_name(info.tcpi_state),
        congestion: name.trim_end_matches('\0').to_owned(),
        rtt_us: info.tcpi_rtt,
        rttvar_us: info.tcpi_rttvar,
        min_rtt_us: info.tcpi_min_rtt,
        rto_us: info.tcpi_rto,
        cwnd_segments: info.tcpi_snd_cwnd,
        send_mss_bytes: info.tcpi_snd_mss,
        unacked_segments: info.tcpi_unacked,
        retransmitted_segments: info.tcpi_total_retrans,
        needless_segments: info.tcpi_dsack_dups,
        acked_bytes: info.tcpi_bytes_acked,
        received_bytes: info.tcpi_bytes_received,
        notsent_bytes: info.tcpi_notsent_bytes,
        delivery_rate_bytes_per_second: info.tcpi_delivery_rate,
    })
}

/// The smoothed round-trip time of a connection, once there is one, and its congestion
/// window in segments.
pub(crate) fn round_and_window(socket: &impl AsFd) -> Option<(Option<Duration>, u32)> {
    let info = raw_tcp_info(socket).ok()?;
    let round = (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()));
    Some((round, info.tcpi_snd_cwnd))
}

/// Whether a connecting socket's SYN is still in this host: in a queue of a device,
/// or waiting for a neighbour's address. Nothing else tells a socket whose address
/// is not this host's that a neighbour does not answer.
pub(crate) fn syn_unsent(socket: &impl AsFd) -> bool {
    let waits = raw_tcp_info(socket).is_ok_and(|info| info.tcpi_state == TCP_SYN_SENT);
    waits && memory_info(socket).is_ok_and(|info| info[MEMINFO_WMEM_ALLOC] > 0)
}

fn memory_info(socket: &impl AsFd) -> io::Result<[u32; MEMINFO_VARS]> {
    let fd = socket.as_fd().as_raw_fd();
    let mut info = [0; MEMINFO_VARS];
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: `info` is `length` bytes long; an older kernel fills less.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info)
}

fn raw_tcp_info(socket: &impl AsFd) -> io::Result<libc::tcp_info> {
    let fd = socket.as_fd().as_raw_fd();
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: `info` is zeroed and `length` bytes long; an older kernel fills less.
    unsafe {
        let result = libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        );
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.assume_init())
    }
}

/// The name of a kernel TCP state (include/net/tcp_states.h).
fn state_name(state: u8) -> &'static str {
    const NAMES: [&str; 13] = [
        "UNKNOWN",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    NAMES.get(usize::from(state)).copied().unwrap_or("UNKNOWN")
}

fn set_option(socket: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
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
