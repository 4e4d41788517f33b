// SPDX-License-Identifier: Apache-2.0
//! Many connections at once: a server that returns every byte, and a client that opens a burst of
//! connections and measures when each was open and when its first byte came back.
//!
//! One thread serves and one calls, whatever the number of connections, so that thousands of idle
//! connections cost little and the scheduler does not spread a burst.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Namespace;

/// Interval of an idle server's check whether to end.
const ATTENTION_MS: u16 = 50;

/// The listener's number among the server's epoll events; descriptors are never that large.
const LISTENER: u64 = u64::MAX;

/// A server that echoes, on one port of all addresses. It ends when dropped.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts to serve in `namespace`.
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        let listener = namespace.run_in(|| listen(port)).context("listen")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = namespace.spawn(move || {
            if let Err(error) = serve(&listener, &stopped) {
                eprintln!("the echo server failed: {error}");
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic there has been printed; the clients time out.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_only_v6(false)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn serve(listener: &TcpListener, stop: &AtomicBool) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    watch(&epoll, listener, EpollFlags::EPOLLIN, LISTENER)?;
    let mut connections = HashMap::new();
    let mut events = [EpollEvent::empty(); 256];
    while !stop.load(Ordering::Relaxed) {
        for event in wait(&epoll, &mut events, ATTENTION_MS.into())? {
            if event.data() == LISTENER {
                accept_all(&epoll, listener, &mut connections)?;
            } else if connections
                .get_mut(&event.data())
                .is_some_and(|stream| !answer(stream))
            {
                connections.remove(&event.data());
            }
        }
    }
    Ok(())
}

fn accept_all(
    epoll: &Epoll,
    listener: &TcpListener,
    connections: &mut HashMap<u64, TcpStream>,
) -> io::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The client reset it while it was queued.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let number = u64::from(stream.as_raw_fd().unsigned_abs());
        watch(epoll, &stream, EpollFlags::EPOLLIN, number)?;
        connections.insert(number, stream);
    }
}

/// Echoes received bytes; false when the connection is over.
fn answer(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// A connection that is open and has returned a byte.
#[derive(Debug)]
pub struct Call {
    /// The open connection.
    pub stream: TcpStream,
    /// From the start of `connect()` until the connection was open.
    pub connect: Duration,
    /// From the start of `connect()` until the first byte came back.
    pub echo: Duration,
}

impl Call {
    /// Resets the connection, so that it leaves nothing behind at either end.
    pub fn reset(self) -> io::Result<()> {
        Socket::from(self.stream).set_linger(Some(Duration::ZERO))
    }

    /// Closes the connection with a FIN, and waits for the server's.
    pub fn close(mut self) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.read(&mut [0]).map(drop)
    }
}

/// Opens `count` connections from the calling thread's namespace at once, sends a byte over each as
/// soon as it is open and waits for all to come back.
pub fn call(target: SocketAddr, count: usize, deadline: Duration) -> Result<Vec<Call>> {
    let mut burst = Burst::new(target, count)?;
    for index in 0..count {
        burst.open(index)?;
        burst.handle(0)?;
    }
    let until = Instant::now() + deadline;
    while burst.open_calls > 0 {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(
            !left.is_zero(),
            "{} of {count} connections to {target} had no byte back after {deadline:?}",
            burst.open_calls
        );
        burst.handle(u16::try_from(left.as_millis().max(1)).unwrap_or(u16::MAX))?;
    }
    burst.calls.into_iter().map(Attempt::finished).collect()
}

/// Connections under way.
#[derive(Debug)]
struct Burst {
    target: SocketAddr,
    epoll: Epoll,
    calls: Vec<Attempt>,
    /// Calls without their byte yet.
    open_calls: usize,
}

#[derive(Debug)]
struct Attempt {
    stream: TcpStream,
    start: Instant,
    connect: Option<Duration>,
    echo: Option<Duration>,
}

impl Attempt {
    fn finished(self) -> Result<Call> {
        let (Some(connect), Some(echo)) = (self.connect, self.echo) else {
            bail!("a connection was not finished");
        };
        Ok(Call {
            stream: self.stream,
            connect,
            echo,
        })
    }
}

impl Burst {
    fn new(target: SocketAddr, count: usize) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
        let attempt = || -> io::Result<Attempt> {
            let domain = Domain::for_address(target);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            let (start, stream) = (Instant::now(), socket.into());
            Ok(Attempt {
                stream,
                start,
                connect: None,
                echo: None,
            })
        };
        let calls = (0..count).map(|_| attempt()).collect::<io::Result<_>>();
        Ok(Self {
            target,
            epoll,
            calls: calls.context("make a socket")?,
            open_calls: count,
        })
    }

    fn open(&mut self, index: usize) -> Result<()> {
        let attempt = &mut self.calls[index];
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        watch(&self.epoll, &attempt.stream, edges, index as u64).context("watch a socket")?;
        attempt.start = Instant::now();
        let socket = socket2::SockRef::from(&attempt.stream);
        match socket.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                Err(error).with_context(|| format!("connect to {}", self.target))
            }
            _ => Ok(()),
        }
    }

    /// Handles events for up to `timeout_ms`.
    fn handle(&mut self, timeout_ms: u16) -> Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        let happened = wait(&self.epoll, &mut events, timeout_ms.into()).context("wait")?;
        // One reading for all, so that an event does not include the handling of earlier ones.
        let now = Instant::now();
        for event in happened {
            let index = usize::try_from(event.data()).context("an event of no socket")?;
            if self.calls[index].advance(now)? {
                self.open_calls -= 1;
            }
        }
        Ok(())
    }
}

impl Attempt {
    /// Advances as far as possible; true when the byte is back.
    fn advance(&mut self, now: Instant) -> Result<bool> {
        if let Some(error) = self.stream.take_error().context("read a socket's error")? {
            return Err(error).context("connect");
        }
        if self.connect.is_none() {
            if self.stream.peer_addr().is_err() {
                return Ok(false);
            }
            self.connect = Some(now - self.start);
            self.stream.write_all(b"?").context("send a byte")?;
        }
        if self.echo.is_some() {
            return Ok(false);
        }
        match self.stream.read(&mut [0]) {
            Ok(0) => bail!("the server closed the connection without a byte"),
            Ok(_) => self.echo = Some(now - self.start),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("read the byte"),
        }
        Ok(true)
    }
}

/// Raises the limit of descriptors to its hard limit; returns it.
pub fn raise_descriptor_limit() -> Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read RLIMIT_NOFILE")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise RLIMIT_NOFILE")?;
    Ok(hard)
}

fn watch(epoll: &Epoll, socket: impl AsFd, flags: EpollFlags, data: u64) -> io::Result<()> {
    Ok(epoll.add(socket, EpollEvent::new(flags, data))?)
}

fn wait<'a>(
    epoll: &Epoll,
    events: &'a mut [EpollEvent],
    timeout: EpollTimeout,
) -> io::Result<&'a [EpollEvent]> {
    match epoll.wait(events, timeout) {
        Ok(count) => Ok(&events[..count]),
        Err(nix::Error::EINTR) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_of_calls_answered() {
        let listener = listen(0).unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, &stop));
            let mut calls = call(target, 50, Duration::from_secs(30)).unwrap();
            assert_eq!(calls.len(), 50);
            assert!(calls.iter().all(|call| call.connect <= call.echo));
            calls.pop().unwrap().close().unwrap();
            calls.into_iter().for_each(|call| call.reset().unwrap());
            stop.store(true, Ordering::Relaxed);
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_refused_call_fails() {
        let unused = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(call(unused, 1, Duration::from_secs(30)).is_err());
    }
}
