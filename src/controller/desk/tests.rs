// SPDX-License-Identifier: Apache-2.0
//! Nodes at the desk, one step after the other.

use posthaste_control::book::{Saved, Settings};
use posthaste_control::message::{DIRECT, Link, LinkState, Rows};
use posthaste_control::rows::Held;

use super::*;

mod races;

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
        while !self.work_next() {}
    }

    /// Lets time pass until something is due, and does it. Returns whether a plan is whole by that.
    fn work_next(&mut self) -> bool {
        self.now = self.now.max(self.desk.deadline());
        self.desk.tick(self.now);
        let work = self.desk.work(self.now);
        work.is_some_and(|work| self.make(work))
    }

    /// Tables for what is known now.
    fn tables(&mut self) -> Adoption {
        match self.desk.work(self.now).unwrap() {
            Work::Tables(settings, network) => {
                let tables = settings.tables(&network);
                Adoption::new(network, tables)
            }
            work @ Work::Book(..) => panic!("{work:?}"),
        }
    }

    fn make(&mut self, work: Work) -> bool {
        match work {
            Work::Tables(settings, network) => {
                let tables = settings.tables(&network);
                self.desk.tabled(Adoption::new(network, tables));
                false
            }
            Work::Book(mut book, mut adoption) => {
                if let Some(adoption) = &mut adoption {
                    book.adopt(adoption, self.now, || !self.desk.is_repair_due(self.now));
                }
                self.written(book, adoption)
            }
        }
    }

    /// Repairs the book by what is known now, and gives it back.
    fn written(&mut self, mut book: Box<Book>, adoption: Option<Adoption>) -> bool {
        let (network, worse) = self.desk.repairing(self.now);
        book.repair(&network, &worse, self.now);
        self.desk.written(book, adoption, self.now).is_some()
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
    three_with(200_000)
}

