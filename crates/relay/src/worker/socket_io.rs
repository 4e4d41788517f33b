// SPDX-License-Identifier: Apache-2.0
//! The relay's [`Io`] on real sockets.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};

use crate::pipes::{Pipe, Pipes};
use crate::policy::SideOptions;
use crate::relay::Io;
use crate::side::{Side, Sides};
use crate::sys::{self, retry};

use super::end::StreamEnd;
use super::entry::{DeferredOptions, end_of};
use super::preface::Preface;
use super::replay::Fallback;
use super::unread::BUFFER_MIN;

/// Bytes per read when copying.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;

/// Of these, what shows that a side sends much: less than it may before the kernel widens its buffer.
const LARGE_BYTES: usize = 16 << 10;

/// Buffers shared by all relays of a worker.
#[derive(Debug)]
pub(super) struct Buffers {
    scratch: Box<[u8]>,
    pub(super) pipes: Pipes,
    /// Bytes spliced since the worker last read this.
    pub(super) spliced_bytes: u64,
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pipes: Pipes::default(),
            spliced_bytes: 0,
        }
    }
}

/// Both sockets of a relay, for one turn.
pub(super) struct SocketIo<'a> {
    pub(super) sockets: &'a Sides<Option<OwnedFd>>,
    pub(super) deferred: &'a mut Sides<DeferredOptions>,
    /// The settings of both sides.
    pub(super) options: Sides<&'a SideOptions>,
    /// As in [`Entry`](super::entry::Entry).
    pub(super) closed_cookie: &'a mut Option<NonZeroU64>,
    /// Whether the socket of a side has an address of this host.
    pub(super) own: Sides<bool>,
    /// Messages to read before the bytes of the upstream side.
    pub(super) preface: Option<&'a mut Preface>,
    pub(super) buffers: &'a mut Buffers,
    /// A side whose last splice took only part of the bytes.
    pub(super) short: Option<Side>,
}

impl SocketIo<'_> {
    fn fd(&self, side: Side) -> &OwnedFd {
        self.sockets[side]
            .as_ref()
            .expect("an open relay has both sockets")
    }

    /// Repeats a write that found its socket full, once the socket has got its settings for that.
    fn write_to(
        &mut self,
        side: Side,
        mut call: impl FnMut(&mut Self) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let written = call(self);
        let full = written
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if full && self.deferred[side].take_when_full() {
            // Best effort: the connection works without these settings.
            let _ = sys::apply_when_full(self.fd(side), self.options[side]);
            return call(self);
        }
        written
    }

    /// Bounds the receive buffer of a side that has sent much, once. Not later: this read has widened it.
    fn bound_unread(&mut self, side: Side, read: usize) {
        let is_automatic = self.options[side].receive_buffer_bytes.is_none();
        if read >= LARGE_BYTES && is_automatic && self.deferred[side].take_when_large() {
            // Best effort: the kernel bounds it too, by `tcp_rmem`.
            let _ = sys::bound_receive_buffer(self.fd(side), BUFFER_MIN);
        }
    }

    /// Reads the next node's messages that precede the flow's bytes. The relay reads, and does not
    /// splice, until they are complete.
    fn receive(&mut self) -> io::Result<()> {
        let preface = self.preface.as_deref_mut();
        let Some(preface) = preface.filter(|preface| preface.expecting.is_some()) else {
            return Ok(());
        };
        let [downstream, upstream] =
            Side::BOTH.map(|side| end_of(self.sockets, Some(preface), side));
        match (downstream, upstream) {
            (Some(downstream), Some(upstream)) => preface.receive(&upstream, &downstream),
            _ => Ok(()),
        }
    }

    /// The stream that is a side, if it is one.
    fn stream(&self, side: Side) -> Option<&StreamEnd> {
        self.preface.as_ref()?.streams[side].as_deref()
    }

    /// Whether one of the sides is a stream.
    fn has_stream(&self) -> bool {
        Side::BOTH.iter().any(|side| self.stream(*side).is_some())
    }
}

