// SPDX-License-Identifier: Apache-2.0
//! What became of a flow that was opened over a hop, as far as the server or
//! the next hop that could not be passed: enough for the first node to answer
//! its client as the server would have.

use std::net::{IpAddr, Ipv6Addr};

use crate::bytes::Bytes;
use crate::convert::{Answer, ConvertError};
use crate::header::mapped;

/// Bytes of a reply, without the frame's head.
pub(super) const BYTES: usize = 20;

/// How a flow was opened, or why not. After all but the first the connection
/// is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// 0: the server has answered. The flow's bytes follow.
    Connected,
    /// 1: the server answered with a reset.
    Refused,
    /// 2: an ICMP error came.
    Unreachable(Icmp),
    /// 3: nothing came.
    TimedOut,
    /// 4: the node may not connect there.
    Denied,
    /// 5: the next node of the route is no peer of the node.
    UnknownSegment,
    /// 6: the flow has been here before, or has come too far.
    TooManyHops,
    /// 7: the node has no room for it.
    Overloaded,
    /// 8: the node failed, or its connection to the next.
    Failed,
    /// 9: the request is too old, or from the future: the clocks of the two nodes differ.
    Clock,
}

/// An ICMP or ICMPv6 error, by the destination's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// Who sent it; `None` if the node itself found no way.
    pub offender: Option<IpAddr>,
}

impl Reply {
    /// Its number.
    pub fn code(self) -> u8 {
        match self {
            Self::Connected => 0,
            Self::Refused => 1,
            Self::Unreachable(_) => 2,
            Self::TimedOut => 3,
            Self::Denied => 4,
            Self::UnknownSegment => 5,
            Self::TooManyHops => 6,
            Self::Overloaded => 7,
            Self::Failed => 8,
            Self::Clock => 9,
        }
    }

    /// The same for a client that speaks Convert (RFC 8803 §6.2.8), which
    /// distinguishes fewer cases. `None` when there is no error.
    pub fn as_convert_error(self) -> Option<ConvertError> {
        Some(match self {
            Self::Connected => return None,
            Self::Refused => ConvertError::ConnectionReset,
            Self::Unreachable(icmp) => ConvertError::DestinationUnreachable(icmp.code),
            // RFC 8803 has no error about clocks.
            Self::Denied | Self::Clock => ConvertError::NotAuthorized,
            Self::Overloaded => ConvertError::ResourceExceeded(0),
            Self::TimedOut | Self::UnknownSegment | Self::TooManyHops | Self::Failed => {
                ConvertError::NetworkFailure(0)
            }
        })
    }

    /// What a converter's answer is among nodes. The family of the destination
    /// distinguishes ICMP from ICMPv6, of which RFC 8803 has only the code of
    /// "destination unreachable".
    pub fn of_answer(answer: &Answer, ipv6: bool) -> Self {
        match &answer.error {
            None => Self::Connected,
            Some(ConvertError::ConnectionReset) => Self::Refused,
            Some(ConvertError::DestinationUnreachable(code)) => Self::Unreachable(Icmp {
                // "Destination unreachable" of RFC 4443 §3.1 and of RFC 792.
                kind: if ipv6 { 1 } else { 3 },
                code: *code,
                // A converter's answer does not name the sender of the ICMP error.
                offender: None,
            }),
            Some(ConvertError::NotAuthorized | ConvertError::MissingCookie(_)) => Self::Denied,
            Some(ConvertError::ResourceExceeded(_)) => Self::Overloaded,
            Some(_) => Self::Failed,
        }
    }

    pub(super) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.code();
        if let Self::Unreachable(icmp) = self {
            bytes[1] = icmp.kind;
            bytes[2] = icmp.code;
            // The unspecified address stands for none: no router sends from it.
            bytes[4..].copy_from_slice(&icmp.offender.map_or([0; 16], mapped));
        }
        bytes
    }

    /// `None` when the bytes are no reply.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes::new(bytes);
        let (number, kind, code) = (bytes.u8()?, bytes.u8()?, bytes.u8()?);
        let (zero, offender) = (bytes.u8()?, Ipv6Addr::from(bytes.array::<16>()?));
        let reply = match number {
            0 => Self::Connected,
            1 => Self::Refused,
            2 => Self::Unreachable(Icmp {
                kind,
                code,
                offender: (!offender.is_unspecified()).then(|| offender.to_canonical()),
            }),
            3 => Self::TimedOut,
            4 => Self::Denied,
            5 => Self::UnknownSegment,
            6 => Self::TooManyHops,
            7 => Self::Overloaded,
            8 => Self::Failed,
            9 => Self::Clock,
            _ => return None,
        };
        let icmp = matches!(reply, Self::Unreachable(_));
        let unused = kind == 0 && code == 0 && offender.is_unspecified();
        // One encoding for each reply, as for requests.
        (zero == 0 && (icmp || unused)).then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: P10
    #[test]
    fn converter_reply_round_trip() {
        let unreachable = |kind| {
            Reply::Unreachable(Icmp {
                kind,
                code: 3,
                offender: None,
            })
        };
        for (reply, received) in [
            (Reply::Connected, Reply::Connected),
            (Reply::Refused, Reply::Refused),
            (unreachable(3), unreachable(3)),
            (Reply::Denied, Reply::Denied),
            (Reply::Overloaded, Reply::Overloaded),
            (Reply::TimedOut, Reply::Failed),
            (Reply::Failed, Reply::Failed),
            (Reply::Clock, Reply::Denied),
        ] {
            let answer = Answer {
                error: reply.as_convert_error(),
                ..Answer::default()
            };
            assert_eq!(Reply::of_answer(&answer, false), received);
        }
        let answer = Answer::failure(ConvertError::DestinationUnreachable(3));
        assert_eq!(Reply::of_answer(&answer, true), unreachable(1));
        let answer = Answer::failure(ConvertError::MissingCookie(vec![1]));
        assert_eq!(Reply::of_answer(&answer, true), Reply::Denied);
    }
}
