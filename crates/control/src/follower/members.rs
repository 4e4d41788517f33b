// SPDX-License-Identifier: Apache-2.0
//! The other nodes as the controller reports them, and which of their keys count.
//!
//! The first key that was received for a node counts until the operator forgets it. So a controller
//! that was broken into cannot put itself between two nodes that have each other's keys.
//!
//! Nodes receive changes of the members at different moments, and in early mode a flow that a node refuses
//! has lost bytes. So a node that was removed remains a peer for a while: others accept its requests, and pass
//! on flows of nodes that have not received the removal. Flows that begin here use no chain over it. Nor do
//! they use a chain over a new node, or one that has come back, for a moment: another node of the chain may
//! not have it as a peer yet.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Follower;
use crate::message::{Member, NodeNumber};

/// The most nodes there are, this one aside.
pub const MEMBERS_MAX: usize = 1024;
/// Keys are kept of nodes that are gone, too, as long as there is room.
const KEYS_MAX: usize = 4 * MEMBERS_MAX;
/// Addresses of a node.
const ADDRESSES_MAX: usize = 16;
/// Bytes of a node's name, which is in logs and labels of metrics.
const NAME_MAX: usize = 255;
/// How long a removed node remains a peer. A controller that was started with another list reports it to each
/// node as that reconnects, within half a minute or little more.
pub(super) const FORMER: Duration = Duration::from_secs(60);
/// From receiving a member to using it. Half of the longest round trip to a controller and the time to write
/// to a thousand nodes are less, most of the time.
pub(super) const FRESH: Duration = Duration::from_millis(500);

/// Something about a member that was not taken as it was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwanted {
    /// The key of the member is not the one that was received first, which still counts.
    #[error("another key was reported for node \"{0}\"")]
    Key(String),
    /// There are too many members, or too much data of one.
    #[error("more members were reported than are stored")]
    TooMuch,
}

impl Unwanted {
    pub(super) fn is_key(&self) -> bool {
        matches!(self, Self::Key(_))
    }
}

#[derive(Debug)]
pub(super) struct Members {
    me: NodeNumber,
    members: BTreeMap<NodeNumber, Member>,
    /// Those that have just come, and until when other nodes may not have received them.
    fresh: BTreeMap<NodeNumber, Duration>,
    /// Those that are gone, and until when they are kept. With the members they are no more than
    /// [`MEMBERS_MAX`].
    former: BTreeMap<NodeNumber, (Member, Duration)>,
    keys: BTreeMap<NodeNumber, [u8; 32]>,
}

impl Members {
    pub(super) fn new(me: NodeNumber) -> Self {
        Self {
            me,
            members: BTreeMap::new(),
            fresh: BTreeMap::new(),
            former: BTreeMap::new(),
            keys: BTreeMap::new(),
        }
    }

    /// As they were saved.
    pub(super) fn restore(&mut self, members: Vec<Member>, keys: Vec<(NodeNumber, [u8; 32])>) {
        // The keys first: members that are taken before them would set keys of their own.
        self.keys = keys.into_iter().take(KEYS_MAX).collect();
        self.take(true, members, &[], Duration::ZERO);
        // The other nodes received these members before the restart.
        self.fresh.clear();
    }

    /// To be saved. Removed ones are not: after a restart their removal may not be reported again.
    pub(super) fn save(&self) -> (Vec<Member>, Vec<(NodeNumber, [u8; 32])>) {
        let keys = self.keys.iter().map(|(number, key)| (*number, *key));
        (self.members.values().cloned().collect(), keys.collect())
    }

    /// Takes a report. What is not taken as it was received is returned.
    pub(super) fn take(
        &mut self,
        all: bool,
        members: Vec<Member>,
        removed: &[NodeNumber],
        now: Duration,
    ) -> Vec<Unwanted> {
        let mut leaving = if all {
            std::mem::take(&mut self.members)
        } else {
            let removed = removed.iter();
            removed
                .filter_map(|number| self.members.remove_entry(number))
                .collect()
        };
        let mut unwanted = Vec::new();
        for member in members {
            let number = member.number;
            if number == 0 || number == self.me {
                continue;
            }
            let known = self.keys.get(&number);
            // Removed nodes keep their keys, so the list of keys has a bound of its own.
            let is_new = known.is_none() && self.keys.len() >= KEYS_MAX
                || !self.members.contains_key(&number) && self.members.len() >= MEMBERS_MAX;
            if is_new || is_too_long(&member) {
                // One event for the whole message, so that it cannot fill the log.
                if !unwanted.contains(&Unwanted::TooMuch) {
                    unwanted.push(Unwanted::TooMuch);
                }
                continue;
            }
            // It stays a member with the key that counts: only the operator may accept another.
            if known.is_some_and(|known| *known != member.exchange) {
                unwanted.push(Unwanted::Key(member.name.clone()));
            }
            // Pinned at the first report: a compromised controller cannot replace a key
            // (docs/design/0014).
            self.keys.entry(number).or_insert(member.exchange);
            self.former.remove(&number);
            let known = leaving.remove(&number);
            // A changed member is not new: the other nodes have it as a peer already.
            if self.members.insert(number, member).or(known).is_none() {
                self.fresh.insert(number, now + FRESH);
            }
        }
        for (number, member) in leaving {
            self.fresh.remove(&number);
            // Nodes that receive the removal later still send flows over it, in early mode with
            // data.
            self.former.insert(number, (member, now + FORMER));
        }
        self.bound();
        unwanted
    }

