// SPDX-License-Identifier: Apache-2.0
//! What the lock of the server protects: the state and the sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_control::message::NodeNumber;
use posthaste_control::time::{ClockServer, StoredClock};
use posthaste_relay::clock;
use tokio::sync::{Notify, oneshot};

use super::super::conduct::Conduct;
use super::super::planner::Made;
use super::super::state::ControllerState;
use super::super::wire::Dismissal;
use posthaste_config::controller::Controller;
use posthaste_daemon::log::Quota;

/// What the lock protects.
#[derive(Debug)]
pub(in super::super) struct Inner {
    pub(in super::super) state: ControllerState,
    pub(in super::super) config: Controller,
    pub(in super::super) sessions: BTreeMap<NodeNumber, Taken>,
    /// The X25519 keys that nodes sent first.
    pub(super) exchange: BTreeMap<NodeNumber, [u8; 32]>,
    tickets: u64,
    /// Of nodes on the list.
    pub(super) conduct: BTreeMap<NodeNumber, Conduct>,
    /// Lines that unauthorized senders cause.
    pub(super) lines: Quota,
    clock_server: ClockServer,
    /// The last plan since the controller started.
    pub(in super::super) made: Option<Made>,
}

/// A node that has a stream.
#[derive(Debug)]
pub(in super::super) struct Taken {
    ticket: u64,
    pub(in super::super) from: SocketAddr,
    /// By the controller's clock.
    pub(in super::super) since: Duration,
    wake: Arc<Notify>,
    leave: Option<oneshot::Sender<Dismissal>>,
}

/// What a stream has of its place.
#[derive(Debug)]
pub(in super::super) struct Session {
    pub(in super::super) number: NodeNumber,
    /// Distinguishes this stream from a newer one of the same node.
    pub(in super::super) ticket: u64,
    /// Something may be due.
    pub(in super::super) wake: Arc<Notify>,
    /// Receives the reason to end.
    pub(in super::super) leave: oneshot::Receiver<Dismissal>,
}

impl Inner {
    /// Nobody has come yet.
    pub(super) fn new(
        state: ControllerState,
        config: Controller,
        exchange: BTreeMap<NodeNumber, [u8; 32]>,
        clock_server: ClockServer,
    ) -> Self {
        Self {
            clock_server,
            state,
            config,
            sessions: BTreeMap::new(),
            exchange,
            tickets: 0,
            conduct: BTreeMap::new(),
            lines: Quota::default(),
            made: None,
        }
    }

    /// The time that nodes receive, at `now` by the controller's own clock that nobody sets.
    pub(super) fn time(&mut self, now: Duration) -> StoredClock {
        let clock = clock::own();
        let sent = self.clock_server.send(clock, now);
        StoredClock { sent, clock }
    }

    /// The name of a node, or its number if it has none any more.
    pub(in super::super) fn name(&self, number: NodeNumber) -> String {
        let node = self.config.nodes.iter().find(|node| node.id == number);
        node.map_or_else(|| number.to_string(), |node| node.name.clone())
    }

    /// The number of a node of this name.
    ///
    /// # Errors
    /// There is none.
    pub(in super::super) fn number(&self, name: &str) -> Result<NodeNumber, String> {
        let node = self.config.nodes.iter().find(|node| node.name == name);
        node.map(|node| node.id)
            .ok_or_else(|| format!("there is no node \"{name}\""))
    }

    pub(super) fn session(
        &mut self,
        number: NodeNumber,
        from: SocketAddr,
        since: Duration,
    ) -> Session {
        // Counted over all nodes: a number is not used again when a node comes back.
        self.tickets += 1;
        let (sender, leave) = oneshot::channel();
        let wake = Arc::new(Notify::new());
        let taken = Taken {
            ticket: self.tickets,
            from,
            since,
            wake: Arc::clone(&wake),
            leave: Some(sender),
        };
        self.sessions.insert(number, taken);
        Session {
            number,
            ticket: self.tickets,
            wake,
            leave,
        }
    }

    pub(super) fn wake_of(&self, number: NodeNumber, ticket: u64) -> Option<Arc<Notify>> {
        let taken = self.sessions.get(&number)?;
        (taken.ticket == ticket).then(|| Arc::clone(&taken.wake))
    }

    /// Every stream checks what is due to its node.
    pub(in super::super) fn wake_all(&self) {
        self.sessions
            .values()
            // A stream that sends right now is not woken, but finds this when it waits next.
            .for_each(|taken| taken.wake.notify_one());
    }

    pub(super) fn dismiss(&mut self, number: NodeNumber, why: Dismissal) {
        // The first reason stands: the stream may take a while to end.
        let taken = self.sessions.get_mut(&number);
        if let Some(leave) = taken.and_then(|taken| taken.leave.take()) {
            let _ = leave.send(why);
        }
    }
}
