// SPDX-License-Identifier: Apache-2.0
//! Bounds the connections of the control thread's servers, and their time. The latest connection is
//! always served: at the bound, the oldest one is closed. A well-behaved one has had its response
//! by then.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// Bound on connections at each of the two servers. More than a few scrapers and health checkers
/// need, and fewer than the descriptors that the node sets aside.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// How long a connection may take for all its requests.
pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);

/// A listener with bounds on the number and the time of connections.
pub(super) struct Bounded<L> {
    listener: L,
    most: usize,
    longest: Duration,
    /// The oldest first. A message closes a connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl<L: Listener> Bounded<L> {
    pub(super) fn new(listener: L, most: usize, longest: Duration) -> Self {
        Self {
            listener,
            most,
            longest,
            open: VecDeque::with_capacity(most),
        }
    }

    /// Makes room, and starts the connection's time.
    fn admit(&mut self, io: L::Io) -> Connection<L::Io> {
        self.open.retain(|connection| !connection.is_closed());
        if self.open.len() >= self.most
            && let Some(oldest) = self.open.pop_front()
        {
            let _ = oldest.send(());
        }
        // The receiver is dropped with its connection, which `is_closed` finds above.
        let (sender, closing) = oneshot::channel();
        self.open.push_back(sender);
        Connection {
            io,
            closing: Some(closing),
            displaced: false,
            // Not renewed by requests: a client that sends slowly gains no time.
            end: Box::pin(tokio::time::sleep(self.longest)),
        }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, address) = self.listener.accept().await;
        (self.admit(io), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when its time is over.
pub(super) struct Connection<T> {
    io: T,
    /// Receives a message when another connection needs the room; `None` once the listener is gone.
    closing: Option<oneshot::Receiver<()>>,
    displaced: bool,
    end: Pin<Box<Sleep>>,
}

impl<T: Unpin> Connection<T> {
    /// The underlying stream, while there is time.
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut T>> {
        let word = self
            .closing
            .as_mut()
            .map(|word| Pin::new(word).poll(context));
        // A receiver that is polled again after it has completed would panic.
        if let Some(Poll::Ready(word)) = word {
            self.closing = None;
            // An error is the end of the listener, after which open connections go on.
            self.displaced = word.is_ok();
        }
        // Before each read and write: the server closes a connection that fails.
        if self.displaced || self.end.as_mut().poll(context).is_ready() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Pin::new(&mut self.io))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(context)?.poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(context)?.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const MOST: usize = 3;

    /// Serves `ok` in a thread that ends with the test process.
    fn serve(longest: Duration) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let routes = axum::Router::new()
                    .route("/", axum::routing::get(|| async { "ok" }))
                    .route("/never", axum::routing::get(pending::<()>));
                let bounded = Bounded::new(listener, MOST, longest);
                axum::serve(bounded, routes).await.unwrap();
            });
        });
        address
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request and waits for the response.
    fn query(stream: &mut TcpStream) -> String {
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\nok") {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "an end after {answer:?}");
            answer.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        answer
    }

    /// Waits for the end of a connection.
    fn ended(mut stream: TcpStream) {
        match stream.read(&mut [0]) {
            Ok(0) => (),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => (),
            other => panic!("{other:?} instead of an end"),
        }
    }

    // promise: W6
    #[test]
    fn oldest_makes_room() {
        let address = serve(PATIENCE);
        let mut open: VecDeque<TcpStream> = VecDeque::new();
        for _ in 0..4 * MOST {
            let mut next = connect(address);
            assert!(query(&mut next).starts_with("HTTP/1.1 200"));
            open.push_back(next);
            if open.len() > MOST {
                ended(open.pop_front().unwrap());
            }
        }
        // The remaining connections still work.
        open.iter_mut().for_each(|stream| drop(query(stream)));
    }

    #[test]
    fn ended_connections_free_room() {
        let address = serve(PATIENCE);
        let mut first = connect(address);
        query(&mut first);
        for _ in 0..4 * MOST {
            let mut next = connect(address);
            next.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            next.read_to_end(&mut Vec::new()).unwrap();
        }
        query(&mut first);
    }

    // promise: W6
    #[test]
    fn connection_time_is_bounded() {
        let address = serve(Duration::from_millis(200));
        let silent = connect(address);
        let mut waiting = connect(address);
        waiting
            .write_all(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        ended(silent);
        ended(waiting);
        query(&mut connect(address));
    }
}
