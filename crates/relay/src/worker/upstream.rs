// SPDX-License-Identifier: Apache-2.0
//! The direct connection of a flow to its server: its socket, its source address, its SYN and the
//! answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use posthaste_wire::hop::{Icmp, Reply};
use socket2::Socket;

use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Intercept, ObservedPath, Source};
use crate::opening::{Blame, Opening};
use crate::outcome::Outcome;
use crate::policy::SourceAddress;
use crate::relay::Ready;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::{DeferredOptions, Entry, State};
use super::preface::icmp_of;

/// How often another port is picked, if a tracked connection has it.
const BINDS_MAX: usize = 8;

impl Entry {
    /// The TTL or hop limit for its upstream side, if it arrived with one.
    pub(super) fn hop_limit(&self) -> Option<u8> {
        match &self.state {
            State::Opening(pending) => pending.opening.hops.hop_limit,
            State::Open(_) => None,
        }
    }

    /// The client's MSS, where it is known: that of a request is between nodes, and that of a client
    /// that addresses this node is between the two.
    fn client_mss(&self) -> Option<u16> {
        let State::Opening(pending) = &self.state else {
            return None;
        };
        let client = self.sockets[Side::Downstream].as_ref();
        pending.syn.as_ref().and_then(Frame::mss).or_else(|| {
            let client = client.filter(|_| !(self.is_requested() || self.fixed));
            client.and_then(sys::segment_bytes)
        })
    }

    /// Whether the address of its upstream side is one of this host's, picked by `connect`.
    fn connects_as_host(&self) -> bool {
        self.fixed && self.rule.rule.source_address != SourceAddress::Client
    }

    /// Whether the socket of a side has an address of this host, so that no forwarded packet
    /// matches it.
    pub(super) fn has_own_address(&self, side: Side) -> bool {
        match side {
            Side::Downstream => self.is_requested() || self.fixed,
            Side::Upstream => self.is_hopping() || self.connects_as_host(),
        }
    }

    /// Whether a failure of its upstream connection is passed on as the network reports it.
    fn passes_errors_on(&self) -> bool {
        self.accept.holds_syn() || self.is_requested()
    }

    /// Whether it finds out if relays work.
    fn is_trial(&self) -> bool {
        matches!(&self.state, State::Opening(pending) if pending.opening.is_trial)
    }

    /// A socket for the connection to its server, with `mark` as its `SO_MARK`. It takes `path`, if
    /// that was observed.
    fn upstream_socket(&self, mark: u32, path: Option<ObservedPath>) -> io::Result<Socket> {
        let ipv6 = !self.flow.is_ipv4();
        // A host without Multipath TCP has no such socket.
        let multipath = self.rule.rule.upstream_multipath;
        let multipath = multipath.then(|| sys::multipath_upstream_socket(ipv6, mark));
        let (socket, is_multipath) = match multipath {
            Some(Ok(socket)) => (socket, true),
            _ if self.connects_as_host() => (sys::own_upstream_socket(ipv6, mark)?, false),
            _ => (sys::upstream_socket(ipv6, mark)?, false),
        };
        // The observation is evidence for this interface only. A socket that routes lead there is not bound: the
        // flow follows a route that is moved, and answers may come by any interface.
        if let Some(path) = path.filter(|path| path.ifindex != 0) {
            sys::bind_to_interface(&socket, path.ifindex)?;
        }
        let observed = path.map(|path| path.mss).filter(|mss| *mss > 0);
        if let Some(mss) = self.client_mss().into_iter().chain(observed).min() {
            // Best effort: the kernel may reject the value.
            let _ = socket.set_tcp_mss(mss.into());
        }
        // The server gets the value that it would get without a node.
        if let Some(hops) = self.hop_limit() {
            let set = sys::set_hop_limit(&socket, ipv6, hops);
            // The kernel has neither option for Multipath TCP: the host's hop limit applies, and
            // the client learns a refusal without the router that sent it.
            set.or_else(|error| if is_multipath { Ok(()) } else { Err(error) })?;
        }
        if self.passes_errors_on() && !is_multipath {
            sys::keep_icmp_errors(&socket, ipv6, true)?;
        }
        // Best effort: the connection works without these settings.
        let _ = sys::set_quick_ack(&socket, false);
        let _ = sys::apply_at_birth(&socket, &self.rule.rule.upstream);
        Ok(socket)
    }

