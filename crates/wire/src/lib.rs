// SPDX-License-Identifier: Apache-2.0
//! The messages between nodes, as bytes: the chain header and what carries
//! it. `docs/protocol.md` describes every byte.
//!
//! Pure: no I/O, no clock, no threads, no chance. The time and nonces are the
//! caller's. Whatever the bytes, a parser neither panics nor reads past the
//! length that the message states, and allocates nothing by a length that it
//! has not checked. All numbers are in network byte order.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the chain header, whatever carries it |
//! | [`syn_option`] | carried by an option of the SYN (IPv4) |
//! | [`convert`] | carried by the first bytes of a stream (RFC 8803) |
//! | [`auth`], [`replay`] | that a header comes from a peer, now, once |
//! | [`hop`] | an open connection between two nodes that waits for a flow |
//! | [`proxy_v2`] | reporting the client's address to a server |
//! | [`stamp`] | measuring the way to another node (RFC 8762) |

#![forbid(unsafe_code)]

pub mod auth;
mod bytes;
pub mod convert;
#[cfg(test)]
mod draw;
mod gather;
pub mod header;
pub mod hop;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
pub mod proxy_v2;
pub mod replay;
pub mod segments;
pub mod stamp;
pub mod syn_option;
pub mod tcp_option;
#[cfg(test)]
mod vectors;

/// How far the reading of a message has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// At least so many bytes are missing, never zero. All of them belong to
    /// the message: a reader of no more takes nothing that follows it.
    NeedMore(usize),
    /// The message is whole.
    Done {
        /// Its content.
        value: T,
        /// How many of the bytes given belong to it.
        consumed: usize,
    },
}

impl<T> Progress<T> {
    /// The same progress of what `then` makes of the value.
    ///
    /// # Errors
    /// Those of `then`.
    pub fn try_map<U, E>(self, then: impl FnOnce(T) -> Result<U, E>) -> Result<Progress<U>, E> {
        Ok(match self {
            Self::NeedMore(missing) => Progress::NeedMore(missing),
            Self::Done { value, consumed } => Progress::Done {
                value: then(value)?,
                consumed,
            },
        })
    }
}
