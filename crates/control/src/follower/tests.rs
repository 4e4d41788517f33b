// SPDX-License-Identifier: Apache-2.0
//! A follower, step by step.

use super::fake::{difference, hello, member, whole};
use super::*;

mod gone;

const S: Duration = Duration::from_secs(1);

fn stamp(version: u64) -> Stamp {
    Stamp { epoch: 1, version }
}

fn orders(follower: &mut Follower, now: Duration) -> Vec<Order> {
    std::iter::from_fn(|| follower.next_order(now)).collect()
}

fn sends(follower: &mut Follower, now: Duration) -> Vec<ToController> {
    let orders = orders(follower, now).into_iter();
    let sends = orders.filter_map(|order| match order {
        Order::Send(message) => Some(*message),
        _ => None,
    });
    sends.collect()
}

fn welcome() -> ToNode {
    welcome_of(1)
}

fn welcome_of(version: u16) -> ToNode {
    ToNode::Welcome(Welcome {
        version,
        life_s: 60,
        alive_s: 5,
    })
}

/// Let in, at 0, by a controller that cannot be asked for the time.
fn joined() -> Follower {
    joined_by(1)
}

fn joined_by(version: u16) -> Follower {
    let mut follower = Follower::new(hello(), None, 1, Duration::ZERO);
    assert_eq!(orders(&mut follower, Duration::ZERO), [Order::Dial]);
    follower.on_open(Duration::ZERO);
    assert!(matches!(
        sends(&mut follower, Duration::ZERO)[..],
        [ToController::Hello(Hello { holds: None, .. })]
    ));
    follower.on_message(welcome_of(version), Duration::ZERO);
    follower
}

fn closes(follower: &mut Follower, now: Duration) -> Option<String> {
    orders(follower, now)
        .into_iter()
        .find_map(|order| match order {
            Order::Close(why) => Some(why),
            _ => None,
        })
}

#[test]
fn a_plan_is_followed_acknowledged_and_kept() {
    let mut follower = joined();
    follower.on_message(ToNode::Rows(whole(stamp(4))), S);
    assert_eq!(
        orders(&mut follower, S),
        [
            Order::Renew,
            Order::Save,
            Order::Send(Box::new(ToController::Holds(stamp(4))))
        ]
    );
    assert_eq!(follower.next_event(), Some(Event::Joined));
    assert_eq!(follower.next_event(), Some(Event::Follows(stamp(4))));
    assert_eq!(follower.next_event(), None);
    assert_eq!(follower.plan().and_then(Held::stamp), Some(stamp(4)));
    follower.on_message(
        ToNode::Rows(difference(&whole(stamp(4)), &whole(stamp(7)))),
        S,
    );
    assert_eq!(sends(&mut follower, S), [ToController::Holds(stamp(7))]);
    assert_eq!(follower.plan().unwrap().whole(), Some(whole(stamp(7))));
}

#[test]
fn an_older_plan_and_one_that_does_not_fit_change_nothing() {
    let mut follower = joined();
    follower.on_message(ToNode::Rows(whole(stamp(4))), S);
    sends(&mut follower, S);
    follower.on_message(ToNode::Rows(whole(stamp(3))), S);
    assert_eq!(sends(&mut follower, S), [ToController::Holds(stamp(4))]);
    follower.on_message(
        ToNode::Rows(difference(&whole(stamp(5)), &whole(stamp(6)))),
        S,
    );
    assert!(matches!(
        &sends(&mut follower, S)[..],
        [ToController::Misfit { holds, .. }] if *holds == Some(stamp(4))
    ));
    let mut forged = whole(stamp(9));
    forged.checksum ^= 1;
    follower.on_message(ToNode::Rows(forged), S);
    assert_eq!(follower.plan().unwrap().whole(), Some(whole(stamp(4))));
    let counts = follower.counts();
    assert_eq!((counts.plans, counts.older, counts.misfits), (1, 1, 2));
}

