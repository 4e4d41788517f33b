// SPDX-License-Identifier: Apache-2.0
//! A follower, step by step.

use super::fake::{difference, hello, member, whole};
use super::*;

mod removed;

const S: Duration = Duration::from_secs(1);

fn plan_version(version: u64) -> PlanVersion {
    PlanVersion { epoch: 1, version }
}

fn orders(follower: &mut Follower, now: Duration) -> Vec<Action> {
    std::iter::from_fn(|| follower.poll_action(now)).collect()
}

/// Messages, requests for the time aside.
fn sends(follower: &mut Follower, now: Duration) -> Vec<ToController> {
    let is_time = |message: &ToController| matches!(message, ToController::Time { .. });
    let mut messages = all_sends(follower, now);
    messages.retain(|message| !is_time(message));
    messages
}

fn all_sends(follower: &mut Follower, now: Duration) -> Vec<ToController> {
    let orders = orders(follower, now).into_iter();
    let sends = orders.filter_map(|order| match order {
        Action::Send(message) => Some(*message),
        _ => None,
    });
    sends.collect()
}

fn welcome() -> ToNode {
    ToNode::Welcome(Welcome {
        version: VERSION,
        ttl_s: 60,
        keepalive_s: 5,
    })
}

/// Let in at 0; its first request for the time is not answered.
fn joined() -> Follower {
    let mut follower = Follower::new(hello(), None, 1, Duration::ZERO);
    assert_eq!(orders(&mut follower, Duration::ZERO), [Action::Dial]);
    follower.on_open(Duration::ZERO);
    assert!(matches!(
        sends(&mut follower, Duration::ZERO)[..],
        [ToController::Hello(Hello { holds: None, .. })]
    ));
    follower.on_message(welcome(), Duration::ZERO);
    follower
}

fn closes(follower: &mut Follower, now: Duration) -> Option<String> {
    orders(follower, now)
        .into_iter()
        .find_map(|order| match order {
            Action::Close(why) => Some(why),
            _ => None,
        })
}

#[test]
fn plan_applied_acknowledged_stored() {
    let mut follower = joined();
    orders(&mut follower, Duration::ZERO);
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(4))), S);
    assert_eq!(
        orders(&mut follower, S),
        [
            Action::Renew,
            Action::Save,
            Action::Send(Box::new(ToController::Holds(plan_version(4))))
        ]
    );
    assert_eq!(follower.next_event(), Some(Event::Joined));
    assert_eq!(follower.next_event(), Some(Event::Follows(plan_version(4))));
    assert_eq!(follower.next_event(), None);
    assert_eq!(
        follower.plan().and_then(RouteTable::plan_version),
        Some(plan_version(4))
    );
    follower.on_message(
        ToNode::RouteUpdate(difference(&whole(plan_version(4)), &whole(plan_version(7)))),
        S,
    );
    assert_eq!(
        sends(&mut follower, S),
        [ToController::Holds(plan_version(7))]
    );
    assert_eq!(
        follower.plan().unwrap().whole(),
        Some(whole(plan_version(7)))
    );
}

#[test]
fn older_or_invalid_plan_ignored() {
    let mut follower = joined();
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(4))), S);
    sends(&mut follower, S);
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(3))), S);
    assert_eq!(
        sends(&mut follower, S),
        [ToController::Holds(plan_version(4))]
    );
    follower.on_message(
        ToNode::RouteUpdate(difference(&whole(plan_version(5)), &whole(plan_version(6)))),
        S,
    );
    assert!(matches!(
        &sends(&mut follower, S)[..],
        [ToController::Nack { holds, .. }] if *holds == Some(plan_version(4))
    ));
    let mut forged = whole(plan_version(9));
    forged.checksum ^= 1;
    follower.on_message(ToNode::RouteUpdate(forged), S);
    assert_eq!(
        follower.plan().unwrap().whole(),
        Some(whole(plan_version(4)))
    );
    let counts = follower.counts();
    assert_eq!((counts.plans, counts.older, counts.nacks), (1, 1, 2));
}

