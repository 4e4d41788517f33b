// SPDX-License-Identifier: Apache-2.0
//! What comes at a bad moment, and nodes that lie.

use posthaste_control::message::Destination;

use super::*;

fn up(to: NodeNumber, rtt_us: u32) -> ToController {
    let state = LinkState::Up {
        rtt_us,
        loss_ppm: None,
        rate: None,
    };
    ToController::Links(vec![Link { to, state }])
}

impl Office {
    /// Both ends report the round trip of a link.
    fn link(&mut self, one: NodeNumber, other: NodeNumber, rtt_us: u32) {
        self.received(one, up(other, rtt_us));
        self.received(other, up(one, rtt_us));
    }
}

// promise: V10
#[test]
fn worse_link_while_planning() {
    let mut office = Office::new(&[1, 2, 3]);
    (1..=3).for_each(|number| office.enter(number, None));
    office.link(1, 2, 50_000);
    office.link(2, 3, 50_000);
    office.plan();
    let mut held = RouteTable::new(1);
    office.follow(&mut held, 1);
    let chain = chains(&held, 3);
    assert_ne!(chain[0], DIRECT);
    // The tables have a link that no way leads over yet; then it is of no use any more.
    office.now += SECOND * 20;
    office.state.tick(office.now);
    office.link(1, 3, 40_000);
    office.now = office.state.deadline();
    let rollout = office.tables();
    office.link(1, 3, 400_000);
    office.state.tabled(rollout);
    assert!(office.work_next());
    if office.state.plan_version() != held.plan_version().unwrap() {
        office.follow(&mut held, 1);
    }
    assert_eq!(chains(&held, 3)[0], chain[0]);
}

// promise: V10
#[test]
fn removed_node_while_planning() {
    for is_revoked in [false, true] {
        let (mut office, mut held) = three_slow();
        office.now += SECOND;
        if is_revoked {
            office.state.lose(2, office.now);
        } else {
            office.state.leave(2, office.now);
            office.now += posthaste_control::registry::AWAY;
        }
        office.state.tick(office.now);
        let removed = office.now;
        assert!(!office.work_next(), "no plan is whole by that");
        assert_eq!(office.now, removed + Duration::from_millis(100));
        office.follow(&mut held[0], 1);
        assert_eq!(chains(&held[0], 3), [DIRECT]);
    }
}

// promise: V10
#[test]
fn silent_node_delays_none() {
    let (mut office, mut held) = three_slow();
    office.now += SECOND * 20;
    office.link(1, 2, 51_000);
    office.now = office.state.deadline();
    let rollout = office.tables();
    // Another way each second: there is always something that three has not taken.
    let mut is_tabled = Some(rollout);
    let over = (0..20).any(|second| {
        let (by_two, direct) = [(115_000, 120_000), (50_000, 300_000)][second % 2];
        office.link(2, 3, by_two);
        office.link(1, 3, direct);
        office.now += Duration::from_millis(100);
        let mut is_over = false;
        while office.state.deadline() <= office.now {
            is_over |= office.work_next();
        }
        for held in &mut held[..2] {
            let (_, update) = office.sent(held.node());
            for update in update {
                held.apply(&update).unwrap();
                office.received(held.node(), ToController::Holds(update.plan_version));
            }
        }
        office.sent(3);
        if second == 2 {
            office.state.tabled(is_tabled.take().unwrap());
        }
        office.now += Duration::from_millis(900);
        is_over
    });
    assert!(over, "half of a minute, and nothing is written down");
}

// promise: O10
#[test]
fn repeated_newer_plan_counts_once() {
    let (mut office, mut held) = three_slow();
    let newer = |office: &Office| PlanVersion {
        epoch: office.state.plan_version().epoch + 1,
        version: 7,
    };
    let claimed = newer(&office);
    office.received(2, ToController::Holds(claimed));
    assert!(office.state.plan_version() > claimed);
    let advance_epoch = office.state.plan_version();
    office.follow(&mut held[0], 1);
    office.sent(2);
    for _ in 0..3 {
        let claimed = newer(&office);
        office.received(2, ToController::Holds(claimed));
        office.enter(2, Some(newer(&office)));
        assert_eq!(office.state.plan_version(), advance_epoch);
        assert_eq!(office.sent(1).1, [], "others are not bothered");
        assert_eq!(office.sent(2).1, [], "it would refuse them");
    }
    // Another may have such a plan.
    let claimed = newer(&office);
    office.received(3, ToController::Holds(claimed));
    assert!(office.state.plan_version() > claimed);
}

// promise: O10
#[test]
fn unlisted_node_leaves_nothing() {
    let (mut office, _) = three_slow();
    let prefix = Prefix {
        address: std::net::Ipv4Addr::new(203, 0, 113, 0)
            .to_ipv6_mapped()
            .octets(),
        bits: 120,
    };
    let near = ToController::Destinations(vec![Destination {
        prefix,
        rtt_us: 1000,
        handshakes: 9,
    }]);
    office.state.lose(2, office.now);
    let before = office.state.plan_version();
    office.received(2, near.clone());
    office.received(
        2,
        ToController::Holds(PlanVersion {
            epoch: 9,
            version: 9,
        }),
    );
    assert_eq!(office.state.plan_version(), before);
    office.enter(2, None);
    office.now += LIST_AFTER;
    office.state.tick(office.now);
    assert!(office.state.list().is_empty(), "{:?}", office.state.list());
    office.received(2, near);
    office.now += LIST_AFTER;
    office.state.tick(office.now);
    assert_eq!(office.state.list().len(), 1);
}