#[test]
fn without_word_of_the_controller_a_plan_lives_its_life_and_no_longer() {
    let mut follower = joined();
    follower.on_message(ToNode::Rows(whole(stamp(4))), S);
    orders(&mut follower, S);
    follower.on_message(ToNode::Stands(stamp(4)), S * 20);
    follower.on_closed(S * 21);
    orders(&mut follower, S * 79);
    assert!(follower.plan().is_some());
    assert!(follower.deadline() <= Some(S * 80));
    assert!(orders(&mut follower, S * 80).contains(&Order::Renew));
    assert!(follower.plan().is_none());
    assert_eq!(follower.held(S * 80), Some((stamp(4), Some(S * 60))));
    follower.on_open(S * 81);
    sends(&mut follower, S * 81);
    follower.on_message(welcome(), S * 82);
    // Of another plan that says nothing.
    follower.on_message(ToNode::Stands(stamp(5)), S * 82);
    assert!(sends(&mut follower, S * 82).contains(&ToController::Holds(stamp(4))));
    assert!(follower.plan().is_none());
    follower.on_message(ToNode::Stands(stamp(4)), S * 83);
    assert!(orders(&mut follower, S * 83).contains(&Order::Renew));
    assert!(follower.plan().is_some());
    let events: Vec<Event> = std::iter::from_fn(|| follower.next_event()).collect();
    assert!(events.contains(&Event::Over(stamp(4))) && events.ends_with(&[Event::Again(stamp(4))]));
}

#[test]
fn a_restart_keeps_the_plan_its_age_and_the_keys() {
    let mut follower = joined();
    let members = vec![member(2, 7), member(3, 8)];
    follower.on_message(
        ToNode::Members {
            all: true,
            members,
            gone: vec![],
        },
        S,
    );
    follower.on_message(ToNode::Rows(whole(stamp(4))), S * 2);
    let saved = follower.saved([5; 16]);
    let saved = Saved::from_bytes(&saved.to_bytes()).unwrap();
    assert_eq!(saved.stood([5; 16]), Some(S * 2));
    assert_eq!(saved.stood([6; 16]), None);
    let start = |stood, now| {
        let mut follower = Follower::new(hello(), Some((saved.clone(), stood)), 1, now);
        orders(&mut follower, now);
        follower
    };
    let same_boot = start(Some(S * 2), S * 50);
    assert_eq!(same_boot.held(S * 50), Some((stamp(4), Some(S * 48))));
    assert!(same_boot.plan().is_some());
    assert_eq!(same_boot.members().count(), 2);
    assert!(start(Some(S * 2), S * 62).plan().is_none());
    // A clock that was set back, or began again.
    assert!(start(Some(S * 2), S).plan().is_none());
    let mut other_boot = start(None, S);
    assert!(other_boot.plan().is_none());
    other_boot.on_open(S);
    let sent = sends(&mut other_boot, S);
    assert!(matches!(&sent[..], [ToController::Hello(hello)] if hello.holds == Some(stamp(4))));
    let mut bytes = saved.to_bytes();
    bytes.push(0);
    assert!(Saved::from_bytes(&bytes).is_err());
    assert!(Saved::from_bytes(&[]).is_err());
}

#[test]
fn the_first_key_counts_until_it_is_forgotten() {
    let mut follower = joined();
    let told = |members| ToNode::Members {
        all: false,
        members,
        gone: vec![],
    };
    follower.on_message(told(vec![member(2, 7), member(1, 9), member(0, 9)]), S);
    follower.on_message(told(vec![member(2, 8)]), S);
    let keys =
        |follower: &Follower| -> Vec<u8> { follower.members().map(|(_, key)| key[0]).collect() };
    assert_eq!(keys(&follower), [7]);
    let gone = ToNode::Members {
        all: false,
        members: vec![],
        gone: vec![2],
    };
    follower.on_message(gone, S);
    assert!(keys(&follower).is_empty() && !follower.forget_key("node-2", S));
    follower.on_message(told(vec![member(2, 8)]), S);
    assert_eq!((keys(&follower), follower.counts().keys), (vec![7], 2));
    assert!(follower.forget_key("node-2", S));
    assert_eq!(keys(&follower), [8]);
}

