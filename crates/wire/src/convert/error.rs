// SPDX-License-Identifier: Apache-2.0
//! The Error TLV (RFC 8803 §6.2.8).

use super::tlv::{self, TooLong, Writer, unpadded};
use super::{BYTES_MAX, HEADER_BYTES};

const UNSUPPORTED_VERSION: u8 = 0;
const MALFORMED_MESSAGE: u8 = 1;
const UNSUPPORTED_MESSAGE: u8 = 2;
const MISSING_COOKIE: u8 = 3;
const NOT_AUTHORIZED: u8 = 32;
const UNSUPPORTED_TCP_OPTION: u8 = 33;
const RESOURCE_EXCEEDED: u8 = 64;
const NETWORK_FAILURE: u8 = 65;
const CONNECTION_RESET: u8 = 96;
const DESTINATION_UNREACHABLE: u8 = 97;

/// What is left for an echo beside the fixed header, type, length, code, and
/// the zero that aligns the echo.
const ECHO_BYTES_MAX: usize = BYTES_MAX - HEADER_BYTES - 4;

/// Why a converter does not grant a request. After sending one it closes, and
/// must not reset at once, or the client may never read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertError {
    /// 0: of another version than those listed.
    UnsupportedVersion(Vec<u8>),
    /// 1: it cannot be read, or names an address that must not be named. The
    /// offending TLV, of which 1012 bytes are sent.
    MalformedMessage(Vec<u8>),
    /// 2: a TLV of an unknown type, or of one that clients do not send. The
    /// offending TLV, of which 1012 bytes are sent.
    UnsupportedMessage(Vec<u8>),
    /// 3: a cookie is required; this is the client's from now on.
    MissingCookie(Vec<u8>),
    /// 32: not for this client, or the cookie is wrong.
    NotAuthorized,
    /// 33: TCP options of these kinds cannot be sent to the server.
    UnsupportedTcpOption(Vec<u8>),
    /// 64: too busy. Seconds to wait; 0 stands for 30 or more.
    ResourceExceeded(u8),
    /// 65: the network fails the converter. Seconds to wait; 0 stands for 30
    /// or more.
    NetworkFailure(u8),
    /// 96: the server answered with a reset.
    ConnectionReset,
    /// 97: an ICMP error came. Its code, of ICMP or ICMPv6 by the
    /// destination's family.
    DestinationUnreachable(u8),
    /// One that RFC 8803 does not define.
    Other {
        /// Its code.
        code: u8,
        /// What follows the code.
        value: Vec<u8>,
    },
}

impl ConvertError {
    /// Its number (RFC 8803 §6.2.8, table 2).
    pub fn code(&self) -> u8 {
        match self {
            Self::UnsupportedVersion(_) => UNSUPPORTED_VERSION,
            Self::MalformedMessage(_) => MALFORMED_MESSAGE,
            Self::UnsupportedMessage(_) => UNSUPPORTED_MESSAGE,
            Self::MissingCookie(_) => MISSING_COOKIE,
            Self::NotAuthorized => NOT_AUTHORIZED,
            Self::UnsupportedTcpOption(_) => UNSUPPORTED_TCP_OPTION,
            Self::ResourceExceeded(_) => RESOURCE_EXCEEDED,
            Self::NetworkFailure(_) => NETWORK_FAILURE,
            Self::ConnectionReset => CONNECTION_RESET,
            Self::DestinationUnreachable(_) => DESTINATION_UNREACHABLE,
            Self::Other { code, .. } => *code,
        }
    }

    /// Appends the TLV.
    pub(super) fn write(&self, to: &mut Writer) -> Result<(), TooLong> {
        let code = [self.code()];
        let mut write = |value: &[u8]| to.tlv(tlv::ERROR, &[&code, value]);
        match self {
            Self::MalformedMessage(echo) | Self::UnsupportedMessage(echo) => {
                // The TLV may be as long as a whole message, which leaves no room for this header.
                let echo = &echo[..echo.len().min(ECHO_BYTES_MAX)];
                to.tlv(tlv::ERROR, &[&code, &[0], echo])
            }
            Self::MissingCookie(cookie) => to.tlv(tlv::ERROR, &[&code, &[0], cookie]),
            Self::UnsupportedVersion(list) | Self::UnsupportedTcpOption(list) => write(list),
            Self::ResourceExceeded(byte)
            | Self::NetworkFailure(byte)
            | Self::DestinationUnreachable(byte) => write(&[*byte]),
            Self::NotAuthorized | Self::ConnectionReset => write(&[0]),
            Self::Other { value, .. } => write(value),
        }
    }

    /// Reads what follows type and length. `None` when there is not even a
    /// code.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (&code, value) = value.split_first()?;
        // The first byte of an echo or a cookie only aligns it.
        let aligned = value.get(1..).unwrap_or_default();
        let byte = value.first().copied().unwrap_or(0);
        Some(match code {
            UNSUPPORTED_VERSION => Self::UnsupportedVersion(unpadded(value)),
            MALFORMED_MESSAGE => Self::MalformedMessage(aligned.to_vec()),
            UNSUPPORTED_MESSAGE => Self::UnsupportedMessage(aligned.to_vec()),
            MISSING_COOKIE => Self::MissingCookie(aligned.to_vec()),
            NOT_AUTHORIZED => Self::NotAuthorized,
            UNSUPPORTED_TCP_OPTION => Self::UnsupportedTcpOption(unpadded(value)),
            RESOURCE_EXCEEDED => Self::ResourceExceeded(byte),
            NETWORK_FAILURE => Self::NetworkFailure(byte),
            CONNECTION_RESET => Self::ConnectionReset,
            DESTINATION_UNREACHABLE => Self::DestinationUnreachable(byte),
            code => Self::Other {
                code,
                value: value.to_vec(),
            },
        })
    }
}