/// One after the other, and as far from the first to the last without the second.
fn three_with(direct_us: u32) -> Office {
    let mut office = Office::new(&[1, 2, 3]);
    (1..=3).for_each(|number| office.enter(number, None));
    office.links(1, &[(2, 50_000), (3, direct_us)]);
    office.links(2, &[(1, 50_000), (3, 50_000)]);
    office.links(3, &[(1, direct_us), (2, 50_000)]);
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
    let adoption = office.tables();
    office.desk.tabled(adoption);
    let work = office.desk.work(office.now).unwrap();
    let newer = Stamp {
        epoch: 4,
        version: 700,
    };
    office.enter(1, Some(newer));
    assert!(office.desk.stamp() < newer);
    assert_eq!(office.told(1).1, [], "there is no book to look into");
    assert!(office.make(work));
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
    let went = before + posthaste_control::registry::AWAY;
    office.now = went + SECOND * 899;
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

/// Three nodes that hold the first plan, which took a second to make.
fn three_slow() -> (Office, [Held; 3]) {
    let mut office = three_with(120_000);
    office.now = office.desk.deadline();
    let adoption = office.tables();
    office.desk.tabled(adoption);
    office.now += SECOND;
    assert!(office.work_next());
    let mut held = [1, 2, 3].map(Held::new);
    for held in &mut held {
        office.follow(held, held.node());
    }
    (office, held)
}

#[test]
fn a_link_in_use_that_becomes_much_worse_is_left_soon_though_plans_take_long() {
    let (mut office, mut held) = three_slow();
    let last = office.now - SECOND;
    office.now += SECOND * 4;
    office.desk.tick(office.now);
    // Neither by much, nor in use.
    office.links(2, &[(3, 60_000)]);
    office.links(3, &[(2, 60_000)]);
    assert_eq!(office.desk.deadline(), last + SECOND * 10);
    office.links(2, &[(3, 115_000)]);
    let soon = office.now + Duration::from_millis(100);
    assert_eq!(office.desk.deadline(), soon, "the longer one counts");
    office.links(3, &[(2, 115_000)]);
    assert_eq!(office.desk.deadline(), soon);
    assert!(!office.work_next());
    assert_eq!(office.now, soon);
    office.follow(&mut held[0], 1);
    assert_eq!(held[0].ways(3, 0)[0], DIRECT);
    assert_eq!(office.desk.deadline(), last + SECOND * 10, "a plan follows");
}

#[test]
fn a_link_that_is_back_after_a_repair_is_planned_with() {
    let (mut office, mut held) = three_slow();
    let chain = held[0].ways(3, 0).to_vec();
    office.now += SECOND * 20;
    office.heard(2, ToController::Links(vec![dead(3)]));
    assert!(!office.work_next());
    office.follow(&mut held[0], 1);
    assert_eq!(held[0].ways(3, 0), [DIRECT]);
    office.plan();
    office.links(2, &[(3, 50_000)]);
    office.plan();
    office.follow(&mut held[0], 1);
    assert_eq!(held[0].ways(3, 0), chain);
}

#[test]
fn tables_that_are_there_while_the_book_is_repaired_are_written_down_after() {
    let (mut office, mut held) = three_slow();
    office.now += SECOND * 20;
    office.heard(2, ToController::Links(vec![dead(3)]));
    office.now = office.desk.deadline();
    let Some(Work::Book(book, None)) = office.desk.work(office.now) else {
        panic!("something died");
    };
    let adoption = office.tables();
    office.desk.tabled(adoption);
    assert!(!office.written(book, None));
    office.follow(&mut held[0], 1);
    office.plan();
    office.links(2, &[(3, 50_000)]);
    office.plan();
}

#[test]
fn a_link_that_dies_while_tables_are_made_is_in_no_chain_before_or_after_they_are_there() {
    let (mut office, mut held) = three_slow();
    let chain = held[0].ways(3, 0)[0];
    office.links(1, &[(3, 121_000)]);
    office.links(3, &[(1, 121_000)]);
    office.now = office.desk.deadline();
    let adoption = office.tables();
    office.heard(2, ToController::Links(vec![dead(3)]));
    let died = office.now;
    assert!(!office.work_next());
    assert_eq!(office.now, died + Duration::from_millis(100));
    office.follow(&mut held[0], 1);
    assert_eq!(held[0].ways(3, 0), [DIRECT]);
    // Tables of what was do not bring it back.
    office.desk.tabled(adoption);
    office.now = office.desk.deadline();
    let Some(Work::Book(mut book, Some(mut adoption))) = office.desk.work(office.now) else {
        panic!("tables are there");
    };
    book.adopt(&mut adoption, office.now, || true);
    assert!(office.written(book, Some(adoption)));
    if office.desk.stamp() != held[0].stamp().unwrap() {
        office.follow(&mut held[0], 1);
    }
    assert_eq!(held[0].ways(3, 0), [DIRECT]);
    assert!(held[0].chain(chain).is_some(), "labels lead where they did");
}

#[test]
fn what_dies_while_tables_are_written_down_goes_first_and_is_told_before_it_goes_on() {
    let (mut office, mut held) = three_slow();
    office.links(1, &[(2, 51_000)]);
    office.links(2, &[(1, 51_000)]);
    office.now = office.desk.deadline();
    let adoption = office.tables();
    office.desk.tabled(adoption);
    let Some(Work::Book(mut book, Some(mut adoption))) = office.desk.work(office.now) else {
        panic!("tables are there");
    };
    let mut left = 2;
    book.adopt(&mut adoption, office.now, || {
        left -= 1;
        left > 0
    });
    assert!(!adoption.is_over());
    office.heard(3, ToController::Links(vec![dead(2)]));
    assert!(!office.desk.is_repair_due(office.now));
    assert!(office.desk.work(office.now).is_none(), "there is no book");
    office.now += Duration::from_millis(100);
    assert!(office.desk.is_repair_due(office.now));
    assert!(!office.written(book, Some(adoption)));
    // The others are sent what is new before the book is away again, or after a while.
    assert_eq!(office.desk.deadline(), office.now + SECOND * 2);
    for held in &mut held[..2] {
        office.follow(held, held.node());
        assert!(office.desk.work(office.now).is_none());
    }
    assert_eq!(held[0].ways(3, 0), [DIRECT]);
    let (_, rows) = office.told(3);
    assert_eq!(rows.len(), 1);
    assert_eq!(office.desk.deadline(), office.now, "sent is enough");
    assert!(office.work_next(), "it goes on to the end");
    office.plan();
}

fn dead(to: NodeNumber) -> Link {
    let state = LinkState::Dead;
    Link { to, state }
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