    /// Forgets those that have been gone the longest, as far as there are too many.
    fn bound(&mut self) {
        while self.members.len() + self.former.len() > MEMBERS_MAX {
            let until =
                |(number, (_, until)): (&NodeNumber, &(Member, Duration))| (*until, *number);
            // Members have a bound of their own, so former ones are what exceeds it.
            let Some((_, first)) = self.former.iter().map(until).min() else {
                return;
            };
            self.former.remove(&first);
        }
    }

    /// Forgets those that have been gone for long enough, and that others are new. Whether there were any.
    pub(super) fn expire(&mut self, now: Duration) -> bool {
        let before = (self.fresh.len(), self.former.len());
        self.fresh.retain(|_, until| *until > now);
        self.former.retain(|_, (_, until)| *until > now);
        before != (self.fresh.len(), self.former.len())
    }

    /// When one is to be forgotten, or new no more.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let former = self.former.values().map(|(_, until)| until);
        self.fresh.values().chain(former).min().copied()
    }

    /// Whether other nodes have received that a node is there, and it is not gone.
    pub(super) fn is_settled(&self, number: NodeNumber) -> bool {
        let is_there = self.members.contains_key(&number) && !self.fresh.contains_key(&number);
        number == self.me || is_there
    }

    /// Whether a node is gone, and still a peer.
    pub(super) fn is_former(&self, number: NodeNumber) -> bool {
        self.former.contains_key(&number)
    }

    /// Has the key that was received last count for the node of this name.
    pub(super) fn forget_key(&mut self, name: &str) -> bool {
        let mut found = false;
        for member in self.members.values().filter(|member| member.name == name) {
            self.keys.insert(member.number, member.exchange);
            found = true;
        }
        found
    }

    /// Each with the key that counts.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Member, &[u8; 32])> {
        self.with_keys(self.members.values())
    }

    /// Those that are gone and still peers, likewise.
    pub(super) fn former(&self) -> impl Iterator<Item = (&Member, &[u8; 32])> {
        self.with_keys(self.former.values().map(|(member, _)| member))
    }

    fn with_keys<'a>(
        &'a self,
        members: impl Iterator<Item = &'a Member>,
    ) -> impl Iterator<Item = (&'a Member, &'a [u8; 32])> {
        members.filter_map(|member| Some((member, self.keys.get(&member.number)?)))
    }
}

/// Whether a report of a node has more than is kept.
fn is_too_long(member: &Member) -> bool {
    let addresses = member.listeners.len().max(member.reflectors.len());
    addresses > ADDRESSES_MAX || member.name.len() > NAME_MAX
}

impl Follower {
    /// Has the key of a node that was received last count. Returns whether there is such a node.
    pub fn forget_key(&mut self, name: &str, now: Duration) -> bool {
        let found = self.members.forget_key(name);
        if found {
            self.on_news(now);
        }
        found
    }

    /// Whether flows that begin here may use a chain over a node: not while it is so new that other nodes may
    /// not have it as a peer yet, nor when it was removed.
    pub fn is_settled(&self, node: NodeNumber) -> bool {
        self.members.is_settled(node)
    }

    /// The other nodes, each with the key that counts for it: the first that was received.
    pub fn members(&self) -> impl Iterator<Item = (&Member, &[u8; 32])> {
        self.members.all()
    }

    /// Nodes that are gone, each with the key that counts for it. Other nodes may not have received that: flows
    /// that they send by these, or to them, are carried for a while.
    pub fn former_members(&self) -> impl Iterator<Item = (&Member, &[u8; 32])> {
        self.members.former()
    }
}