#[test]
fn plan_expires_with_ttl() {
    let mut follower = joined();
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(4))), S);
    orders(&mut follower, S);
    follower.on_message(ToNode::LeaseRenewed(plan_version(4)), S * 20);
    follower.on_closed(S * 21);
    orders(&mut follower, S * 79);
    assert!(follower.plan().is_some());
    assert!(follower.deadline() <= Some(S * 80));
    assert!(orders(&mut follower, S * 80).contains(&Action::Renew));
    assert!(follower.plan().is_none());
    assert_eq!(follower.held(S * 80), Some((plan_version(4), Some(S * 60))));
    follower.on_open(S * 81);
    sends(&mut follower, S * 81);
    follower.on_message(welcome(), S * 82);
    // For another plan, which renews nothing.
    follower.on_message(ToNode::LeaseRenewed(plan_version(5)), S * 82);
    assert!(sends(&mut follower, S * 82).contains(&ToController::Holds(plan_version(4))));
    assert!(follower.plan().is_none());
    follower.on_message(ToNode::LeaseRenewed(plan_version(4)), S * 83);
    assert!(orders(&mut follower, S * 83).contains(&Action::Renew));
    assert!(follower.plan().is_some());
    let events: Vec<Event> = std::iter::from_fn(|| follower.next_event()).collect();
    assert!(
        events.contains(&Event::Over(plan_version(4)))
            && events.ends_with(&[Event::Again(plan_version(4))])
    );
}

#[test]
fn restart_keeps_plan_and_keys() {
    let mut follower = joined();
    let members = vec![member(2, 7), member(3, 8)];
    follower.on_message(
        ToNode::Members {
            all: true,
            members,
            removed: vec![],
        },
        S,
    );
    follower.on_message(ToNode::RouteUpdate(whole(plan_version(4))), S * 2);
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
    assert_eq!(
        same_boot.held(S * 50),
        Some((plan_version(4), Some(S * 48)))
    );
    assert!(same_boot.plan().is_some());
    assert_eq!(same_boot.members().count(), 2);
    assert!(start(Some(S * 2), S * 62).plan().is_none());
    // A clock that was set back, or began again.
    assert!(start(Some(S * 2), S).plan().is_none());
    let mut other_boot = start(None, S);
    assert!(other_boot.plan().is_none());
    other_boot.on_open(S);
    let sent = sends(&mut other_boot, S);
    assert!(
        matches!(&sent[..], [ToController::Hello(hello)] if hello.holds == Some(plan_version(4)))
    );
    let mut bytes = saved.to_bytes();
    bytes.push(0);
    assert!(Saved::from_bytes(&bytes).is_err());
    assert!(Saved::from_bytes(&[]).is_err());
}

#[test]
fn first_key_is_pinned() {
    let mut follower = joined();
    let sent = |members| ToNode::Members {
        all: false,
        members,
        removed: vec![],
    };
    follower.on_message(sent(vec![member(2, 7), member(1, 9), member(0, 9)]), S);
    follower.on_message(sent(vec![member(2, 8)]), S);
    let keys =
        |follower: &Follower| -> Vec<u8> { follower.members().map(|(_, key)| key[0]).collect() };
    assert_eq!(keys(&follower), [7]);
    let removed = ToNode::Members {
        all: false,
        members: vec![],
        removed: vec![2],
    };
    follower.on_message(removed, S);
    assert!(keys(&follower).is_empty() && !follower.forget_key("node-2", S));
    follower.on_message(sent(vec![member(2, 8)]), S);
    assert_eq!((keys(&follower), follower.counts().keys), (vec![7], 2));
    assert!(follower.forget_key("node-2", S));
    assert_eq!(keys(&follower), [8]);
}

