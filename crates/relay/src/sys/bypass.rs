// SPDX-License-Identifier: Apache-2.0
//! What a relay that leaves its flow reads from its sockets, and sets on them.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::info::{memory_info, out_of_order_and_window, raw_tcp_info};
use super::options::set_option;

/// From linux/tcp.h.
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_ECN: u8 = 8;
/// From include/net/tcp_states.h.
const TCP_ESTABLISHED: u8 = 1;
/// `TCP_CA_Open`: nothing is lost or reordered (linux/tcp.h).
const CA_OPEN: u8 = 0;
/// Bytes of received packets in `SO_MEMINFO` (linux/sock_diag.h).
const MEMINFO_RMEM_ALLOC: usize = 0;
/// Larger than any window.
const NO_CLAMP: i32 = 1 << 30;

/// One connection of a relay that may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LegState {
    /// Open in both directions, without a loss that is not repaired.
    pub(crate) is_steady: bool,
    /// It has timestamps, SACK and window scaling, all of which the packet path translates.
    pub(crate) has_options: bool,
    /// It uses ECN.
    pub(crate) ecn: bool,
    /// Window shifts of the peer and of this host.
    pub(crate) shifts: (u8, u8),
    /// Largest segment that this host announced, without options.
    pub(crate) advertised_mss: u32,
    /// Path MTU.
    pub(crate) mtu: u32,
    /// Lowest round-trip time: a queue at this host goes with the relay.
    pub(crate) round: Duration,
    /// Recent rate of the peer, in bytes per second.
    pub(crate) delivery_rate: u64,
    /// Window of the peer, in bytes.
    pub(crate) peer_window: u32,
    /// Bytes received and acknowledged.
    pub(crate) received: u64,
    /// Bytes that the peer has acknowledged. The kernel counts the SYN of a connection that this
    /// host opened.
    pub(crate) acked: u64,
    /// Segments that this host sent again, and those that arrived behind a missing one.
    pub(crate) lost: u64,
    /// Segments with data, in both directions.
    pub(crate) segments: u64,
    /// Receive window in bytes; 0 before Linux 6.2.
    pub(crate) window: u32,
}

/// Reads the state of a connection.
pub(crate) fn leg_state(socket: &impl AsFd) -> io::Result<LegState> {
    let info = raw_tcp_info(socket)?;
    let (out_of_order, window) = out_of_order_and_window(socket)?;
    let wanted = TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE;
    Ok(LegState {
        is_steady: info.tcpi_state == TCP_ESTABLISHED && info.tcpi_ca_state == CA_OPEN,
        has_options: info.tcpi_options & wanted == wanted,
        ecn: info.tcpi_options & TCPI_OPT_ECN != 0,
        // The kernel packs both into one byte, the peer's low.
        shifts: (
            info.tcpi_snd_rcv_wscale & 0xf,
            info.tcpi_snd_rcv_wscale >> 4,
        ),
        advertised_mss: info.tcpi_advmss,
        mtu: info.tcpi_pmtu,
        round: Duration::from_micros(info.tcpi_min_rtt.into()),
        delivery_rate: info.tcpi_delivery_rate,
        peer_window: info.tcpi_snd_wnd,
        received: info.tcpi_bytes_received,
        acked: info.tcpi_bytes_acked,
        lost: u64::from(info.tcpi_total_retrans) + u64::from(out_of_order),
        segments: u64::from(info.tcpi_data_segs_in) + u64::from(info.tcpi_data_segs_out),
        window,
    })
}

/// Bounds the receive window, in bytes; `None` leaves it to the kernel.
pub(crate) fn set_window_clamp(socket: &impl AsFd, bytes: Option<u64>) -> io::Result<()> {
    let bytes = bytes.and_then(|bytes| i32::try_from(bytes).ok());
    let bytes = bytes.unwrap_or(NO_CLAMP);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Whether the socket holds no received segment, also none that is out of order.
pub(crate) fn is_empty(socket: &impl AsFd) -> io::Result<bool> {
    Ok(memory_info(socket)?[MEMINFO_RMEM_ALLOC] == 0)
}

/// Bytes received and not read.
pub(crate) fn unread_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` lives through the call, which writes a C int there.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Makes the socket's close silent: without FIN and RST (`TCP_REPAIR`).
pub(crate) fn silence(socket: &impl AsFd) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)
}
