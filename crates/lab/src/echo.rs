// SPDX-License-Identifier: Apache-2.0
//! A server that returns every byte.

use anyhow::Result;
use socket2::Protocol;

use crate::load::conversation::Conversation;
use crate::load::server::Background;
use crate::netns::Namespace;

/// A server that echoes, on one port of all addresses. It ends when dropped.
#[derive(Debug)]
pub struct Echo {
    _server: Background,
}

impl Echo {
    /// Starts to serve in `namespace`.
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        // A byte must go back at once, whatever is still unacknowledged (Nagle).
        let server = Background::start(
            namespace,
            (Protocol::TCP, port),
            |socket| socket.set_tcp_nodelay(true),
            Box::new(Conversation::echoing),
        );
        Ok(Self { _server: server? })
    }
}
