// SPDX-License-Identifier: Apache-2.0
//! How a converter reads a request, and what it answers to one that it cannot
//! read.

use super::chain::{self, Chain};
use super::request::{AUTHENTICATION, DOMAIN, IGNORED};
use super::tlv::{self, BadHeader, NoTlv, Tlv, Tlvs, behind_zeros};
use super::{Connect, ConvertError, HEADER_BYTES, Request, TcpRequest, VERSION};
use crate::Progress;
use crate::auth::{AuthError, Authentic, Claim, Key, MAC_BYTES};
use crate::bytes::Bytes;
use crate::gather::Gather;
use crate::header::{ChainHeader, Endpoint, EndpointError, NodeId};
use crate::tcp_option::{BrokenOption, TcpOption, TcpOptions};

/// A request as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The request itself.
    pub request: Request,
    /// What it contains about its authentication tag.
    pub claim: Option<Claim>,
    bytes: Vec<u8>,
    /// Where in `bytes` the code is.
    mac_at: usize,
}

impl Head {
    /// Reads a request from the front of `bytes`. Never needs more bytes than
    /// the request has; what follows it is the client's data for the server.
    ///
    /// # Errors
    /// There is none, or it cannot be granted: [`Refusal::answer`] goes back.
    pub fn parse(bytes: &[u8]) -> Result<Progress<Self>, Refusal> {
        tlv::body(bytes)?.try_map(|body| {
            // Kept as received: the code covers these bytes, not a new encoding of what they mean.
            let whole = bytes.get(..HEADER_BYTES + body.len());
            let mut head = Self {
                request: Request::default(),
                claim: None,
                bytes: whole.unwrap_or_default().to_vec(),
                mac_at: 0,
            };
            let mut chain = None;
            for tlv in Tlvs::new(body) {
                let tlv = tlv?;
                head.request.take(&tlv, &mut chain)?;
                if tlv.kind == chain::KIND {
                    // Also without a tag in this TLV: `verify` needs a claim first, which only a
                    // TLV with room has.
                    head.mac_at = tlv.at + chain::MAC_AT;
                }
            }
            // After the last TLV: ours may come before the Connect TLV that it belongs to.
            head.adopt(chain)?;
            Ok(head)
        })
    }

    /// Checks that a node with `key` made the request, for the node `me`. The
    /// [replay window](crate::replay::ReplayWindow) checks that it is fresh.
    ///
    /// # Errors
    /// There is no authentication tag, or it is wrong.
    pub fn verify(&self, key: &Key, me: NodeId) -> Result<Authentic, AuthError> {
        let claim = self.claim.ok_or(AuthError::Missing)?;
        let (before, rest) = self.bytes.split_at(self.mac_at);
        let (mac, after) = rest.split_first_chunk().ok_or(AuthError::Missing)?;
        // The number of this node is not sent: a request for another node has another code.
        let parts = [DOMAIN, &me.to_bytes()[..], before, &[0; MAC_BYTES], after];
        if !key.matches(&parts, mac) {
            return Err(AuthError::Wrong);
        }
        Ok(Authentic {
            timestamp_ms: claim.timestamp_ms,
            nonce: claim.nonce,
        })
    }

    /// Adds the fields of our TLV to those of the Connect TLV.
    fn adopt(&mut self, chain: Option<Chain>) -> Result<(), Refusal> {
        let Some(connect) = &mut self.request.connect else {
            // An empty request, or a route without a destination.
            return match (chain, self.request.wants_extensions) {
                (None, true) => Ok(()),
                _ => Err(Refusal::of_all(Problem::NothingRequested)),
            };
        };
        if let Some(chain) = chain {
            let header = &mut connect.header;
            (header.source, header.segments) = (chain.source, chain.segments);
            header.guard = chain.guard;
            connect.validated = chain.validated;
            self.claim = chain.claim;
        }
        Ok(())
    }
}

impl Request {
    /// Takes the fields of a TLV.
    fn take(&mut self, tlv: &Tlv<'_>, chain: &mut Option<Chain>) -> Result<(), Refusal> {
        let &Tlv {
            at, kind, value, ..
        } = tlv;
        let before = match kind {
            tlv::INFO if value.len() != 2 => return Err(tlv.malformed(Problem::InfoLength { at })),
            tlv::INFO => std::mem::replace(&mut self.wants_extensions, true),
            tlv::CONNECT => self.connect.replace(Connect::read(tlv)?).is_some(),
            tlv::COOKIE => self.cookie.replace(behind_zeros(value).to_vec()).is_some(),
            chain::KIND => {
                let read = Chain::read(value);
                let read = read.map_err(|what| tlv.malformed(Problem::Chain { at, what }))?;
                chain.replace(read).is_some()
            }
            kind => return Err(Refusal::unsupported(tlv, kind)),
        };
        if before {
            return Err(tlv.malformed(Problem::Twice { at, kind }));
        }
        Ok(())
    }
}

impl Connect {
    fn read(tlv: &Tlv<'_>) -> Result<Self, Refusal> {
        let at = tlv.at;
        let mut bytes = Bytes::new(tlv.value);
        let (Some(port), Some(ip)) = (bytes.u16(), bytes.array()) else {
            return Err(tlv.malformed(Problem::NoTlv { at }));
        };
        let destination = Endpoint::from_mapped(ip, port)
            .map_err(|error| tlv.malformed(Problem::Destination { at, error }))?;
        let mut connect = Self::new(ChainHeader::to(destination));
        for option in TcpOptions::new(bytes.rest()) {
            let option =
                option.map_err(|error| tlv.malformed(Problem::TcpOptions { at, error }))?;
            connect.request(tlv, &option)?;
        }
        Ok(connect)
    }

