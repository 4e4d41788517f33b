// SPDX-License-Identifier: Apache-2.0
//! Messages on the stream of one node, and the ways in which a stream ends.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use posthaste_control::frame::{self, FrameError, LENGTH_BYTES};
use posthaste_control::message::{ToController, ToNode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a message may take to be taken by the network. A node that does not read is as good as gone.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest hello, in bytes: what is read of a node that has not identified itself.
pub(super) const HELLO_BYTES_MAX: usize = 16 << 10;
/// The longest message of a node that has, in bytes: all links of a node among ten thousand, or all destinations
/// that one may report, take less than half of it.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Why a stream ended.
#[derive(Debug)]
pub(super) enum End {
    /// The node ended it.
    Closed,
    /// The network did.
    Broken(io::Error),
    /// Nothing was received, or nothing taken, for too long.
    Silent,
    /// A message is too long, or cannot be read.
    Unreadable(FrameError),
    /// A message that is not its turn.
    OutOfTurn,
    /// It has the controller do the same again and again.
    Excessive(&'static str),
    /// Its hello was rejected.
    Denied(String),
    /// The controller wants no more of it, for this reason.
    Dismissed(Dismissal),
}

/// Why the controller ends the stream of a node that did no wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dismissal {
    /// It has a newer one.
    Replaced,
    /// Its key is not on the list any more.
    Revoked,
    /// The controller ends.
    Stopping,
}

impl End {
    /// Every label, for metrics.
    pub(super) const LABELS: [&'static str; 10] = [
        "closed",
        "broken",
        "silent",
        "unreadable",
        "out_of_turn",
        "denied",
        "replaced",
        "revoked",
        "stopping",
        "excessive",
    ];

    /// Of [`Self::LABELS`].
    pub(super) fn label(&self) -> &'static str {
        Self::LABELS[match self {
            Self::Closed => 0,
            Self::Broken(_) => 1,
            Self::Silent => 2,
            Self::Unreadable(_) => 3,
            Self::OutOfTurn => 4,
            Self::Denied(_) => 5,
            Self::Dismissed(Dismissal::Replaced) => 6,
            Self::Dismissed(Dismissal::Revoked) => 7,
            Self::Dismissed(Dismissal::Stopping) => 8,
            Self::Excessive(_) => 9,
        }]
    }

    /// What the node is sent, if there is any use in it.
    pub(super) fn go_away(&self) -> Option<ToNode> {
        match self {
            // The other end does not read any more.
            Self::Closed | Self::Broken(_) | Self::Silent => None,
            _ => Some(ToNode::GoAway(self.to_string())),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the node ended it"),
            Self::Broken(error) => write!(f, "{error}"),
            Self::Silent => f.write_str("received nothing for too long"),
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::OutOfTurn => f.write_str("a message out of turn"),
            Self::Excessive(what) => f.write_str(what),
            Self::Denied(why) => f.write_str(why),
            Self::Dismissed(Dismissal::Replaced) => f.write_str("the node has a newer stream"),
            Self::Dismissed(Dismissal::Revoked) => {
                f.write_str("the key is not on the list any more")
            }
            Self::Dismissed(Dismissal::Stopping) => f.write_str("the controller ends"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // rustls reports UnexpectedEof when the other end closed without close_notify (RFC 8446
            // section 6.1), which a killed process does.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Self::Closed
            }
            _ => Self::Broken(error),
        }
    }
}

/// The next message of a node, of at most `longest` bytes, within `patience`, and how long it is.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    longest: usize,
    patience: Duration,
) -> Result<(ToController, usize), End> {
    // Over the whole message: who sends byte by byte gains no time.
    let bytes = timeout(patience, read_whole(stream, longest)).await;
    let bytes = bytes.map_err(|_| End::Silent)??;
    let message = frame::read(&bytes).map_err(End::Unreadable)?;
    Ok((message, bytes.len()))
}

async fn read_whole(stream: &mut (impl AsyncRead + Unpin), longest: usize) -> Result<Vec<u8>, End> {
    let mut head = [0; LENGTH_BYTES];
    stream.read_exact(&mut head).await?;
    let length = frame::length(head).map_err(End::Unreadable)?;
    // Before any of it is read: a node that is not let in yet gets little memory.
    if length > longest {
        let error = FrameError::TooLong(u32::from_be_bytes(head));
        return Err(End::Unreadable(error));
    }
    // It grows as bytes come: who announces much and sends little takes little.
    let mut message = Vec::new();
    let mut body = stream.take(length as u64);
    body.read_to_end(&mut message).await?;
    // An early end is no error of `read_to_end`.
    if message.len() < length {
        return Err(End::Closed);
    }
    Ok(message)
}

/// Sends a message.
pub(super) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &ToNode,
) -> Result<(), End> {
    let mut bytes = Vec::new();
    frame::write(message, &mut bytes).map_err(End::Unreadable)?;
    let written = async {
        stream.write_all(&bytes).await?;
        // The TLS layer may hold records back until they are flushed.
        stream.flush().await
    };
    let written = timeout(WRITE_TIME_MAX, written).await;
    written.map_err(|_| End::Silent)?.map_err(End::from)
}

#[cfg(test)]
mod tests {
    use posthaste_control::frame::MESSAGE_MAX;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(future)
    }

    fn read_from(bytes: &[u8], longest: usize) -> Result<(ToController, usize), End> {
        let patience = Duration::from_secs(60);
        run(async { read(&mut &bytes[..], longest, patience).await })
    }

    #[test]
    fn broken_message_ends_stream() {
        let mut bytes = Vec::new();
        let message = ToController::Links(Vec::new());
        frame::write(&message, &mut bytes).unwrap();
        assert_eq!(read_from(&bytes, 2).unwrap(), (message, 2));
        let label = |bytes: &[u8], longest| read_from(bytes, longest).unwrap_err().label();
        assert_eq!(label(&bytes[..3], 2), "closed");
        assert_eq!(label(&bytes[..4], 2), "closed");
        assert_eq!(label(&bytes, 1), "unreadable");
        assert_eq!(label(&[0xff; 9], MESSAGE_MAX), "unreadable");
        assert_eq!(label(&[0, 0, 0, 1, 0xff], 1), "unreadable");
    }

    #[test]
    fn silent_stream_times_out() {
        let read = run(async {
            let (mut ours, _theirs) = tokio::io::duplex(64);
            read(&mut ours, 64, Duration::from_millis(1)).await
        });
        assert_eq!(read.unwrap_err().label(), "silent");
    }

    #[test]
    fn ends_have_own_labels() {
        let ends = [
            End::Closed,
            End::Broken(ErrorKind::Other.into()),
            End::Silent,
            End::Unreadable(FrameError::Unreadable(1)),
            End::OutOfTurn,
            End::Denied("why".into()),
            End::Dismissed(Dismissal::Replaced),
            End::Dismissed(Dismissal::Revoked),
            End::Dismissed(Dismissal::Stopping),
            End::Excessive("why"),
        ];
        let labels = ends.iter().map(End::label);
        assert!(labels.eq(End::LABELS));
        let sent = ends.iter().filter(|end| end.go_away().is_some());
        assert_eq!(sent.count(), 7);
    }
}
