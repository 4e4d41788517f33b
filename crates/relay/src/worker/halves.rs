// SPDX-License-Identifier: Apache-2.0
//! The relay's [`Io`] on real sockets.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};

use crate::pipes::{PIPE_BYTES, Pipe, Pipes};
use crate::policy::SideOptions;
use crate::relay::Io;
use crate::side::{Side, Sides};
use crate::sys;

use super::entry::Owed;
use super::kept::Fallback;
use super::prologue::Prologue;

/// Bytes read at once when copying.
const SCRATCH_BYTES: usize = 64 << 10;

/// Buffers that all relays of a worker share.
#[derive(Debug)]
pub(super) struct Workspace {
    scratch: Box<[u8]>,
    pub(super) pipes: Pipes,
    /// Bytes spliced since the worker last asked.
    pub(super) spliced_bytes: u64,
}

impl Workspace {
    pub(super) fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pipes: Pipes::default(),
            spliced_bytes: 0,
        }
    }
}

/// Both sockets of a relay, for the length of one turn.
pub(super) struct Halves<'a> {
    pub(super) sockets: &'a Sides<Option<OwnedFd>>,
    pub(super) owed: &'a mut Sides<Owed>,
    /// The rule's settings for both.
    pub(super) options: Sides<&'a SideOptions>,
    /// As in [`Entry`](super::entry::Entry).
    pub(super) closed_cookie: &'a mut Option<NonZeroU64>,
    /// What is still to be heard before the bytes of the upstream side.
    pub(super) prologue: Option<&'a mut Prologue>,
    pub(super) workspace: &'a mut Workspace,
    /// A side that the last splice to it has not taken everything of.
    pub(super) short: Option<Side>,
}

impl Halves<'_> {
    fn fd(&self, side: Side) -> &OwnedFd {
        self.sockets[side]
            .as_ref()
            .expect("an open relay has both sockets")
    }

    /// Repeats a write that found its socket full, once the socket has been
    /// given what it needs for that.
    fn write_to(
        &mut self,
        side: Side,
        mut call: impl FnMut(&mut Self) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let written = call(self);
        let full = written
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if full && self.owed[side].take_when_full() {
            // The connection works without, so let it.
            let _ = sys::apply_when_full(self.fd(side), self.options[side]);
            return call(self);
        }
        written
    }

    /// Hears what the next node says before the flow's bytes. The relay reads,
    /// and does not splice, until some have come.
    fn hear(&mut self) -> io::Result<()> {
        let [Some(downstream), Some(upstream)] = &self.sockets.0 else {
            return Ok(());
        };
        match &mut self.prologue {
            Some(prologue) => prologue.hear(upstream, downstream),
            None => Ok(()),
        }
    }
}

