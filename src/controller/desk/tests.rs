// SPDX-License-Identifier: Apache-2.0
//! Nodes at the desk, one step after the other.

use posthaste_control::book::{Saved, Settings};
use posthaste_control::message::{Link, LinkState, Rows};
use posthaste_control::rows::Held;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Since 1970.
const TIME: Duration = Duration::from_millis(1_700_000_000_250);

struct Office {
    desk: Desk,
    now: Duration,
}

impl Office {
    fn new(nodes: &[NodeNumber]) -> Self {
        let terms = Terms {
            life: SECOND * 900,
            warm: false,
            alive: SECOND * 10,
        };
        let book = Book::new(Settings::default(), &Saved::default(), Duration::ZERO);
        let intervals = (SECOND * 10, SECOND);
        let mut desk = Desk::new(terms, book, intervals, Duration::ZERO);
        let listed = nodes.iter().map(|node| {
            let name = format!("n{node}");
            (*node, Listed { name, cost_us: 0 })
        });
        desk.configure(listed.collect(), BTreeMap::new(), intervals, Duration::ZERO);
        Self {
            desk,
            now: Duration::ZERO,
        }
    }

    fn enter(&mut self, number: NodeNumber, holds: Option<Stamp>) {
        let hello = Hello {
            version: VERSION,
            number,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds,
        };
        self.desk.enter(hello, self.now).unwrap();
    }

    fn heard(&mut self, number: NodeNumber, message: ToController) {
        self.desk.heard(number, message, self.now).unwrap();
    }

    fn links(&mut self, number: NodeNumber, links: &[(NodeNumber, u32)]) {
        let links = links.iter().map(|&(to, rtt_us)| {
            let state = LinkState::Up {
                rtt_us,
                loss_ppm: None,
                rate: None,
            };
            Link { to, state }
        });
        self.heard(number, ToController::Links(links.collect()));
    }

    /// Lets time pass until a plan is made.
    fn plan(&mut self) {
        loop {
            self.now = self.now.max(self.desk.deadline());
            self.desk.tick(self.now);
            if let Some(mut work) = self.desk.work(self.now) {
                work.book.plan(&work.network, self.now);
                return self.desk.planned(work.book, self.now);
            }
        }
    }

    /// All that is due to a node, and the rows among it.
    fn told(&mut self, number: NodeNumber) -> (Vec<ToNode>, Vec<Rows>) {
        let mut others = Vec::new();
        let mut rows = Vec::new();
        while let Some(due) = self.desk.due(number, TIME) {
            match due {
                ToNode::Rows(due) => rows.push(due),
                due => others.push(due),
            }
        }
        (others, rows)
    }

    /// A node takes the rows that are due to it, which are one message, and says so.
    fn follow(&mut self, held: &mut Held, number: NodeNumber) -> Rows {
        let (_, mut rows) = self.told(number);
        assert_eq!(rows.len(), 1, "{rows:?}");
        let rows = rows.remove(0);
        held.apply(&rows).unwrap();
        self.heard(number, ToController::Holds(rows.stamp));
        rows
    }
}

fn three() -> Office {
    let mut office = Office::new(&[1, 2, 3]);
    (1..=3).for_each(|number| office.enter(number, None));
    office.links(1, &[(2, 50_000), (3, 200_000)]);
    office.links(2, &[(1, 50_000), (3, 50_000)]);
    office.links(3, &[(1, 200_000), (2, 50_000)]);
    office
}

#[test]
fn a_node_is_told_all_once_and_then_what_changes() {
    let mut office = three();
    let (first, rows) = office.told(1);
    assert!(rows.is_empty() && first.len() == 1, "{first:?}");
    assert!(matches!(&first[0], ToNode::Members { all: false, members, .. } if members.len() == 2));
    assert!(matches!(
        office.desk.idle(1),
        ToNode::Members { all: false, .. }
    ));
    office.plan();
    let mut held = Held::new(1);
    let (then, rows) = office.told(1);
    let is_list = |told: &ToNode| matches!(told, ToNode::Egresses(_));
    assert_eq!(
        then.iter().filter(|told| is_list(told)).count(),
        1,
        "{then:?}"
    );
    let whole = rows[0].clone();
    held.apply(&whole).unwrap();
    office.heard(1, ToController::Holds(whole.stamp));
    assert_eq!(whole.base, None);
    assert_eq!(office.desk.idle(1), ToNode::Stands(whole.stamp));
    assert_eq!(office.told(1).0, [ToNode::Stands(whole.stamp)]);
    assert_eq!(office.told(1).0, []);
    office.links(2, &[(3, 500_000)]);
    office.links(3, &[(2, 500_000)]);
    office.plan();
    let changes = office.follow(&mut held, 1);
    assert_eq!(changes.base, Some(whole.stamp));
}

