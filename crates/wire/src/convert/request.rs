// SPDX-License-Identifier: Apache-2.0
//! The requests of clients to converters, and how they are written.

use super::ConvertError;
use super::chain::{self, Chain};
use super::tlv::{self, TooLong, Writer};
use crate::auth::{AuthTag, Claim, MAC_BYTES};
use crate::header::ChainHeader;
use crate::tcp_option::KIND_NOP;

/// What a TCP option can hold: a header has 40 bytes of options, and kind and
/// length take two.
const OPTION_VALUE_BYTES_MAX: usize = 38;
/// Options that mean nothing in a request: no value of the client's can be
/// right (RFC 8803 §7.1 to §7.3). They are passed over.
pub(super) const IGNORED: [u8; 3] = [2, 3, 5];
/// The TCP authentication option. It ends at the converter, so it must not be
/// promised (RFC 8803 §7.7).
pub(super) const AUTHENTICATION: u8 = 29;
/// What an authentication tag begins with, so that none can be taken for another kind's.
pub(super) const DOMAIN: &[u8; 16] = b"posthaste head 1";

/// A request of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Which TCP options the converter can send to servers (§6.2.3).
    pub wants_extensions: bool,
    /// A connection (§6.2.5).
    pub connect: Option<Connect>,
    /// What the converter once gave the client, or its operator did (§6.2.7).
    /// Padded with zeros to whole words.
    pub cookie: Option<Vec<u8>>,
}

/// A request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Where to, from whom, and by which way.
    pub header: ChainHeader,
    /// TCP options for the SYN to the server. The converter checks whether it
    /// can send them: see [`Connect::unsupported`].
    pub options: Vec<TcpRequest>,
    /// The client is known to exist: what follows the request are the flow's
    /// bytes. If not, [`VALIDATED`](crate::hop::VALIDATED) comes before them, and the
    /// handshake with the server must not be completed sooner.
    pub validated: bool,
}

impl Connect {
    /// A request without options, for a client that exists.
    pub fn new(header: ChainHeader) -> Self {
        Self {
            header,
            options: Vec::new(),
            validated: true,
        }
    }

    fn write(&self, to: &mut Writer) -> Result<(), TooLong> {
        let destination = self.header.destination;
        let mut options = Vec::new();
        for TcpRequest { kind, value } in &self.options {
            let length = u8::try_from(value.len() + 2).map_err(|_| TooLong)?;
            options.extend_from_slice(&[*kind, length]);
            options.extend_from_slice(value);
        }
        let port = destination.port().to_be_bytes();
        // The zeros that fill up the last word end the options: kind 0 is the end of a list.
        to.tlv(tlv::CONNECT, &[&port, &destination.mapped_ip(), &options])
    }

    /// The error to answer with when there are options of other kinds than
    /// `supported`.
    pub fn unsupported(&self, supported: &[u8]) -> Option<ConvertError> {
        let kinds = self.options.iter().map(TcpRequest::kind);
        let others: Vec<u8> = kinds.filter(|kind| !supported.contains(kind)).collect();
        (!others.is_empty()).then_some(ConvertError::UnsupportedTcpOption(others))
    }
}

/// A TCP option for the SYN to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpRequest {
    kind: u8,
    value: Vec<u8>,
}

impl TcpRequest {
    /// The option `kind`, with a value that the server is to see, or with an
    /// empty one for the converter to make. `None` for kinds that cannot be
    /// requested (0, 1, 2, 3, 5, 29) and values of more than 38 bytes, which
    /// no TCP header has room for.
    pub fn new(kind: u8, value: Vec<u8>) -> Option<Self> {
        let meaningless = kind <= KIND_NOP || kind == AUTHENTICATION || IGNORED.contains(&kind);
        (!meaningless && value.len() <= OPTION_VALUE_BYTES_MAX).then_some(Self { kind, value })
    }

    /// The option's kind.
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// What follows kind and length in the option.
    pub fn value(&self) -> &[u8] {
        &self.value
    }
}

impl Request {
    /// A request for a connection and nothing else.
    pub fn connect(header: ChainHeader) -> Self {
        Self {
            connect: Some(Connect::new(header)),
            ..Self::default()
        }
    }

    /// As bytes, with an authentication tag if one is given. It covers every
    /// byte of the request. A request that is not for a connection has no
    /// room for one, and is sent without.
    ///
    /// # Errors
    /// It does not fit into 1020 bytes.
    pub fn encode(&self, auth: Option<&AuthTag<'_>>) -> Result<Vec<u8>, TooLong> {
        let mut message = Writer::new();
        let mut mac_at = None;
        if self.wants_extensions {
            message.tlv(tlv::INFO, &[&[0; 2]])?;
        }
        if let Some(connect) = &self.connect {
            connect.write(&mut message)?;
            let claim = auth.map(claim_of);
            if let Some(chain) = Chain::of(connect, claim) {
                // Before the TLV is written, since it begins at the present end.
                mac_at = claim.map(|_| message.len() + chain::MAC_AT);
                message.tlv(chain::KIND, &[&chain.value()])?;
            }
        }
        if let Some(cookie) = &self.cookie {
            message.tlv(tlv::COOKIE, &[&[0; 2], cookie])?;
        }
        let mut bytes = message.finish();
        // Last, since the code covers the length in the fixed header, which `finish` writes.
        if let (Some(auth), Some(at)) = (auth, mac_at) {
            let mac = auth.key.mac(&[DOMAIN, &auth.receiver.to_bytes(), &bytes]);
            bytes[at..at + MAC_BYTES].copy_from_slice(&mac);
        }
        Ok(bytes)
    }
}

fn claim_of(auth: &AuthTag<'_>) -> Claim {
    Claim {
        key_id: auth.key_id,
        timestamp_ms: auth.now_ms,
        nonce: auth.nonce,
    }
}
