// SPDX-License-Identifier: Apache-2.0
//! The server. It closes first, as web servers do, and counts how clients ended.

use std::io::{self, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result};
use nix::setsockopt_impl;
use nix::sockopt_impl;
use nix::sys::socket::setsockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::conversation::{Conversation, Progress};
use super::poll::Poll;
use super::{Serve, Served, content};

/// Length of the accept queue.
const BACKLOG: i32 = 16384;

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
    crate::echo::raise_descriptor_limit()?;
    let listener = listen(serve).context("listen")?;
    let control = UnixListener::bind(&serve.control).context("make the control socket")?;
    control.set_nonblocking(true)?;
    let poll = Poll::new()?;
    poll.add(&listener, LISTENER)?;
    poll.add(&control, CONTROL)?;
    let mut server = Server {
        poll,
        listener,
        control,
        conversations: Vec::new(),
        pattern: content::pattern(),
        buffer: vec![0; 1 << 17],
        served: Served::default(),
    };
    let mut ready = Vec::new();
    loop {
        server.poll.wait(None, &mut ready)?;
        for &number in &ready {
            match number {
                LISTENER => server.accept_all()?,
                CONTROL => server.report()?,
                number => server.go_on(number),
            }
        }
    }
}

fn listen(serve: &Serve) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::IPV6,
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_only_v6(false)?;
    if let Some(cpu) = serve.cpu {
        setsockopt(&socket, IncomingCpu, &cpu)?;
    }
    // Accepted sockets inherit it.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, serve.port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The server's state. Connections are numbered by their descriptors.
#[derive(Debug)]
struct Server {
    poll: Poll,
    listener: TcpListener,
    control: UnixListener,
    conversations: Vec<Option<Conversation>>,
    pattern: Vec<u8>,
    buffer: Vec<u8>,
    served: Served,
}

impl Server {
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
        let number = usize::try_from(stream.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        if self.conversations.len() <= number {
            self.conversations.resize_with(number + 1, || None);
        }
        self.poll.add(&stream, number)?;
        self.conversations[number] = Some(Conversation::new(stream));
        Ok(())
    }

    fn go_on(&mut self, number: usize) {
        let Some(conversation) = self.conversations.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        let (pattern, buffer) = (&self.pattern, &mut self.buffer);
        match conversation.advance(pattern, buffer, &mut self.served.sent) {
            Ok(Progress::Waiting) => return,
            Ok(Progress::Ended) => self.served.ended += 1,
            Err(_) => self.served.broken += 1,
        }
        self.conversations[number] = None;
    }

    /// Sends the counters to all waiting clients of the control socket.
    fn report(&mut self) -> Result<()> {
        while let Ok((mut requester, _)) = self.control.accept() {
            let line = serde_json::to_string(&self.served).context("encode")?;
            // The client may be gone.
            let _ = requester.write_all(line.as_bytes());
        }
        Ok(())
    }
}
