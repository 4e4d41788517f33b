// SPDX-License-Identifier: Apache-2.0
//! One end of a connection, on a thread that waits: compares every byte, and reports how the connection
//! ended for it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use socket2::Socket;

use crate::names::named;
use crate::netns::Namespace;
use crate::{content, socket};

/// Bytes per read and write.
const PIECE_BYTES: usize = 16 * 1024;
/// Interval of the listeners' check whether to end.
const LOOK: Duration = Duration::from_millis(200);
/// Stack of a thread for one end, with a generous margin: thousands exist at once.
pub(crate) const STACK_BYTES: usize = 256 * 1024;

sockopt_impl!(
    /// Leaves the port to `connect`, which knows the destination.
    BindAddressNoPort,
    SetOnly,
    libc::SOL_IP,
    libc::IP_BIND_ADDRESS_NO_PORT,
    bool
);

named! {
    /// How a connection ended for one of its ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub(crate) enum End {
        /// As planned, with every byte.
        Planned = "as planned",
        /// The attempt was refused by a reset.
        Refused = "refused",
        /// The attempt was answered by an ICMP error.
        Unreachable = "unreachable",
        /// The attempt was not answered.
        Silent = "unanswered",
        /// By a reset that the other end did not send.
        Reset = "reset",
        /// Nothing arrived for longer than this end waits.
        Hung = "hung",
        /// By a FIN before all bytes.
        Cut = "cut off",
        /// With a wrong byte, or one too many.
        Changed = "changed",
        /// This end failed to run.
        Failed = "failed",
    }
}

impl End {
    /// The end of an open connection.
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Self::Reset
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Hung,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::Unreachable,
            ErrorKind::UnexpectedEof => Self::Cut,
            ErrorKind::InvalidData => Self::Changed,
            _ => Self::Failed,
        }
    }

    /// The end of a failed attempt.
    fn of_attempt(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            // The socket was hung up without an error: as by an ICMP error at its last SYN.
            ErrorKind::Other => Self::Unreachable,
            _ => Self::of(error),
        }
    }
}

/// Connects from one of the addresses of the thread's namespace.
pub(crate) fn connect(
    source: IpAddr,
    target: SocketAddr,
    patience: Duration,
) -> Result<TcpStream, End> {
    let dial = || {
        let socket = socket::toward(target)?;
        // The namespace has the addresses of all clients. `connect` chooses a port that is free toward
        // the target.
        setsockopt(&socket, BindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        socket.connect_timeout(&target.into(), patience)?;
        Ok(TcpStream::from(socket))
    };
    dial().map_err(|error: io::Error| End::of_attempt(&error))
}

/// Bounds how long an end waits for the other in a read or write.
pub(crate) fn bound(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    // Small messages in both directions would wait for delayed acknowledgements otherwise.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// The number of a connection, which its client sends first.
pub(crate) fn read_number(stream: &mut TcpStream, patience: Duration) -> io::Result<u64> {
    bound(stream, patience)?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_be_bytes(number))
}

/// Closes; by a reset after a failure, so that the other end cannot take it for a clean end.
pub(crate) fn finish(stream: TcpStream, played: io::Result<()>, resets: bool) -> End {
    if resets || played.is_err() {
        // A socket that is gone needs no reset.
        let _ = Socket::from(stream).set_linger(Some(Duration::ZERO));
    }
    played.map_or_else(|error| End::of(&error), |()| End::Planned)
}

/// Sends so many bytes of the pattern from an offset on.
pub(crate) fn send(stream: &mut TcpStream, mut offset: u64, mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        let piece = content::part(offset, bytes);
        stream.write_all(piece)?;
        offset += piece.len() as u64;
        bytes -= piece.len() as u64;
    }
    Ok(())
}

/// Receives so many bytes of the pattern from an offset on.
pub(crate) fn receive(stream: &mut TcpStream, mut offset: u64, mut bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    while bytes > 0 {
        let room = bytes.min(PIECE_BYTES as u64);
        let room = usize::try_from(room).unwrap_or(PIECE_BYTES);
        let length = match stream.read(&mut buffer[..room]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        // Every byte: the load is light, and a rare fault must not pass.
        if !content::matches(offset, &buffer[..length]) {
            return Err(ErrorKind::InvalidData.into());
        }
        offset += length as u64;
        bytes -= length as u64;
    }
    Ok(())
}

/// Expects nothing but the other end's FIN.
pub(crate) fn expect_end(stream: &mut TcpStream) -> io::Result<()> {
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Starts a thread for one end, in the network namespace of the calling one.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    let thread = builder.name("lab-end".into()).spawn(work);
    thread.map(drop).context("start a thread for a connection")
}

/// Listeners whose connections have a thread each. They end when dropped; open connections do not.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Listeners {
    /// Listens on a port of all addresses of a host.
    pub(crate) fn add(
        &mut self,
        host: &Namespace,
        port: u16,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) -> Result<()> {
        let listener = host.run_in(|| listen(port))?;
        let done = Arc::clone(&self.done);
        let accept = move || accept_all(&listener, &done, &serve);
        self.threads.push(host.spawn(accept)?);
        Ok(())
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has printed its own message.
            let _ = thread.join();
        }
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    // `accept` uses the timeout, too.
    let socket = socket::listen(port, |socket| socket.set_read_timeout(Some(LOOK)));
    let socket = socket.with_context(|| format!("listen on {port}"))?;
    Ok(socket.into())
}

fn accept_all(
    listener: &TcpListener,
    done: &AtomicBool,
    serve: &(impl Fn(TcpStream) + Clone + Send + 'static),
) {
    while !done.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let serve = serve.clone();
                // If there is no thread, the client times out.
                let _ = spawn(move || serve(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => eprintln!("accept: {error}"),
        }
    }
}
