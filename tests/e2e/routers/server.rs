// SPDX-License-Identifier: Apache-2.0
//! A server that sends its clients the address that it sees, and returns what they send.
//!
//! It begins with a line: the client's address, and the server's own address and port. Then it reads to
//! the end, sends all of it back, changed by [`answer`], and closes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use posthaste_lab::netns::Namespace;
use socket2::SockRef;

use crate::support::{SOON, listen, plain};

/// How long a client may hold a connection before it uses it: longer than a row takes.
const HELD: Duration = Duration::from_secs(300);

/// What is returned for what was sent.
pub(super) fn answer(request: &[u8]) -> Vec<u8> {
    request.iter().map(|byte| !byte).collect()
}

/// Serves until dropped.
#[derive(Debug)]
pub(super) struct Server {
    listeners: Vec<Arc<TcpListener>>,
}

impl Server {
    /// Serves on ports of all addresses of both families.
    pub(super) fn start(host: &Namespace, ports: &[u16]) -> Self {
        let start = |port: &u16| {
            let listener = Arc::new(listen(host, *port));
            let accepting = Arc::clone(&listener);
            thread::spawn(move || accept_all(&accepting));
            listener
        };
        Self {
            listeners: ports.iter().map(start).collect(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // It wakes the thread that accepts, which is all there is to do.
            let _ = SockRef::from(&**listener).shutdown(Shutdown::Both);
        }
    }
}

fn accept_all(listener: &TcpListener) {
    loop {
        match listener.accept() {
            // A connection that breaks is the client's to report.
            Ok((stream, _)) => drop(thread::spawn(move || serve(stream))),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // No client for a while, or one that left before it was accepted.
            Err(_) => {}
        }
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(HELD))?;
    stream.set_write_timeout(Some(SOON))?;
    let peer = plain(stream.peer_addr()?).ip();
    let own = plain(stream.local_addr()?);
    stream.write_all(format!("{peer} {own}\n").as_bytes())?;
    let mut request = Vec::new();
    stream.read_to_end(&mut request)?;
    stream.write_all(&answer(&request))?;
    stream.shutdown(Shutdown::Write)
}
