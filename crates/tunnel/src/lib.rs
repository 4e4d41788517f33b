// SPDX-License-Identifier: Apache-2.0
//! QUIC connections between nodes (RFC 9000), each of which carries many flows as streams.
//!
//! * [`Endpoint`] is the protocol: datagrams and the time go in, datagrams and [`Event`]s come out.
//!   It has no socket, no clock and no thread; a simulator drives it through lossy networks.
//! * [`Tunnels`] is an endpoint with its UDP sockets, for an event loop of epoll(7): one descriptor
//!   to watch, one deadline.
//! * [`Control`] decides how much may be in flight.
//! * `fec` repairs what a path loses before it is sent again.
//! * [`Credentials`] are what two nodes show each other: raw public keys (RFC 7250).
//!
//! Times are durations from an origin of the caller's, the same for all calls.

mod admission;
mod control;
mod credentials;
mod endpoint;
mod fec;
mod ids;
mod siblings;
#[cfg(test)]
mod simulation;
mod socket;
mod stream;
mod transport;
mod tunnels;

pub use control::{Control, Path, Paths};
pub use credentials::Credentials;
pub use endpoint::{Endpoint, Event, LostReason, Repairs};
#[cfg(feature = "invariants")]
pub use fec::drive_assembly;
pub use siblings::Siblings;
pub use stream::{Ready, Stream};
pub use transport::STREAM_WINDOW;
pub use tunnels::Tunnels;
