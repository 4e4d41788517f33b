// SPDX-License-Identifier: Apache-2.0

use super::*;

fn hello(number: NodeNumber) -> Hello {
    Hello {
        version: 1,
        number,
        software: "a node".to_owned(),
        exchange: [7; 32],
        listeners: vec!["192.0.2.1:4480".parse().unwrap()],
        reflectors: vec![],
        holds: None,
    }
}

fn listed(numbers: &[NodeNumber]) -> BTreeMap<NodeNumber, Listed> {
    let listed = |number: &NodeNumber| Listed {
        name: format!("node {number}"),
        cost_us: 500,
    };
    numbers
        .iter()
        .map(|number| (*number, listed(number)))
        .collect()
}

/// Three nodes that have registered.
fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.set_listed(listed(&[1, 2, 3]));
    (1..=3).for_each(|number| registry.hello(hello(number)).unwrap());
    registry
}

fn up(rtt_us: u32) -> LinkState {
    LinkState::Up {
        rtt_us,
        loss_ppm: None,
        rate: None,
    }
}

fn link(to: NodeNumber, state: LinkState) -> Link {
    Link { to, state }
}

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// What 1 and 2 come to when they report this of each other.
fn agreed(one: LinkState, other: LinkState) -> Agreed {
    let mut registry = registry();
    registry.links(1, &[link(2, one)]);
    registry.links(2, &[link(1, other)]);
    registry.agreed(1, 2)
}

fn rtt_us(one: LinkState, other: LinkState) -> Option<u32> {
    agreed(one, other).link.map(|link| link.rtt_us)
}

#[test]
fn registration_requires_listing() {
    let mut registry = registry();
    assert_eq!(registry.hello(hello(4)), Err(Denied::Unknown(4)));
    let mut many = hello(1);
    many.listeners = vec![many.listeners[0]; ADDRESSES_MAX + 1];
    assert_eq!(registry.hello(many), Err(Denied::Implausible(1)));
    let mut long = hello(1);
    long.software = "x".repeat(SOFTWARE_MAX + 1);
    assert_eq!(registry.hello(long), Err(Denied::Implausible(1)));
    assert_eq!(registry.member(3).unwrap().name, "node 3");
    assert_eq!(registry.set_listed(listed(&[1, 2])), [3]);
    assert_eq!(registry.network().nodes, [1, 2]);
    assert_eq!((registry.member(3), registry.is_listed(3)), (None, false));
}

// promise: V4
#[test]
fn link_needs_both_ends() {
    let none = agreed(up(5000), LinkState::Unmeasured);
    assert_eq!(none, Agreed::default());
    assert_eq!(rtt_us(up(5000), LinkState::Dead), None);
    assert_eq!(rtt_us(up(5000), up(6000)), Some(6000));
    let mut registry = registry();
    registry.links(1, &[link(2, up(5000))]);
    assert_eq!(registry.agreed(1, 2).link, None);
    assert_eq!(registry.network().matrix.links().count(), 0);
}

#[test]
fn worse_loss_and_rate_count() {
    let state = |loss_ppm, rate| LinkState::Up {
        rtt_us: 1000,
        loss_ppm,
        rate,
    };
    let both = agreed(state(Some(10), Some(100)), state(Some(20), None));
    let link = both.link.unwrap();
    assert_eq!(link.loss_ppm, 20);
    assert_eq!(link.rate, NonZeroU64::new(800));
}

use std::num::NonZeroU64;

// promise: V5
#[test]
fn who_lies_attracts_nothing() {
    // Much shorter than the other end reports.
    assert!(agreed(up(1), up(100_000)).is_disputed);
    assert_eq!(rtt_us(up(1), up(100_000)), Some(100_000));
    assert_eq!(rtt_us(up(100_000), up(1)), Some(100_000));
    // By so little that it might be an accident.
    assert_eq!(rtt_us(up(20_500), up(40_000)), Some(40_000));
    assert_eq!(rtt_us(up(300), up(10_000)), Some(10_000));
    assert!(!agreed(up(300), up(10_000)).is_disputed);
    // What cannot be.
    for state in [up(0), up(30_000_001), up(u32::MAX)] {
        assert_eq!(rtt_us(state, up(10_000)), None);
    }
    let mut registry = registry();
    let lossy = LinkState::Up {
        rtt_us: 5,
        loss_ppm: Some(1_000_001),
        rate: None,
    };
    let still = LinkState::Up {
        rtt_us: 5,
        loss_ppm: None,
        rate: Some(0),
    };
    registry.links(
        1,
        &[
            link(2, lossy),
            link(3, still),
            link(1, up(5)),
            link(9, up(5)),
        ],
    );
    registry.links(2, &[link(3, up(1))]);
    registry.links(3, &[link(2, up(90_000))]);
    let rejected_reports = RejectedReports {
        unauthorized: 2,
        impossible: 2,
        disputed: 1,
    };
    assert_eq!(registry.rejected_reports(), rejected_reports);
    assert_eq!(registry.reported(1, 2), Some(LinkState::Unmeasured));
    assert_eq!(
        registry.rejected_reports(),
        rejected_reports,
        "nothing was reported since"
    );
    registry.links(2, &[link(3, up(80_000))]);
    assert_eq!(registry.rejected_reports().disputed, 0);
    registry.links(2, &[link(3, up(1))]);
    assert_eq!(registry.rejected_reports().disputed, 1);
    registry.forget(3);
    assert_eq!(registry.rejected_reports().disputed, 0);
}