#[test]
fn links_reported_on_change() {
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
fn nonsense_ends_stream() {
    let late = ToNode::LeaseRenewed(plan_version(1));
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
    for (version, ttl_s, keepalive_s) in [
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
                ttl_s,
                keepalive_s,
            }),
            S,
        );
        assert!(!follower.is_joined());
        assert!(
            closes(&mut follower, S).is_some(),
            "{version} {ttl_s} {keepalive_s}"
        );
    }
    let mut go_away = joined();
    go_away.on_message(ToNode::GoAway("revoked".into()), S);
    assert_eq!(closes(&mut go_away, S).as_deref(), Some("revoked"));
}

#[test]
fn silence_and_keepalive() {
    let mut follower = joined();
    let requests = |follower: &mut Follower, now| all_sends(follower, now).len();
    assert_eq!(requests(&mut follower, Duration::ZERO), 1, "the time");
    assert_eq!(requests(&mut follower, S * 4), 0);
    assert_eq!(requests(&mut follower, S * 5), 1, "again, as keepalive");
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
fn reconnects_back_off() {
    let waits = |seed| {
        let mut follower = Follower::new(hello(), None, seed, Duration::ZERO);
        let mut now = Duration::ZERO;
        let waits = std::iter::from_fn(|| {
            assert!(orders(&mut follower, now).contains(&Action::Dial));
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
fn all_members() -> ToNode {
    ToNode::Members {
        all: true,
        members: (2..10).map(|number| member(number, 7)).collect(),
        removed: vec![],
    }
}

// promise: V11
#[test]
fn new_nodes_settle_first() {
    let mut follower = joined();
    follower.on_message(all_members(), S);
    orders(&mut follower, S);
    assert!(follower.is_settled(1) && !follower.is_settled(2));
    let soon = S + members::FRESH;
    assert_eq!(follower.deadline().map(|at| at <= soon), Some(true));
    assert_eq!(orders(&mut follower, soon)[0], Action::Renew);
    assert!((2..10).all(|node| follower.is_settled(node)) && !follower.is_settled(10));
}

// promise: S14
#[test]
fn clock_requests_repeat() {
    let mut follower = joined();
    follower.on_own_clock(Duration::from_secs(700), Duration::ZERO);
    let requested = all_sends(&mut follower, Duration::ZERO);
    let [
        ToController::Time {
            mark,
            ahead_us: None,
        },
    ] = requested[..]
    else {
        panic!("{requested:?}");
    };
    let unix_us = 1_000_000_000;
    follower.on_message(ToNode::Time { mark, unix_us }, S * 2);
    let sent = orders(&mut follower, S * 2);
    let set = sent.iter().find_map(|order| match order {
        Action::SetTime(sent) => Some(*sent),
        _ => None,
    });
    let set = set.unwrap_or_else(|| panic!("{sent:?}"));
    assert_eq!((set.time(S * 2), set.error(S * 2)), (S * 1_001, S));
    assert!(sent.contains(&Action::Save) && follower.time() == Some(set));
    let again = sent.iter().any(|order| match order {
        Action::Send(message) => matches!(**message, ToController::Time { ahead_us, .. } if ahead_us == Some(-299_000_000)),
        _ => false,
    });
    assert!(again, "{sent:?}");
    // Every five seconds, as keepalive.
    follower.on_message(ToNode::LeaseRenewed(plan_version(1)), S * 7);
    assert!(matches!(
        all_sends(&mut follower, S * 7)[..],
        [ToController::Time { .. }]
    ));
    let saved = follower.saved([1; 16]);
    let saved = Saved::from_bytes(&saved.to_bytes()).unwrap();
    let later = |saved: Saved| Follower::new(hello(), Some((saved, None)), 1, S * 8).time();
    assert_eq!(later(saved.clone().since([1; 16])), Some(set));
    assert_eq!(later(saved.since([2; 16])), None);
}
