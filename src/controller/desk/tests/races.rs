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
    /// Both ends say how long a link is.
    fn link(&mut self, one: NodeNumber, other: NodeNumber, rtt_us: u32) {
        self.heard(one, up(other, rtt_us));
        self.heard(other, up(one, rtt_us));
    }
}

#[test]
fn a_link_that_becomes_worse_while_tables_are_made_is_not_gone_by_as_it_was() {
    let mut office = Office::new(&[1, 2, 3]);
    (1..=3).for_each(|number| office.enter(number, None));
    office.link(1, 2, 50_000);
    office.link(2, 3, 50_000);
    office.plan();
    let mut held = Held::new(1);
    office.follow(&mut held, 1);
    let chain = held.ways(3, 0).to_vec();
    assert_ne!(chain[0], DIRECT);
    // The tables have a link that no way leads over yet; then it is of no use any more.
    office.now += SECOND * 20;
    office.desk.tick(office.now);
    office.link(1, 3, 40_000);
    office.now = office.desk.deadline();
    let adoption = office.tables();
    office.link(1, 3, 400_000);
    office.desk.tabled(adoption);
    assert!(office.work_next());
    if office.desk.stamp() != held.stamp().unwrap() {
        office.follow(&mut held, 1);
    }
    assert_eq!(held.ways(3, 0)[0], chain[0]);
}

#[test]
fn a_node_that_is_gone_is_done_without_soon_though_plans_take_long() {
    for is_revoked in [false, true] {
        let (mut office, mut held) = three_slow();
        office.now += SECOND;
        if is_revoked {
            office.desk.lose(2, office.now);
        } else {
            office.desk.leave(2, office.now);
            office.now += posthaste_control::registry::AWAY;
        }
        office.desk.tick(office.now);
        let gone = office.now;
        assert!(!office.work_next(), "no plan is whole by that");
        assert_eq!(office.now, gone + Duration::from_millis(100));
        office.follow(&mut held[0], 1);
        assert_eq!(held[0].ways(3, 0), [DIRECT]);
    }
}

#[test]
fn a_node_that_does_not_answer_and_links_that_never_rest_keep_no_plan_from_the_others() {
    let (mut office, mut held) = three_slow();
    office.now += SECOND * 20;
    office.link(1, 2, 51_000);
    office.now = office.desk.deadline();
    let adoption = office.tables();
    // Another way each second: there is always something that three has not taken.
    let mut is_tabled = Some(adoption);
    let over = (0..20).any(|second| {
        let (by_two, direct) = [(115_000, 120_000), (50_000, 300_000)][second % 2];
        office.link(2, 3, by_two);
        office.link(1, 3, direct);
        office.now += Duration::from_millis(100);
        let mut is_over = false;
        while office.desk.deadline() <= office.now {
            is_over |= office.work_next();
        }
        for held in &mut held[..2] {
            let (_, rows) = office.told(held.node());
            for rows in rows {
                held.apply(&rows).unwrap();
                office.heard(held.node(), ToController::Holds(rows.stamp));
            }
        }
        office.told(3);
        if second == 2 {
            office.desk.tabled(is_tabled.take().unwrap());
        }
        office.now += Duration::from_millis(900);
        is_over
    });
    assert!(over, "half of a minute, and nothing is written down");
}

#[test]
fn a_node_that_says_again_and_again_that_it_holds_a_newer_plan_is_heeded_once() {
    let (mut office, mut held) = three_slow();
    let newer = |office: &Office| Stamp {
        epoch: office.desk.stamp().epoch + 1,
        version: 7,
    };
    let claimed = newer(&office);
    office.heard(2, ToController::Holds(claimed));
    assert!(office.desk.stamp() > claimed);
    let outrun = office.desk.stamp();
    office.follow(&mut held[0], 1);
    office.told(2);
    for _ in 0..3 {
        let claimed = newer(&office);
        office.heard(2, ToController::Holds(claimed));
        office.enter(2, Some(newer(&office)));
        assert_eq!(office.desk.stamp(), outrun);
        assert_eq!(office.told(1).1, [], "others are not bothered");
        assert_eq!(office.told(2).1, [], "it would refuse them");
    }
    // Another may have such a plan.
    let claimed = newer(&office);
    office.heard(3, ToController::Holds(claimed));
    assert!(office.desk.stamp() > claimed);
}

#[test]
fn nothing_is_kept_of_what_a_node_says_whose_key_is_off_the_list() {
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
    office.desk.lose(2, office.now);
    let before = office.desk.stamp();
    office.heard(2, near.clone());
    office.heard(
        2,
        ToController::Holds(Stamp {
            epoch: 9,
            version: 9,
        }),
    );
    assert_eq!(office.desk.stamp(), before);
    office.enter(2, None);
    office.now += LIST_AFTER;
    office.desk.tick(office.now);
    assert!(office.desk.list().is_empty(), "{:?}", office.desk.list());
    office.heard(2, near);
    office.now += LIST_AFTER;
    office.desk.tick(office.now);
    assert_eq!(office.desk.list().len(), 1);
}