    /// The same, bound to `source`: the flow as the socket has it, and the source.
    fn bound_socket(
        &self,
        mark: u32,
        path: Option<ObservedPath>,
        source: Source,
    ) -> io::Result<(Socket, Flow, Source)> {
        let socket = self.upstream_socket(mark, path)?;
        let (flow, source) = self.bind(&socket, source)?;
        Ok((socket, flow, source))
    }

    /// Binds its upstream socket to `source` or, where that is taken, to less of the client's
    /// address. Returns the flow as the socket has it, and the source.
    fn bind(&self, socket: &Socket, source: Source) -> io::Result<(Flow, Source)> {
        let own = match source {
            Source::Translated(_) => source,
            Source::Client | Source::ClientAddress | Source::Node => Source::Node,
        };
        // Answers to the client's address may not return through a node that was requested.
        let is_addressed = self.is_requested() || self.fixed;
        let source = match self.rule.rule.source_address {
            SourceAddress::Auto if is_addressed => own,
            SourceAddress::Auto | SourceAddress::Client => source,
            SourceAddress::Node => own,
        };
        let mut result = self.bind_to(socket, source);
        for less in [Source::ClientAddress, own] {
            // Ordered by how much of the client's address they keep.
            if less > source && result.as_ref().is_err_and(cannot_bind) {
                result = self.bind_to(socket, less);
            }
        }
        result
    }

    fn bind_to(&self, socket: &Socket, source: Source) -> io::Result<(Flow, Source)> {
        let (client, server) = (self.flow.client(), self.flow.server());
        // `connect` picks a port that is free for this destination; `bind` needs one that is free
        // for all, and a busy node would run out of those. Only the half-open entry of a client
        // that is not validated needs the address before the SYN leaves.
        if source == Source::Node && self.fixed {
            return Ok((self.flow, source));
        }
        let address = match source {
            Source::Client => client,
            Source::ClientAddress => SocketAddr::new(client.ip(), 0),
            Source::Translated(ip) => SocketAddr::new(ip, 0),
            Source::Node => SocketAddr::new(sys::local_address_toward(server)?, 0),
        };
        socket.bind(&address.into())?;
        let bound = match address.port() {
            0 => bound_address(socket, address.ip())?,
            _ => address,
        };
        Ok((Flow::new(bound, server), source))
    }
}

/// What `bind` returns, once with a port that no tracked connection has.
fn bind_untracked(
    intercept: &mut impl Intercept,
    bind: impl Fn() -> io::Result<(Socket, Flow, Source)>,
) -> io::Result<(Socket, Flow, Source)> {
    let mut last = Source::Client;
    for _ in 0..BINDS_MAX {
        let bound = bind()?;
        if !intercept.is_tracked(&bound.1, bound.2) {
            return Ok(bound);
        }
        last = bound.2;
    }
    match last {
        // NAT gives the relay another port, or another address of a pool.
        Source::Translated(_) => bind(),
        _ => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
    }
}

impl<I: Intercept> Worker<I> {
    /// Opens a connection to the server. A local failure is handled as the server's.
    pub(super) fn open_direct(&mut self, key: u64) {
        let source = self.source(key);
        let path = self.observed_path(key);
        let mut result = self.connect(key, source, path);
        if result.as_ref().is_err_and(is_taken) {
            // A TIME_WAIT socket may hold the tuple, which only connect() detects.
            result = self.connect(key, source.max(Source::ClientAddress), path);
        }
        if let Err(error) = result {
            self.on_upstream_failed(key, &error, Blame::Us);
        }
    }

