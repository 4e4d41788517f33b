// SPDX-License-Identifier: Apache-2.0
//! The server. It closes first, as web servers do, and counts how clients ended.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::setsockopt_impl;
use nix::sockopt_impl;
use nix::sys::socket::setsockopt;
use socket2::{Protocol, Socket};

use super::conversation::{Conversation, Progress};
use super::{Serve, Served};
use crate::netns::Namespace;
use crate::poll::Poll;
use crate::socket;

/// Numbers of the listeners among the events; descriptors are never that large.
const LISTENER: usize = usize::MAX;
const CONTROL: usize = usize::MAX - 1;

sockopt_impl!(
    /// The CPU whose connections a listener prefers.
    IncomingCpu,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_INCOMING_CPU,
    usize
);

/// Serves until killed.
pub(super) fn run(serve: &Serve) -> Result<()> {
    socket::raise_descriptor_limit()?;
    let prepare = |socket: &Socket| {
        // Several servers listen on one port; the kernel distributes by SO_INCOMING_CPU or by hash.
        socket.set_reuse_port(true)?;
        if let Some(cpu) = serve.cpu {
            setsockopt(socket, IncomingCpu, &cpu)?;
        }
        socket.set_tcp_nodelay(true)
    };
    let listener = socket::listen(serve.port, prepare).context("listen")?;
    let control = UnixListener::bind(&serve.control).context("make the control socket")?;
    control.set_nonblocking(true)?;
    let mut server = Server::new(listener.into(), Box::new(Conversation::new))?;
    server.poll.add(&control, CONTROL)?;
    loop {
        if server.turn(None)? {
            server.report(&control)?;
        }
    }
}

/// Interval of an idle server's check whether to end.
const ATTENTION: Duration = Duration::from_millis(50);

/// A server on a thread of its own, on one port of all addresses of a namespace. It ends when
/// dropped.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts to serve. `prepare` sets options of the listener, which accepted sockets inherit.
    pub(crate) fn start(
        namespace: &Namespace,
        (protocol, port): (Protocol, u16),
        prepare: impl FnOnce(&Socket) -> io::Result<()> + Send,
        begin: Begin,
    ) -> Result<Self> {
        let listener = namespace.run_in(|| socket::listen_by(protocol, port, prepare));
        let mut server = Server::new(listener.context("listen")?.into(), begin)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = namespace.spawn(move || {
            // Nothing wakes the thread but connections, so it looks up from time to time.
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = server.turn(Some(ATTENTION)) {
                    return eprintln!("a server of the lab failed: {error:#}");
                }
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic there has been printed; the clients time out.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Begins the conversation of an accepted connection.
pub(crate) type Begin = Box<dyn FnMut(TcpStream) -> Conversation + Send>;

/// The server's state. Connections are numbered by their descriptors.
struct Server {
    poll: Poll,
    ready: Vec<usize>,
    listener: TcpListener,
    begin: Begin,
    conversations: Vec<Option<Conversation>>,
    buffer: Vec<u8>,
    served: Served,
}

impl Server {
    fn new(listener: TcpListener, begin: Begin) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER)?;
        Ok(Self {
            poll,
            ready: Vec::new(),
            listener,
            begin,
            conversations: Vec::new(),
            buffer: vec![0; 1 << 17],
            served: Served::default(),
        })
    }

    /// Handles events for up to the given time. Returns whether one is of the control socket.
    fn turn(&mut self, most: Option<Duration>) -> Result<bool> {
        // Kept between turns, so that a turn allocates nothing.
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(most, &mut ready)?;
        for &number in &ready {
            match number {
                LISTENER => self.accept_all()?,
                CONTROL => {}
                number => self.go_on(number),
            }
        }
        let has_control = ready.contains(&CONTROL);
        self.ready = ready;
        Ok(has_control)
    }

    fn accept_all(&mut self) -> Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client reset it while it was queued.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    self.served.broken += 1;
                    continue;
                }
                Err(error) => return Err(error).context("accept"),
            };
            self.served.accepted += 1;
            self.begin(stream).context("begin a conversation")?;
        }
    }

    fn begin(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        // The lowest free descriptor: numbers stay as small as the open connections are many.
        let number = usize::try_from(stream.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        // Descriptors are small and reused, so a vector is the fastest table.
        if self.conversations.len() <= number {
            self.conversations.resize_with(number + 1, || None);
        }
        self.poll.add(&stream, number)?;
        self.conversations[number] = Some((self.begin)(stream));
        Ok(())
    }

    fn go_on(&mut self, number: usize) {
        let Some(conversation) = self.conversations.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        match conversation.advance(&mut self.buffer, &mut self.served.sent) {
            Ok(Progress::Waiting) => return,
            Ok(Progress::Ended) => self.served.ended += 1,
            Err(_) => self.served.broken += 1,
        }
        self.conversations[number] = None;
    }

    /// Sends the counters to all waiting clients of the control socket.
    fn report(&mut self, control: &UnixListener) -> Result<()> {
        while let Ok((mut requester, _)) = control.accept() {
            // Read between loads: during one it would be CPU time of the server.
            let line = serde_json::to_string(&self.served).context("encode")?;
            // The client may be gone.
            let _ = requester.write_all(line.as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::Shutdown;
    use std::net::SocketAddr;

    use super::super::Request;
    use super::*;
    use crate::content;

    /// Runs a server on the loopback address until `client` returns, and returns its counters.
    fn serve(begin: fn(TcpStream) -> Conversation, client: impl FnOnce(SocketAddr)) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let mut server = Server::new(listener, Box::new(begin)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.turn(Some(Duration::from_millis(5))).unwrap();
                }
                server.served
            });
            client(target);
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap()
        })
    }

    fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    #[test]
    fn burst_is_echoed() {
        let served = serve(Conversation::echoing, |target| {
            let connect = |_| TcpStream::connect(target).unwrap();
            let mut streams: Vec<TcpStream> = (0..50).map(connect).collect();
            for stream in &mut streams {
                stream.write_all(b"?").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
            assert!(
                streams
                    .into_iter()
                    .all(|stream| read_to_end(stream) == b"?")
            );
        });
        let counts = (served.accepted, served.ended, served.broken, served.sent);
        assert_eq!(counts, (50, 50, 0, 50));
    }

    #[test]
    fn object_is_the_pattern() {
        let served = serve(Conversation::new, |target| {
            let mut stream = TcpStream::connect(target).unwrap();
            let request = Request::Object(3_000_000).encode();
            stream.write_all(&request).unwrap();
            let answer = read_to_end(stream);
            assert!(answer.len() == 3_000_000 && content::matches(0, &answer));
        });
        assert_eq!((served.accepted, served.sent), (1, 3_000_000));
    }
}
