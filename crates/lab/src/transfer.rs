// SPDX-License-Identifier: Apache-2.0
//! A client that times a transfer and checks every byte of it, and its server: that of the loads
//! ([`crate::load`]), on a thread.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Protocol, Socket};

use crate::content::Received;
use crate::load::conversation::Conversation;
use crate::load::server::Background;
use crate::netns::Namespace;
use crate::{load, socket, threads};

/// Bytes written or read at a time.
const CHUNK: usize = 64 * 1024;

/// Bound on the recorded clients.
const PEERS_MAX: usize = 100_000;

/// A server in a namespace, on one port of all its addresses. It ends when dropped.
#[derive(Debug)]
pub struct Server {
    peers: Arc<Mutex<Vec<SocketAddr>>>,
    _server: Background,
}

impl Server {
    /// Starts to serve, sending with the given congestion control.
    pub fn start(namespace: &Namespace, port: u16, congestion: &str) -> Result<Self> {
        Self::start_by(Protocol::TCP, namespace, port, congestion)
    }

    /// The same of another protocol, such as Multipath TCP.
    pub(crate) fn start_by(
        protocol: Protocol,
        namespace: &Namespace,
        port: u16,
        congestion: &str,
    ) -> Result<Self> {
        let peers = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&peers);
        // Accepted connections inherit both. Setting the congestion control on them would be too
        // late: one that began with BBR keeps pacing.
        let prepare = |socket: &Socket| {
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_congestion(congestion.as_bytes())
        };
        let begin = move |stream: TcpStream| {
            let mut peers = log.lock().unwrap_or_else(PoisonError::into_inner);
            // A client that has already reset has no address any more.
            let peer = stream.peer_addr().ok();
            if let Some(peer) = peer.filter(|_| peers.len() < PEERS_MAX) {
                peers.push(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
            }
            Conversation::new(stream)
        };
        Ok(Self {
            peers,
            _server: Background::start(namespace, (protocol, port), prepare, Box::new(begin))?,
        })
    }

    /// The source addresses of clients, in order, as the server gets them.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The parameters of a transfer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The server.
    pub target: SocketAddr,
    /// Bytes to request.
    pub bytes: u64,
    /// The client's congestion control.
    pub congestion: String,
    /// Timeout of the whole transfer.
    pub deadline: Duration,
}

impl Request {
    /// Requests `bytes` from a server, with cubic and a timeout of a minute.
    pub fn new(server: IpAddr, port: u16, bytes: u64) -> Self {
        Self {
            target: SocketAddr::new(server, port),
            bytes,
            congestion: "cubic".to_owned(),
            deadline: Duration::from_secs(60),
        }
    }
}

/// The times of a transfer, from the start of the connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until the connection was open.
    pub connect: Duration,
    /// Until the first byte arrived.
    pub first_byte: Duration,
    /// Until the last byte arrived.
    pub complete: Duration,
    /// The client's own address in this transfer.
    pub local: SocketAddr,
}

/// Fetches from inside `namespace` and checks every byte and the end of the stream.
pub fn fetch(namespace: &Namespace, request: &Request) -> Result<Timing> {
    let shown = || format!("fetch {} bytes from {}", request.bytes, request.target);
    namespace.run_in(|| fetch_here(request)).with_context(shown)
}

/// Fetches `count` times at once. Fails when one of them does.
pub fn fetch_at_once(namespace: &Namespace, request: &Request, count: u32) -> Result<Vec<Timing>> {
    let all = threads::at_once(count, |_| fetch(namespace, request));
    all.into_iter().collect()
}

/// Like [`fetch`], from the calling thread's namespace.
pub fn fetch_here(request: &Request) -> Result<Timing> {
    fetch_paced(request, |_| ())
}

/// Likewise, and calls `pause` with the number of bytes so far before it reads on.
pub(crate) fn fetch_paced(request: &Request, pause: impl Fn(u64)) -> Result<Timing> {
    let socket = socket::toward(request.target)?;
    socket
        .set_tcp_congestion(request.congestion.as_bytes())
        .context("set the congestion control")?;
    let mut received = Received::of(request.bytes);
    let take = |part: &[u8]| {
        // Before the pause: what arrived is checked even if the deadline passes meanwhile.
        pause(received.take(part)?);
        Ok(part.is_empty())
    };
    let object = load::Request::Object(request.bytes).encode();
    exchange(socket, request.target, &object, request.deadline, take)
}

/// Sends a request over a new connection and times the answer. `take` gets the parts of it, an
/// empty one at the end of the stream, and returns whether that was all.
pub(crate) fn exchange(
    socket: Socket,
    target: SocketAddr,
    request: &[u8],
    deadline: Duration,
    mut take: impl FnMut(&[u8]) -> Result<bool>,
) -> Result<Timing> {
    // A request must not wait for the acknowledgement of the handshake's data (Nagle).
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(deadline))?;
    let mut buffer = vec![0; CHUNK];
    let start = Instant::now();
    socket
        .connect_timeout(&target.into(), deadline)
        .context("connect")?;
    let connect = start.elapsed();
    let mut stream = TcpStream::from(socket);
    stream.write_all(request).context("send the request")?;
    let (mut first_byte, mut complete) = (None, connect);
    loop {
        let length = read_on(&mut stream, &mut buffer).context("read")?;
        // The end of the stream may come a round trip after the last byte, and does not count.
        if length > 0 {
            complete = start.elapsed();
            first_byte.get_or_insert(complete);
        }
        ensure!(complete < deadline, "it is not over after {complete:?}");
        if take(&buffer[..length])? {
            return Ok(Timing {
                connect,
                first_byte: first_byte.unwrap_or(complete),
                complete,
                local: stream.local_addr()?,
            });
        }
    }
}

/// Reads, and retries after the process was stopped for a while: with a timeout the kernel
/// interrupts the call then. The sample is useless, but one of many.
fn read_on(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            end => return end,
        }
    }
}
