// SPDX-License-Identifier: Apache-2.0
//! Nodes connect, report their links, and receive the resulting plan.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use posthaste_control::message::{Link, LinkState, ToController, ToNode};

use super::testbed::{FAMILIES, Node, Testbed, up};
use crate::support::{SOON, until};

/// 1 and 3 are far apart, and 2 is between them.
fn send(nodes: &mut [Node; 3]) {
    let [one, two, three] = nodes;
    one.report_links(&[up(2, 50), up(3, 200)]);
    two.report_links(&[up(1, 50), up(3, 50)]);
    three.report_links(&[up(1, 200), up(2, 50)]);
}

// promise: O6
#[test]
fn members_and_chains_sent() {
    for at in FAMILIES {
        let testbed = Testbed::new(&[1, 2, 3]);
        let mut nodes = [1, 2, 3].map(|number| testbed.node(number, at));
        send(&mut nodes);
        nodes[0].until("a chain by node 2", |node| {
            node.best(3) == Some(vec![1, 2, 3])
        });
        nodes[2].until("and back", |node| node.best(1) == Some(vec![3, 2, 1]));
        // The node between needs nothing of that.
        nodes[1].until("routes of its own", |node| node.held.len() == 2);
        assert!(
            nodes[1]
                .held
                .chains()
                .all(|(_, between)| between.is_empty())
        );
        nodes[0].until("all members", |node| {
            let members = node.sent.iter().filter_map(|sent| match sent {
                ToNode::Members { members, .. } => Some(members),
                _ => None,
            });
            let mut numbers: Vec<u64> = members.flatten().map(|member| member.number).collect();
            numbers.sort_unstable();
            numbers == [2, 3]
        });
        nodes[0].until("how often to measure", |node| {
            node.sent
                .iter()
                .any(|sent| matches!(sent, ToNode::Measure(_)))
        });
        nodes[0].until("that it stands", |node| {
            let plan_version = node.held.plan_version();
            node.sent
                .iter()
                .any(|sent| matches!(sent, ToNode::LeaseRenewed(renew_lease) if Some(*renew_lease) == plan_version))
        });
        until("the API shows it", || {
            let plan = testbed.document("/v1/plan");
            plan["followed_by"] == 3 && plan["nodes"] == 3
        });
    }
}

// promise: O7
#[test]
fn dead_link_leaves_plan() {
    let testbed = Testbed::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| testbed.node(number, FAMILIES[0]));
    send(&mut nodes);
    nodes[0].until("a chain by node 2", |node| {
        node.best(3) == Some(vec![1, 2, 3])
    });
    let before = nodes[0].held.plan_version().unwrap();
    let dead = Link {
        to: 3,
        state: LinkState::Dead,
    };
    nodes[1].report_links(&[dead]);
    nodes[0].until("the direct hop", |node| node.best(3) == Some(vec![1, 3]));
    let after = nodes[0].held.plan_version().unwrap();
    assert!(after > before && after.epoch == before.epoch, "{after:?}");
    let explained = testbed.document("/v1/explain?from=n1&to=n3&bytes=500000");
    assert_eq!(
        explained["routes"][0]["nodes"],
        serde_json::json!(["n1", "n3"])
    );
    assert!(
        explained["why"]
            .as_str()
            .unwrap()
            .contains("no chain is 10 % faster")
    );
}

// promise: O7
#[test]
fn leaving_node_leaves_plan() {
    let mut testbed = Testbed::new(&[1, 2, 3]);
    testbed.end(Signal::SIGTERM);
    // The others receive its removal when the TTL of its last plan has ended.
    testbed.more = "[plan]\nttl = \"2s\"\n".into();
    testbed.write_config();
    testbed.start();
    let mut nodes = [1, 2, 3].map(|number| testbed.node(number, FAMILIES[1]));
    send(&mut nodes);
    nodes[0].until("a chain by node 2", |node| {
        node.best(3) == Some(vec![1, 2, 3])
    });
    let [mut one, two, mut three] = nodes;
    drop(two);
    for (node, other) in [(&mut one, 3), (&mut three, 1)] {
        node.until("the direct hop", |node| {
            node.best(other) == Some(vec![node.held.node(), other])
        });
        node.until("that it went", |node| {
            let removed =
                |sent: &ToNode| matches!(sent, ToNode::Members { removed, .. } if *removed == [2]);
            node.sent.iter().any(removed)
        });
    }
    let nodes = testbed.document("/v1/nodes");
    assert_eq!(nodes["nodes"][1]["state"], "absent");
}

// promise: O2
#[test]
fn second_stream_replaces_first() {
    let testbed = Testbed::new(&[1, 2]);
    let mut first = testbed.node(1, FAMILIES[0]);
    let mut second = testbed.node(1, FAMILIES[1]);
    assert!(first.go_away().contains("has a newer stream"));
    second.until("something", |node| !node.sent.is_empty());
    let nodes = testbed.document("/v1/nodes");
    assert_eq!(nodes["nodes"][0]["state"], "connected");
    testbed.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"replaced\"}",
        1.0,
    );
}

/// What nodes send as keepalive.
fn request_for_time() -> ToController {
    let (mark, ahead_us) = (1, None);
    ToController::Time { mark, ahead_us }
}

// promise: O6
#[test]
fn keepalive_both_ways() {
    let testbed = Testbed::hurried(&[1], 1);
    let mut node = testbed.node(1, FAMILIES[0]);
    let sent = node.sent.len();
    for _ in 0..5 {
        node.stream.send(&request_for_time()).unwrap();
        let before = node.sent.len();
        node.until("a sign of life", |node| node.sent.len() > before);
    }
    assert!(node.sent.len() >= sent + 5);
    testbed.until_metric("posthaste_controller_messages_total", 5.0);
}

// promise: O6
#[test]
fn keepalive_while_planning() {
    let testbed = Testbed::hurried(&[1, 2], 2);
    let mut nodes = [1, 2].map(|number| testbed.node(number, FAMILIES[0]));
    let [one, two] = &mut nodes;
    one.report_links(&[up(2, 50)]);
    two.report_links(&[up(1, 50)]);
    one.until("that it stands", |node| {
        node.sent
            .iter()
            .any(|sent| matches!(sent, ToNode::LeaseRenewed(_)))
    });
    let begin = Instant::now();
    let mut words = 0;
    // Each makes a plan, and all plans are the same.
    for step in 0.. {
        two.report_links(&[up(1, 50 + step % 2)]);
        let received = one.stream.receive(Duration::from_millis(500)).unwrap();
        words += u32::from(received.is_some());
        one.stream.send(&request_for_time()).unwrap();
        if words == 2 {
            break;
        }
        assert!(begin.elapsed() < SOON, "the controller sends nothing");
    }
}