#[test]
fn what_is_not_answered_is_waited_for_and_only_the_newest_is_sent() {
    let mut office = three();
    office.plan();
    let (_, rows) = office.told(1);
    let mut held = Held::new(1);
    held.apply(&rows[0]).unwrap();
    for rtt_us in [500_000, 600_000] {
        office.links(2, &[(3, rtt_us)]);
        office.links(3, &[(2, rtt_us)]);
        office.plan();
        assert_eq!(office.told(1).1, [], "{rtt_us}");
    }
    office.heard(1, ToController::Holds(rows[0].stamp));
    let newest = office.follow(&mut held, 1);
    assert_eq!(
        (newest.base, newest.stamp),
        (Some(rows[0].stamp), office.desk.stamp())
    );
}

#[test]
fn rows_that_do_not_fit_are_sent_whole_but_not_for_ever() {
    let mut office = three();
    office.plan();
    let mut held = Held::new(1);
    let first = office.follow(&mut held, 1);
    let misfit = |office: &mut Office| {
        let why = "a test".into();
        let holds = Some(first.stamp);
        office.heard(1, ToController::Misfit { holds, why });
        office.told(1).1
    };
    for _ in 0..MISFITS_MAX {
        let rows = misfit(&mut office);
        assert!(rows.len() == 1 && rows[0].base.is_none(), "{rows:?}");
    }
    assert_eq!(misfit(&mut office), []);
    office.plan();
    assert_eq!(office.told(1).1.len(), 1, "the next plan is another chance");
}

#[test]
fn a_node_that_holds_a_newer_plan_is_outrun_also_while_a_plan_is_made() {
    let mut office = three();
    office.now = office.desk.deadline();
    let mut work = office.desk.work(office.now).unwrap();
    let newer = Stamp {
        epoch: 4,
        version: 700,
    };
    office.enter(1, Some(newer));
    assert!(office.desk.stamp() < newer);
    assert_eq!(office.told(1).1, [], "there is no book to look into");
    work.book.plan(&work.network, office.now);
    office.desk.planned(work.book, office.now);
    assert!(office.desk.stamp() > newer);
    office.links(1, &[(2, 50_000), (3, 200_000)]);
    let (_, rows) = office.told(1);
    assert!(rows[0].stamp > newer && rows[0].base.is_none(), "{rows:?}");
}

#[test]
fn a_node_that_went_is_planned_without_and_told_of_when_no_plan_of_its_stands() {
    let mut office = three();
    office.plan();
    office.told(1);
    office.desk.leave(2, office.now);
    let before = office.now;
    office.plan();
    assert!(office.now >= before + posthaste_control::registry::AWAY);
    let gone = |told: &ToNode| matches!(told, ToNode::Members { gone, .. } if *gone == [2]);
    let (others, rows) = office.told(1);
    assert!(!others.iter().any(gone) && rows.is_empty(), "{others:?}");
    assert_eq!(office.desk.due(2, TIME), None);
    let went = office.now;
    office.now += SECOND * 899;
    assert!(!office.desk.tick(office.now) || !office.told(1).0.iter().any(gone));
    office.now = went + SECOND * 900;
    assert!(office.desk.tick(office.now));
    assert!(office.told(1).0.iter().any(gone));
    // One whose key was taken off the list is told of at once.
    office.desk.lose(3, office.now);
    let gone = |told: &ToNode| matches!(told, ToNode::Members { gone, .. } if *gone == [3]);
    assert!(office.told(1).0.iter().any(gone));
}