#[test]
fn links_are_told_when_they_are_news_and_all_of_them_after_a_welcome() {
    let mut follower = joined();
    let link = |to, state| Link { to, state };
    follower.on_link(link(2, LinkState::Dead));
    follower.on_link(link(3, LinkState::Unmeasured));
    follower.on_link(link(2, LinkState::Unmeasured));
    let both = vec![
        link(2, LinkState::Unmeasured),
        link(3, LinkState::Unmeasured),
    ];
    assert_eq!(sends(&mut follower, S), [ToController::Links(both.clone())]);
    follower.on_link(link(3, LinkState::Dead));
    assert_eq!(
        sends(&mut follower, S),
        [ToController::Links(vec![link(3, LinkState::Dead)])]
    );
    follower.retain_links(|to| to == 2);
    follower.on_closed(S);
    follower.on_open(S * 2);
    assert!(matches!(
        sends(&mut follower, S * 2)[..],
        [ToController::Hello(_)]
    ));
    follower.on_message(welcome(), S * 2);
    assert_eq!(
        sends(&mut follower, S * 2),
        [ToController::Links(both[..1].to_vec())]
    );
}

#[test]
fn what_makes_no_sense_ends_the_stream() {
    let late = ToNode::Stands(stamp(1));
    let mut early = Follower::new(hello(), None, 1, Duration::ZERO);
    orders(&mut early, Duration::ZERO);
    early.on_open(Duration::ZERO);
    early.on_message(late, Duration::ZERO);
    assert!(
        closes(&mut early, Duration::ZERO)
            .unwrap()
            .contains("out of turn")
    );
    let mut twice = joined();
    twice.on_message(welcome(), S);
    assert!(closes(&mut twice, S).unwrap().contains("out of turn"));
    for (version, life_s, alive_s) in [
        (0, 60, 5),
        (VERSION + 1, 60, 5),
        (1, 0, 5),
        (1, 60, 0),
        (1, u32::MAX, 5),
    ] {
        let mut follower = Follower::new(hello(), None, 1, Duration::ZERO);
        orders(&mut follower, Duration::ZERO);
        follower.on_open(Duration::ZERO);
        follower.on_message(
            ToNode::Welcome(Welcome {
                version,
                life_s,
                alive_s,
            }),
            S,
        );
        assert!(!follower.is_joined());
        assert!(
            closes(&mut follower, S).is_some(),
            "{version} {life_s} {alive_s}"
        );
    }
    let mut farewell = joined();
    farewell.on_message(ToNode::Farewell("revoked".into()), S);
    assert_eq!(closes(&mut farewell, S).as_deref(), Some("revoked"));
}

#[test]
fn a_silent_controller_is_gone_and_a_quiet_node_says_that_it_is_there() {
    let mut follower = joined();
    assert!(sends(&mut follower, S * 4).is_empty());
    assert_eq!(sends(&mut follower, S * 5), [ToController::Alive]);
    follower.on_message(ToNode::Measure(vec![]), S * 6);
    assert_eq!(closes(&mut follower, S * 20), None);
    assert!(closes(&mut follower, S * 21).is_some());
    let mut never = Follower::new(hello(), None, 1, Duration::ZERO);
    orders(&mut never, Duration::ZERO);
    never.on_open(Duration::ZERO);
    orders(&mut never, Duration::ZERO);
    assert_eq!(closes(&mut never, S * 9), None);
    assert!(closes(&mut never, S * 10).is_some());
}

#[test]
fn streams_are_tried_again_later_and_later_and_not_by_all_at_once() {
    let waits = |seed| {
        let mut follower = Follower::new(hello(), None, seed, Duration::ZERO);
        let mut now = Duration::ZERO;
        let waits = std::iter::from_fn(|| {
            assert!(orders(&mut follower, now).contains(&Order::Dial));
            follower.on_closed(now);
            let next = follower.deadline().unwrap();
            let wait = next - std::mem::replace(&mut now, next);
            Some(wait)
        });
        waits.take(10).collect::<Vec<_>>()
    };
    let (one, other) = (waits(1), waits(2));
    assert_ne!(one, other);
    assert!(one[0] >= S / 2 && one[0] <= S, "{one:?}");
    assert!(one[9] >= S * 15 && one[9] <= S * 30, "{one:?}");
}

