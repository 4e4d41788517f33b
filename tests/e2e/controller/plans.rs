// SPDX-License-Identifier: Apache-2.0
//! Nodes come, tell their links, and are told what follows from them.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use posthaste_control::message::{Link, LinkState, ToController, ToNode};

use super::site::{FAMILIES, Node, Site, up};
use crate::support::{SOON, until};

/// 1 and 3 are far apart, and 2 is between them.
fn tell(nodes: &mut [Node; 3]) {
    let [one, two, three] = nodes;
    one.say_links(&[up(2, 50), up(3, 200)]);
    two.say_links(&[up(1, 50), up(3, 50)]);
    three.say_links(&[up(1, 200), up(2, 50)]);
}

#[test]
fn nodes_are_told_of_each_other_and_of_chains_that_follow_from_their_links() {
    for at in FAMILIES {
        let site = Site::new(&[1, 2, 3]);
        let mut nodes = [1, 2, 3].map(|number| site.node(number, at));
        tell(&mut nodes);
        nodes[0].until("a chain by node 2", |node| {
            node.best(3) == Some(vec![1, 2, 3])
        });
        nodes[2].until("and back", |node| node.best(1) == Some(vec![3, 2, 1]));
        nodes[1].until("both in its rows", |node| node.held.size().0 >= 2);
        nodes[0].until("all members", |node| {
            let members = node.told.iter().filter_map(|told| match told {
                ToNode::Members { members, .. } => Some(members),
                _ => None,
            });
            let mut numbers: Vec<u64> = members.flatten().map(|member| member.number).collect();
            numbers.sort_unstable();
            numbers == [2, 3]
        });
        nodes[0].until("how often to measure", |node| {
            node.told
                .iter()
                .any(|told| matches!(told, ToNode::Measure(_)))
        });
        nodes[0].until("that it stands", |node| {
            let stamp = node.held.stamp();
            node.told
                .iter()
                .any(|told| matches!(told, ToNode::Stands(stands) if Some(*stands) == stamp))
        });
        until("the API shows it", || {
            let plan = site.document("/v1/plan");
            plan["followed_by"] == 3 && plan["nodes"] == 3
        });
    }
}

#[test]
fn a_link_that_dies_is_in_no_chain_any_more() {
    let site = Site::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| site.node(number, FAMILIES[0]));
    tell(&mut nodes);
    nodes[0].until("a chain by node 2", |node| {
        node.best(3) == Some(vec![1, 2, 3])
    });
    let before = nodes[0].held.stamp().unwrap();
    let dead = Link {
        to: 3,
        state: LinkState::Dead,
    };
    nodes[1].say_links(&[dead]);
    nodes[0].until("the direct hop", |node| node.best(3) == Some(vec![]));
    let after = nodes[0].held.stamp().unwrap();
    assert!(after > before && after.epoch == before.epoch, "{after:?}");
    let explained = site.document("/v1/explain?from=n1&to=n3&bytes=500000");
    assert_eq!(explained["ways"][0]["chain"], serde_json::Value::Null);
    assert!(
        explained["why"]
            .as_str()
            .unwrap()
            .contains("no chain is 10 % faster")
    );
}

#[test]
fn a_node_that_goes_leaves_the_plan_and_the_others_are_told() {
    let mut site = Site::new(&[1, 2, 3]);
    site.end(Signal::SIGTERM);
    // The others are told when no plan that it follows stands any more.
    site.more = "[plan]\nlife = \"2s\"\n".into();
    site.write_config();
    site.start();
    let mut nodes = [1, 2, 3].map(|number| site.node(number, FAMILIES[1]));
    tell(&mut nodes);
    nodes[0].until("a chain by node 2", |node| {
        node.best(3) == Some(vec![1, 2, 3])
    });
    let [mut one, two, mut three] = nodes;
    drop(two);
    for (node, other) in [(&mut one, 3), (&mut three, 1)] {
        node.until("the direct hop", |node| node.best(other) == Some(vec![]));
        node.until("that it went", |node| {
            let gone = |told: &ToNode| matches!(told, ToNode::Members { gone, .. } if *gone == [2]);
            node.told.iter().any(gone)
        });
    }
    let nodes = site.document("/v1/nodes");
    assert_eq!(nodes["nodes"][1]["state"], "absent");
}

#[test]
fn a_second_stream_of_a_node_takes_the_place_of_the_first() {
    let site = Site::new(&[1, 2]);
    let mut first = site.node(1, FAMILIES[0]);
    let mut second = site.node(1, FAMILIES[1]);
    assert!(first.farewell().contains("has a newer stream"));
    second.until("something", |node| !node.told.is_empty());
    let nodes = site.document("/v1/nodes");
    assert_eq!(nodes["nodes"][0]["state"], "connected");
    site.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"replaced\"}",
        1.0,
    );
}

#[test]
fn both_ends_say_something_all_the_time() {
    let site = Site::hurried(&[1], 1);
    let mut node = site.node(1, FAMILIES[0]);
    let told = node.told.len();
    for _ in 0..5 {
        node.stream.send(&ToController::Alive).unwrap();
        let before = node.told.len();
        node.until("a sign of life", |node| node.told.len() > before);
    }
    assert!(node.told.len() >= told + 5);
    site.until_metric("posthaste_controller_messages_total", 5.0);
}

#[test]
fn a_controller_that_always_has_something_to_think_of_says_something_all_the_same() {
    let site = Site::hurried(&[1, 2], 2);
    let mut nodes = [1, 2].map(|number| site.node(number, FAMILIES[0]));
    let [one, two] = &mut nodes;
    one.say_links(&[up(2, 50)]);
    two.say_links(&[up(1, 50)]);
    one.until("that it stands", |node| {
        node.told
            .iter()
            .any(|told| matches!(told, ToNode::Stands(_)))
    });
    let begin = Instant::now();
    let mut words = 0;
    // Each makes a plan, and all plans are the same.
    for step in 0.. {
        two.say_links(&[up(1, 50 + step % 2)]);
        let heard = one.stream.receive(Duration::from_millis(500)).unwrap();
        words += u32::from(heard.is_some());
        one.stream.send(&ToController::Alive).unwrap();
        if words == 2 {
            break;
        }
        assert!(begin.elapsed() < SOON, "the controller says nothing");
    }
}