#[test]
fn plan_relevant_changes() {
    let mut registry = registry();
    let news = |changed, death| News {
        changed,
        death,
        worse: Vec::new(),
    };
    assert_eq!(
        registry.links(1, &[link(2, LinkState::Dead)]),
        news(false, false)
    );
    assert_eq!(registry.links(1, &[link(2, up(5))]), news(true, false));
    assert_eq!(registry.links(1, &[link(2, up(5))]), news(false, false));
    assert_eq!(
        registry.links(1, &[link(2, up(6)), link(3, up(7))]),
        news(true, false)
    );
    assert_eq!(
        registry.links(1, &[link(2, LinkState::Dead)]),
        news(true, true)
    );
    assert_eq!(registry.links(9, &[link(2, up(5))]), news(false, false));
}

// promise: V10
#[test]
fn worse_links_reported() {
    let mut registry = registry();
    let mut worse = |from, to, state| registry.links(from, &[link(to, state)]).worse;
    assert_eq!(worse(1, 2, up(50_000)), [], "it was unknown");
    assert_eq!(worse(2, 1, up(50_000)), []);
    assert_eq!(worse(2, 1, up(62_500)), [], "by a quarter");
    assert_eq!(worse(1, 2, up(62_500)), [], "it was as long");
    assert_eq!(worse(2, 1, up(90_000)), [1], "the longer one counts");
    assert_eq!(worse(1, 2, up(90_000)), []);
    assert_eq!(worse(2, 1, up(50_000)), [], "the other one counts");
    assert_eq!(worse(1, 2, up(200_000)), [2]);
    let lossy = LinkState::Up {
        rtt_us: 200_000,
        loss_ppm: Some(20_001),
        rate: None,
    };
    assert_eq!(worse(1, 2, lossy), [2]);
    assert_eq!(worse(1, 2, LinkState::Dead), [], "which is more than worse");
    assert_eq!(worse(1, 3, up(1_000)), []);
    assert_eq!(worse(3, 1, up(1_000)), []);
    assert_eq!(worse(3, 1, up(6_000)), []);
    assert_eq!(worse(1, 3, up(6_000)), [], "short ways may vary");
}

#[test]
fn restarted_node_reports_all() {
    let mut registry = registry();
    registry.links(1, &[link(2, up(5)), link(3, up(6))]);
    registry.links(2, &[link(1, up(5))]);
    registry.hello(hello(1)).unwrap();
    assert!(!registry.is_complete());
    // Until then they are as they were.
    assert!(registry.agreed(1, 2).link.is_some());
    let news = registry.links(1, &[link(2, up(5))]);
    assert_eq!((news.changed, news.death), (true, true));
    assert_eq!(registry.reported(1, 3), None);
    registry.links(3, &[]);
    assert!(registry.is_complete());
}

#[test]
fn absent_node_expires() {
    let mut registry = registry();
    registry.away(1, at(5));
    registry.away(1, at(9));
    assert_eq!(registry.deadline(), Some(at(15)));
    assert_eq!(registry.expire(at(14)), []);
    registry.away(2, at(10));
    registry.hello(hello(2)).unwrap();
    assert_eq!(registry.expire(at(15)), [1]);
    assert_eq!(registry.deadline(), None);
    assert_eq!(registry.network().nodes, [2, 3]);
}

#[test]
fn warm_hops_without_handshake() {
    let mut registry = registry();
    registry.links(
        1,
        &[Link {
            to: 2,
            state: up(7000),
        }],
    );
    registry.links(
        2,
        &[Link {
            to: 1,
            state: up(7000),
        }],
    );
    let time = |registry: &Registry| {
        let link = registry.agreed(1, 2).link.unwrap();
        posthaste_plan::Model::default().time_us(&link, 1000)
    };
    let cold = time(&registry);
    registry.set_warm(true);
    assert_eq!(time(&registry) + 7000, cold);
    assert_eq!(registry.agreed(1, 3).link, None);
}
