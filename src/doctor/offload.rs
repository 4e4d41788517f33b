// SPDX-License-Identifier: Apache-2.0
//! Receive offloads of an interface, and the hash of its queues, through the ethtool ioctl.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `ETHTOOL_GGRO` and `ETHTOOL_GFLAGS`.
const GET_GRO: u32 = 0x2b;
const GET_FLAGS: u32 = 0x25;
/// `ETH_FLAG_LRO`
const LRO: u32 = 1 << 15;

/// `ETHTOOL_GRSSH`
const GET_HASH: u32 = 0x46;
/// `ETH_RSS_HASH_TOP` and `ETH_RSS_HASH_XOR`.
const TOEPLITZ: u8 = 1 << 0;
const XOR: u8 = 1 << 1;

/// `struct ethtool_rxfh`, with room for a key and for no table.
#[repr(C)]
struct Hash {
    command: u32,
    context: u32,
    table_entries: u32,
    key_bytes: u32,
    function: u8,
    transformation: u8,
    reserved: [u8; 6],
    key: [u8; 256],
}

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

/// Large receive offload: segments joined by the hardware, which cannot be split again.
pub(super) fn lro(interface: &str) -> Option<bool> {
    get(interface, GET_FLAGS).map(|flags| flags & LRO != 0)
}

fn get(interface: &str, command: u32) -> Option<u32> {
    let mut value = Value { command, data: 0 };
    // SAFETY: both commands read and write an `ethtool_value`.
    unsafe { query(interface, &mut value) }.then_some(value.data)
}

/// Whether the hash that selects a receive queue is the same for both directions of a flow.
pub(super) fn symmetric(interface: &str) -> Option<bool> {
    let mut hash = Hash {
        command: GET_HASH,
        context: 0,
        table_entries: 0,
        key_bytes: 0,
        function: 0,
        transformation: 0,
        reserved: [0; 6],
        key: [0; 256],
    };
    // SAFETY: with room for no bytes of table or key, the command writes the part of `ethtool_rxfh`
    // before them, with which `Hash` begins.
    if !unsafe { query(interface, &mut hash) } {
        return None;
    }
    let key_bytes = usize::try_from(hash.key_bytes).ok()?;
    (hash.command, hash.table_entries) = (GET_HASH, 0);
    // SAFETY: with room for the key alone, the command writes no more than it was passed room
    // for, and there is room.
    if key_bytes > hash.key.len() || !unsafe { query(interface, &mut hash) } {
        return None;
    }
    let key = hash.key.get(..key_bytes)?;
    // Zero: the driver does not report its function.
    (hash.function != 0).then(|| is_symmetric(hash.function, hash.transformation, key))
}

/// A hash of both addresses and ports is symmetric if the driver makes it so, if it combines them
/// by XOR, or if its Toeplitz key repeats every 16 bits.
fn is_symmetric(function: u8, transformation: u8, key: &[u8]) -> bool {
    let mut pairs = key.chunks_exact(2);
    let repeats = pairs
        .next()
        .is_some_and(|first| pairs.all(|pair| pair == first));
    transformation != 0 || function == XOR || (function == TOEPLITZ && repeats)
}

/// Puts a command to the driver of an interface; whether it was carried out.
///
/// # Safety
/// `value` is what the command in it reads and writes.
unsafe fn query<T>(interface: &str, value: &mut T) -> bool {
    // Any socket: the ioctl uses it to find the network namespace.
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else {
        return false;
    };
    // SAFETY: an `ifreq` of zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: names are at most IFNAMSIZ - 1 bytes long.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: the request points to what the command reads and writes, as the caller promises, and
    // both outlive the call.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_hashes_recognised() {
        let (random, repeating) = ([0x6d, 0x5a, 0x56, 0xda], [0x6d, 0x5a, 0x6d, 0x5a]);
        assert!(!is_symmetric(TOEPLITZ, 0, &random));
        assert!(is_symmetric(TOEPLITZ, 0, &repeating));
        assert!(is_symmetric(TOEPLITZ, 1, &random));
        assert!(is_symmetric(XOR, 0, &random));
        assert!(!is_symmetric(TOEPLITZ, 0, &[]));
        assert!(!is_symmetric(4, 0, &repeating), "CRC32");
    }

    #[test]
    fn no_queues_no_hash() {
        assert_eq!(symmetric("lo"), None);
        assert_eq!(symmetric("no such interface"), None);
    }
}
