// SPDX-License-Identifier: Apache-2.0
//! The settings of streams between nodes and their controller: TLS 1.3 with raw Ed25519 keys
//! (RFC 7250) on both sides, each of which the other end has from its operator.
//!
//! Nothing else is spoken: no earlier version, no certificate, no name, no date. Sessions are not
//! resumed, since a resumed one would not check again whether its key still counts.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

use crate::identity::{Identity, PublicKey};

/// The keys that may open a stream. Shared: a key that is taken off the list is not let in again.
#[derive(Clone, Debug, Default)]
pub struct AllowedKeys(Arc<RwLock<Vec<PublicKey>>>);

impl AllowedKeys {
    /// These and no others from now on. Streams that are open continue until their owner ends them.
    pub fn set(&self, mut keys: Vec<PublicKey>) {
        keys.sort_unstable();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn has(&self, key: PublicKey) -> bool {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.binary_search(&key).is_ok()
    }
}

/// The controller's side: it lets `allowed_keys` in.
///
/// # Panics
/// Never: what is set is what the library has.
pub fn server(identity: &Identity, allowed_keys: AllowedKeys) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has ciphers of TLS 1.3")
        .with_client_cert_verifier(Arc::new(allowed_keys))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown(
            identity,
        ))));
    // A ticket would let a node back in whose key was removed (see above).
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// The node's side: it speaks to the controller of this key only.
///
/// # Panics
/// Never: what is set is what the library has.
pub fn client(identity: &Identity, controller: PublicKey) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has ciphers of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Host(controller)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(shown(
            identity,
        ))));
    config.resumption = Resumption::disabled();
    // The key is the identity; a name on the path would only show whom the node talks to.
    config.enable_sni = false;
    config
}

/// The name that [`rustls::ClientConnection::new`] needs. It is neither sent nor checked.
pub fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// The key that the other end of a stream has shown, once the handshake is over.
pub fn shown_by(chain: Option<&[CertificateDer<'_>]>) -> Option<PublicKey> {
    match chain {
        // RFC 8446 §4.4.2: with raw public keys the certificate list has one entry at most.
        Some([key]) => PublicKey::from_spki(key),
        _ => None,
    }
}

/// Whether a handshake failed for the key of the other end: it showed none, or one that is not expected.
pub fn is_about_a_key(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented
    )
}

/// The key as a library of certificates carries it.
fn shown(identity: &Identity) -> Arc<CertifiedKey> {
    let signing = identity.signing();
    let spki = signing.public_key().expect("a key of Ed25519 has one");
    let key = CertificateDer::from(spki.to_vec());
    Arc::new(CertifiedKey::new(vec![key], signing))
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(ring::default_provider())))
}

/// Whether a key was shown alone, and is one that is expected.
fn check(
    key: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    expected: impl Fn(PublicKey) -> bool,
) -> Result<(), Error> {
    match PublicKey::from_spki(key) {
        Some(key) if others.is_empty() && expected(key) => Ok(()),
        _ => Err(CertificateError::ApplicationVerificationFailure.into()),
    }
}

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    let algorithms = provider().signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &key, signature, &algorithms)
}

/// What the traits of both sides require alike: signatures of TLS 1.3 by raw keys.
macro_rules! only_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // Which is not spoken.
            Err(Error::General("TLS 1.2 is not spoken".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ClientCertVerifier for AllowedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check(key, others, |key| self.has(key))?;
        Ok(ClientCertVerified::assertion())
    }

    only_raw_keys!();
}

/// The key of the controller.
#[derive(Debug)]
struct Host(PublicKey);

impl ServerCertVerifier for Host {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check(key, others, |key| key == self.0)?;
        Ok(ServerCertVerified::assertion())
    }

    only_raw_keys!();
}

#[cfg(test)]
mod tests;