    /// Which source address the server of a flow should see.
    fn source(&mut self, key: u64) -> Source {
        let Some(entry) = self.entries.live(key).filter(|entry| entry.is_observed()) else {
            return Source::Client;
        };
        self.intercept.source(&entry.flow, entry.is_trial())
    }

    /// The path that an upstream connection must take, if it was observed.
    fn observed_path(&mut self, key: u64) -> Option<ObservedPath> {
        let entry = self
            .entries
            .get_mut(key)
            .filter(|entry| entry.is_observed())?;
        let flow = entry.flow;
        let seen = entry.pending().and_then(|pending| pending.path);
        // In late mode the redirection reports no SYN.
        seen.or_else(|| self.intercept.observed(&flow)?.path)
    }

    /// Sends the SYN to the server.
    fn connect(&mut self, key: u64, source: Source, path: Option<ObservedPath>) -> io::Result<()> {
        let Some(entry) = self.entries.live(key) else {
            return Ok(());
        };
        let bind = || entry.bound_socket(self.socket_mark, path, source);
        let (socket, flow, source) = bind_untracked(&mut self.intercept, bind)?;
        match source {
            Source::Client => {}
            Source::ClientAddress => self.counters.port_fallbacks.add(1),
            Source::Translated(_) | Source::Node => self.counters.address_fallbacks.add(1),
        }
        if entry.is_trial() {
            self.intercept.keep_source(socket.as_fd())?;
        }
        // Before the SYN leaves: without an entry its SYN-ACK would complete the handshake.
        if let Err(error) = self.reserve_other_tuple(key, flow) {
            return self.put_off(key, error);
        }
        sys::connect(&socket, flow.server())?;
        let socket = socket.into();
        self.watch_upstream(key, &socket)?;
        if let Some(entry) = self.entries.live_mut(key) {
            entry.sockets[Side::Upstream] = Some(socket);
            entry.deferred[Side::Upstream] = DeferredOptions::ALL;
        }
        Ok(())
    }

    /// The server's SYN-ACK may arrive for another tuple than the client's: that tuple needs its
    /// own half-open entry while the client is unvalidated.
    fn reserve_other_tuple(&mut self, key: u64, flow: Flow) -> io::Result<()> {
        let Some(pending) = self.entries.live_mut(key).and_then(Entry::pending) else {
            return Ok(());
        };
        if !pending.opening.needs_half_open(&flow) {
            return Ok(());
        }
        let half_open = self.intercept.reserve_half_open(&flow)?;
        if let Some((former, half_open)) = pending
            .opening
            .upstream_half_open
            .replace((flow, half_open))
        {
            self.intercept.release_if_unchanged(&former, half_open);
            self.opening.remove(&former);
        }
        self.opening.insert(flow, key);
        Ok(())
    }

    /// The budget has no room for a second half-open entry.
    fn put_off(&mut self, key: u64, error: io::Error) -> io::Result<()> {
        let pending = self.pending(key);
        if !pending.is_some_and(|pending| pending.opening.put_off()) {
            return Err(error);
        }
        self.counters.over_budget.add(1);
        Ok(())
    }

