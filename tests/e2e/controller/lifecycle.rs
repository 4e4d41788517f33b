// SPDX-License-Identifier: Apache-2.0
//! Controllers that end, start again, and accept no streams any more.

use nix::sys::signal::Signal;
use posthaste_control::message::ToNode;
use posthaste_control::route_table::RouteTable;

use super::testbed::{FAMILIES, Node, Testbed, identity, up};

/// Two nodes that hold a plan.
fn planned(testbed: &Testbed) -> [Node; 2] {
    let mut nodes = [1, 2].map(|number| testbed.node(number, FAMILIES[0]));
    nodes[0].report_links(&[up(2, 20)]);
    nodes[1].report_links(&[up(1, 20)]);
    nodes[0].until("a way", |node| node.best(2).is_some());
    nodes[1].until("a way", |node| node.best(1).is_some());
    nodes
}

/// Ends the controller, and checks that reconnecting nodes receive a renewed lease of their plan.
fn continues_after(signal: Signal) {
    let mut testbed = Testbed::new(&[1, 2]);
    let mut nodes = planned(&testbed);
    let plan_version = nodes[0].held.plan_version();
    testbed.end(signal);
    if signal == Signal::SIGTERM {
        assert!(nodes[0].go_away().contains("the controller ends"));
    }
    let [one, two] = nodes;
    testbed.start();
    let mut one = Node::come(&testbed, 1, FAMILIES[1], one.held);
    one.until("that the last plan stands", |node| {
        let renew_lease =
            |sent: &ToNode| matches!(sent, ToNode::LeaseRenewed(renew_lease) if Some(*renew_lease) == plan_version);
        node.sent.iter().any(renew_lease)
    });
    let mut two = Node::come(&testbed, 2, FAMILIES[1], two.held);
    one.report_links(&[up(2, 20)]);
    two.report_links(&[up(1, 20)]);
    one.until("a newer plan", |node| {
        node.held.plan_version() > plan_version
    });
    assert_eq!(
        one.held.plan_version().unwrap().epoch,
        plan_version.unwrap().epoch
    );
    assert!(one.best(2).is_some());
}

// promise: O9
#[test]
fn restart_is_unnoticed() {
    continues_after(Signal::SIGTERM);
}

// promise: O9
#[test]
fn kill_loses_nothing() {
    continues_after(Signal::SIGKILL);
}

// promise: O9
#[test]
fn start_without_store() {
    let mut testbed = Testbed::new(&[1, 2]);
    let [one, two] = planned(&testbed);
    let plan_version = one.held.plan_version();
    testbed.end(Signal::SIGKILL);
    std::fs::write(testbed.path("store.redb"), "no store").unwrap();
    testbed.start();
    testbed.until_logged("it was moved aside");
    let mut one = Node::come(&testbed, 1, FAMILIES[0], one.held);
    let mut two = Node::come(&testbed, 2, FAMILIES[0], two.held);
    one.report_links(&[up(2, 20)]);
    two.report_links(&[up(1, 20)]);
    one.until("a newer plan", |node| {
        node.held.plan_version() > plan_version
    });
    assert!(one.held.plan_version().unwrap().epoch > plan_version.unwrap().epoch);
}

// promise: O3
#[test]
fn removed_key_ends_stream() {
    let mut testbed = Testbed::new(&[1, 2]);
    let [mut one, mut two] = planned(&testbed);
    testbed.nodes = vec![1];
    testbed.reload();
    assert!(two.go_away().contains("not on the list any more"));
    one.until("that it went", |node| {
        let removed =
            |sent: &ToNode| matches!(sent, ToNode::Members { removed, .. } if *removed == [2]);
        node.sent.iter().any(removed)
    });
    // TLS 1.3 lets a client believe that it is in until it reads.
    if let Ok(mut stream) = testbed.stream(&identity(2), FAMILIES[0]) {
        assert!(stream.receive(crate::support::SOON).is_err());
    }
    testbed.until_metric(
        "posthaste_controller_unauthorized_total{reason=\"key\"}",
        1.0,
    );
    testbed.nodes = vec![1, 2];
    testbed.reload();
    Node::come(&testbed, 2, FAMILIES[1], RouteTable::new(2));
}

// promise: O13
#[test]
fn wrong_configuration_refused() {
    let testbed = Testbed::new(&[1]);
    let text = std::fs::read_to_string(testbed.path("controller.toml")).unwrap();
    std::fs::write(testbed.path("controller.toml"), text + "[plan]\nttl = 5\n").unwrap();
    testbed.signal_reload();
    testbed.until_metric(
        "posthaste_controller_config_reloads_total{result=\"failure\"}",
        1.0,
    );
    testbed.until_logged("plan.ttl = 5");
    testbed.node(1, FAMILIES[0]);
}
