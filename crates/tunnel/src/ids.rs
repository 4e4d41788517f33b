// SPDX-License-Identifier: Apache-2.0
//! Connection ids from which the endpoints of a node, which share a secret, know whose a connection is. A NAT that
//! gives the peer another address leads its packets to the socket of any of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, HashedConnectionIdGenerator, InvalidCid};

/// Bytes that recognise ids of this node, and those that name the endpoint.
const HASHED: usize = 8;
const LENGTH: usize = HASHED + 2;

/// The ids of one endpoint.
pub(crate) struct Ids {
    key: u64,
    hashed: HashedConnectionIdGenerator,
    index: u16,
}

impl Ids {
    /// Of the endpoint with this number.
    pub(crate) fn new(key: u64, index: u16) -> Self {
        let hashed = HashedConnectionIdGenerator::from_key(key);
        Self { key, hashed, index }
    }

    /// The number of the endpoint.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// The number of the endpoint that has the connection of a datagram with a short header (RFC 9000 §17.3),
    /// if that has an id of this node.
    pub(crate) fn owner(&self, datagram: &[u8]) -> Option<u16> {
        let (first, rest) = datagram.split_first()?;
        let id = rest.get(..LENGTH).filter(|_| first & 0x80 == 0)?;
        self.validate(&ConnectionId::new(id)).ok()?;
        let (hashed, index) = id.split_at(HASHED);
        let index = u16::from_be_bytes([index[0], index[1]]);
        Some(index ^ self.mask(hashed))
    }

    /// What hides the number, so that ids of one connection have nothing in common (RFC 9000 §5.1).
    fn mask(&self, hashed: &[u8]) -> u16 {
        let mut hasher = DefaultHasher::new();
        (self.key, hashed).hash(&mut hasher);
        let [first, second, ..] = hasher.finish().to_be_bytes();
        u16::from_be_bytes([first, second])
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let hashed = self.hashed.generate_cid();
        let index = (self.index ^ self.mask(&hashed)).to_be_bytes();
        ConnectionId::new(&[&hashed[..], &index].concat())
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let hashed = id.get(..HASHED).ok_or(InvalidCid)?;
        self.hashed.validate(&ConnectionId::new(hashed))
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_endpoint() {
        for index in [0, 1, 255, u16::MAX] {
            let mut ids = Ids::new(7, index);
            let short = |id: &[u8]| [&[0x40], id, &[9; 30]].concat();
            let first = ids.generate_cid();
            let second = ids.generate_cid();
            let other = Ids::new(7, 3);
            assert_eq!(other.owner(&short(&first)), Some(index));
            assert_eq!(other.owner(&short(&second)), Some(index));
            assert_ne!(first[HASHED..], second[HASHED..], "they have it in common");
            assert_eq!(Ids::new(8, 3).owner(&short(&first)), None);
            assert_eq!(other.owner(&[&[0xc0], &first[..], &[9; 30]].concat()), None);
            assert_eq!(other.owner(&[0x40, 1]), None);
        }
    }
}