#[test]
fn that_members_are_all_is_said_when_a_life_has_passed_since_the_start() {
    let mut office = three();
    let all = |told: &ToNode| matches!(told, ToNode::Members { all: true, members, .. } if members.len() == 2);
    assert!(!office.told(1).0.iter().any(all), "others may come yet");
    office.now = SECOND * 900;
    assert!(office.desk.tick(office.now));
    assert!(office.told(1).0.iter().any(all));
    assert!(!office.desk.tick(office.now));
    assert!(!office.told(1).0.iter().any(all), "once");
}

#[test]
fn a_link_in_use_that_becomes_much_worse_is_planned_with_soon_though_plans_take_long() {
    let mut office = three();
    office.now = office.desk.deadline();
    let mut work = office.desk.work(office.now).unwrap();
    work.book.plan(&work.network, office.now);
    office.desk.planned(work.book, office.now + SECOND);
    let last = office.now;
    office.now += SECOND * 5;
    office.desk.tick(office.now);
    // Neither by much, nor in use.
    office.links(2, &[(3, 60_000)]);
    office.links(3, &[(2, 60_000)]);
    assert_eq!(office.desk.deadline(), last + SECOND * 10);
    office.links(2, &[(3, 90_000)]);
    assert_eq!(office.desk.deadline(), last + SECOND * 10, "of one's own");
    office.links(3, &[(2, 90_000)]);
    let soon = office.now + Duration::from_millis(100);
    assert_eq!(office.desk.deadline(), soon);
}

#[test]
fn links_of_chains_are_measured_more_often_and_many_less_often() {
    let mut office = three();
    office.plan();
    let (others, _) = office.told(1);
    let measure = others.iter().find_map(|told| match told {
        ToNode::Measure(intervals) => Some(intervals.clone()),
        _ => None,
    });
    let every: Vec<(NodeNumber, u32)> = measure
        .unwrap()
        .iter()
        .map(|interval| (interval.to, interval.every_ms))
        .collect();
    // The chain is by 2; the hop to 3 is fallen back on.
    assert_eq!(every, [(2, 1000), (3, 10_000)]);
    let numbers: Vec<NodeNumber> = (1..=250).collect();
    let mut many = Office::new(&numbers);
    numbers.iter().for_each(|number| many.enter(*number, None));
    many.plan();
    let (others, _) = many.told(1);
    let slow = others
        .iter()
        .any(|told| matches!(told, ToNode::Measure(intervals) if intervals[0].every_ms == 30_000));
    assert!(slow, "{others:?}");
}

#[test]
fn who_asks_for_the_time_is_told_before_all_else() {
    let mut office = three();
    let ask = |mark, ahead_us| ToController::Time { mark, ahead_us };
    office.heard(2, ask(7, None));
    office.heard(2, ask(8, Some(-90_000_000)));
    let unix_us = 1_700_000_000_250_000;
    let told = office.desk.due(2, TIME);
    assert_eq!(told, Some(ToNode::Time { mark: 8, unix_us }));
    let (others, _) = office.told(2);
    let is_time = |told: &ToNode| matches!(told, ToNode::Time { .. });
    assert!(!others.is_empty() && !others.iter().any(is_time));
    office.heard(2, ask(9, None));
    assert_eq!(office.desk.clock_ahead_us(2), Some(-90_000_000));
    assert_eq!(office.desk.clock_ahead_us(1), None);
    office.desk.leave(2, office.now);
    assert_eq!(office.desk.clock_ahead_us(2), None);
}

#[test]
fn with_a_node_of_an_earlier_version_that_is_spoken() {
    let mut office = Office::new(&[1, 2]);
    for (number, version) in [(1, 1), (2, VERSION + 1)] {
        let hello = Hello {
            version,
            number,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds: None,
        };
        office.desk.enter(hello, office.now).unwrap();
        let ToNode::Welcome(welcome) = office.desk.welcome(number) else {
            panic!("no welcome");
        };
        assert_eq!(welcome.version, version.min(VERSION));
        let (mark, ahead_us) = (1, None);
        let asked = ToController::Time { mark, ahead_us };
        let heard = office.desk.heard(number, asked, office.now);
        assert_eq!(heard.is_ok(), version >= VERSION_TIME);
    }
}
