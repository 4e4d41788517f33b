// SPDX-License-Identifier: Apache-2.0
//! The authentication tag of a message, by which a node knows that a peer made it:
//! HMAC-SHA-256 (RFC 2104) over the message, cut to 128 bits, keyed with what
//! the two share.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

use crate::header::NodeId;

/// Bytes of a [`Key`]: as many as the hash gives.
pub const KEY_BYTES: usize = 32;
/// Bytes of a message authentication code. RFC 2104 §5 requires no less than
/// half of the hash.
pub const MAC_BYTES: usize = 16;
const RESETS: &[u8; 16] = b"posthaste resets";
/// What the keys of tunnels are derived for.
const TUNNEL: &[u8; 16] = b"posthaste tunnel";
/// Bytes of a nonce: so many that chance never gives one twice.
pub const NONCE_BYTES: usize = 16;

/// The secret that two nodes share, and no other node has.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// From bytes that are as good as random. A password is not.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The code of `parts`, one after the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let whole = self.hash(parts).finalize().into_bytes();
        // RFC 2104 §5: the leftmost bits of the hash.
        std::array::from_fn(|at| whole[at])
    }

    /// Whether `mac` is the code of `parts`. Takes the same time wherever
    /// they differ.
    pub(crate) fn matches(&self, parts: &[&[u8]], mac: &[u8; MAC_BYTES]) -> bool {
        // In constant time: a comparison that ends at the first wrong byte lets a sender find the
        // code byte by byte from the times of the answers.
        self.hash(parts).verify_truncated_left(mac).is_ok()
    }

    /// A key that follows from this one and `parts`.
    pub(crate) fn derive(&self, parts: &[&[u8]]) -> Self {
        // Not cut: a key has as many bytes as the hash.
        Self(self.hash(parts).finalize().into_bytes().into())
    }

    /// The seed of the key by which node `of` authenticates itself to node `to` in a tunnel:
    /// HKDF-Expand (RFC 5869 §2.3) of one block; the key is as good as random, so nothing is to be
    /// extracted first.
    pub fn tunnel_seed(&self, of: NodeId, to: NodeId) -> [u8; KEY_BYTES] {
        let parts: [&[u8]; 4] = [TUNNEL, &of.to_bytes(), &to.to_bytes(), &[1]];
        self.derive(&parts).0
    }

    /// A secret of node `of` from this key and `other`, which is made of its other keys: by it the
    /// node resets tunnels that it does not know any more.
    pub fn reset_secret(&self, of: NodeId, other: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        self.derive(&[RESETS, &of.to_bytes(), other]).0
    }

    fn hash(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut hash =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        // Joined without lengths: every part before the message has a fixed length, so the split is
        // clear.
        for part in parts {
            hash.update(part);
        }
        hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Types that hold a key derive `Debug` and are logged; the key must not be.
        f.write_str("Key(..)")
    }
}

/// Random bytes of the sender, never used twice with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

/// What a sender authenticates a message with.
#[derive(Clone, Copy, Debug)]
pub struct AuthTag<'a> {
    /// Shared with the receiver.
    pub key: &'a Key,
    /// Which of their keys it is, for the receiver to find.
    pub key_id: u32,
    /// The node that the message is for. It is part of what is authenticated, so no
    /// other node takes the message for its own.
    pub receiver: NodeId,
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// Fresh.
    pub nonce: Nonce,
}

/// What a message contains about its authentication tag, not verified: see
/// [`Head::verify`](crate::convert::Head::verify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which key it was made with.
    pub key_id: u32,
    /// When, by the sender's clock, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The sender's nonce.
    pub nonce: Nonce,
}

/// When an authentic message was made, and its nonce. Only a check of the
/// code makes one, so a [`ReplayWindow`](crate::replay::ReplayWindow) cannot
/// be filled by unauthorized senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an authentic message may still be an old one"]
pub struct Authentic {
    pub(crate) timestamp_ms: u64,
    pub(crate) nonce: Nonce,
}

/// A message does not come from whom it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// It has none.
    #[error("the message has no authentication tag")]
    Missing,
    /// The code is wrong: another key, another receiver, or another message.
    #[error("the authentication tag of the message is wrong")]
    Wrong,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231 §4.2 and §4.3, with keys filled up with zeros as HMAC does.
    // promise: B7
    #[test]
    fn rfc_test_vectors() {
        let mut key = [0; KEY_BYTES];
        key[..20].fill(0x0b);
        let whole = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(hex(&Key::new(key).derive(&[b"Hi ", b"There"]).0), whole);
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(b"Jefe");
        let code = Key::new(key).mac(&[b"what do ya want for nothing?"]);
        assert_eq!(hex(&code), "5bdcc146bf60754e6a042426089575c7");
    }

    // promise: B7
    #[test]
    fn every_bit_counts() {
        let key = Key::new([7; KEY_BYTES]);
        let code = key.mac(&[b"message"]);
        assert!(key.matches(&[b"mess", b"age"], &code));
        for bit in 0..MAC_BYTES * 8 {
            let mut other = code;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.matches(&[b"message"], &other), "bit {bit}");
        }
    }

    // promise: B17
    #[test]
    fn tunnel_seeds_differ_by_direction_and_key() {
        let [one, two] = [1, 2].map(|id| NodeId::new(id).unwrap());
        let seeds = [
            Key::new([7; KEY_BYTES]).tunnel_seed(one, two),
            Key::new([7; KEY_BYTES]).tunnel_seed(two, one),
            Key::new([8; KEY_BYTES]).tunnel_seed(one, two),
        ];
        assert!(seeds[0] != seeds[1] && seeds[0] != seeds[2] && seeds[1] != seeds[2]);
        assert_eq!(seeds[0], Key::new([7; KEY_BYTES]).tunnel_seed(one, two));
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", Key::new([7; KEY_BYTES])), "Key(..)");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
