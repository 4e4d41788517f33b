// SPDX-License-Identifier: Apache-2.0
//! Whose connections are accepted, and how many at once before they are authenticated.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{Incoming, Transmit};

use super::{Endpoint, has_long_header};
use crate::admission::Rate;

/// Connections that may be accepted and are not authenticated yet. Beyond a quarter of them, and beyond
/// [`UNVALIDATED`], a sender has to show first that it receives at its address (RFC 9000 §8.1.2).
const HANDSHAKES_MAX: usize = 256;
/// Handshakes that begin without that, also those that fail at once: each costs up to a millisecond.
const UNVALIDATED: Rate = Rate {
    burst: 64,
    interval: Duration::from_millis(100),
};
/// Of these, the places that only the addresses of peers have.
const HANDSHAKES_OF_PEERS: usize = 64;
/// The same of one address that has shown it, or of one IPv6 /64.
const HANDSHAKES_OF_ONE: usize = 32;

impl Endpoint {
    /// Whether to look at a datagram that came by a socket of no connection. One with a long header costs
    /// much, and anyone can send it.
    pub(crate) fn admits(&mut self, from: IpAddr, datagram: &[u8], now: Duration) -> bool {
        let is_of_peer = self.addresses.contains(&from);
        !has_long_header(datagram) || self.admission.admits(from, is_of_peer, now)
    }

    /// Datagrams that were not looked at since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        self.admission.take_dropped()
    }

    pub(super) fn on_incoming(
        &mut self,
        incoming: Incoming,
        socket: u64,
        answer: &mut Vec<u8>,
        now: Duration,
    ) -> (Option<u64>, Option<Transmit>) {
        answer.clear();
        let is_validated = incoming.remote_address_validated();
        let is_loaded = self.handshakes >= HANDSHAKES_MAX / 4;
        if !is_validated && (is_loaded || !self.unvalidated.take(UNVALIDATED, now)) {
            let retried = self.inner.retry(incoming, answer);
            return (None, retried.ok());
        }
        let from = incoming.remote_address().ip();
        if !self.has_place(from) || is_validated && self.handshakes_of(from) >= HANDSHAKES_OF_ONE {
            return (None, Some(self.inner.refuse(incoming, answer)));
        }
        let at = self.instant(now);
        let mut config = self.server.clone();
        if let Some(config) = &mut config {
            config.transport_config(self.transport(incoming.remote_address().ip()));
        }
        let config = config.map(Arc::new);
        match self.inner.accept(incoming, at, answer, config) {
            Ok((handle, inner)) => {
                self.handshakes += 1;
                let number = self.add(handle, inner, socket, now);
                if let Some(conn) = self.connections.get_mut(&handle) {
                    conn.is_validated = is_validated;
                }
                self.drain(handle);
                (Some(number), None)
            }
            Err(error) => (None, error.response),
        }
    }

    /// Whether one more handshake with this address may begin: with a peer's while others take all of
    /// theirs.
    fn has_place(&self, from: IpAddr) -> bool {
        let kept = if self.addresses.contains(&from) {
            0
        } else {
            HANDSHAKES_OF_PEERS
        };
        self.handshakes + kept < HANDSHAKES_MAX
    }

    /// Connections that an address has begun, and shown that it receives there, and that are not
    /// authenticated.
    fn handshakes_of(&self, from: IpAddr) -> usize {
        let begun = self.connections.values().filter(|conn| {
            let is_pending = !(conn.is_up || conn.is_lost || conn.is_dialed);
            is_pending && conn.is_validated && is_of_one(conn.inner.remote_address().ip(), from)
        });
        begun.count()
    }
}

/// Whether two addresses may be one host's: it has all of an IPv6 /64.
fn is_of_one(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: B17
    #[test]
    fn addresses_of_peers_have_places_of_their_own() {
        let [peer, other] = ["192.0.2.1", "192.0.2.9"].map(|text| text.parse().unwrap());
        let mut endpoint = Endpoint::new(
            Duration::ZERO,
            (&[7; 32], 0),
            Arc::default(),
            Duration::ZERO,
        );
        endpoint.addresses.insert(peer);
        for (handshakes, places) in [
            (HANDSHAKES_MAX - HANDSHAKES_OF_PEERS - 1, [true, true]),
            (HANDSHAKES_MAX - HANDSHAKES_OF_PEERS, [true, false]),
            (HANDSHAKES_MAX, [false, false]),
        ] {
            endpoint.handshakes = handshakes;
            let found = [peer, other].map(|from| endpoint.has_place(from));
            assert_eq!(found, places, "{handshakes}");
        }
    }

    #[test]
    fn network_of_one_host() {
        let are_one =
            |one: &str, other: &str| is_of_one(one.parse().unwrap(), other.parse().unwrap());
        assert!(are_one("2001:db8::1", "2001:db8:0:0:f::2"));
        assert!(!are_one("2001:db8::1", "2001:db8:0:1::1"));
        assert!(are_one("192.0.2.1", "192.0.2.1"));
        assert!(!are_one("192.0.2.1", "192.0.2.2"));
    }
}
