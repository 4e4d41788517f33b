// SPDX-License-Identifier: Apache-2.0
//! Connections that begin one after the other, and transfers that take as long as they are left.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_lab::network::{Family, Network};
use socket2::SockRef;

use crate::payload::uninterrupted;
use crate::support::{Pair, dial, expect_end, listen, until};

/// Visits that count as many.
const MANY: u64 = 40;
/// Between two visits, and between two pieces of a transfer. Without it a node may wait for many seconds
/// to attach a program: the kernel's grace periods take long while all CPUs are busy.
const PAUSE: Duration = Duration::from_millis(1);

/// A server that answers every byte with the same, until it is dropped.
pub(super) struct Echo {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(super) fn start(network: &Network, port: u16) -> Self {
        let listener = Arc::new(listen(network.server(), port));
        let theirs = Arc::clone(&listener);
        let thread = std::thread::spawn(move || {
            loop {
                match theirs.accept() {
                    Ok((stream, _)) => drop(std::thread::spawn(move || echo(stream))),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        });
        Self {
            listener,
            thread: Some(thread),
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        let _ = self.thread.take().unwrap().join();
    }
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(count) = uninterrupted(|| stream.read(&mut bytes)) {
        if count == 0 || stream.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Clients of an echo server that come one after the other. Each has to be served.
pub(super) struct Visitors {
    stop: Arc<AtomicBool>,
    visits: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Visitors {
    /// One stream of them for each address.
    pub(super) fn start(network: Arc<Network>, targets: &[SocketAddr]) -> Self {
        let (stop, visits) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let each = targets.iter().map(|target| {
            let (stop, visits) = (Arc::clone(&stop), Arc::clone(&visits));
            let (network, target) = (Arc::clone(&network), *target);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    visit(&network, target);
                    visits.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            })
        });
        Self {
            threads: each.collect(),
            stop,
            visits,
        }
    }

    /// Waits until many more have come.
    pub(super) fn wait_for_many(&self) {
        let enough = self.visits.load(Ordering::Relaxed) + MANY;
        until("visitors", || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            failed || self.visits.load(Ordering::Relaxed) >= enough
        });
    }

    /// Ends, and returns how many connected. Fails if one was not served.
    pub(super) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        self.visits.load(Ordering::Relaxed)
    }
}

fn visit(network: &Network, target: SocketAddr) {
    let mut stream =
        dial(network.client(), target).unwrap_or_else(|error| panic!("{target}: {error}"));
    stream.write_all(b"a visit").unwrap();
    let mut answer = [0; 7];
    stream
        .read_exact(&mut answer)
        .unwrap_or_else(|error| panic!("{target}: {error}"));
    assert_eq!(&answer, b"a visit");
    stream.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut stream);
}

/// A transfer from the server to the client that lasts until it is stopped.
pub(super) struct Download {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Download {
    pub(super) fn start(pair: Pair) -> Self {
        let Pair {
            mut client,
            mut server,
        } = pair;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        Self {
            stop,
            sender: std::thread::spawn(move || send(&mut server, &stopped)),
            receiver: std::thread::spawn(move || receive(&mut client)),
        }
    }

    /// Ends it: all that was sent has arrived, and as it was sent.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().unwrap(), sent);
        assert!(sent > 0);
    }
}

/// The byte at a place of the transfer.
fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16).to_le_bytes()[0]
}

fn send(stream: &mut TcpStream, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (sent..sent + 8192).map(byte).collect();
        stream.write_all(&chunk).unwrap();
        sent += 8192;
        std::thread::sleep(PAUSE);
    }
    stream.shutdown(Shutdown::Write).unwrap();
    sent
}

fn receive(stream: &mut TcpStream) -> u64 {
    let mut received = 0;
    let mut bytes = [0; 8192];
    loop {
        let count = uninterrupted(|| stream.read(&mut bytes)).unwrap();
        if count == 0 {
            return received;
        }
        for got in &bytes[..count] {
            assert_eq!(*got, byte(received), "at {received}");
            received += 1;
        }
    }
}

/// A server of both families, as clients address it.
pub(super) fn servers(network: &Network, port: u16) -> Vec<SocketAddr> {
    let each = Family::ALL.map(|family| SocketAddr::new(network.server_address(family), port));
    each.to_vec()
}