impl Io for SocketIo<'_> {
    type Pipe = Pipe;
    type Buffer = Box<[u8]>;
    const READ_BYTES: usize = SCRATCH_BYTES;

    fn read(&mut self, side: Side) -> io::Result<usize> {
        match side {
            Side::Upstream => self.receive()?,
            Side::Downstream if self.preface.as_mut().is_some_and(|preface| preface.pause()) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Side::Downstream => {}
        }
        let streams = self.preface.as_deref().map(|preface| &preface.streams);
        let read = match streams.and_then(|streams| streams[side].as_deref()) {
            Some(stream) => stream.read(&mut self.buffers.scratch)?,
            None => {
                let fd = self.fd(side).as_raw_fd();
                let read = retry(|| recv(fd, &mut self.buffers.scratch, MsgFlags::empty()))?;
                self.bound_unread(side, read);
                read
            }
        };
        if side == Side::Downstream
            && let Some(fallback) = fallback_of(&mut self.preface)
        {
            fallback.kept.push(&self.buffers.scratch[..read]);
        }
        Ok(read)
    }

    fn write(&mut self, side: Side, from: usize, to: usize, more: bool) -> io::Result<usize> {
        if let Some(stream) = self.stream(side) {
            return stream.write(&self.buffers.scratch[from..to]);
        }
        // Then the FIN leaves in the same segment as the last bytes.
        let more = if more { libc::MSG_MORE } else { 0 };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::from_bits_retain(more);
        self.write_to(side, |socket_io| {
            let fd = socket_io.fd(side).as_raw_fd();
            let bytes = &socket_io.buffers.scratch[from..to];
            Ok(retry(|| send(fd, bytes, flags))?)
        })
    }

    fn keep(&mut self, from: usize, to: usize) -> Box<[u8]> {
        self.buffers.scratch[from..to].into()
    }

    fn write_held(&mut self, side: Side, kept: &Box<[u8]>, from: usize) -> io::Result<usize> {
        if let Some(stream) = self.stream(side) {
            return stream.write(&kept[from..]);
        }
        self.write_to(side, |socket_io| {
            let fd = socket_io.fd(side).as_raw_fd();
            Ok(retry(|| send(fd, &kept[from..], MsgFlags::MSG_NOSIGNAL))?)
        })
    }

    fn lease(&mut self) -> Option<Pipe> {
        // A stream is no file to splice from or to.
        (!self.has_stream()).then(|| self.buffers.pipes.lease())?
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.buffers.pipes.give_back(pipe);
    }

    fn fill(&mut self, side: Side, pipe: &mut Pipe, most: usize) -> io::Result<usize> {
        if side == Side::Downstream
            && fallback_of(&mut self.preface)
                .is_some_and(|fallback| fallback.kept.bytes().is_some())
        {
            // Spliced bytes do not pass through user space and cannot be kept: the relay reads them.
            return Ok(0);
        }
        let bytes = sys::splice(self.fd(side), &pipe.write, most)?;
        self.buffers.spliced_bytes += bytes as u64;
        Ok(bytes)
    }

    fn empty(&mut self, side: Side, pipe: &mut Pipe, bytes: usize) -> io::Result<usize> {
        let was_short = self.short.take() == Some(side);
        let taken = self.write_to(side, |socket_io| {
            sys::splice(&pipe.read, socket_io.fd(side), bytes)
        });
        match taken {
            // The splice before may have met a reset behind the bytes that it moved, and the kernel
            // reports such an error once: this EPIPE need not be a reset behind a FIN.
            Err(error) if was_short && error.kind() == io::ErrorKind::BrokenPipe => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Ok(count) if count < bytes => {
                self.short = Some(side);
                Ok(count)
            }
            taken => taken,
        }
    }

    fn finish(&mut self, side: Side) -> io::Result<()> {
        if let Some(stream) = self.stream(side) {
            return stream.finish();
        }
        // A socket keeps its cookie in TIME_WAIT, by which it is found and destroyed; the kernel
        // assigns the cookie at the first query.
        if self.closed_cookie.is_none() && !self.own[side] {
            let cookie = sys::cookie(self.fd(side));
            *self.closed_cookie = cookie.ok().and_then(NonZeroU64::new);
        }
        Ok(shutdown(self.fd(side).as_raw_fd(), Shutdown::Write)?)
    }

    fn unacknowledged(&mut self, side: Side) -> bool {
        match self.stream(side) {
            Some(stream) => stream.is_unacknowledged(),
            None => sys::is_unacknowledged(self.fd(side)),
        }
    }
}

/// Where the client's bytes are kept, if they are.
fn fallback_of<'a>(preface: &'a mut Option<&mut Preface>) -> Option<&'a mut Fallback> {
    preface.as_mut()?.fallback.as_deref_mut()
}

