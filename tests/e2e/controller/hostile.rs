// SPDX-License-Identifier: Apache-2.0
//! Strangers, and nodes that say what they must not.

use std::io::{Read, Write};

use posthaste_control::frame::MESSAGE_MAX;
use posthaste_control::message::{LinkState, Stamp, ToController, ToNode};

use super::site::{FAMILIES, Site, hello, identity, up};
use crate::support::SOON;

/// Waits for the end of a connection.
fn ended(stream: &mut impl Read) {
    let mut bytes = [0; 4096];
    while !matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {}
}

#[test]
fn strangers_are_turned_away_and_counted() {
    let site = Site::new(&[1]);
    for at in FAMILIES {
        // Another key.
        if let Ok(mut stream) = site.stream(&identity(9), at) {
            assert!(stream.receive(SOON).is_err());
        }
        // No TLS.
        let mut stream = site.connect(at);
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        ended(&mut stream);
    }
    let strangers = "posthaste_controller_strangers_total";
    site.until_metric(&format!("{strangers}{{reason=\"key\"}}"), 2.0);
    site.until_metric(&format!("{strangers}{{reason=\"handshake\"}}"), 2.0);
    site.until_said("msg=\"stranger turned away\"");
    site.node(1, FAMILIES[0]);
}

#[test]
fn who_says_nothing_is_let_go_and_who_comes_in_numbers_keeps_nobody_out() {
    let listed: Vec<_> = (1..=20).collect();
    let site = Site::new(&listed);
    let mut silent: Vec<_> = (0..300).map(|_| site.connect(FAMILIES[0])).collect();
    site.until_metric(
        "posthaste_controller_strangers_total{reason=\"displaced\"}",
        24.0,
    );
    site.node(1, FAMILIES[0]);
    site.until_metric(
        "posthaste_controller_strangers_total{reason=\"slow\"}",
        275.0,
    );
    silent.iter_mut().for_each(ended);
}

#[test]
fn a_node_cannot_come_as_another() {
    let site = Site::new(&[1, 2]);
    let mut stream = site.stream(&identity(2), FAMILIES[0]).unwrap();
    stream.send(&ToController::Hello(hello(1))).unwrap();
    let told = stream.receive(SOON).unwrap();
    let Some(ToNode::Farewell(why)) = told else {
        panic!("{told:?} instead of a farewell");
    };
    assert!(why.contains("node 1 has another key"), "{why}");
    site.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"denied\"}",
        1.0,
    );
}

#[test]
fn messages_out_of_turn_end_the_stream() {
    let site = Site::new(&[1]);
    let mut stream = site.stream(&identity(1), FAMILIES[0]).unwrap();
    stream.send(&ToController::Alive).unwrap();
    let told = stream.receive(SOON).unwrap();
    assert!(matches!(told, Some(ToNode::Farewell(_))), "{told:?}");
    let mut node = site.node(1, FAMILIES[0]);
    node.stream.send(&ToController::Hello(hello(1))).unwrap();
    assert!(node.farewell().contains("out of turn"));
    site.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"out_of_turn\"}",
        2.0,
    );
}

#[test]
fn messages_that_are_too_long_or_noise_end_the_stream() {
    let site = Site::new(&[1]);
    let long = u32::try_from(MESSAGE_MAX + 1).unwrap().to_be_bytes();
    for noise in [&long[..], &[0, 0, 0, 2, 0xff, 0xff]] {
        let mut node = site.node(1, FAMILIES[1]);
        node.stream.send_raw(noise).unwrap();
        let why = node.farewell();
        assert!(why.starts_with("a message of"), "{why}");
    }
    // Before a node has said who it is, little is taken of it.
    let mut stream = site.stream(&identity(1), FAMILIES[0]).unwrap();
    stream.send_raw(&[0, 1, 0, 0]).unwrap();
    let told = stream.receive(SOON).unwrap();
    assert!(matches!(told, Some(ToNode::Farewell(_))), "{told:?}");
    site.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"unreadable\"}",
        3.0,
    );
}