impl Io for Halves<'_> {
    type Pipe = Pipe;
    type Buffer = Box<[u8]>;
    const READ_BYTES: usize = SCRATCH_BYTES;

    fn read(&mut self, side: Side) -> io::Result<usize> {
        if side == Side::Upstream {
            self.hear()?;
        }
        let fd = self.fd(side).as_raw_fd();
        let read = retry(|| recv(fd, &mut self.workspace.scratch, MsgFlags::empty()))?;
        if side == Side::Downstream
            && let Some(fallback) = fallback_of(&mut self.prologue)
        {
            fallback.kept.push(&self.workspace.scratch[..read]);
        }
        Ok(read)
    }

    fn write(&mut self, side: Side, from: usize, to: usize, more: bool) -> io::Result<usize> {
        let more = if more { libc::MSG_MORE } else { 0 };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::from_bits_retain(more);
        self.write_to(side, |halves| {
            let fd = halves.fd(side).as_raw_fd();
            retry(|| send(fd, &halves.workspace.scratch[from..to], flags))
        })
    }

    fn keep(&mut self, from: usize, to: usize) -> Box<[u8]> {
        self.workspace.scratch[from..to].into()
    }

    fn write_kept(&mut self, side: Side, kept: &Box<[u8]>, from: usize) -> io::Result<usize> {
        self.write_to(side, |halves| {
            let fd = halves.fd(side).as_raw_fd();
            retry(|| send(fd, &kept[from..], MsgFlags::MSG_NOSIGNAL))
        })
    }

    fn lease(&mut self) -> Option<Pipe> {
        self.workspace.pipes.lease()
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.workspace.pipes.give_back(pipe);
    }

    fn fill(&mut self, side: Side, pipe: &mut Pipe) -> io::Result<usize> {
        if side == Side::Downstream
            && let Some(fallback) = fallback_of(&mut self.prologue)
        {
            fallback.kept.give_up();
        }
        let bytes = sys::splice(self.fd(side), &pipe.write, PIPE_BYTES)?;
        self.workspace.spliced_bytes += bytes as u64;
        Ok(bytes)
    }

    fn empty(&mut self, side: Side, pipe: &mut Pipe, bytes: usize) -> io::Result<usize> {
        let was_short = self.short.take() == Some(side);
        let taken = self.write_to(side, |halves| {
            sys::splice(&pipe.read, halves.fd(side), bytes)
        });
        match taken {
            // The splice before may have met a reset behind what it moved, which the
            // kernel tells once: this need not be one behind a FIN.
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
        // A socket that goes to TIME_WAIT keeps the number that it has by then, and is
        // found by that; the kernel gives it when it is first asked for.
        if self.closed_cookie.is_none() {
            let cookie = sys::cookie(self.fd(side));
            *self.closed_cookie = cookie.ok().and_then(NonZeroU64::new);
        }
        Ok(shutdown(self.fd(side).as_raw_fd(), Shutdown::Write)?)
    }

    fn unacknowledged(&mut self, side: Side) -> bool {
        sys::is_unacknowledged(self.fd(side))
    }
}

/// Where what the client sends is kept, if it is.
fn fallback_of<'a>(prologue: &'a mut Option<&mut Prologue>) -> Option<&'a mut Fallback> {
    prologue.as_mut()?.fallback.as_deref_mut()
}

