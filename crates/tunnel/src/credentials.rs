// SPDX-License-Identifier: Apache-2.0
//! Who is at the ends of a connection: raw public keys (RFC 7250) of Ed25519, whose seeds both
//! nodes derive from the secret that they share. The dialer names itself in the server name, so
//! that an acceptor with several peers shows the key that is meant for this one.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme, version,
};

/// The protocol within the connections (RFC 7301).
const ALPN: &[u8] = b"posthaste/1";
/// An Ed25519 key of PKCS #8 (RFC 8410 §7) up to its 32 bytes of seed.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// What this node and a peer authenticate each other with.
#[derive(Clone)]
pub struct Credentials {
    /// The peer, by a number of the caller's.
    pub peer: u64,
    /// Which of their secrets it is.
    pub key_id: u32,
    /// Where it is, and where its connections come from.
    pub addresses: Vec<IpAddr>,
    /// Which of the two dials, and by which of their secrets: a DNS name, the same at both ends.
    pub name: String,
    /// Seed of this node's key toward that peer.
    pub mine: [u8; 32],
    /// Seed of the peer's key toward this node.
    pub theirs: [u8; 32],
}

impl fmt::Debug for Credentials {
    /// Without the seeds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        f.debug_struct("Credentials")
            .field("peer", &self.peer)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// The TLS of a connection that is dialed with `credentials`.
pub(crate) fn client(credentials: &Credentials) -> Result<QuicClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Only {
        key: public_key(&credentials.theirs)?,
        provider: Arc::clone(&provider),
    });
    let resolver = AlwaysResolvesClientRawPublicKeys::new(certified(&credentials.mine)?);
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Connections are few and stay open; early data could be replayed.
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// The TLS of connections that are accepted from these peers, by what they dial with.
pub(crate) fn server(accepted: &[Credentials]) -> Result<QuicServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let keys = accepted.iter().map(|one| public_key(&one.theirs));
    let verifier = Arc::new(Any {
        keys: keys.collect::<Result<_, _>>()?,
        provider: Arc::clone(&provider),
    });
    let named = accepted.iter();
    let named = named.map(|one| Ok((one.name.clone(), certified(&one.mine)?)));
    let resolver = ByName(named.collect::<Result<_, Error>>()?);
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// The public key of a seed, as a SubjectPublicKeyInfo (RFC 8410 §4).
pub(crate) fn public_key(seed: &[u8; 32]) -> Result<Vec<u8>, Error> {
    let certified = certified(seed)?;
    Ok(certified.cert[0].as_ref().to_vec())
}

fn certified(seed: &[u8; 32]) -> Result<Arc<CertifiedKey>, Error> {
    let der = [&PKCS8[..], seed].concat();
    let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der))?;
    let public = key.public_key().ok_or(Error::General(
        "an Ed25519 key without a public key".to_owned(),
    ))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], key)))
}

/// The acceptor's keys by the names of the dialers.
#[derive(Debug)]
struct ByName(HashMap<String, Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(hello.server_name()?).cloned()
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// The dialer's check: the acceptor has this key.
#[derive(Debug)]
struct Only {
    key: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if end_entity.as_ref() == self.key {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(older_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.provider, message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The acceptor's check: the dialer has the key of one of its peers.
#[derive(Debug)]
struct Any {
    keys: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Any {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.keys.iter().any(|key| key == end_entity.as_ref()) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(older_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.provider, message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn verify(
    provider: &CryptoProvider,
    message: &[u8],
    cert: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
    let algorithms = &provider.signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}

fn older_version() -> Error {
    Error::General("QUIC has no TLS before 1.3 (RFC 9001 §4.2)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_makes_the_same_key() {
        // RFC 8032 §7.1, test 1.
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
            0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03,
            0x1c, 0xae, 0x7f, 0x60,
        ];
        let key = public_key(&seed).unwrap();
        assert_eq!(key.len(), 44, "RFC 8410 §4");
        assert_eq!(key[12..16], [0xd7, 0x5a, 0x98, 0x01]);
    }

    #[test]
    fn seeds_are_not_shown() {
        let credentials = Credentials {
            peer: 7,
            key_id: 0,
            addresses: vec![[192, 0, 2, 7].into()],
            name: "node".to_owned(),
            mine: [0xab; 32],
            theirs: [0xcd; 32],
        };
        let shown = format!("{credentials:?}");
        assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
    }
}
