// SPDX-License-Identifier: Apache-2.0
//! A client that detects the first byte relayed by the node on its path.
//!
//! A byte that comes back proves nothing: without a node, or before it is ready, packets are
//! forwarded and the server answers. The TTL tells the two apart. Packets of the server have lost
//! one when the node forwarded them; packets of a node that terminates the connection have the full
//! TTL. So the probes require the full TTL (`IP_MINTTL`, `IPV6_MINHOPCOUNT`): the client's kernel
//! drops everything forwarded, and only a relaying node can open the connection. [`check_path`]
//! verifies, before every series, that forwarding works and that the probes ignore it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{echo, sys};

/// Interval of connection attempts.
const INTERVAL: Duration = Duration::from_micros(100);
/// Bound on pending attempts; an older one is given up.
const WAITING_MAX: usize = 1000;
/// The initial TTL of hosts. A router decrements it.
const FULL_TTL: usize = 64;
/// How long a probe must stay unanswered without a relay.
const SILENCE: Duration = Duration::from_millis(200);

sockopt_impl!(
    /// Least TTL of IPv4 packets that a socket accepts.
    MinTtl,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MINTTL,
    usize
);
sockopt_impl!(
    /// Least hop limit of IPv6 packets that a socket accepts.
    MinHopCount,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MINHOPCOUNT,
    usize
);

/// Verifies that `target` answers through plain forwarding, and that probes ignore that.
pub fn check_path(target: SocketAddr) -> Result<()> {
    let calls = echo::call(target, 1, Duration::from_secs(10)).context("plain forwarding")?;
    calls
        .into_iter()
        .try_for_each(echo::Call::close)
        .context("close a connection")?;
    let mut prober = Prober::new(target)?;
    let until = Instant::now() + SILENCE;
    while Instant::now() < until {
        ensure!(
            prober.step()?.is_none(),
            "a probe was answered although no node runs: relayed and forwarded look the same"
        );
    }
    Ok(())
}

/// Probes until a byte has come back through a relay; returns when. Fails when `over` is set
/// before.
pub fn first_relayed_byte(target: SocketAddr, over: &AtomicBool) -> Result<Instant> {
    let mut prober = Prober::new(target)?;
    while !over.load(Ordering::Relaxed) {
        if let Some(when) = prober.step()? {
            return Ok(when);
        }
    }
    bail!("no byte was relayed to {target}")
}

/// Attempts in progress.
#[derive(Debug)]
struct Prober {
    target: SocketAddr,
    epoll: Epoll,
    waiting: VecDeque<(u64, TcpStream)>,
    /// The number of the next attempt.
    next: u64,
    due: Instant,
}

impl Prober {
    fn new(target: SocketAddr) -> Result<Self> {
        sys::drop_timer_slack()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
        Ok(Self {
            target,
            epoll,
            waiting: VecDeque::new(),
            next: 0,
            due: Instant::now(),
        })
    }

    /// Makes the next attempt if it is due, and handles events until the one after. Returns when
    /// the first byte arrived, if it did.
    fn step(&mut self) -> Result<Option<Instant>> {
        if Instant::now() >= self.due {
            self.attempt()?;
            self.due = Instant::now() + INTERVAL;
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let timeout = self.due.saturating_duration_since(Instant::now());
        let count = sys::epoll_wait_precise(self.epoll.0.as_fd(), &mut events, Some(timeout))?;
        let now = Instant::now();
        for event in &events[..count] {
            if self.advance(event.u64) {
                return Ok(Some(now));
            }
        }
        Ok(None)
    }

    fn attempt(&mut self) -> Result<()> {
        let domain = Domain::for_address(self.target);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match self.target {
            SocketAddr::V4(_) => setsockopt(&socket, MinTtl, &FULL_TTL)?,
            SocketAddr::V6(_) => setsockopt(&socket, MinHopCount, &FULL_TTL)?,
        }
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        // Without delay on the links an answer may arrive within the call.
        match socket.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Ok(()),
            _ => self.epoll.add(&socket, EpollEvent::new(flags, self.next))?,
        }
        self.waiting.push_back((self.next, socket.into()));
        self.next += 1;
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Advances an attempt; true when its byte has come back. An attempt that fails, because the
    /// node was not fully up, is dropped.
    fn advance(&mut self, number: u64) -> bool {
        let Some(index) = self
            .waiting
            .iter()
            .position(|(waiting, _)| *waiting == number)
        else {
            return false;
        };
        let stream = &mut self.waiting[index].1;
        // Writing again with the byte in flight is harmless: the server returns two.
        let result = stream.write_all(b"?").and_then(|()| stream.read(&mut [0]));
        match result {
            Ok(1) => return true,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected
                ) => {}
            _ => drop(self.waiting.remove(index)),
        }
        false
    }
}
