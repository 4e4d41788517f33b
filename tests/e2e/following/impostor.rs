// SPDX-License-Identifier: Apache-2.0
//! A controller that a test plays, with the real one's secret: it sends what the real one never
//! sends.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use posthaste_control::frame::{self, LENGTH_BYTES};
use posthaste_control::identity::Identity;
use posthaste_control::message::{ToController, ToNode, VERSION, Welcome};
use posthaste_control::tls::{self, AllowedKeys};
use rustls::{ServerConnection, StreamOwned};

use crate::controller::testbed::{STREAMS, Testbed, identity};
use crate::support::{SOON, accept, listen_at};

/// The stream of the node that came.
pub(super) struct Impostor {
    stream: StreamOwned<ServerConnection, TcpStream>,
}

impl Impostor {
    /// Takes the place of a controller that has stopped, and accepts node 1. Also returns its
    /// first message.
    pub(super) fn await_one(testbed: &Testbed) -> (Self, ToController) {
        let listener = listen_at(&testbed.host, (Ipv6Addr::UNSPECIFIED, STREAMS).into());
        let secret = std::fs::read_to_string(testbed.path("controller.key")).unwrap();
        let me = Identity::from_hex(secret.trim()).unwrap();
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline {
            let allowed_keys = AllowedKeys::default();
            allowed_keys.set(vec![identity(1).public()]);
            let config = Arc::new(tls::server(&me, allowed_keys));
            let (socket, _) = accept(&listener);
            let connection = ServerConnection::new(config).unwrap();
            let mut impostor = Self {
                stream: StreamOwned::new(connection, socket),
            };
            // The other nodes are not let in.
            if let Ok(hello) = impostor.receive() {
                impostor.deliver(&ToNode::Welcome(Welcome {
                    version: VERSION,
                    ttl_s: 900,
                    keepalive_s: 60,
                }));
                return (impostor, hello);
            }
        }
        panic!("node 1 does not connect");
    }

    pub(super) fn deliver(&mut self, message: &ToNode) {
        let mut bytes = Vec::new();
        frame::write(message, &mut bytes).unwrap();
        self.send_raw(&bytes);
    }

    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    pub(super) fn receive(&mut self) -> io::Result<ToController> {
        let mut head = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut head)?;
        let mut message = vec![0; frame::length(head).unwrap()];
        self.stream.read_exact(&mut message)?;
        Ok(frame::read(&message).unwrap())
    }

    /// The next message of a kind; others are passed over.
    pub(super) fn until<T>(&mut self, wanted: impl Fn(ToController) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.receive().unwrap()) {
                return found;
            }
        }
    }

    /// Waits for the end of the stream.
    pub(super) fn until_closed(&mut self) {
        while self.receive().is_ok() {}
    }
}
