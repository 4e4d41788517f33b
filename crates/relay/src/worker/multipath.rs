// SPDX-License-Identifier: Apache-2.0
//! Clients with Multipath TCP (RFC 8684), whose servers get TCP.
//!
//! A further path of a client joins its connection by a token. The kernel does that, whatever worker
//! or interface the path meets; the worker writes for the programs which tokens are the node's, and
//! listens on the ports at which paths may join.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::Socket;

use crate::chain::Transport;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Direction, Intercept, MultipathListener};
use crate::join_hold::{Fate, Join, JoinBudget, JoinHold};
use crate::policy::Policy;
use crate::side::Side;
use crate::sys::{self, SocketSettings};

use super::admit::client_prefix;
use super::entry::Entry;
use super::{TOKEN_LISTENER, Worker};

/// Bound on the ports at which paths may join, and on those that the clients of one prefix opened.
const PORTS_MAX: usize = 256;
const PORTS_BY_PREFIX_MAX: usize = 32;
/// How long the worker listens on a port after a SYN: until the client's ACK, also if the first
/// SYN-ACK is lost (RFC 6298 section 2.1). No longer, since no service of the host can begin to
/// listen on this port on all addresses meanwhile.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);

/// Of one family.
type Port = (bool, u16);

/// A SYN with MP_JOIN.
type Syn = (Flow, Frame);

/// A listener for further paths.
#[derive(Debug)]
struct JoinListener {
    _socket: Socket,
    /// The prefix of the client for which it was opened.
    prefix: [u8; 8],
    /// When the last SYN came.
    used: Duration,
}

/// A worker's connections of Multipath TCP.
#[derive(Debug)]
pub(super) struct Multipath {
    settings: SocketSettings,
    /// Whether the programs use its listeners.
    offered: bool,
    /// The end of the address of the listeners for MP_JOIN.
    joins: u32,
    budget: JoinBudget,
    hold: JoinHold<Syn>,
    /// The tokens of connections that further paths may join, by the key of the flow.
    tokens: HashMap<u64, u32>,
    ports: HashMap<Port, JoinListener>,
}

impl Multipath {
    pub(super) fn new(settings: SocketSettings) -> Self {
        Self {
            settings,
            offered: false,
            joins: sys::join_address(u32::from_ne_bytes(sys::random())),
            budget: JoinBudget::default(),
            hold: JoinHold::default(),
            tokens: HashMap::new(),
            ports: HashMap::new(),
        }
    }

    /// When to look at held joins.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.hold.deadline()
    }

    /// Whether there are listeners that a sweep may close.
    pub(super) fn is_listening(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Lets further paths join the flow `key`. Returns whether they can.
    fn admit(&mut self, key: u64, token: u32, flow: &Flow, intercept: &mut impl Intercept) -> bool {
        if intercept.set_token(token, Some(flow.server())).is_err() {
            return false;
        }
        self.tokens.insert(key, token);
        self.hold.look_soon();
        true
    }

    /// Listens on a port for further paths. Returns whether it can.
    fn listen(&mut self, port: Port, prefix: [u8; 8], now: Duration) -> bool {
        if let Some(listener) = self.ports.get_mut(&port) {
            listener.used = now;
            return true;
        }
        let of_prefix = self.ports.values().filter(|port| port.prefix == prefix);
        if of_prefix.count() >= PORTS_BY_PREFIX_MAX || self.ports.len() >= PORTS_MAX {
            return false;
        }
        let (ipv6, number) = port;
        let opened = sys::join_listener(ipv6, self.joins, number, self.settings.mark);
        let opened = opened.map(|socket| JoinListener {
            _socket: socket,
            prefix,
            used: now,
        });
        opened.is_ok_and(|listener| self.ports.insert(port, listener).is_none())
    }

    /// The flow has ended. Returns whether further paths could join it.
    fn forget(&mut self, key: u64, intercept: &mut impl Intercept) -> bool {
        let token = self.tokens.remove(&key);
        if let Some(token) = token {
            // Only a token that is not there is an error.
            let _ = intercept.set_token(token, None);
        }
        token.is_some()
    }

    /// Closes listeners that no join needs any more.
    pub(super) fn sweep(&mut self, now: Duration) {
        self.ports
            .retain(|_, listener| now < listener.used + HANDSHAKE_MAX);
    }
}

impl<I: Intercept> Worker<I> {
    /// A flow has ended. Counts which of its connections did not stay what was requested.
    pub(super) fn end_multipath(&mut self, key: u64, entry: &Entry) {
        let socket = |side: Side| entry.sockets[side].as_ref();
        let could_join = self.multipath.forget(key, &mut self.intercept);
        if could_join && socket(Side::Downstream).is_some_and(sys::fell_back) {
            self.counters.multipath_fell_back_later.add(1);
        }
        // A host without Multipath TCP requests none.
        let fell_back = |socket| sys::is_multipath(socket) && sys::fell_back(socket);
        if entry.is_open()
            && self.requested_multipath(entry)
            && socket(Side::Upstream).is_some_and(fell_back)
        {
            self.counters.multipath_fell_back_server.add(1);
        }
    }

