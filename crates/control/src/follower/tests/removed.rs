// SPDX-License-Identifier: Apache-2.0
//! Nodes that go, and how long they are known.

use super::*;
use crate::message::Member;

fn numbers_of<'a>(members: impl Iterator<Item = (&'a Member, &'a [u8; 32])>) -> Vec<NodeNumber> {
    members.map(|(member, _)| member.number).collect()
}

fn removed(numbers: &[NodeNumber]) -> ToNode {
    ToNode::Members {
        all: false,
        members: vec![],
        removed: numbers.to_vec(),
    }
}

// promise: S8
#[test]
fn removed_node_known_a_minute() {
    let mut follower = joined();
    follower.on_message(all_members(), S);
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(4))), S);
    orders(&mut follower, S * 2);
    let takes_all = |follower: &Follower| (2..10).all(|node| follower.is_settled(node));
    assert!(takes_all(&follower));
    follower.on_message(removed(&[9]), S * 2);
    assert!(orders(&mut follower, S * 2).contains(&Action::Renew));
    assert!(!takes_all(&follower));
    assert_eq!(numbers_of(follower.former_members()), [9]);
    assert!(!numbers_of(follower.members()).contains(&9));
    // Receiving it again, as a node does that has come back, prolongs nothing.
    follower.on_message(removed(&[9]), S * 40);
    let over = S * 2 + members::FORMER;
    orders(&mut follower, S * 41);
    assert!(follower.deadline() <= Some(over));
    follower.on_message(ToNode::LeaseRenewed(plan_version(4)), over - S);
    assert!(orders(&mut follower, over).contains(&Action::Renew));
    assert!(follower.former_members().next().is_none());
    // One that is back is new: others receive that later, or have received it before.
    let back = ToNode::Members {
        all: false,
        members: vec![member(9, 7)],
        removed: vec![],
    };
    follower.on_message(back.clone(), over);
    orders(&mut follower, over);
    assert!(!takes_all(&follower));
    assert!(orders(&mut follower, over + members::FRESH).contains(&Action::Renew));
    assert!(takes_all(&follower));
    // Nor is it gone when it is reported again that it is there.
    follower.on_message(back, over + S);
    assert!(takes_all(&follower) && follower.former_members().next().is_none());
    // A restart forgets who is gone.
    follower.on_message(removed(&[9]), over + S);
    let saved = (follower.saved([1; 16]), None);
    let again = Follower::new(hello(), Some(saved), 1, S);
    assert!(again.former_members().next().is_none());
    assert!(!numbers_of(again.members()).contains(&9));
}

// promise: S8
#[test]
fn removed_nodes_are_bounded() {
    let mut follower = joined();
    let some = |from: u64, count: u64| ToNode::Members {
        all: true,
        members: (from..from + count)
            .map(|number| member(number, 7))
            .collect(),
        removed: vec![],
    };
    for (second, from) in (1..).zip((2..3000).step_by(700)) {
        follower.on_message(some(from, 700), S * second);
        let (there, former) = (follower.members().count(), follower.former_members());
        let former = numbers_of(former);
        assert_eq!(there, 700);
        assert!(former.len() <= MEMBERS_MAX - there, "{}", former.len());
        // Those that went last are known.
        let last = from.checked_sub(1).filter(|last| *last > 2);
        assert!(last.is_none_or(|last| former.contains(&last)));
    }
}

// promise: S8
#[test]
fn removed_links_not_reported() {
    let mut follower = joined();
    follower.on_message(all_members(), S);
    let dead = |to| Link {
        to,
        state: LinkState::Dead,
    };
    for to in [3, 9] {
        follower.on_link(dead(to));
    }
    follower.on_message(removed(&[9]), S);
    follower.retain_links(|_| true);
    follower.on_link(dead(9));
    let sent = sends(&mut follower, S);
    assert_eq!(sent, [ToController::Links(vec![dead(3)])]);
    assert_eq!(follower.link(9), None);
}
