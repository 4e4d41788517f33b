// SPDX-License-Identifier: Apache-2.0
//! Receive offloads of an interface, by the ethtool ioctl.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `ETHTOOL_GGRO` and `ETHTOOL_GFLAGS`.
const GET_GRO: u32 = 0x2b;
const GET_FLAGS: u32 = 0x25;
/// `ETH_FLAG_LRO`
const LRO: u32 = 1 << 15;

/// `struct ethtool_value`
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Generic receive offload: segments joined by the kernel.
pub(super) fn gro(interface: &str) -> Option<bool> {
    get(interface, GET_GRO).map(|value| value != 0)
}

/// Large receive offload: segments joined by the hardware, for good.
pub(super) fn lro(interface: &str) -> Option<bool> {
    get(interface, GET_FLAGS).map(|flags| flags & LRO != 0)
}

fn get(interface: &str, command: u32) -> Option<u32> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    let mut value = Value { command, data: 0 };
    // SAFETY: an `ifreq` of zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: names are at most IFNAMSIZ - 1 bytes long.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request points to an `ethtool_value`, which is what both
    // commands read and write, and both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    (result == 0).then_some(value.data)
}
