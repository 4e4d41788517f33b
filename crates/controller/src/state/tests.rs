// SPDX-License-Identifier: Apache-2.0
//! The state and its nodes, one step after the other.

use posthaste_control::message::{Link, LinkState, RouteUpdate};
use posthaste_control::rib::Settings;
use posthaste_control::route_table::RouteTable;

use super::*;

mod races;

/// The nodes between the ends of the direct hop.
const DIRECT: [NodeNumber; 0] = [];

/// The chains to a node for small transfers, each as the nodes between.
fn chains(held: &RouteTable, egress: NodeNumber) -> Vec<Vec<NodeNumber>> {
    held.routes(egress, 0).map(<[_]>::to_vec).collect()
}

const SECOND: Duration = Duration::from_secs(1);
/// Since 1970.
const TIME: Duration = Duration::from_millis(1_700_000_000_250);

struct Office {
    state: ControllerState,
    now: Duration,
}

impl Office {
    fn new(nodes: &[NodeNumber]) -> Self {
        let limits = Limits {
            ttl: SECOND * 900,
            warm: false,
            keepalive: SECOND * 10,
        };
        let rib = Rib::new(Settings::default(), PlanVersion::default());
        let intervals = (SECOND * 10, SECOND);
        let mut state = ControllerState::new(limits, rib, intervals, Duration::ZERO);
        let listed = nodes.iter().map(|node| {
            let name = format!("n{node}");
            (*node, Listed { name, cost_us: 0 })
        });
        state.configure(listed.collect(), BTreeMap::new(), intervals, Duration::ZERO);
        Self {
            state,
            now: Duration::ZERO,
        }
    }

    fn enter(&mut self, number: NodeNumber, holds: Option<PlanVersion>) {
        let hello = Hello {
            version: VERSION,
            number,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds,
        };
        self.state.enter(hello, self.now).unwrap();
    }

    fn received(&mut self, number: NodeNumber, message: ToController) {
        self.state.received(number, message, self.now).unwrap();
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
        self.received(number, ToController::Links(links.collect()));
    }

    /// Lets time pass until a plan is made.
    fn plan(&mut self) {
        while !self.work_next() {}
    }

    /// Lets time pass until something is due, and does it. Returns whether a plan is whole by that.
    fn work_next(&mut self) -> bool {
        self.now = self.now.max(self.state.deadline());
        self.state.tick(self.now);
        let work = self.state.work(self.now);
        work.is_some_and(|work| self.make(work))
    }

    /// Tables for what is known now.
    fn tables(&mut self) -> Rollout {
        match self.state.work(self.now).unwrap() {
            Work::Tables(settings, network) => {
                let tables = settings.tables(&network);
                Rollout::new(network, tables)
            }
            work @ Work::Rib(..) => panic!("{work:?}"),
        }
    }

    fn make(&mut self, work: Work) -> bool {
        match work {
            Work::Tables(settings, network) => {
                let tables = settings.tables(&network);
                self.state.tabled(Rollout::new(network, tables));
                false
            }
            Work::Rib(mut rib, mut rollout) => {
                if let Some(rollout) = &mut rollout {
                    rib.roll_out(rollout, || !self.state.is_repair_due(self.now));
                }
                self.written(rib, rollout)
            }
        }
    }

    /// Repairs the RIB by what is known now, and gives it back.
    fn written(&mut self, mut rib: Box<Rib>, rollout: Option<Rollout>) -> bool {
        let (network, worse) = self.state.repairing(self.now);
        rib.repair(&network, &worse);
        self.state.written(rib, rollout, self.now).is_some()
    }

    /// All that is due to a node, and the rows among it.
    fn sent(&mut self, number: NodeNumber) -> (Vec<ToNode>, Vec<RouteUpdate>) {
        let mut others = Vec::new();
        let mut update = Vec::new();
        while let Some(due) = self.state.due(number, TIME) {
            match due {
                ToNode::RouteUpdate(due) => update.push(due),
                due => others.push(due),
            }
        }
        (others, update)
    }