    /// The upstream socket became writable or failed.
    pub(super) fn on_upstream_answer(&mut self, key: u64, ready: Ready) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(socket) = &entry.sockets[Side::Upstream] else {
            return;
        };
        if ready.failed
            && let Some(error) = connect_error(socket)
        {
            let timed_out = error.raw_os_error() == Some(libc::ETIMEDOUT);
            let pending = entry.pending();
            if timed_out && pending.is_some_and(|pending| pending.opening.is_closed_by_restraint())
            {
                return self.drive(key, |opening, _| opening.withdraw());
            }
            return self.on_upstream_failed(key, &error, Blame::Them);
        }
        let passes_errors_on = entry.passes_errors_on();
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        let connect = pending.opening.since_connect(now).into();
        entry.timers.connect = connect;
        // A SYN-ACK that was held has set it, earlier than the kernel could complete the handshake.
        if entry.timers.answer.get().is_none() {
            entry.timers.answer = connect;
        }
        if let Some(tally) = self.counters.rules.at(entry.rule.tally) {
            tally.on_connected(entry.age(now));
        }
        if passes_errors_on {
            if let Some(socket) = &entry.sockets[Side::Upstream] {
                // A queued ICMP error would end an open connection that survives it.
                let _ = sys::keep_icmp_errors(socket, !flow.is_ipv4(), false);
            }
            // The server answers again, so the next flow to it need not be strict.
            self.intercept.clear_failure(&flow);
        }
        self.drive_when(key, ready, Opening::on_connected);
    }

    /// The upstream connection failed, or could not be made.
    pub(super) fn on_upstream_failed(&mut self, key: u64, error: &io::Error, blame: Blame) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        // The error queue is gone with the socket, which is dropped at the end.
        let upstream = entry.sockets[Side::Upstream].take();
        let icmp = upstream.as_ref().and_then(sys::take_icmp_error);
        if let (None, Some(preface)) = (icmp, &mut entry.preface) {
            let neighbour = blame == Blame::Them;
            let no_route = no_route(error, !entry.flow.is_ipv4(), neighbour);
            preface.failed = no_route.map(Reply::Unreachable);
        }
        let (icmp, outcome) = (icmp.map(icmp_of), connect_outcome(error));
        self.drive(key, |opening, _| opening.on_failed(outcome, icmp, blame));
    }
}

fn bound_address(socket: &Socket, ip: IpAddr) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    Ok(SocketAddr::new(
        ip,
        address.map_or(0, |address| address.port()),
    ))
}

/// Whether binding to another source address may succeed: this one is taken, or its port is
/// privileged.
fn cannot_bind(error: &io::Error) -> bool {
    is_taken(error) || error.raw_os_error() == Some(libc::EACCES)
}

/// Whether another source address may succeed after this error.
pub(super) fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
    )
}

/// The outcome for a failed connection attempt.
pub(super) fn connect_outcome(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        // `ECONNRESET`: the server reset it between its SYN-ACK and this look at the error.
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Outcome::UpstreamRefused,
        Some(libc::ETIMEDOUT) => Outcome::ConnectTimeout,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Outcome::Internal,
        _ => Outcome::UpstreamUnreachable,
    }
}

/// The ICMP or ICMPv6 type and code that a router would send for `error`: a route that rejects, or
/// a neighbour that does not answer.
pub(super) fn no_route(error: &io::Error, ipv6: bool, neighbour: bool) -> Option<Icmp> {
    // Unreachable network, host and prohibited (RFC 792, RFC 1812 §5.2.7.1); for IPv6 prohibited,
    // address and no route (RFC 4443 §3.1).
    let (kind, code) = match (error.raw_os_error()?, ipv6) {
        (libc::ENETUNREACH, false) => (3, 0),
        (libc::EHOSTUNREACH, false) => (3, 1),
        (libc::EACCES, false) => (3, 13),
        (libc::EACCES, true) => (1, 1),
        (libc::EHOSTUNREACH, true) if neighbour => (1, 3),
        // Linux returns these for every route that leads nowhere.
        (libc::ENETUNREACH | libc::EHOSTUNREACH, true) => (1, 0),
        _ => return None,
    };
    Some(Icmp {
        kind,
        code,
        offender: None,
    })
}

/// The error of a connecting socket, if it failed.
pub(super) fn connect_error(fd: &OwnedFd) -> Option<io::Error> {
    socket2::SockRef::from(fd).take_error().unwrap_or_else(Some)
}
