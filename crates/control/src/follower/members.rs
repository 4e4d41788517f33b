// SPDX-License-Identifier: Apache-2.0
//! The other nodes as the controller tells of them, and which of their keys count.
//!
//! The first key that was told for a node counts until the operator says otherwise. So a controller
//! that was broken into cannot put itself between two nodes that know each other.

use std::collections::BTreeMap;

use crate::message::{Member, NodeNumber};

/// The most nodes there are, this one aside.
pub const MEMBERS_MAX: usize = 1024;
/// Keys are kept of nodes that are gone, too, as long as there is room.
const KEYS_MAX: usize = 4 * MEMBERS_MAX;
/// Addresses of a node.
const ADDRESSES_MAX: usize = 16;

/// Something about a member that was not taken as it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwanted {
    /// The key of the member is not the one that was told first, which still counts.
    #[error("node \"{0}\" is said to have another key")]
    Key(String),
    /// There are too many members, or too much is said of one.
    #[error("more is said of members than is kept")]
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
    keys: BTreeMap<NodeNumber, [u8; 32]>,
}

impl Members {
    pub(super) fn new(me: NodeNumber) -> Self {
        Self {
            me,
            members: BTreeMap::new(),
            keys: BTreeMap::new(),
        }
    }

    /// As they were saved.
    pub(super) fn restore(&mut self, members: Vec<Member>, keys: Vec<(NodeNumber, [u8; 32])>) {
        self.keys = keys.into_iter().take(KEYS_MAX).collect();
        self.take(true, members, &[]);
    }

    /// To be saved.
    pub(super) fn save(&self) -> (Vec<Member>, Vec<(NodeNumber, [u8; 32])>) {
        let keys = self.keys.iter().map(|(number, key)| (*number, *key));
        (self.members.values().cloned().collect(), keys.collect())
    }

    /// Takes what is told. What is not taken as it was told is returned.
    pub(super) fn take(
        &mut self,
        all: bool,
        members: Vec<Member>,
        gone: &[NodeNumber],
    ) -> Vec<Unwanted> {
        if all {
            self.members.clear();
        }
        for number in gone {
            self.members.remove(number);
        }
        let mut unwanted = Vec::new();
        for member in members {
            let Member {
                number,
                listeners,
                reflectors,
                ..
            } = &member;
            let number = *number;
            if number == 0 || number == self.me {
                continue;
            }
            let known = self.keys.get(&number);
            let is_new = known.is_none() && self.keys.len() >= KEYS_MAX
                || !self.members.contains_key(&number) && self.members.len() >= MEMBERS_MAX;
            if is_new || listeners.len().max(reflectors.len()) > ADDRESSES_MAX {
                if !unwanted.contains(&Unwanted::TooMuch) {
                    unwanted.push(Unwanted::TooMuch);
                }
                continue;
            }
            if known.is_some_and(|known| *known != member.exchange) {
                unwanted.push(Unwanted::Key(member.name.clone()));
            }
            self.keys.entry(number).or_insert(member.exchange);
            self.members.insert(number, member);
        }
        unwanted
    }

    /// Has the key that was told last count for the node of this name.
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
        let members = self.members.iter();
        members.filter_map(|(number, member)| Some((member, self.keys.get(number)?)))
    }
}
