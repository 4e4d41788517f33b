// SPDX-License-Identifier: Apache-2.0
//! Clients with Multipath TCP (RFC 8684), whose servers get TCP.
//!
//! A further path of a client joins its connection by a token. The kernel does that, whatever worker
//! or interface the path meets; the worker writes for the programs which tokens are the node's, and
//! listens on the ports at which paths may join.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::Socket;

use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Direction, Intercept, MultipathListener};
use crate::join_hold::{Fate, Join, JoinHold};
use crate::policy::{self, Action, Policy};
use crate::sys;

use super::Worker;
use super::admit::client_prefix;
use super::listeners::Listeners;

/// Bound on the ports at which paths may join.
const PORTS_MAX: usize = 256;
/// How long the listener of a port stays after the last connection that it is for: the next one to
/// this port spares a system call or five.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A port at which further paths join, of one family.
#[derive(Debug)]
struct Port {
    /// `None` if the host refuses: paths cannot join.
    listener: Option<Socket>,
    connections: usize,
    /// When the last connection ended.
    idle_since: Duration,
}

/// A connection that further paths may join.
#[derive(Clone, Copy, Debug)]
struct Joinable {
    token: u32,
    port: (bool, u16),
}

/// A worker's connections of Multipath TCP.
#[derive(Debug)]
pub(super) struct Multipath {
    /// The listeners for MP_CAPABLE, each with whether it is for IPv6.
    listeners: Vec<(bool, MultipathListener)>,
    /// Whether the programs use them.
    offered: bool,
    /// The end of the address of the listeners for MP_JOIN.
    joins: u32,
    mark: u32,
    hold: JoinHold<Frame>,
    /// By the key of the flow.
    joinable: HashMap<u64, Joinable>,
    ports: HashMap<(bool, u16), Port>,
}

impl Multipath {
    pub(super) fn new(listeners: &Listeners, mark: u32) -> Self {
        let joins = sys::join_address(u32::from_ne_bytes(sys::random()));
        let all = listeners.multipath().into_iter();
        let listeners = all.map(|(ipv6, port)| (ipv6, MultipathListener { port, joins }));
        Self {
            listeners: listeners.collect(),
            offered: false,
            joins,
            mark,
            hold: JoinHold::default(),
            joinable: HashMap::new(),
            ports: HashMap::new(),
        }
    }

    /// Has SYNs redirected once a rule converts. Not withdrawn: paths may join open connections.
    pub(super) fn offer(
        &mut self,
        policy: &Policy,
        intercept: &mut impl Intercept,
    ) -> io::Result<()> {
        let mut rules = policy.rules.iter();
        let converts = rules.any(|rule| {
            rule.action == Action::Relay && rule.multipath == policy::Multipath::Convert
        });
        if converts && !self.offered {
            for (ipv6, listener) in &self.listeners {
                intercept.set_multipath(*ipv6, *listener)?;
            }
            self.offered = true;
        }
        Ok(())
    }

    /// When to look at held joins.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.hold.deadline()
    }

    /// Lets further paths to `server` join the flow `key`. Returns whether they can.
    fn admit(
        &mut self,
        key: u64,
        token: u32,
        server: SocketAddr,
        intercept: &mut impl Intercept,
    ) -> bool {
        let port = (server.is_ipv6(), server.port());
        // The listener first: a path that finds the token must find the listener too.
        if !self.listen(port) || intercept.set_token(token, Some(server)).is_err() {
            return false;
        }
        if let Some(port) = self.ports.get_mut(&port) {
            port.connections += 1;
        }
        self.joinable.insert(key, Joinable { token, port });
        self.hold.look_soon();
        true
    }

    /// Listens on a port for further paths. Returns whether it can.
    fn listen(&mut self, (ipv6, port): (bool, u16)) -> bool {
        if let Some(known) = self.ports.get(&(ipv6, port)) {
            return known.listener.is_some();
        }
        if self.ports.len() >= PORTS_MAX {
            return false;
        }
        let listener = sys::join_listener(ipv6, self.joins, port, self.mark).ok();
        let can = listener.is_some();
        let made = Port {
            listener,
            connections: 0,
            // A refusal is not remembered beyond the next sweep.
            idle_since: Duration::ZERO,
        };
        self.ports.insert((ipv6, port), made);
        can
    }

    /// The flow has ended.
    pub(super) fn forget(&mut self, key: u64, now: Duration, intercept: &mut impl Intercept) {
        let Some(joinable) = self.joinable.remove(&key) else {
            return;
        };
        // Only a token that is not there is an error.
        let _ = intercept.set_token(joinable.token, None);
        if let Some(port) = self.ports.get_mut(&joinable.port) {
            port.connections -= 1;
            port.idle_since = now;
        }
    }

    /// Closes listeners that no connection needs.
    pub(super) fn sweep(&mut self, now: Duration) {
        let is_idle = |port: &Port| port.connections == 0 && port.idle_since + IDLE_MAX <= now;
        self.ports.retain(|_, port| !is_idle(port));
    }
}

impl<I: Intercept> Worker<I> {
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
        let multipath = &mut self.multipath;
        if !multipath.admit(key, token, flow.server(), &mut self.intercept) {
            self.counters.multipath_ports_unavailable.add(1);
        }
    }

    /// A further path arrived for a connection that may be accepted soon.
    pub(super) fn on_join(&mut self, flow: &Flow, syn: Frame) {
        let Some(token) = syn.join_token() else {
            return;
        };
        let prefix = client_prefix(flow);
        if let Err(join) = self
            .multipath
            .hold
            .hold(Join { token, prefix, syn }, self.now)
        {
            self.counters.multipath_joins_over_budget.add(1);
            self.forward_join(&join);
        }
    }

    /// Injects the SYNs of further paths whose connection is known by now, or that have waited long
    /// enough.
    pub(super) fn look_at_joins(&mut self) {
        let intercept = &mut self.intercept;
        let hold = &mut self.multipath.hold;
        let due = hold.take_due(self.now, |token| intercept.has_token(token));
        for (join, fate) in due {
            match fate {
                Fate::Join => {
                    self.counters.multipath_joins_released.add(1);
                    self.inject(join.syn.completed(), Direction::In);
                }
                Fate::Forward => {
                    self.counters.multipath_joins_expired.add(1);
                    self.forward_join(&join);
                }
            }
        }
    }

    fn forward_join(&mut self, join: &Join<Frame>) {
        // First: the programs would report the injected SYN again.
        self.intercept.forward_joins(join.token);
        self.inject(join.syn.completed(), Direction::In);
    }
}
