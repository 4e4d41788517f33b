// SPDX-License-Identifier: Apache-2.0
//! Just enough netlink: requests, dumps and notifications, synchronous.
//!
//! Hand-written because a node must be up in milliseconds and because the
//! guard process must stay tiny; no process is started and no runtime needed.
//! The callers define what the messages mean.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

mod generic;

pub use generic::{GenericFamily, attributes_of};

/// `NLM_F_REQUEST`
const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`
const ACK: u16 = 0x4;
/// `NLM_F_DUMP`
const DUMP: u16 = 0x300;
/// `NLM_F_CREATE | NLM_F_EXCL`: make it, or fail if it exists.
pub const CREATE: u16 = 0x600;
/// `NLMSG_ERROR`, which also carries acknowledgements.
const ERROR: u16 = 2;
/// `NLMSG_DONE`
const DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// What the kernel puts into one datagram of a dump at the most.
const BUFFER_BYTES: usize = 32 << 10;

/// `NLM_F_CREATE | NLM_F_REPLACE`: make it, in the place of one that exists.
pub const REPLACE: u16 = 0x500;
/// `NLA_F_NESTED`
pub const NESTED: u16 = 0x8000;

/// One message: a header, a body of fixed layout, and attributes.
#[derive(Clone, Debug)]
pub struct Message(Vec<u8>);

impl Message {
    /// A message of this kind with the given body.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        append(&mut self.0, kind, value);
        self
    }

    /// Adds an attribute that holds others.
    #[must_use]
    pub fn nested(self, kind: u16, inner: &[(u16, &[u8])]) -> Self {
        self.attribute(kind | NESTED, &nest(inner))
    }

    fn finish(&mut self, sequence: u32, flags: u16) {
        let length = u32::try_from(self.0.len()).expect("messages here are small");
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        let flags = u16_at(&self.0, 6).unwrap_or(0) | flags;
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// Attributes as the value of another, whose kind has [`NESTED`].
pub fn nest(inner: &[(u16, &[u8])]) -> Vec<u8> {
    let mut value = Vec::new();
    for (kind, each) in inner {
        append(&mut value, *kind, each);
    }
    value
}

fn append(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).expect("attributes here are small");
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    // The length in the header is without this padding (netlink(7)).
    bytes.resize(aligned(bytes.len()), 0);
}

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket for requests about links, routes, rules and filters.
    pub fn route() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkRoute, 0, SockFlag::empty())
    }

    /// A socket for requests about sockets.
    pub fn sock_diag() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkSockDiag, 0, SockFlag::empty())
    }

    /// A socket for requests about firewall rules.
    pub fn netfilter() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkNetFilter, 0, SockFlag::empty())
    }

    /// A socket for requests of families that [`GenericFamily`] finds.
    pub fn generic() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkGeneric, 0, SockFlag::empty())
    }

    /// A non-blocking socket that receives notifications of `groups`.
    pub fn subscribed(groups: u32) -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkRoute, groups, SockFlag::SOCK_NONBLOCK)
    }

    /// The same, of groups of netfilter.
    pub fn subscribed_to_netfilter(groups: u32) -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkNetFilter;
        Self::open(protocol, groups, SockFlag::SOCK_NONBLOCK)
    }

    fn open(protocol: SockProtocol, groups: u32, flags: SockFlag) -> io::Result<Self> {
        let flags = flags | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // The kernel answers at once; the bound is against waiting endlessly.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends a request and waits for the kernel's verdict.
    pub fn request(&mut self, message: Message) -> io::Result<()> {
        self.query(message, |_, _| ())
    }

    /// The same, and hands each answer's kind and body over.
    pub fn query(&mut self, message: Message, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.send(vec![message], 0, ACK)?;
        self.receive_until_end(each)
    }

    /// Sends requests together. Returns the errors of those that failed.
    pub fn request_all(&mut self, messages: Vec<Message>) -> io::Result<Vec<io::Error>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        // Answers to earlier requests, whose receiver timed out, may still arrive.
        let first = self.sequence + 1;
        self.send(messages, 0, ACK)?;
        let mut failed = Vec::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        // Only failures are answered, except for the last, which requests an acknowledgement.
        loop {
            let length = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            for (kind, sequence, body) in messages_in(&buffer[..length]) {
                if kind != ERROR || sequence < first {
                    continue;
                }
                failed.extend(verdict(body).err());
                if sequence == self.sequence {
                    return Ok(failed);
                }
            }
        }
    }

    /// Sends a request for a list and hands each answer's kind and body over.
    pub fn dump(&mut self, message: Message, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.send(vec![message], DUMP, 0)?;
        self.receive_until_end(each)
    }

    /// Hands the notifications that wait over; `WouldBlock` when none does.
    pub fn notifications(&self, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let length = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        for (kind, _, body) in messages_in(&buffer[..length]) {
            each(kind, body);
        }
        Ok(())
    }

    /// Sends requests together and waits for nothing: see [`Netlink::failures`].
    pub fn post_all(&mut self, messages: Vec<Message>) -> io::Result<()> {
        self.send(messages, 0, 0)
    }

    /// Hands over why requests failed that were posted. The kernel drops what does not fit
    /// into the socket's buffer.
    pub fn failures(&mut self, mut each: impl FnMut(io::Error)) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok(()),
                // Some were dropped.
                Err(Errno::ENOBUFS) => continue,
                Err(error) => return Err(error.into()),
            };
            let failed = messages_in(&buffer[..length]).filter(|(kind, ..)| *kind == ERROR);
            failed
                .filter_map(|(_, _, body)| verdict(body).err())
                .for_each(&mut each);
        }
    }

    /// Sends messages as one datagram, all with `flags`, the last also with `last_flags`.
    fn send(&mut self, messages: Vec<Message>, flags: u16, last_flags: u16) -> io::Result<()> {
        let count = messages.len();
        let mut datagram = Vec::new();
        for (index, mut message) in messages.into_iter().enumerate() {
            self.sequence += 1;
            let last = index + 1 == count;
            message.finish(self.sequence, if last { flags | last_flags } else { flags });
            datagram.extend_from_slice(&message.0);
            datagram.resize(aligned(datagram.len()), 0);
        }
        send(self.fd.as_raw_fd(), &datagram, MsgFlags::empty())?;
        Ok(())
    }

    fn receive_until_end(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            for (kind, sequence, body) in messages_in(&buffer[..length]) {
                // The late answer to a request whose receiver timed out.
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    ERROR => return verdict(body),
                    // A dump that failed on its way reports the error at its end.
                    DONE => return verdict(body),
                    _ => each(kind, body),
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The meaning of the number an error or end message starts with.
fn verdict(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).map_or(0, u32::cast_signed) {
        0.. => Ok(()),
        code => Err(Errno::from_raw(-code).into()),
    }
}

/// Kind, sequence number and body of each message of a datagram.
fn messages_in(mut datagram: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        let message = datagram.get(..length)?;
        let body = message.get(HEADER_BYTES..)?;
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
        Some((u16_at(message, 4)?, u32_at(message, 8)?, body))
    })
}

/// Kind and value of each attribute, without the flag bits of the kind.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // A length below 4 ends the list: it would never advance.
        let value = bytes.get(4..length)?;
        // Without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`, which the kernel sets on some only.
        let kind = u16_at(bytes, 2)? & 0x3fff;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// The text of an attribute that holds a string.
pub fn text(value: &[u8]) -> String {
    let end = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// A number in host order, if the bytes reach that far.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A number in host order, if the bytes reach that far.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_messages_round_trip() {
        let mut message = Message::new(7, 0, &[1, 2, 3, 4])
            .attribute(5, b"abc\0")
            .attribute(6, &[9]);
        message.finish(3, ACK);
        let (kind, sequence, body) = messages_in(&message.0).next().unwrap();
        assert_eq!((kind, sequence, &body[..4]), (7, 3, &[1, 2, 3, 4][..]));
        let read: Vec<_> = attributes(&body[4..]).collect();
        assert_eq!(read, [(5, &b"abc\0"[..]), (6, &[9][..])]);
        assert_eq!(text(read[0].1), "abc");
    }

    #[test]
    fn torn_datagrams_end_the_walk() {
        assert_eq!(messages_in(&[20, 0, 0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[8, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[2, 0, 1, 0, 5]).count(), 0);
    }
}