    fn request(&mut self, tlv: &Tlv<'_>, option: &TcpOption<'_>) -> Result<(), Refusal> {
        let &TcpOption { kind, value, .. } = option;
        if kind == AUTHENTICATION {
            return Err(Refusal {
                problem: Problem::Authentication { at: tlv.at },
                answer: Some(ConvertError::UnsupportedTcpOption(vec![kind])),
            });
        }
        if !IGNORED.contains(&kind) {
            // Refused here: the converter could not build the SYN that the client relies on.
            let option = TcpRequest::new(kind, value.to_vec())
                .ok_or_else(|| tlv.malformed(Problem::TcpOptionTooLong { at: tlv.at, kind }))?;
            self.options.push(option);
        }
        Ok(())
    }
}

/// Reads a request that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub struct HeadReader(Gather);

impl HeadReader {
    /// Takes the request's bytes from the front of `input`, and not one more.
    ///
    /// # Errors
    /// As [`Head::parse`].
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<Head>, Refusal> {
        self.0.feed(input, Head::parse)
    }
}

/// Why a request is not granted, and what to answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Refusal {
    /// What is wrong.
    pub problem: Problem,
    /// What goes back before the connection is closed. `None` when the
    /// connection is to be reset without an answer.
    pub answer: Option<ConvertError>,
}

impl Refusal {
    fn unsupported(tlv: &Tlv<'_>, kind: u8) -> Self {
        Self {
            problem: Problem::Unsupported { at: tlv.at, kind },
            answer: Some(ConvertError::UnsupportedMessage(tlv.whole.to_vec())),
        }
    }

    /// What is wrong is no single TLV: nothing is echoed.
    fn of_all(problem: Problem) -> Self {
        Self {
            problem,
            answer: Some(ConvertError::MalformedMessage(Vec::new())),
        }
    }
}

impl Tlv<'_> {
    fn malformed(&self, problem: Problem) -> Refusal {
        Refusal {
            problem,
            answer: Some(ConvertError::MalformedMessage(self.whole.to_vec())),
        }
    }
}

impl From<NoTlv<'_>> for Refusal {
    fn from(none: NoTlv<'_>) -> Self {
        Self {
            problem: Problem::NoTlv { at: none.at },
            answer: Some(ConvertError::MalformedMessage(none.rest.to_vec())),
        }
    }
}

impl From<BadHeader> for Refusal {
    fn from(header: BadHeader) -> Self {
        let (problem, answer) = match header {
            // Who speaks another protocol would not understand an answer.
            BadHeader::NotConvert => (Problem::NotConvert, None),
            BadHeader::NoLength => (Problem::NoLength, None),
            BadHeader::Version(version) => {
                let answer = ConvertError::UnsupportedVersion(vec![VERSION]);
                (Problem::Version(version), Some(answer))
            }
        };
        Self { problem, answer }
    }
}

/// What is wrong with a request. Places are counted from the first byte of
/// the fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The first bytes are those of something else.
    #[error("not the Convert protocol")]
    NotConvert,
    /// Its length is zero (§6.1).
    #[error("a Convert header without a length")]
    NoLength,
    /// Of a version that we do not have.
    #[error("version {0} of the Convert protocol, not {VERSION}")]
    Version(u8),
    /// A TLV without a length, one that runs over the end, or one too short
    /// for what it must hold.
    #[error("no whole TLV at byte {at}")]
    NoTlv {
        /// Where the TLV begins.
        at: usize,
    },
    /// The Info TLV has one word (§6.2.2).
    #[error("an Info TLV of more than one word at byte {at}")]
    InfoLength {
        /// Where the TLV begins.
        at: usize,
    },
    /// The reserved type 0 (§6.2.2), an unknown one, or one that clients do
    /// not send.
    #[error("a TLV of type {kind} at byte {at}, which no client sends")]
    Unsupported {
        /// Where the TLV begins.
        at: usize,
        /// Its type.
        kind: u8,
    },
    /// A TLV may come once (§6.2.1).
    #[error("a second TLV of type {kind} at byte {at}")]
    Twice {
        /// Where the second begins.
        at: usize,
        /// Its type.
        kind: u8,
    },
    /// The destination is nothing that a converter connects to (§6.2.5).
    #[error("the Connect TLV at byte {at} names {error}")]
    Destination {
        /// Where the TLV begins.
        at: usize,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// The TCP options for the server cannot be read.
    #[error("in the TCP options of the TLV at byte {at}, {error}")]
    TcpOptions {
        /// Where the TLV begins.
        at: usize,
        /// What is wrong, and where in the options.
        error: BrokenOption,
    },
    /// No TCP header has room for this option.
    #[error("a TCP option {kind} too long for a header, in the TLV at byte {at}")]
    TcpOptionTooLong {
        /// Where the TLV begins.
        at: usize,
        /// The option's kind.
        kind: u8,
    },
    /// The TCP authentication option is requested (§7.7).
    #[error("the TCP authentication option is requested at byte {at}")]
    Authentication {
        /// Where the TLV begins.
        at: usize,
    },
    /// Our own TLV.
    #[error("{what}, at byte {at}")]
    Chain {
        /// Where the TLV begins.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Neither a connection nor the converter's extensions, or a chain
    /// without a destination.
    #[error("the request is empty")]
    NothingRequested,
}

#[cfg(test)]
mod tests;
