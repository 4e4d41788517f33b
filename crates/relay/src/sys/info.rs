// SPDX-License-Identifier: Apache-2.0
//! The kernel's information about a connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockRef;

use crate::control::Leg;

use super::multipath::{MultipathInfo, is_multipath, multipath_info};
use super::options::{OptionValue, get_option};

/// From linux/tcp.h.
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
/// From include/net/tcp_states.h.
const TCP_SYN_SENT: u8 = 2;
const TCP_SYN_RECV: u8 = 3;
const TCP_CLOSE: u8 = 7;
/// Length of the array of `SO_MEMINFO`, and the index of the bytes of packets that the socket has
/// made and this host still holds (linux/sock_diag.h).
const MEMINFO_VARS: usize = 9;
const MEMINFO_WMEM_ALLOC: usize = 2;
/// Size of the timestamps option in each segment (RFC 7323 appendix A).
const TIMESTAMPS_BYTES: u32 = 12;

/// Words of `struct tcp_info` that are not in every libc crate: segments that arrived out of order,
/// and the receive window (Linux 6.2).
const OUT_OF_ORDER: usize = 56;
const RECEIVE_WINDOW: usize = 58;
const WORDS: usize = 60;

// SAFETY: both are integers and arrays of them, without references.
unsafe impl OptionValue for libc::tcp_info {}
// SAFETY: an array of integers.
unsafe impl OptionValue for [u32; WORDS] {}
// SAFETY: as above.
unsafe impl OptionValue for [u32; MEMINFO_VARS] {}

/// The state of one TCP connection (`TCP_INFO`, `tcp(7)`).
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
    /// Largest segment that this host sends, in bytes.
    pub send_mss_bytes: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Segments retransmitted since the start.
    pub retransmitted_segments: u32,
    /// Of these, those that the peer had already (by duplicate SACKs, RFC 2883).
    pub needless_segments: u32,
    /// Bytes acknowledged by the peer.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes written and not sent yet.
    pub notsent_bytes: u32,
    /// Recent rate at which the peer took data, in bytes per second.
    pub delivery_rate_bytes_per_second: u64,
    /// Of a connection of Multipath TCP, of which the rest describes the first path.
    pub multipath: Option<MultipathInfo>,
}

impl TcpInfo {
    /// The lowest round-trip time, if measured: the kernel starts with all ones.
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
        // The kernel pads it to a fixed length.
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
        multipath: multipath_info(socket),
    })
}

/// The smoothed round-trip time of a connection, once there is one, and its congestion
/// window in segments.
pub(crate) fn round_and_window(socket: &impl AsFd) -> Option<(Option<Duration>, u32)> {
    let info = raw_tcp_info(socket).ok()?;
    let round = (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()));
    Some((round, info.tcpi_snd_cwnd))
}

/// How often in a row the kernel has sent again what is not acknowledged.
pub(crate) fn sent_in_vain(socket: &impl AsFd) -> u8 {
    raw_tcp_info(socket).map_or(0, |info| info.tcpi_retransmits)
}

/// The lowest round-trip time of a connection, if measured.
pub(crate) fn min_rtt(socket: &impl AsFd) -> Option<Duration> {
    let least = raw_tcp_info(socket).ok()?.tcpi_min_rtt;
    (![0, u32::MAX].contains(&least)).then(|| Duration::from_micros(least.into()))
}

/// The figures that are reported when a relay ends.
pub(crate) fn leg(socket: &impl AsFd) -> io::Result<Leg> {
    let info = raw_tcp_info(socket)?;
    let measured = ![0, u32::MAX].contains(&info.tcpi_min_rtt);
    Ok(Leg {
        min_rtt_us: measured.then_some(info.tcpi_min_rtt),
        rtt_us: info.tcpi_rtt,
        rttvar_us: info.tcpi_rttvar,
        segment_bytes: info.tcpi_snd_mss,
        retransmitted_segments: info.tcpi_total_retrans,
        acked_bytes: info.tcpi_bytes_acked,
        last_sent_ms: info.tcpi_last_data_sent,
    })
}

/// Segments with data of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) sent: u32,
    /// Of these, those that were sent again, and those that the peer had already.
    pub(crate) retransmitted: u32,
    pub(crate) needless: u32,
    pub(crate) received: u32,
    /// Of these, those that arrived before a missing one.
    pub(crate) out_of_order: u32,
    /// Smoothed round-trip time.
    pub(crate) round: Duration,
}

impl Segments {
    /// Those since an earlier count of the same connection.
    pub(crate) fn since(&self, former: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(former.sent),
            retransmitted: self.retransmitted.saturating_sub(former.retransmitted),
            needless: self.needless.saturating_sub(former.needless),
            received: self.received.saturating_sub(former.received),
            out_of_order: self.out_of_order.saturating_sub(former.out_of_order),
            round: self.round,
        }
    }
}

