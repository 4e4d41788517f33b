// SPDX-License-Identifier: Apache-2.0
//! Who a node or a controller is: a secret of 32 bytes, and the keys that follow from it.
//!
//! The secret itself is an Ed25519 private key (RFC 8032 §5.1.5), which the owner shows on its streams.
//! An X25519 private key (RFC 7748) follows from it by HMAC-SHA-256; with it two nodes agree on what
//! authentication tags their flows. `docs/protocol.md` has the same in words, with an example that the tests check.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac as _};
use posthaste_wire::auth;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Bytes of a secret, and of every key here.
pub const KEY_BYTES: usize = 32;

/// What the X25519 private key follows from, besides the secret.
const EXCHANGE: &[u8] = b"posthaste exchange key 1";
/// What the key of two nodes follows from, besides what they agree on.
const PAIR: &[u8] = b"posthaste pair key 1";

/// What a private key of Ed25519 begins with (RFC 8410 §7, version 1).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// What a public key of Ed25519 begins with, on a stream (RFC 8410 §4).
const SPKI_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// An Ed25519 public key: what the other end of a stream is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl PublicKey {
    /// From 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }

    /// From what is shown on a stream (RFC 7250), if it is such a key.
    pub fn from_spki(der: &[u8]) -> Option<Self> {
        let key = der.strip_prefix(&SPKI_HEAD)?;
        key.try_into().ok().map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A secret, and what follows from it.
#[derive(Clone)]
pub struct Identity {
    signing: Arc<dyn SigningKey>,
    public: PublicKey,
    exchange: [u8; KEY_BYTES],
}

impl Identity {
    /// From a secret that is as good as random.
    pub fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let der = [&PKCS8_HEAD[..], secret].concat();
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(der))
            .expect("any 32 bytes are a private key of Ed25519");
        let spki = signing.public_key();
        let public = spki.and_then(|spki| PublicKey::from_spki(&spki));
        Self {
            public: public.expect("a key of Ed25519 has a public key of Ed25519"),
            signing,
            // Separate keys for signatures and for key agreement.
            exchange: hash(secret, &[EXCHANGE]),
        }
    }

    /// From the text of a file: 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(|secret| Self::new(&secret))
    }

    /// What the owner is known by.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The X25519 public key.
    pub fn exchange_public(&self) -> [u8; KEY_BYTES] {
        x25519(self.exchange, X25519_BASEPOINT_BYTES)
    }

    /// The key that only this node and the one of this X25519 public key have.
    /// Nothing if `theirs` is a point of small order, with which all nodes would share the same
    /// (RFC 7748 §6.1), or this node's own.
    pub fn pair_key(&self, theirs: &[u8; KEY_BYTES]) -> Option<auth::Key> {
        let ours = self.exchange_public();
        // RFC 7748 §6.1 lets the receiver check for the all-zero output, which a point of small
        // order gives.
        let shared = x25519(self.exchange, *theirs);
        if shared == [0; KEY_BYTES] || ours == *theirs {
            return None;
        }
        // By value, so that both nodes hash the same; both keys, since other pairs of points may have
        // the same shared secret (RFC 7748 §6.1).
        let (lower, upper) = if ours < *theirs {
            (&ours, theirs)
        } else {
            (theirs, &ours)
        };
        Some(auth::Key::new(hash(&shared, &[PAIR, lower, upper])))
    }

    /// For streams.
    pub(crate) fn signing(&self) -> Arc<dyn SigningKey> {
        Arc::clone(&self.signing)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

fn hash(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into_bytes().into()
}

/// A key from 64 hexadecimal digits of either case.
pub fn from_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

    /// A line of the example in the document.
    fn documented(name: &str) -> [u8; KEY_BYTES] {
        let (_, block) = DOCUMENT.split_once("```identity\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let line = block.lines().find_map(|line| line.strip_prefix(name));
        from_hex(
            line.unwrap_or_else(|| panic!("{name} is documented"))
                .trim(),
        )
        .unwrap()
    }

    // promise: O14
    #[test]
    fn keys_are_as_documented() {
        let (one, other) = (documented("secret "), documented("other secret "));
        let (one, other) = (Identity::new(&one), Identity::new(&other));
        assert_eq!(one.public().0, documented("public "));
        assert_eq!(one.exchange_public(), documented("exchange "));
        assert_eq!(other.exchange_public(), documented("other exchange "));
        let key = Some(auth::Key::new(documented("pair ")));
        assert_eq!(one.pair_key(&other.exchange_public()), key);
        assert_eq!(other.pair_key(&one.exchange_public()), key);
    }

    #[test]
    fn rfc_8032_public_keys() {
        // RFC 8032 §7.1, test 2.
        let secret = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";
        let public = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
        let identity = Identity::from_hex(secret).unwrap();
        assert_eq!(identity.public().to_string(), public);
        assert_eq!(PublicKey::from_hex(public), Some(identity.public()));
        assert!(!format!("{identity:?}").contains("4ccd"));
    }

    // promise: O14
    #[test]
    fn pairwise_keys_differ() {
        let identity = Identity::new(&[7; KEY_BYTES]);
        let mut one = [0; KEY_BYTES];
        assert_eq!(identity.pair_key(&one), None);
        one[0] = 1;
        assert_eq!(identity.pair_key(&one), None);
        assert_eq!(identity.pair_key(&identity.exchange_public()), None);
    }

    #[test]
    fn other_text_is_no_key() {
        let digits = "0".repeat(64);
        assert!(PublicKey::from_hex(&digits).is_some());
        for text in [
            &digits[1..],
            &(digits.clone() + "0"),
            &digits.replace('0', "g"),
            &"é".repeat(32),
        ] {
            assert_eq!(PublicKey::from_hex(text), None, "{text}");
        }
        assert_eq!(PublicKey::from_spki(&[0; 44]), None);
        assert_eq!(PublicKey::from_spki(&SPKI_HEAD), None);
    }
}
