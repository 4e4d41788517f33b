// SPDX-License-Identifier: Apache-2.0
//! Which nodes are there, as other nodes receive it: each the difference to what it was sent before. Pure.

use std::collections::BTreeMap;

use posthaste_control::message::{Member, NodeNumber, ToNode};

/// All members, and since when they are what they are.
#[derive(Debug, Default)]
pub(super) struct Membership {
    version: u64,
    members: BTreeMap<NodeNumber, (u64, Member)>,
    /// Those that went. One for each number of the configuration at most, over its reloads.
    removed: BTreeMap<NodeNumber, u64>,
}

impl Membership {
    /// Grows with each change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A node is there. Returns whether that is news.
    pub(super) fn set(&mut self, member: Member) -> bool {
        let number = member.number;
        if self
            .members
            .get(&number)
            .is_some_and(|(_, known)| *known == member)
        {
            return false;
        }
        self.version += 1;
        // It is back: nodes must not receive afterwards that it went.
        self.removed.remove(&number);
        self.members.insert(number, (self.version, member));
        true
    }

    /// A node is not to be dealt with any more, whether or not it was there since the controller started.
    pub(super) fn remove(&mut self, number: NodeNumber) {
        if self.members.remove(&number).is_some() || !self.removed.contains_key(&number) {
            self.version += 1;
            self.removed.insert(number, self.version);
        }
    }

    /// All that are there, ascending.
    pub(super) fn numbers(&self) -> impl Iterator<Item = NodeNumber> + Clone {
        self.members.keys().copied()
    }

    /// What `node` is to be sent next, which was sent all changes up to version `sent`, or nothing yet.
    /// `is_all`: those that are here are all that there are. A node is never sent its own entry.
    pub(super) fn since(
        &self,
        node: NodeNumber,
        sent: Option<u64>,
        is_all: bool,
    ) -> Option<ToNode> {
        if sent == Some(self.version) {
            return None;
        }
        // The first change has version 1.
        let after = sent.unwrap_or(0);
        let members = self.members.values();
        let members = members.filter(|(since, member)| *since > after && member.number != node);
        let removed = self.removed.iter().filter(|(_, since)| **since > after);
        let all = sent.is_none() && is_all;
        Some(ToNode::Members {
            all,
            members: members.map(|(_, member)| member.clone()).collect(),
            // Nodes drop whatever a whole list does not name.
            removed: match all {
                true => Vec::new(),
                false => removed.map(|(number, _)| *number).collect(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: NodeNumber, name: &str) -> Member {
        Member {
            number,
            name: name.into(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
        }
    }

    #[test]
    fn differences_make_the_whole() {
        let mut membership = Membership::default();
        let mut known: BTreeMap<NodeNumber, Member> = BTreeMap::new();
        let mut sent = None;
        let steps: [(NodeNumber, &str); 9] = [
            (1, "a"),
            (2, "b"),
            (2, "b"),
            (3, "c"),
            (2, ""),
            (2, "b2"),
            (3, ""),
            (9, "me"),
            (3, ""),
        ];
        for (number, name) in steps {
            match name {
                "" => membership.remove(number),
                name => drop(membership.set(member(number, name))),
            }
            let Some(ToNode::Members {
                all,
                members,
                removed,
            }) = membership.since(9, sent, true)
            else {
                assert_eq!(sent, Some(membership.version()));
                continue;
            };
            assert_eq!(all, sent.is_none());
            for number in removed {
                assert!(known.remove(&number).is_some(), "{number}");
            }
            known.extend(members.into_iter().map(|member| (member.number, member)));
            sent = Some(membership.version());
        }
        let names: Vec<&str> = known.values().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["a", "b2"]);
        let Some(ToNode::Members {
            all,
            members,
            removed,
        }) = membership.since(1, None, true)
        else {
            panic!("a node that was sent nothing is sent all");
        };
        assert!(all && removed.is_empty());
        assert_eq!(members.len(), 2, "but not of itself");
    }
}