/// The assumptions of the relay about Linux, which the fake kernel imitates.
#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::relay::SPLICE_BYTES;

    /// The parts of a relay that has only an upstream side.
    struct Near {
        sockets: Sides<Option<OwnedFd>>,
        deferred: Sides<DeferredOptions>,
        closed_cookie: Option<NonZeroU64>,
        options: SideOptions,
        buffers: Buffers,
    }

    impl Near {
        fn socket_io(&mut self) -> SocketIo<'_> {
            SocketIo {
                sockets: &self.sockets,
                deferred: &mut self.deferred,
                options: Sides([&self.options; 2]),
                closed_cookie: &mut self.closed_cookie,
                own: Sides::default(),
                preface: None,
                buffers: &mut self.buffers,
                short: None,
            }
        }
    }

    fn connection() -> (Near, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Near {
            sockets: Sides([None, Some(near.into())]),
            deferred: Sides([DeferredOptions::ALL; 2]),
            closed_cookie: None,
            options: SideOptions::default(),
            buffers: Buffers::new(),
        };
        (near, peer)
    }

    fn reset(peer: TcpStream) {
        let socket = socket2::Socket::from(peer);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Repeats a call until its result is as wanted: packets take time.
    fn until<T>(mut call: impl FnMut() -> io::Result<T>, wanted: impl Fn(&io::Result<T>) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !wanted(&call()) {
            assert!(Instant::now() < deadline, "it does not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is<T>(kind: ErrorKind) -> impl Fn(&io::Result<T>) -> bool {
        move |result| result.as_ref().is_err_and(|error| error.kind() == kind)
    }

    #[test]
    fn reset_after_fin_on_write() {
        let (mut near, peer) = connection();
        let mut socket_io = near.socket_io();
        peer.shutdown(Shutdown::Write).unwrap();
        until(
            || socket_io.read(Side::Upstream),
            |read| matches!(read, Ok(0)),
        );
        assert_eq!(
            socket_io.write(Side::Upstream, 0, 0, false).unwrap(),
            0,
            "it lives"
        );
        reset(peer);
        let broken = is(ErrorKind::BrokenPipe);
        until(|| socket_io.write(Side::Upstream, 0, 0, false), broken);
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 0);
        let gone = socket_io.finish(Side::Upstream);
        assert!(is(ErrorKind::NotConnected)(&gone), "{gone:?}");
    }

    #[test]
    fn bytes_before_reset_read() {
        let (mut near, mut peer) = connection();
        let mut socket_io = near.socket_io();
        socket_io.buffers.scratch[..3].copy_from_slice(b"abc");
        assert_eq!(socket_io.write(Side::Upstream, 0, 3, false).unwrap(), 3);
        let mut got = [0; 3];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abc");
        let sent = socket2::SockRef::from(&peer).send(b"xy").unwrap();
        assert_eq!(sent, 2);
        reset(peer);
        let gone = is(ErrorKind::NotConnected);
        until(|| socket_io.finish(Side::Upstream), gone);
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 2);
        let read = socket_io.read(Side::Upstream);
        assert!(is(ErrorKind::ConnectionReset)(&read), "{read:?}");
    }

    #[test]
    fn full_socket_grows_once() {
        let (mut near, _peer) = connection();
        let mut socket_io = near.socket_io();
        let size = |socket_io: &SocketIo<'_>| {
            let socket = socket2::SockRef::from(socket_io.fd(Side::Upstream));
            socket.send_buffer_size().unwrap()
        };
        let socket = socket2::SockRef::from(socket_io.fd(Side::Upstream));
        socket.set_send_buffer_size(16 << 10).unwrap();
        let born = size(&socket_io);
        let mut sent = 0;
        let full = loop {
            match socket_io.write(Side::Upstream, 0, SCRATCH_BYTES, false) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(
            size(&socket_io) > born && sent > born,
            "{born} bytes, {sent} sent"
        );
        assert!(!socket_io.deferred[Side::Upstream].take_when_full());
    }

    #[test]
    fn more_flag_leaves_with_fin() {
        let (mut near, mut peer) = connection();
        let mut socket_io = near.socket_io();
        assert_eq!(socket_io.write(Side::Upstream, 0, 3, true).unwrap(), 3);
        socket_io.finish(Side::Upstream).unwrap();
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got, [0; 3]);
    }

    #[test]
    fn short_read_then_event() {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        let (mut near, mut peer) = connection();
        let mut socket_io = near.socket_io();
        let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let event = EpollEvent::new(input | EpollFlags::EPOLLET, 0);
        epoll.add(socket_io.fd(Side::Upstream), event).unwrap();
        let next = || {
            let mut events = [EpollEvent::empty()];
            let count = epoll.wait(&mut events, 30_000_u16).unwrap();
            assert_eq!(count, 1, "it does not happen");
            events[0].events()
        };
        peer.set_nodelay(true).unwrap();
        for _ in 0..3 {
            peer.write_all(b"xy").unwrap();
        }
        let mut waiting = [0; 8];
        let fd = socket_io.fd(Side::Upstream).as_raw_fd();
        let peek = || Ok(retry(|| recv(fd, &mut waiting, MsgFlags::MSG_PEEK))?);
        until(peek, |bytes| matches!(bytes, Ok(6)));
        assert_eq!(next(), EpollFlags::EPOLLIN);
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 6);
        peer.write_all(b"z").unwrap();
        assert_eq!(next(), EpollFlags::EPOLLIN);
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 1);
        while next() != input {}
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 0);
    }

    #[test]
    fn urgent_bytes_stop_splicing() {
        let (mut near, peer) = connection();
        let mut socket_io = near.socket_io();
        let near = socket2::SockRef::from(socket_io.fd(Side::Upstream));
        near.set_out_of_band_inline(true).unwrap();
        let far = socket2::SockRef::from(&peer);
        far.send(b"ab").unwrap();
        far.send_out_of_band(b"!").unwrap();
        far.send(b"cd").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut pipe = socket_io.lease().unwrap();
        // Up to the urgent byte and no farther, although more bytes wait.
        let two = |filled: &io::Result<usize>| matches!(filled, Ok(2));
        until(
            || socket_io.fill(Side::Upstream, &mut pipe, SPLICE_BYTES),
            two,
        );
        until(
            || socket_io.fill(Side::Upstream, &mut pipe, SPLICE_BYTES),
            |filled| matches!(filled, Ok(0)),
        );
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 3);
        assert_eq!(socket_io.buffers.scratch[..3], *b"!cd");
        assert_eq!(socket_io.read(Side::Upstream).unwrap(), 0);
    }
}