#[test]
fn a_node_that_is_silent_is_taken_for_gone() {
    let site = Site::hurried(&[1], 1);
    let _node = site.node(1, FAMILIES[0]);
    site.until_metric(
        "posthaste_controller_streams_ended_total{reason=\"silent\"}",
        1.0,
    );
}

#[test]
fn a_node_that_lies_harms_its_own_links_at_most() {
    let site = Site::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| site.node(number, FAMILIES[0]));
    let [one, two, three] = &mut nodes;
    // 2 says that it is next to everybody, and that it holds a plan that there cannot be.
    let mut impossible = up(3, 1);
    impossible.state = LinkState::Up {
        rtt_us: 0,
        loss_ppm: None,
        rate: None,
    };
    one.say_links(&[up(2, 150), up(3, 200)]);
    three.say_links(&[up(1, 200), up(2, 150)]);
    two.say_links(&[up(1, 1), impossible]);
    let newest = Stamp {
        epoch: u64::MAX,
        version: u64::MAX,
    };
    two.stream.send(&ToController::Holds(newest)).unwrap();
    one.until("the direct hop", |node| node.best(3) == Some(vec![]));
    assert_eq!(one.held.stamp().unwrap().epoch, 1);
    let refused = "posthaste_controller_reports_refused_total{reason=\"impossible\"}";
    site.until_metric(refused, 1.0);
    site.until_metric("posthaste_controller_links_disputed", 1.0);
}

#[test]
fn a_node_that_makes_its_links_half_as_long_draws_no_chain() {
    let site = Site::new(&[1, 2, 3]);
    let mut nodes = [1, 2, 3].map(|number| site.node(number, FAMILIES[0]));
    let [one, two, three] = &mut nodes;
    one.say_links(&[up(2, 40), up(3, 60)]);
    three.say_links(&[up(1, 60), up(2, 40)]);
    // By it the others would be 41 ms apart, though none of its lies is far from what they say.
    let mut lies = [up(1, 0), up(3, 0)];
    for lie in &mut lies {
        lie.state = LinkState::Up {
            rtt_us: 20_500,
            loss_ppm: None,
            rate: None,
        };
    }
    two.say_links(&lies);
    one.until("a way", |node| node.best(3).is_some());
    assert_eq!(one.best(3), Some(vec![]), "the hop without it");
    let links = site.document("/v1/links?node=n2");
    for link in links["links"].as_array().unwrap() {
        assert_eq!(link["rtt_us"], 40_000, "{link:#}");
    }
}

#[test]
fn a_node_that_never_takes_its_rows_is_sent_away_and_fills_no_log() {
    let site = Site::new(&[1, 2]);
    let ended = "posthaste_controller_streams_ended_total{reason=\"excessive\"}";
    let misfit = ToController::Misfit {
        holds: None,
        why: format!("\n\u{1b}[2Jlevel=error {}", "x".repeat(100_000)),
    };
    let mut node = site.node(1, FAMILIES[0]);
    for _ in 0..7 {
        node.stream.send(&misfit).unwrap();
    }
    let why = node.farewell();
    assert!(why.contains("again and again"), "{why}");
    // Nor does it help to come anew.
    for round in 0..10 {
        let mut node = site.node(1, FAMILIES[1]);
        while node.stream.send(&misfit).is_ok() {}
        site.until_metric(ended, f64::from(round) + 2.0);
    }
    let log = site.log();
    let said = log.matches("msg=\"rows did not fit\"").count();
    assert!((1..=60).contains(&said), "{said}");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(2000), "{longest:?}");
    assert!(!log.contains('\u{1b}'));
    site.node(2, FAMILIES[0]);
}

#[test]
fn a_node_that_comes_again_and_again_is_denied_for_a_while() {
    let site = Site::new(&[1, 2]);
    let comes = || {
        let mut stream = site.stream(&identity(1), FAMILIES[0]).unwrap();
        stream.send(&ToController::Hello(hello(1))).unwrap();
        stream.receive(SOON).unwrap()
    };
    let denied = (0..60).find_map(|_| match comes() {
        Some(ToNode::Farewell(why)) => Some(why),
        _ => None,
    });
    let why = denied.expect("60 streams in a row are too many");
    assert!(why.contains("again and again"), "{why}");
    site.node(2, FAMILIES[0]);
}
