// SPDX-License-Identifier: Apache-2.0
//! ICMP errors that connection attempts receive.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use super::options::set_option;

/// Turns on or off whether the socket keeps the sender and kind of ICMP errors for
/// [`take_icmp_error`].
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
    /// Its sender.
    pub offender: IpAddr,
    /// ICMP or ICMPv6 type, by the family of `offender`.
    pub kind: u8,
    /// ICMP or ICMPv6 code.
    pub code: u8,
}

/// The ICMP error behind a failed connection attempt, if there was one. Needs
/// [`keep_icmp_errors`] before connecting.
pub(crate) fn take_icmp_error(socket: &impl AsFd) -> Option<IcmpError> {
    // Aligned as control messages must be, and with room for an error and its sender.
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
