// SPDX-License-Identifier: Apache-2.0
//! Handshakes in memory: who gets in, and who does not.

use rustls::{ClientConnection, ServerConnection};

use super::*;

fn identity(number: u8) -> Identity {
    Identity::new(&[number; 32])
}

/// Hands bytes over until nobody has any more, or somebody objects.
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

fn guests(keys: &[&Identity]) -> Guests {
    let guests = Guests::default();
    guests.set(keys.iter().map(|identity| identity.public()).collect());
    guests
}

#[test]
fn those_that_know_each_other_meet() {
    let (controller, one, other) = (identity(1), identity(2), identity(3));
    for node in [&one, &other] {
        let server = server(&controller, guests(&[&one, &other]));
        let met = shake(client(node, controller.public()), server).unwrap();
        let shown = shown_by(met.peer_certificates());
        assert_eq!(shown, Some(node.public()));
        assert_eq!(
            met.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
    }
}

#[test]
fn strangers_do_not_meet() {
    let (controller, node, stranger) = (identity(1), identity(2), identity(3));
    let to_stranger = client(&stranger, controller.public());
    let error = shake(to_stranger, server(&controller, guests(&[&node]))).unwrap_err();
    assert!(is_about_a_key(&error), "{error}");
    let to_other = client(&node, stranger.public());
    assert!(shake(to_other, server(&controller, guests(&[&node]))).is_err());
}

#[test]
fn who_is_taken_off_the_list_is_not_let_in_again() {
    let (controller, node) = (identity(1), identity(2));
    let list = guests(&[&node]);
    let server = server(&controller, list.clone());
    let client = client(&node, controller.public());
    shake(client.clone(), server.clone()).unwrap();
    list.set(Vec::new());
    assert!(shake(client, server).is_err());
}

#[test]
fn who_shows_no_key_is_not_let_in() {
    let (controller, node) = (identity(1), identity(2));
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Host(controller.public())))
        .with_no_client_auth();
    assert!(shake(config, server(&controller, guests(&[&node]))).is_err());
}

#[test]
fn a_key_that_somebody_else_has_is_of_no_use() {
    // Shows the public key of a guest and signs with another.
    let (controller, node, thief) = (identity(1), identity(2), identity(3));
    let key = CertificateDer::from(node.signing().public_key().unwrap().to_vec());
    let stolen = Arc::new(CertifiedKey::new(vec![key], thief.signing()));
    let mut config = client(&thief, controller.public());
    config.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(stolen));
    assert!(shake(config, server(&controller, guests(&[&node]))).is_err());
}
