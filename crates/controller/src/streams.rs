// SPDX-License-Identifier: Apache-2.0
//! The streams of nodes: who may open one, how many there are, what is sent on them in which order.
//!
//! Unauthorized senders cost little: so many may wait for their handshake, for so long, and of more than that the
//! oldest give way. A node has one stream; of a second the first gives way.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_control::identity::PublicKey;
use posthaste_control::message::{NodeNumber, ToController};
use posthaste_control::tls;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::server::{Server, Session};
use super::wire::{self, Dismissal, End, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Connections that wait for their handshake or hello, beside one for each node on the list: all of them come
/// at once when a controller has started.
const UNAUTHORIZED_MAX: usize = 256;
/// How long they may.
const OPENING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a node may take to take its GoAway.
const GO_AWAY_TIME_MAX: Duration = Duration::from_secs(1);
/// Before it is tried again to accept, when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// So many silent intervals, and the other end is taken for gone.
const SILENT_INTERVALS: u32 = 3;

/// Takes nodes in at one address, until the task is ended.
pub(super) async fn accept_all(listener: TcpListener, acceptor: TlsAcceptor, server: Arc<Server>) {
    let mut waiting: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Without a pause this would spin: the queue stays readable while accept fails.
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // `open` drops its receiver once the handshake is over, which frees the place.
        waiting.retain(|one| !one.is_closed());
        if waiting.len() >= UNAUTHORIZED_MAX + server.allowed_keys().count()
            && let Some(oldest) = waiting.pop_front()
        {
            // The oldest: who only holds connections open cannot keep nodes out.
            let _ = oldest.send(());
        }
        let (room, displaced) = oneshot::channel();
        waiting.push_back(room);
        // A task for each: a slow handshake must not keep others from being accepted.
        tokio::spawn(open(
            stream,
            from,
            acceptor.clone(),
            Arc::clone(&server),
            displaced,
        ));
    }
}

/// Opens a stream, if it is a node's, within the time and as long as there is room.
async fn open(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    server: Arc<Server>,
    displaced: oneshot::Receiver<()>,
) {
    // Small messages must not wait for acknowledgements of earlier ones.
    let _ = stream.set_nodelay(true);
    let met = tokio::select! {
        // One bound over handshake and hello: who sends byte by byte gains no time.
        met = timeout(OPENING_TIME_MAX, meet(stream, &acceptor)) => {
            met.unwrap_or_else(|_| Err(Unauthorized::Slow))
        }
        _ = displaced => Err(Unauthorized::Displaced),
    };
    match met {
        Ok((stream, key, hello)) => serve(stream, from, key, hello, &server).await,
        Err(why) => server.turned_away(from, &why),
    }
}

/// Why a connection did not become a stream.
#[derive(Debug)]
pub(super) enum Unauthorized {
    /// No TLS, or none that is spoken here.
    Handshake(String),
    /// No key, or one that is not on the list.
    Key,
    /// It took too long.
    Slow,
    /// There were too many others after it.
    Displaced,
}

impl Unauthorized {
    /// Every label, for metrics.
    pub(super) const LABELS: [&'static str; 4] = ["handshake", "key", "slow", "displaced"];

    /// Of [`Self::LABELS`].
    pub(super) fn label(&self) -> &'static str {
        Self::LABELS[match self {
            Self::Handshake(_) => 0,
            Self::Key => 1,
            Self::Slow => 2,
            Self::Displaced => 3,
        }]
    }
}

/// The first message of a node, or why it cannot be read.
type First = Result<ToController, End>;

async fn meet(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
) -> Result<(TlsStream<TcpStream>, PublicKey, First), Unauthorized> {
    let mut stream = acceptor.accept(stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        if inner.is_some_and(tls::is_about_a_key) {
            Unauthorized::Key
        } else {
            Unauthorized::Handshake(error.to_string())
        }
    })?;
    let key = tls::shown_by(stream.get_ref().1.peer_certificates()).ok_or(Unauthorized::Key)?;
    let first = wire::read(&mut stream, HELLO_BYTES_MAX, OPENING_TIME_MAX).await;
    // A hello that cannot be read is no error here: its sender is sent the reason.
    Ok((stream, key, first.map(|(first, _)| first)))
}

/// The life of a stream whose key is known.
async fn serve(
    mut stream: TlsStream<TcpStream>,
    from: SocketAddr,
    key: PublicKey,
    first: First,
    server: &Server,
) {
    let session = first.and_then(|first| match first {
        ToController::Hello(hello) => server.enter(hello, key, from),
        _ => Err(End::OutOfTurn),
    });
    let session = match session {
        Ok(session) => session,
        Err(end) => {
            server.not_let_in(from, key, &end);
            return part(&mut stream, &end).await;
        }
    };
    let Session {
        number,
        ticket,
        mut leave,
        ..
    } = session;
    // Apart: what a node reports is received also while it reads nothing.
    let (mut reading, mut writing) = split(stream);
    let end = tokio::select! {
        end = listen(&mut reading, number, ticket, server) => end,
        end = speak(&mut writing, &session.wake, number, ticket, server) => end,
        why = &mut leave => End::Dismissed(why.unwrap_or(Dismissal::Stopping)),
    };
    // Before GoAway, which may take a second: others are not to wait for it.
    server.leave(number, ticket, &end);
    part(&mut reading.unsplit(writing), &end).await;
}

/// Sends GoAway, if there is any use in it. What was being written may be torn: then the node
/// understands no more than the end.
async fn part(stream: &mut (impl AsyncWrite + Unpin), end: &End) {
    let parting = async {
        if let Some(go_away) = end.go_away() {
            wire::write(stream, &go_away).await?;
        }
        // Sends close_notify, which shows that nothing was cut off (RFC 8446 section 6.1).
        stream.shutdown().await.map_err(End::from)
    };
    let _ = timeout(GO_AWAY_TIME_MAX, parting).await;
}

/// Receives from a node until it ends.
async fn listen<S: AsyncRead + AsyncWrite + Unpin>(
    reading: &mut ReadHalf<S>,
    number: NodeNumber,
    ticket: u64,
    server: &Server,
) -> End {
    // More than one: a single keepalive may be late.
    let patience = server.keepalive() * SILENT_INTERVALS;
    loop {
        let received = wire::read(reading, MESSAGE_BYTES_MAX, patience).await;
        match received.and_then(|received| server.received(number, ticket, received)) {
            // What comes meanwhile waits in the network.
            Ok(pause) if !pause.is_zero() => sleep(pause).await,
            Ok(_) => {}
            Err(end) => return end,
        }
    }
}

/// Sends a node what is due. Nothing is queued: what is due is computed when the network takes it.
async fn speak<S: AsyncRead + AsyncWrite + Unpin>(
    writing: &mut WriteHalf<S>,
    wake: &tokio::sync::Notify,
    number: NodeNumber,
    ticket: u64,
    server: &Server,
) -> End {
    let mut next = Some(server.welcome(number));
    let mut text = Instant::now();
    loop {
        while let Some(message) = next.take().or_else(|| server.due(number, ticket)) {
            if let Err(end) = wire::write(writing, &message).await {
                return end;
            }
            text = Instant::now();
        }
        // A stream that is woken often may have nothing due each time: the keepalive counts from the last send.
        tokio::select! {
            () = wake.notified() => {}
            () = sleep_until(text + server.keepalive()) => next = Some(server.idle(number)),
        }
    }
}
