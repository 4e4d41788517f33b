// SPDX-License-Identifier: Apache-2.0
//! What nodes say to each other, as bytes: the chain header and what carries
//! it.
//!
//! Pure: no I/O, no clock, no threads, no chance. Whatever the bytes, a parser neither panics nor reads past what
//! the message says of its length, and allocates nothing by a length that it
//! has not checked. All numbers are in network byte order.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the chain header, whatever carries it |
//! | [`syn_option`] | carried by an option of the SYN (IPv4) |
//! | [`proxy_v2`] | telling a server who the client is |

#![forbid(unsafe_code)]

mod bytes;
pub mod header;
pub mod proxy_v2;
#[cfg(test)]
mod rng;
pub mod syn_option;
pub mod tcp_option;
