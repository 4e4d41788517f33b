// SPDX-License-Identifier: Apache-2.0
//! Controllers that end, start again, and let nobody in any more.

use nix::sys::signal::Signal;
use posthaste_control::message::ToNode;
use posthaste_control::rows::Held;

use super::site::{FAMILIES, Node, Site, identity, up};

/// Two nodes that hold a plan.
fn planned(site: &Site) -> [Node; 2] {
    let mut nodes = [1, 2].map(|number| site.node(number, FAMILIES[0]));
    nodes[0].say_links(&[up(2, 20)]);
    nodes[1].say_links(&[up(1, 20)]);
    nodes[0].until("a way", |node| node.best(2).is_some());
    nodes[1].until("a way", |node| node.best(1).is_some());
    nodes
}

/// Ends the controller, and sees that nodes that come back are told that their plan stands.
fn goes_on_after(signal: Signal) {
    let mut site = Site::new(&[1, 2]);
    let mut nodes = planned(&site);
    let stamp = nodes[0].held.stamp();
    site.end(signal);
    if signal == Signal::SIGTERM {
        assert!(nodes[0].farewell().contains("the controller ends"));
    }
    let [one, two] = nodes;
    site.start();
    let mut one = Node::come(&site, 1, FAMILIES[1], one.held);
    one.until("that the last plan stands", |node| {
        let stands =
            |told: &ToNode| matches!(told, ToNode::Stands(stands) if Some(*stands) == stamp);
        node.told.iter().any(stands)
    });
    let mut two = Node::come(&site, 2, FAMILIES[1], two.held);
    one.say_links(&[up(2, 20)]);
    two.say_links(&[up(1, 20)]);
    one.until("a newer plan", |node| node.held.stamp() > stamp);
    assert_eq!(one.held.stamp().unwrap().epoch, stamp.unwrap().epoch);
    assert!(one.best(2).is_some());
}

#[test]
fn a_controller_that_starts_again_disturbs_nobody() {
    goes_on_after(Signal::SIGTERM);
}

#[test]
fn a_controller_that_is_killed_has_lost_nothing() {
    goes_on_after(Signal::SIGKILL);
}

#[test]
fn a_controller_without_its_store_makes_plans_that_nodes_take() {
    let mut site = Site::new(&[1, 2]);
    let [one, two] = planned(&site);
    let stamp = one.held.stamp();
    site.end(Signal::SIGKILL);
    std::fs::write(site.path("store.redb"), "no store").unwrap();
    site.start();
    site.until_said("it was moved aside");
    let mut one = Node::come(&site, 1, FAMILIES[0], one.held);
    let mut two = Node::come(&site, 2, FAMILIES[0], two.held);
    one.say_links(&[up(2, 20)]);
    two.say_links(&[up(1, 20)]);
    one.until("a newer plan", |node| node.held.stamp() > stamp);
    assert!(one.held.stamp().unwrap().epoch > stamp.unwrap().epoch);
}

#[test]
fn a_key_that_is_taken_off_the_list_ends_its_stream_and_is_not_let_in_again() {
    let mut site = Site::new(&[1, 2]);
    let [mut one, mut two] = planned(&site);
    site.nodes = vec![1];
    site.reload();
    assert!(two.farewell().contains("not on the list any more"));
    one.until("that it went", |node| {
        let gone = |told: &ToNode| matches!(told, ToNode::Members { gone, .. } if *gone == [2]);
        node.told.iter().any(gone)
    });
    // TLS 1.3 lets a client believe that it is in until it reads.
    if let Ok(mut stream) = site.stream(&identity(2), FAMILIES[0]) {
        assert!(stream.receive(crate::support::SOON).is_err());
    }
    site.until_metric("posthaste_controller_strangers_total{reason=\"key\"}", 1.0);
    site.nodes = vec![1, 2];
    site.reload();
    Node::come(&site, 2, FAMILIES[1], Held::new(2));
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing() {
    let site = Site::new(&[1]);
    let text = std::fs::read_to_string(site.path("controller.toml")).unwrap();
    std::fs::write(site.path("controller.toml"), text + "[plan]\nlife = 5\n").unwrap();
    site.signal_reload();
    site.until_metric(
        "posthaste_controller_config_reloads_total{result=\"failure\"}",
        1.0,
    );
    site.until_said("plan.life = 5");
    site.node(1, FAMILIES[0]);
}
