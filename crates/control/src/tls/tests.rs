// SPDX-License-Identifier: Apache-2.0
//! Handshakes in memory: who gets in, and who does not.

use rustls::{ClientConnection, ServerConnection};

use super::*;

fn identity(number: u8) -> Identity {
    Identity::new(&[number; 32])
}

/// Hands bytes over until neither end has any more, or one objects.
fn shake(client: ClientConfig, server: ServerConfig) -> Result<ServerConnection, Error> {
    let mut client = ClientConnection::new(Arc::new(client), no_name()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(server)
}

fn allowed_keys(keys: &[&Identity]) -> AllowedKeys {
    let allowed_keys = AllowedKeys::default();
    allowed_keys.set(keys.iter().map(|identity| identity.public()).collect());
    allowed_keys
}

#[test]
fn known_keys_connect() {
    let (controller, one, other) = (identity(1), identity(2), identity(3));
    for node in [&one, &other] {
        let server = server(&controller, allowed_keys(&[&one, &other]));
        let met = shake(client(node, controller.public()), server).unwrap();
        let shown = shown_by(met.peer_certificates());
        assert_eq!(shown, Some(node.public()));
        assert_eq!(
            met.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
    }
}

// promise: O1
#[test]
fn unauthorized_do_not_meet() {
    let (controller, node, unauthorized) = (identity(1), identity(2), identity(3));
    let to_unauthorized = client(&unauthorized, controller.public());
    let error = shake(to_unauthorized, server(&controller, allowed_keys(&[&node]))).unwrap_err();
    assert!(is_about_a_key(&error), "{error}");
    let to_other = client(&node, unauthorized.public());
    assert!(shake(to_other, server(&controller, allowed_keys(&[&node]))).is_err());
}

// promise: O1
#[test]
fn removed_key_rejected() {
    let (controller, node) = (identity(1), identity(2));
    let list = allowed_keys(&[&node]);
    let server = server(&controller, list.clone());
    let client = client(&node, controller.public());
    shake(client.clone(), server.clone()).unwrap();
    list.set(Vec::new());
    assert!(shake(client, server).is_err());
}

// promise: O1
#[test]
fn missing_key_rejected() {
    let (controller, node) = (identity(1), identity(2));
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Host(controller.public())))
        .with_no_client_auth();
    assert!(shake(config, server(&controller, allowed_keys(&[&node]))).is_err());
}

// promise: O1
#[test]
fn stolen_key_rejected() {
    // Shows the public key of a guest and signs with another.
    let (controller, node, thief) = (identity(1), identity(2), identity(3));
    let key = CertificateDer::from(node.signing().public_key().unwrap().to_vec());
    let stolen = Arc::new(CertifiedKey::new(vec![key], thief.signing()));
    let mut config = client(&thief, controller.public());
    config.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(stolen));
    assert!(shake(config, server(&controller, allowed_keys(&[&node]))).is_err());
}