fn retry(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

/// What the relay takes for granted about Linux, and its fake kernel imitates.
#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// What a relay has whose upstream side alone is there.
    struct Near {
        sockets: Sides<Option<OwnedFd>>,
        owed: Sides<Owed>,
        closed_cookie: Option<NonZeroU64>,
        options: SideOptions,
        workspace: Workspace,
    }

    impl Near {
        fn halves(&mut self) -> Halves<'_> {
            Halves {
                sockets: &self.sockets,
                owed: &mut self.owed,
                options: Sides([&self.options; 2]),
                closed_cookie: &mut self.closed_cookie,
                prologue: None,
                workspace: &mut self.workspace,
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
            owed: Sides([Owed::ALL; 2]),
            closed_cookie: None,
            options: SideOptions::default(),
            workspace: Workspace::new(),
        };
        (near, peer)
    }

    fn reset(peer: TcpStream) {
        let socket = socket2::Socket::from(peer);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Repeats a call until its result is as wanted: packets take their time.
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
    fn a_reset_behind_a_fin_is_told_to_writers_only() {
        let (mut near, peer) = connection();
        let mut halves = near.halves();
        peer.shutdown(Shutdown::Write).unwrap();
        until(|| halves.read(Side::Upstream), |read| matches!(read, Ok(0)));
        assert_eq!(
            halves.write(Side::Upstream, 0, 0, false).unwrap(),
            0,
            "it lives"
        );
        reset(peer);
        let broken = is(ErrorKind::BrokenPipe);
        until(|| halves.write(Side::Upstream, 0, 0, false), broken);
        assert_eq!(halves.read(Side::Upstream).unwrap(), 0);
        let gone = halves.finish(Side::Upstream);
        assert!(is(ErrorKind::NotConnected)(&gone), "{gone:?}");
    }

    #[test]
    fn bytes_before_a_reset_are_read_and_then_the_reset() {
        let (mut near, mut peer) = connection();
        let mut halves = near.halves();
        halves.workspace.scratch[..3].copy_from_slice(b"abc");
        assert_eq!(halves.write(Side::Upstream, 0, 3, false).unwrap(), 3);
        let mut got = [0; 3];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abc");
        let sent = socket2::SockRef::from(&peer).send(b"xy").unwrap();
        assert_eq!(sent, 2);
        reset(peer);
        let gone = is(ErrorKind::NotConnected);
        until(|| halves.finish(Side::Upstream), gone);
        assert_eq!(halves.read(Side::Upstream).unwrap(), 2);
        let read = halves.read(Side::Upstream);
        assert!(is(ErrorKind::ConnectionReset)(&read), "{read:?}");
    }

    #[test]
    fn a_full_socket_is_given_room_once() {
        let (mut near, _peer) = connection();
        let mut halves = near.halves();
        let size = |halves: &Halves<'_>| {
            let socket = socket2::SockRef::from(halves.fd(Side::Upstream));
            socket.send_buffer_size().unwrap()
        };
        let socket = socket2::SockRef::from(halves.fd(Side::Upstream));
        socket.set_send_buffer_size(16 << 10).unwrap();
        let born = size(&halves);
        let mut sent = 0;
        let full = loop {
            match halves.write(Side::Upstream, 0, SCRATCH_BYTES, false) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(
            size(&halves) > born && sent > born,
            "{born} bytes, {sent} sent"
        );
        assert!(!halves.owed[Side::Upstream].take_when_full());
    }

    #[test]
    fn bytes_with_more_to_come_leave_with_the_fin() {
        let (mut near, mut peer) = connection();
        let mut halves = near.halves();
        assert_eq!(halves.write(Side::Upstream, 0, 3, true).unwrap(), 3);
        halves.finish(Side::Upstream).unwrap();
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got, [0; 3]);
    }

    #[test]
    fn a_short_read_has_taken_all_and_what_comes_next_is_an_event() {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        let (mut near, mut peer) = connection();
        let mut halves = near.halves();
        let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let event = EpollEvent::new(input | EpollFlags::EPOLLET, 0);
        epoll.add(halves.fd(Side::Upstream), event).unwrap();
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
        let fd = halves.fd(Side::Upstream).as_raw_fd();
        let peek = || retry(|| recv(fd, &mut waiting, MsgFlags::MSG_PEEK));
        until(peek, |bytes| matches!(bytes, Ok(6)));
        assert_eq!(next(), EpollFlags::EPOLLIN);
        assert_eq!(halves.read(Side::Upstream).unwrap(), 6);
        peer.write_all(b"z").unwrap();
        assert_eq!(next(), EpollFlags::EPOLLIN);
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(halves.read(Side::Upstream).unwrap(), 1);
        while next() != input {}
        assert_eq!(halves.read(Side::Upstream).unwrap(), 0);
    }

    #[test]
    fn urgent_bytes_stop_splicing_and_not_reading() {
        let (mut near, peer) = connection();
        let mut halves = near.halves();
        let near = socket2::SockRef::from(halves.fd(Side::Upstream));
        near.set_out_of_band_inline(true).unwrap();
        let far = socket2::SockRef::from(&peer);
        far.send(b"ab").unwrap();
        far.send_out_of_band(b"!").unwrap();
        far.send(b"cd").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut pipe = halves.lease().unwrap();
        // Up to the urgent byte, then no further, although there is more.
        let two = |filled: &io::Result<usize>| matches!(filled, Ok(2));
        until(|| halves.fill(Side::Upstream, &mut pipe), two);
        until(
            || halves.fill(Side::Upstream, &mut pipe),
            |filled| matches!(filled, Ok(0)),
        );
        assert_eq!(halves.read(Side::Upstream).unwrap(), 3);
        assert_eq!(halves.workspace.scratch[..3], *b"!cd");
        assert_eq!(halves.read(Side::Upstream).unwrap(), 0);
    }
}