/// All nodes that plans may have in them.
fn everybody() -> ToNode {
    ToNode::Members {
        all: true,
        members: (2..10).map(|number| member(number, 7)).collect(),
        gone: vec![],
    }
}

#[test]
fn chains_of_a_plan_that_was_replaced_are_known_for_a_while() {
    let mut follower = joined();
    let numbers = |follower: &Follower| {
        let mut numbers: Vec<_> = follower.chains().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    };
    follower.on_message(everybody(), S);
    follower.on_message(ToNode::Rows(whole(stamp(4))), S);
    orders(&mut follower, S);
    let before = numbers(&follower);
    let takes = |follower: &Follower, number: &ChainNumber| {
        let mut chains = follower.chains();
        chains.any(|(known, nodes)| known == *number && follower.is_to_be_taken(known, nodes))
    };
    assert!(!before.is_empty() && !before.iter().any(|number| takes(&follower, number)));
    let soon = S + labels::FRESH;
    assert_eq!(follower.deadline().map(|at| at <= soon), Some(true));
    assert_eq!(orders(&mut follower, soon)[0], Order::Renew);
    assert!(before.iter().all(|number| takes(&follower, number)));
    // Another store, and so other numbers.
    let mut other = whole(Stamp {
        epoch: 2,
        version: 1,
    });
    for chain in &mut other.chains {
        chain.number += 5000;
    }
    other.ways.clear();
    other.checksum = crate::rows::checksum_of(&other);
    let new: Vec<_> = other.chains.iter().map(|chain| chain.number).collect();
    follower.on_message(ToNode::Rows(other), S * 2);
    orders(&mut follower, S * 2);
    assert_eq!(numbers(&follower), [before, new.clone()].concat());
    let over = S * 2 + labels::FORMER;
    orders(&mut follower, over);
    assert_eq!(numbers(&follower), new);
}

#[test]
fn the_time_is_asked_for_again_and_again_and_kept_until_the_host_starts_again() {
    let mut follower = joined_by(VERSION);
    follower.on_own_clock(Duration::from_secs(700), Duration::ZERO);
    let asked = sends(&mut follower, Duration::ZERO);
    let [
        ToController::Time {
            mark,
            ahead_us: None,
        },
    ] = asked[..]
    else {
        panic!("{asked:?}");
    };
    let unix_us = 1_000_000_000;
    follower.on_message(ToNode::Time { mark, unix_us }, S * 2);
    let told = orders(&mut follower, S * 2);
    let set = told.iter().find_map(|order| match order {
        Order::SetTime(told) => Some(*told),
        _ => None,
    });
    let set = set.unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!((set.time(S * 2), set.error(S * 2)), (S * 1_001, S));
    assert!(told.contains(&Order::Save) && follower.time() == Some(set));
    let again = told.iter().any(|order| match order {
        Order::Send(message) => matches!(**message, ToController::Time { ahead_us, .. } if ahead_us == Some(-299_000_000)),
        _ => false,
    });
    assert!(again, "{told:?}");
    // Every five seconds, in place of a word that nothing is new.
    follower.on_message(ToNode::Stands(stamp(1)), S * 7);
    assert!(matches!(
        sends(&mut follower, S * 7)[..],
        [ToController::Time { .. }]
    ));
    let saved = follower.saved([1; 16]);
    let saved = Saved::from_bytes(&saved.to_bytes()).unwrap();
    let later = |saved: Saved| Follower::new(hello(), Some((saved, None)), 1, S * 8).time();
    assert_eq!(later(saved.clone().since([1; 16])), Some(set));
    assert_eq!(later(saved.since([2; 16])), None);
}

#[test]
fn a_controller_of_the_first_version_is_not_asked_for_the_time() {
    let mut follower = joined();
    assert!(sends(&mut follower, Duration::ZERO).is_empty());
    assert_eq!(sends(&mut follower, S * 5), [ToController::Alive]);
}
