// SPDX-License-Identifier: Apache-2.0
//! Connections that come all the time, one after the other, and must all be carried whole.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use posthaste_lab::network::{Family, Network};

use crate::payload;
use crate::support::{dial, listen, until};

/// Where they go to.
const VISITED: u16 = 8080;
/// What each sends, and is sent.
const BYTES: u64 = 20_000;

/// Two clients, one for each family, and a server for both.
pub(super) struct Visitors {
    done: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
    /// Signals that no more connections are to be opened.
    server: (Arc<AtomicBool>, JoinHandle<()>),
}

impl Visitors {
    pub(super) fn come(network: &Arc<Network>) -> Self {
        let listener = listen(network.server(), VISITED);
        listener.set_nonblocking(true).unwrap();
        let (done, served) = (Arc::default(), Arc::default());
        let mut clients = Vec::new();
        for family in Family::ALL {
            let (network, done, served) =
                (Arc::clone(network), Arc::clone(&done), Arc::clone(&served));
            clients.push(thread::spawn(move || {
                visit(&network, family, &done, &served)
            }));
        }
        let closed = Arc::new(AtomicBool::default());
        let theirs = Arc::clone(&closed);
        let server = thread::spawn(move || serve(&listener, &theirs));
        Self {
            done,
            served,
            clients,
            server: (closed, server),
        }
    }

    /// How many were carried so far.
    pub(super) fn count(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Waits until so many more were carried.
    pub(super) fn until_more(&self, count: u64) {
        let before = self.count();
        until("more visits", || {
            self.count() >= before + count || self.have_failed()
        });
    }

    fn have_failed(&self) -> bool {
        self.clients.iter().any(JoinHandle::is_finished)
    }

    /// Ends them, and returns how many there were. Panics if one was not carried whole.
    pub(super) fn go(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        let clients = self.clients.into_iter().map(JoinHandle::join);
        let visited: Result<Vec<()>, _> = clients.collect();
        let (closed, server) = self.server;
        closed.store(true, Ordering::Relaxed);
        server.join().expect("it serves to the end");
        visited.expect("every visit is carried whole");
        self.served.load(Ordering::Relaxed)
    }
}

fn visit(network: &Network, family: Family, done: &AtomicBool, served: &AtomicU64) {
    let target = SocketAddr::new(network.server_address(family), VISITED);
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let visited = dial(network.client(), target).and_then(|stream| query(stream, number));
        if let Err(error) = visited {
            panic!("visit {number} by {family}: {error}");
        }
        served.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends, is sent, and waits for the end.
fn query(mut stream: TcpStream, seed: u64) -> io::Result<()> {
    stream.write_all(&seed.to_be_bytes())?;
    payload::send(&mut stream, seed, BYTES)?;
    payload::receive(&mut stream, seed + 1, BYTES)?;
    match payload::uninterrupted(|| stream.read(&mut [0]))? {
        0 => Ok(()),
        _ => Err(io::Error::other("more bytes than there were")),
    }
}

fn serve(listener: &TcpListener, closed: &AtomicBool) {
    let mut allowed_keys = Vec::new();
    while !closed.load(Ordering::Relaxed) || !allowed_keys.iter().all(JoinHandle::is_finished) {
        match listener.accept() {
            Ok((stream, _)) => allowed_keys.push(thread::spawn(move || answer(stream))),
            Err(_) => thread::sleep(std::time::Duration::from_millis(1)),
        }
        allowed_keys.retain(|allowed_key| !allowed_key.is_finished());
    }
}

/// Who sees it fail is the client.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(crate::support::SOON))?;
    let mut seed = [0; 8];
    stream.read_exact(&mut seed)?;
    let seed = u64::from_be_bytes(seed);
    payload::receive(&mut stream, seed, BYTES)?;
    payload::send(&mut stream, seed + 1, BYTES)
}