    /// Whether the upstream connection of a flow began as one of Multipath TCP.
    fn requested_multipath(&self, entry: &Entry) -> bool {
        let via = entry.preface.as_ref().and_then(|preface| preface.via);
        match via {
            None => entry.rule.rule.upstream_multipath,
            Some(path) => {
                let peer = self.rules.chains().find_peer(path.peer);
                peer.is_some_and(|peer| peer.transport == Transport::Mptcp)
            }
        }
    }

    /// Whether a side may have the paths of Multipath TCP.
    pub(super) fn may_be_multipath(&self, entry: &Entry, side: Side) -> bool {
        match side {
            Side::Downstream => self.listeners.have_multipath(),
            Side::Upstream => self.requested_multipath(entry),
        }
    }

    /// The token of an accepted connection, if it has further paths. Others are of TCP, and get what
    /// the listener could not pass on.
    pub(super) fn token_of(&mut self, socket: &OwnedFd) -> Option<u32> {
        let token = sys::token(socket);
        match token {
            Some(_) => self.counters.multipath_accepted.add(1),
            None => sys::restore_tcp(socket),
        }
        token
    }

    /// A client in transit that requested Multipath TCP has completed its handshake.
    pub(super) fn on_accept_multipath(&mut self, flow: Flow, socket: OwnedFd, token: Option<u32>) {
        self.counters
            .multipath_fell_back
            .add(token.is_none().into());
        let key = self.on_accept(flow, socket, false);
        let (Some(key), Some(token)) = (key, token) else {
            return;
        };
        if self.entries.live(key).is_none() {
            return;
        }
        if !self.multipath.admit(key, token, &flow, &mut self.intercept) {
            self.counters.multipath_tokens_over_budget.add(1);
        }
    }

    /// Opens the listeners for clients of Multipath TCP once a rule converts. They stay: paths may
    /// join open connections.
    pub(super) fn offer_multipath(&mut self, policy: &Policy) -> io::Result<()> {
        if self.multipath.offered || !policy.converts_multipath() {
            return Ok(());
        }
        self.multipath.offered = true;
        for ipv6 in self.listeners.transit_families() {
            // A host without Multipath TCP leaves such SYNs to their servers.
            let Ok((listener, port)) = sys::multipath_listener(ipv6, self.multipath.settings)
            else {
                continue;
            };
            sys::apply(&listener, self.rules.inherited())?;
            let (number, listener) = self.listeners.add_multipath(listener);
            let event = EpollEvent::new(EpollFlags::EPOLLIN, TOKEN_LISTENER | number);
            self.epoll.add(listener, event)?;
            let joins = self.multipath.joins;
            self.intercept
                .set_multipath(ipv6, MultipathListener { port, joins })?;
        }
        Ok(())
    }

    /// A client begins a connection or a path with the port of an earlier one, whose socket the kernel
    /// keeps: that of a path is no socket of a relay, which the worker would have destroyed.
    pub(super) fn on_time_wait(&mut self, flow: &Flow, syn: &Frame) {
        let ended = self.intercept.end_time_wait(flow.server(), flow.client());
        // Else it may still be there, and the SYN would be reported without end.
        let direction = if ended {
            Direction::In
        } else {
            Direction::Again
        };
        self.inject(syn.completed(), direction);
    }

    /// A further path arrived, for a connection of the node or one that may be accepted soon.
    pub(super) fn on_join(&mut self, flow: &Flow, syn: Frame) {
        let Some(token) = syn.join_token() else {
            return;
        };
        let prefix = client_prefix(flow);
        let join = Join {
            token,
            prefix,
            syn: (*flow, syn),
        };
        if self.intercept.has_token(token) {
            // Dropped: the client of one that is not part of a flood sends it again.
            if self.multipath.budget.admit(prefix, self.now) {
                self.let_join(&join);
            } else {
                self.counters.multipath_joins_over_budget.add(1);
            }
            return;
        }
        if let Err(join) = self.multipath.hold.hold(join, self.now) {
            self.counters.multipath_joins_over_budget.add(1);
            self.forward_join(&join);
        }
    }

    /// Injects the SYNs of further paths whose connection is known by now, or that have waited long
    /// enough.
    pub(super) fn look_at_joins(&mut self) {
        let intercept = &mut self.intercept;
        let hold = &mut self.multipath.hold;
        for (join, fate) in hold.take_due(self.now, |token| intercept.has_token(token)) {
            match fate {
                Fate::Join => {
                    self.counters.multipath_joins_released.add(1);
                    self.let_join(&join);
                }
                Fate::Forward => {
                    self.counters.multipath_joins_expired.add(1);
                    self.forward_join(&join);
                }
            }
        }
    }

    /// Where the worker cannot listen, the programs forward the SYN: they know it by its mark.
    fn let_join(&mut self, join: &Join<Syn>) {
        let (flow, frame) = &join.syn;
        let server = flow.server();
        let port = (server.is_ipv6(), server.port());
        if !self.multipath.listen(port, join.prefix, self.now) {
            self.counters.multipath_ports_unavailable.add(1);
        }
        self.inject(frame.completed(), Direction::Again);
    }

    fn forward_join(&mut self, join: &Join<Syn>) {
        // First: the programs would report the injected SYN again.
        self.intercept.forward_joins(join.token);
        self.inject(join.syn.1.completed(), Direction::In);
    }
}
