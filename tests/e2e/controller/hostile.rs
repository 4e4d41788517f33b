// SPDX-License-Identifier: Apache-2.0
//! Unauthorized senders, and nodes that send forbidden messages.

use std::io::{Read, Write};

use posthaste_control::frame::MESSAGE_MAX;
use posthaste_control::message::{LinkState, PlanVersion, ToController, ToNode};

use super::testbed::{FAMILIES, Testbed, hello, identity, up};
use crate::support::SOON;

/// Waits for the end of a connection.
fn ended(stream: &mut impl Read) {
    let mut bytes = [0; 4096];
    while !matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {}
}

// promise: O1
#[test]
fn unknown_keys_rejected() {
    let testbed = Testbed::new(&[1]);
    for at in FAMILIES {
        // Another key.
        if let Ok(mut stream) = testbed.stream(&identity(9), at) {
            assert!(stream.receive(SOON).is_err());
        }
        // No TLS.
        let mut stream = testbed.connect(at);
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        ended(&mut stream);
    }
    let unauthorized = "posthaste_controller_unauthorized_total";
    testbed.until_metric(&format!("{unauthorized}{{reason=\"key\"}}"), 2.0);
    testbed.until_metric(&format!("{unauthorized}{{reason=\"handshake\"}}"), 2.0);
    testbed.until_logged("msg=\"unknown key rejected\"");
    testbed.node(1, FAMILIES[0]);
}

// promise: O4
#[test]
fn silent_and_flooding_clients() {
    let listed: Vec<_> = (1..=20).collect();
    let testbed = Testbed::new(&listed);
    let mut silent: Vec<_> = (0..300).map(|_| testbed.connect(FAMILIES[0])).collect();
    testbed.until_metric(
        "posthaste_controller_unauthorized_total{reason=\"displaced\"}",
        24.0,
    );
    testbed.node(1, FAMILIES[0]);
    testbed.until_metric(
        "posthaste_controller_unauthorized_total{reason=\"slow\"}",
        275.0,
    );
    silent.iter_mut().for_each(ended);
}

// promise: O2
#[test]
fn impersonation_rejected() {
    let testbed = Testbed::new(&[1, 2]);
    let mut stream = testbed.stream(&identity(2), FAMILIES[0]).unwrap();
    stream.send(&ToController::Hello(hello(1))).unwrap();
    let sent = stream.receive(SOON).unwrap();
    let Some(ToNode::GoAway(why)) = sent else {
        panic!("{sent:?} instead of GoAway");
    };
    assert!(why.contains("node 1 has another key"), "{why}");
    testbed.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"denied\"}",
        1.0,
    );
}

// promise: O5
#[test]
fn messages_out_of_turn() {
    let testbed = Testbed::new(&[1]);
    let mut stream = testbed.stream(&identity(1), FAMILIES[0]).unwrap();
    stream.send(&ToController::Links(Vec::new())).unwrap();
    let sent = stream.receive(SOON).unwrap();
    assert!(matches!(sent, Some(ToNode::GoAway(_))), "{sent:?}");
    let mut node = testbed.node(1, FAMILIES[0]);
    node.stream.send(&ToController::Hello(hello(1))).unwrap();
    assert!(node.go_away().contains("out of turn"));
    testbed.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"out_of_turn\"}",
        2.0,
    );
}

// promise: O5
#[test]
fn oversized_messages_and_noise() {
    let testbed = Testbed::new(&[1]);
    let long = u32::try_from(MESSAGE_MAX + 1).unwrap().to_be_bytes();
    for noise in [&long[..], &[0, 0, 0, 2, 0xff, 0xff]] {
        let mut node = testbed.node(1, FAMILIES[1]);
        node.stream.send_raw(noise).unwrap();
        let why = node.go_away();
        assert!(why.starts_with("a message of"), "{why}");
    }
    // Before a node has identified itself, the controller reads only short messages from it.
    let mut stream = testbed.stream(&identity(1), FAMILIES[0]).unwrap();
    stream.send_raw(&[0, 1, 0, 0]).unwrap();
    let sent = stream.receive(SOON).unwrap();
    assert!(matches!(sent, Some(ToNode::GoAway(_))), "{sent:?}");
    testbed.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"unreadable\"}",
        3.0,
    );
}