    /// A node takes the rows that are due to it, which are one message, and reports so.
    fn follow(&mut self, held: &mut RouteTable, number: NodeNumber) -> RouteUpdate {
        let (_, mut update) = self.sent(number);
        assert_eq!(update.len(), 1, "{update:?}");
        let update = update.remove(0);
        held.apply(&update).unwrap();
        self.received(number, ToController::Holds(update.plan_version));
        update
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
fn all_once_then_changes() {
    let mut office = three();
    let (first, update) = office.sent(1);
    assert!(update.is_empty() && first.len() == 1, "{first:?}");
    assert!(matches!(&first[0], ToNode::Members { all: false, members, .. } if members.len() == 2));
    assert!(matches!(
        office.state.idle(1),
        ToNode::Members { all: false, .. }
    ));
    office.plan();
    let mut held = RouteTable::new(1);
    let (then, update) = office.sent(1);
    let is_list = |sent: &ToNode| matches!(sent, ToNode::Egresses(_));
    assert_eq!(
        then.iter().filter(|sent| is_list(sent)).count(),
        1,
        "{then:?}"
    );
    let whole = update[0].clone();
    held.apply(&whole).unwrap();
    office.received(1, ToController::Holds(whole.plan_version));
    assert_eq!(whole.base, None);
    assert_eq!(
        office.state.idle(1),
        ToNode::LeaseRenewed(whole.plan_version)
    );
    assert_eq!(office.sent(1).0, [ToNode::LeaseRenewed(whole.plan_version)]);
    assert_eq!(office.sent(1).0, []);
    office.links(2, &[(3, 500_000)]);
    office.links(3, &[(2, 500_000)]);
    office.plan();
    let changes = office.follow(&mut held, 1);
    assert_eq!(changes.base, Some(whole.plan_version));
}

// promise: O8
#[test]
fn newest_after_acknowledgement() {
    let mut office = three();
    office.plan();
    let (_, update) = office.sent(1);
    let mut held = RouteTable::new(1);
    held.apply(&update[0]).unwrap();
    for rtt_us in [500_000, 600_000] {
        office.links(2, &[(3, rtt_us)]);
        office.links(3, &[(2, rtt_us)]);
        office.plan();
        assert_eq!(office.sent(1).1, [], "{rtt_us}");
    }
    office.received(1, ToController::Holds(update[0].plan_version));
    let newest = office.follow(&mut held, 1);
    assert_eq!(
        (newest.base, newest.plan_version),
        (Some(update[0].plan_version), office.state.plan_version())
    );
}

// promise: O8
#[test]
fn nacked_update_sent_whole() {
    let mut office = three();
    office.plan();
    let mut held = RouteTable::new(1);
    let first = office.follow(&mut held, 1);
    let nack = |office: &mut Office| {
        let why = "a test".into();
        let holds = Some(first.plan_version);
        office.received(1, ToController::Nack { holds, why });
        office.sent(1).1
    };
    for _ in 0..NACKS_MAX {
        let update = nack(&mut office);
        assert!(update.len() == 1 && update[0].base.is_none(), "{update:?}");
    }
    assert_eq!(nack(&mut office), []);
    office.plan();
    assert_eq!(office.sent(1).1.len(), 1, "the next plan is another chance");
}

#[test]
fn newer_plan_advances_epoch() {
    let mut office = three();
    office.now = office.state.deadline();
    let rollout = office.tables();
    office.state.tabled(rollout);
    let work = office.state.work(office.now).unwrap();
    let newer = PlanVersion {
        epoch: 4,
        version: 700,
    };
    office.enter(1, Some(newer));
    assert!(office.state.plan_version() < newer);
    assert_eq!(office.sent(1).1, [], "there is no RIB to look into");
    assert!(office.make(work));
    assert!(office.state.plan_version() > newer);
    office.links(1, &[(2, 50_000), (3, 200_000)]);
    let (_, update) = office.sent(1);
    assert!(
        update[0].plan_version > newer && update[0].base.is_none(),
        "{update:?}"
    );
}

// promise: V12
#[test]
fn absent_node_removed_later() {
    let mut office = three();
    office.plan();
    office.sent(1);
    office.state.leave(2, office.now);
    let before = office.now;
    office.plan();
    assert!(office.now >= before + posthaste_control::registry::AWAY);
    let removed =
        |sent: &ToNode| matches!(sent, ToNode::Members { removed, .. } if *removed == [2]);
    let (others, update) = office.sent(1);
    assert!(
        !others.iter().any(removed) && update.is_empty(),
        "{others:?}"
    );
    assert_eq!(office.state.due(2, TIME), None);
    let went = before + posthaste_control::registry::AWAY;
    office.now = went + SECOND * 899;
    assert!(!office.state.tick(office.now) || !office.sent(1).0.iter().any(removed));
    office.now = went + SECOND * 900;
    assert!(office.state.tick(office.now));
    assert!(office.sent(1).0.iter().any(removed));
    // The removal of a node whose key was taken off the list is sent at once.
    office.state.lose(3, office.now);
    let removed =
        |sent: &ToNode| matches!(sent, ToNode::Members { removed, .. } if *removed == [3]);
    assert!(office.sent(1).0.iter().any(removed));
}

// promise: V12
#[test]
fn complete_membership_after_ttl() {
    let mut office = three();
    let all = |sent: &ToNode| matches!(sent, ToNode::Members { all: true, members, .. } if members.len() == 2);
    assert!(!office.sent(1).0.iter().any(all), "others may come yet");
    office.now = SECOND * 900;
    assert!(office.state.tick(office.now));
    assert!(office.sent(1).0.iter().any(all));
    assert!(!office.state.tick(office.now));
    assert!(!office.sent(1).0.iter().any(all), "once");
}

/// Three nodes that hold the first plan, which took a second to make.
fn three_slow() -> (Office, [RouteTable; 3]) {
    let mut office = three_with(120_000);
    office.now = office.state.deadline();
    let rollout = office.tables();
    office.state.tabled(rollout);
    office.now += SECOND;
    assert!(office.work_next());
    let mut held = [1, 2, 3].map(RouteTable::new);
    for held in &mut held {
        office.follow(held, held.node());
    }
    (office, held)
}

// promise: V10
#[test]
fn worse_link_left_soon() {
    let (mut office, mut held) = three_slow();
    let last = office.now - SECOND;
    office.now += SECOND * 4;
    office.state.tick(office.now);
    // Neither by much, nor in use.
    office.links(2, &[(3, 60_000)]);
    office.links(3, &[(2, 60_000)]);
    assert_eq!(office.state.deadline(), last + SECOND * 10);
    office.links(2, &[(3, 115_000)]);
    let soon = office.now + Duration::from_millis(100);
    assert_eq!(office.state.deadline(), soon, "the longer one counts");
    office.links(3, &[(2, 115_000)]);
    assert_eq!(office.state.deadline(), soon);
    assert!(!office.work_next());
    assert_eq!(office.now, soon);
    office.follow(&mut held[0], 1);
    assert_eq!(chains(&held[0], 3)[0], DIRECT);
    assert_eq!(
        office.state.deadline(),
        last + SECOND * 10,
        "a plan follows"
    );
}

#[test]
fn restored_link_planned_again() {
    let (mut office, mut held) = three_slow();
    let chain = chains(&held[0], 3).to_vec();
    office.now += SECOND * 20;
    office.received(2, ToController::Links(vec![dead(3)]));
    assert!(!office.work_next());
    office.follow(&mut held[0], 1);
    assert_eq!(chains(&held[0], 3), [DIRECT]);
    office.plan();
    office.links(2, &[(3, 50_000)]);
    office.plan();
    office.follow(&mut held[0], 1);
    assert_eq!(chains(&held[0], 3), chain);
}

#[test]
fn tables_wait_for_repair() {
    let (mut office, mut held) = three_slow();
    office.now += SECOND * 20;
    office.received(2, ToController::Links(vec![dead(3)]));
    office.now = office.state.deadline();
    let Some(Work::Rib(rib, None)) = office.state.work(office.now) else {
        panic!("something died");
    };
    let rollout = office.tables();
    office.state.tabled(rollout);
    assert!(!office.written(rib, None));
    office.follow(&mut held[0], 1);
    office.plan();
    office.links(2, &[(3, 50_000)]);
    office.plan();
}

// promise: V10
#[test]
fn death_while_planning() {
    let (mut office, mut held) = three_slow();
    office.links(1, &[(3, 121_000)]);
    office.links(3, &[(1, 121_000)]);
    office.now = office.state.deadline();
    let rollout = office.tables();
    office.received(2, ToController::Links(vec![dead(3)]));
    let died = office.now;
    assert!(!office.work_next());
    assert_eq!(office.now, died + Duration::from_millis(100));
    office.follow(&mut held[0], 1);
    assert_eq!(chains(&held[0], 3), [DIRECT]);
    // Tables of what was do not bring it back.
    office.state.tabled(rollout);
    office.now = office.state.deadline();
    let Some(Work::Rib(mut rib, Some(mut rollout))) = office.state.work(office.now) else {
        panic!("tables are there");
    };
    rib.roll_out(&mut rollout, || true);
    assert!(office.written(rib, Some(rollout)));
    if office.state.plan_version() != held[0].plan_version().unwrap() {
        office.follow(&mut held[0], 1);
    }
    assert_eq!(chains(&held[0], 3), [DIRECT]);
}

// promise: V10
#[test]
fn death_while_applying() {
    let (mut office, mut held) = three_slow();
    office.links(1, &[(2, 51_000)]);
    office.links(2, &[(1, 51_000)]);
    office.now = office.state.deadline();
    let rollout = office.tables();
    office.state.tabled(rollout);
    let Some(Work::Rib(mut rib, Some(mut rollout))) = office.state.work(office.now) else {
        panic!("tables are there");
    };
    let mut left = 2;
    rib.roll_out(&mut rollout, || {
        left -= 1;
        left > 0
    });
    assert!(!rollout.is_over());
    office.received(3, ToController::Links(vec![dead(2)]));
    assert!(!office.state.is_repair_due(office.now));
    assert!(office.state.work(office.now).is_none(), "there is no RIB");
    office.now += Duration::from_millis(100);
    assert!(office.state.is_repair_due(office.now));
    assert!(!office.written(rib, Some(rollout)));
    // The others are sent what is new before the RIB is away again, or after a while.
    assert_eq!(office.state.deadline(), office.now + SECOND * 2);
    for held in &mut held[..2] {
        office.follow(held, held.node());
        assert!(office.state.work(office.now).is_none());
    }
    assert_eq!(chains(&held[0], 3), [DIRECT]);
    let (_, update) = office.sent(3);
    assert_eq!(update.len(), 1);
    assert_eq!(office.state.deadline(), office.now, "sent is enough");
    assert!(office.work_next(), "it goes on to the end");
    office.plan();
}

fn dead(to: NodeNumber) -> Link {
    let state = LinkState::Dead;
    Link { to, state }
}

// promise: O6
#[test]
fn chain_links_measured_often() {
    let mut office = three();
    office.plan();
    let (others, _) = office.sent(1);
    let measure = others.iter().find_map(|sent| match sent {
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
    let (others, _) = many.sent(1);
    let slow = others
        .iter()
        .any(|sent| matches!(sent, ToNode::Measure(intervals) if intervals[0].every_ms == 30_000));
    assert!(slow, "{others:?}");
}
