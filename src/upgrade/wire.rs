// SPDX-License-Identifier: Apache-2.0
//! The messages between two processes while one replaces the other: JSON, one message per packet,
//! with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use posthaste_config::Transparent;

/// Version of the messages. A process of another version is rejected, and the old one continues.
pub(super) const VERSION: u32 = 1;
/// Bytes of a message: enough for three predecessors with their paths.
const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// Descriptors per message.
const DESCRIPTORS_MAX: usize = 2;

/// The messages, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// New: requests the place.
    TakeOver { version: u32 },
    /// Old: rejects.
    Refused { reason: String },
    /// Old: accepts, with standard output and standard error.
    Offer(Offer),
    /// Old: a socket to continue with.
    Descriptor(Descriptor),
    /// Old: that was the last socket.
    Offered,
    /// New: its programs are attached behind the old ones.
    Attached,
    /// Old: its programs leave packets to the new ones.
    Followed,
    /// New: takes the flows that the old one leaves.
    Taking,
    /// Old: takes no new flows any more.
    Replaced,
}

/// The information that a successor needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) routing: Routing,
    /// The nodes that still carry relays; the last one is the sender.
    pub(super) nodes: Vec<Peer>,
}

/// Settings that two nodes must share, so that each recognises the other's sockets and packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Routing {
    enabled: bool,
    mark: u32,
    socket_mark: u32,
    table: u32,
}

impl Routing {
    pub(super) fn of(transparent: &Transparent) -> Self {
        Self {
            enabled: transparent.enabled,
            mark: transparent.mark,
            socket_mark: transparent.socket_mark,
            table: transparent.table,
        }
    }

    /// The configuration keys in which two differ.
    pub(super) fn differing(self, other: Self) -> Vec<&'static str> {
        let keys = [
            ("transparent.enabled", self.enabled == other.enabled),
            ("transparent.mark", self.mark == other.mark),
            (
                "transparent.socket_mark",
                self.socket_mark == other.socket_mark,
            ),
            ("transparent.table", self.table == other.table),
        ];
        keys.into_iter()
            .filter(|(_, same)| !same)
            .map(|(key, _)| key)
            .collect()
    }
}

/// A replaced process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(super) pid: u32,
    /// Its admin socket once it is replaced.
    pub(super) socket: PathBuf,
}

/// The purpose of a socket that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A listener whose clients name the destination.
    Explicit,
    /// A listener with a fixed destination.
    Fixed,
    /// The metrics listener.
    Metrics,
    /// A UDP socket that answers probes.
    Reflector,
}

/// A socket that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
}

/// One end of the conversation.
#[derive(Debug)]
pub(super) struct Channel(Socket);

/// A socket as both sides use it.
pub(super) fn socket() -> anyhow::Result<Socket> {
    // Keeps messages apart, each with its descriptors.
    Socket::new(Domain::UNIX, Type::SEQPACKET.cloexec(), None).context("make a unix socket")
}

pub(super) fn address(path: &std::path::Path) -> anyhow::Result<SockAddr> {
    SockAddr::unix(path).with_context(|| format!("use {} as the path of a socket", path.display()))
}

impl Channel {
    pub(super) fn new(socket: Socket) -> Self {
        Self(socket)
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.0
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &Message) -> anyhow::Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message with descriptors.
    pub(super) fn send_with(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> anyhow::Result<()> {
        let text = serde_json::to_vec(message)?;
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(
            self.0.as_raw_fd(),
            &[IoSlice::new(&text)],
            rights,
            flags,
            None,
        )
        .context("send to the other process")?;
        Ok(())
    }

    /// The next message of the peer, within `most`, and its descriptors.
    pub(super) fn receive(&self, most: Duration) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        self.0
            .set_read_timeout(Some(most))
            .context("bound the wait")?;
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = cmsg_space!([std::os::fd::RawFd; DESCRIPTORS_MAX]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        // A program that another thread starts meanwhile must not inherit the listeners.
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let got = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags);
        let got = match got {
            Err(Errno::EAGAIN) => bail!("no answer of the other process in {} s", most.as_secs()),
            got => got.context("wait for the other process")?,
        };
        let mut descriptors = Vec::new();
        for control in got.cmsgs().context("read descriptors")? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just made these descriptors for this process alone.
                descriptors.extend(raw.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
            }
        }
        let length = got.bytes;
        // No message is empty: this is the end of the connection.
        if length == 0 {
            bail!("the other process has ended");
        }
        let message = serde_json::from_slice(&bytes[..length]).context("read its message")?;
        Ok((message, descriptors))
    }

    /// Waits for one message and no other.
    pub(super) fn expect(&self, wanted: &Message, most: Duration) -> anyhow::Result<()> {
        match self.receive(most)?.0 {
            message if message == *wanted => Ok(()),
            Message::Refused { reason } => bail!("{reason}"),
            other => bail!("the other process sent {other:?} instead of {wanted:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        (Channel(one), Channel(other))
    }

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (one, other) = pair();
        let descriptor = Descriptor {
            kind: Kind::Fixed,
            address: ([192, 0, 2, 1], 80).into(),
        };
        let null = std::fs::File::open("/dev/null").unwrap();
        one.send_with(&Message::Descriptor(descriptor), &[null.as_fd()])
            .unwrap();
        one.send(&Message::Offered).unwrap();
        let (message, descriptors) = other.receive(STEP).unwrap();
        assert_eq!(
            (message, descriptors.len()),
            (Message::Descriptor(descriptor), 1)
        );
        other.expect(&Message::Offered, STEP).unwrap();
    }

    const STEP: Duration = Duration::from_secs(20);

    #[test]
    fn unexpected_words_are_errors() {
        let (one, other) = pair();
        let reason = "it drains".to_owned();
        one.send(&Message::Refused { reason }).unwrap();
        one.send(&Message::Attached).unwrap();
        drop(one);
        for words in ["it drains", "Attached", "ended"] {
            let error = other
                .expect(&Message::Offered, STEP)
                .unwrap_err()
                .to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn differences_are_named() {
        let now = Routing::of(&Transparent::default());
        assert!(now.differing(now).is_empty());
        let other = Routing {
            table: 7,
            mark: 8,
            ..now
        };
        assert_eq!(
            now.differing(other),
            ["transparent.mark", "transparent.table"]
        );
    }
}