// promise: O5
#[test]
fn silent_node_removed() {
    let testbed = Testbed::hurried(&[1], 1);
    let _node = testbed.node(1, FAMILIES[0]);
    testbed.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"silent\"}",
        1.0,
    );
}

// promise: O10
#[test]
fn lying_node_harms_itself() {
    let testbed = Testbed::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| testbed.node(number, FAMILIES[0]));
    let [one, two, three] = &mut nodes;
    // Node 2 reports that it is near all others, and that it holds an impossible plan.
    let mut impossible = up(3, 1);
    impossible.state = LinkState::Up {
        rtt_us: 0,
        loss_ppm: None,
        rate: None,
    };
    one.report_links(&[up(2, 150), up(3, 200)]);
    three.report_links(&[up(1, 200), up(2, 150)]);
    two.report_links(&[up(1, 1), impossible]);
    let newest = PlanVersion {
        epoch: u64::MAX,
        version: u64::MAX,
    };
    two.stream.send(&ToController::Holds(newest)).unwrap();
    one.until("the direct hop", |node| node.best(3) == Some(vec![1, 3]));
    assert_eq!(one.held.plan_version().unwrap().epoch, 1);
    let refused = "posthaste_controller_reports_refused_total{reason=\"impossible\"}";
    testbed.until_metric(refused, 1.0);
    testbed.until_metric("posthaste_controller_links_disputed", 1.0);
}

// promise: O10
#[test]
fn shortened_links_attract_nothing() {
    let testbed = Testbed::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| testbed.node(number, FAMILIES[0]));
    let [one, two, three] = &mut nodes;
    one.report_links(&[up(2, 40), up(3, 60)]);
    three.report_links(&[up(1, 60), up(2, 40)]);
    // By its reports the others would be 41 ms apart, although none of them differs much from the
    // others' reports.
    let mut lies = [up(1, 0), up(3, 0)];
    for lie in &mut lies {
        lie.state = LinkState::Up {
            rtt_us: 20_500,
            loss_ppm: None,
            rate: None,
        };
    }
    two.report_links(&lies);
    one.until("a way", |node| node.best(3).is_some());
    assert_eq!(one.best(3), Some(vec![1, 3]), "the hop without it");
    let links = testbed.document("/v1/links?node=n2");
    for link in links["links"].as_array().unwrap() {
        assert_eq!(link["rtt_us"], 40_000, "{link:#}");
    }
}

// promise: O16
#[test]
fn refusing_node_disconnected() {
    let testbed = Testbed::new(&[1, 2]);
    let ended = "posthaste_controller_streams_ended_total{reason=\"excessive\"}";
    let nack = ToController::Nack {
        holds: None,
        why: format!("\n\u{1b}[2Jlevel=error {}", "x".repeat(100_000)),
    };
    let mut node = testbed.node(1, FAMILIES[0]);
    for _ in 0..7 {
        node.stream.send(&nack).unwrap();
    }
    let why = node.go_away();
    assert!(why.contains("again and again"), "{why}");
    // Reconnecting does not help.
    for round in 0..10 {
        let mut node = testbed.node(1, FAMILIES[1]);
        while node.stream.send(&nack).is_ok() {}
        testbed.until_metric(ended, f64::from(round) + 2.0);
    }
    let log = testbed.log();
    let text = log.matches("msg=\"route update refused\"").count();
    assert!((1..=60).contains(&text), "{text}");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(2000), "{longest:?}");
    assert!(!log.contains('\u{1b}'));
    testbed.node(2, FAMILIES[0]);
}

// promise: O16
#[test]
fn reconnecting_node_throttled() {
    let testbed = Testbed::new(&[1, 2]);
    let comes = || {
        let mut stream = testbed.stream(&identity(1), FAMILIES[0]).unwrap();
        stream.send(&ToController::Hello(hello(1))).unwrap();
        stream.receive(SOON).unwrap()
    };
    let denied = (0..60).find_map(|_| match comes() {
        Some(ToNode::GoAway(why)) => Some(why),
        _ => None,
    });
    let why = denied.expect("60 streams in a row are too many");
    assert!(why.contains("again and again"), "{why}");
    testbed.node(2, FAMILIES[0]);
}