/// Counts the segments of a connection.
pub(crate) fn segments(socket: &impl AsFd) -> io::Result<Segments> {
    let info = raw_tcp_info(socket)?;
    Ok(Segments {
        sent: info.tcpi_data_segs_out,
        retransmitted: info.tcpi_total_retrans,
        needless: info.tcpi_dsack_dups,
        received: info.tcpi_data_segs_in,
        out_of_order: out_of_order_and_window(socket)?.0,
        round: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

/// Whether the SYN of a connecting socket is still in this host: in a device queue, or waiting for
/// a neighbour's address. A socket with a foreign address gets no other sign that a neighbour does
/// not answer.
pub(crate) fn syn_unsent(socket: &impl AsFd) -> bool {
    let waits = raw_tcp_info(socket).is_ok_and(|info| info.tcpi_state == TCP_SYN_SENT);
    waits && memory_info(socket).is_ok_and(|info| info[MEMINFO_WMEM_ALLOC] > 0)
}

/// The send side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Segments sent and not acknowledged.
    pub(crate) unacked_segments: u32,
    /// Bytes written and not sent yet.
    pub(crate) notsent_bytes: u32,
    /// The peer's receive window.
    pub(crate) window_bytes: u32,
    /// Probes of a closed window, or of an idle connection, since the last answer.
    pub(crate) probes_unanswered: u8,
    /// Time since the last acknowledgement.
    pub(crate) since_ack: Duration,
}

/// Reads the send side of a connection.
pub(crate) fn sending(socket: &impl AsFd) -> io::Result<Sending> {
    let info = raw_tcp_info(socket)?;
    Ok(Sending {
        unacked_segments: info.tcpi_unacked,
        notsent_bytes: info.tcpi_notsent_bytes,
        window_bytes: info.tcpi_snd_wnd,
        probes_unanswered: info.tcpi_probes,
        since_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

/// Whether the peer has yet to acknowledge bytes or a FIN. False for a connection that was reset or
/// given up.
pub(crate) fn is_unacknowledged(socket: &impl AsFd) -> bool {
    // TCP_INFO is that of the first path, which may be gone while others go on.
    if is_multipath(socket) {
        return !is_gone(socket) && unacked_bytes(socket).is_ok_and(|bytes| bytes > 0);
    }
    raw_tcp_info(socket).is_ok_and(|info| {
        let waits = info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0;
        info.tcpi_state != TCP_CLOSE && waits
    })
}

/// The `SO_COOKIE` of a socket, unique until the host restarts.
pub(crate) fn cookie(socket: &impl AsFd) -> io::Result<u64> {
    SockRef::from(socket).cookie()
}

/// The address and port that a socket is bound to.
pub(crate) fn local_address(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let address = SockRef::from(socket).local_addr()?.as_socket();
    address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Whether a connection that was open is closed for the kernel: both ends have closed and
/// acknowledged it, or it was reset or given up. It has no peer address then, which costs less to
/// query than `TCP_INFO`.
pub(crate) fn is_gone(socket: &impl AsFd) -> bool {
    let peer = SockRef::from(socket).peer_addr();
    peer.is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
}

/// Bytes written to a connection that its peer has not acknowledged; a FIN counts as one
/// (`SIOCOUTQ`, tcp(7)).
pub(crate) fn unacked_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` lives through the call, which writes a C int there.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Whether a connection was accepted with its SYN and its handshake is incomplete: the source
/// address may be spoofed.
pub(crate) fn is_handshaking(socket: &impl AsFd) -> bool {
    raw_tcp_info(socket).is_ok_and(|info| info.tcpi_state == TCP_SYN_RECV)
}

/// The options of the SYN-ACK from the peer of an open connection (RFC 8803 §6.2.6), as far as the
/// kernel keeps them: timestamps are missing.
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

/// The MSS that the peer of an open connection announced, as far as the path allows. The kernel
/// reports it less the options of each segment, which this adds.
pub(crate) fn segment_bytes(socket: &impl AsFd) -> Option<u16> {
    let info = raw_tcp_info(socket).ok()?;
    let timestamps = info.tcpi_options & TCPI_OPT_TIMESTAMPS != 0;
    let options = if timestamps { TIMESTAMPS_BYTES } else { 0 };
    u16::try_from(info.tcpi_snd_mss + options).ok()
}

/// The bound set by [`super::set_pacing`]; all ones for none.
#[cfg(test)]
pub(crate) fn pacing(socket: &impl AsFd) -> io::Result<u64> {
    Ok(raw_tcp_info(socket)?.tcpi_max_pacing_rate)
}

pub(super) fn memory_info(socket: &impl AsFd) -> io::Result<[u32; MEMINFO_VARS]> {
    get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)
}

pub(super) fn raw_tcp_info(socket: &impl AsFd) -> io::Result<libc::tcp_info> {
    get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// The round-trip time of what a peer sends, in which a queue on its way has a part.
pub(crate) fn receive_round(socket: &impl AsFd) -> Duration {
    let round = raw_tcp_info(socket).map(|info| info.tcpi_rtt.max(info.tcpi_rcv_rtt));
    Duration::from_micros(round.unwrap_or(0).into())
}

/// Segments that arrived out of order, and the receive window in bytes; 0 before Linux 6.2.
pub(super) fn out_of_order_and_window(socket: &impl AsFd) -> io::Result<(u32, u32)> {
    let words: [u32; WORDS] = get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok((words[OUT_OF_ORDER], words[RECEIVE_WINDOW]))
}

/// The name of a kernel TCP state (include/net/tcp_states.h).
pub(super) fn state_name(state: u8) -> &'static str {
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
