// SPDX-License-Identifier: Apache-2.0
//! Nodes on hosts with a wrong clock, or with a clock that steps while they run.

use nix::sys::signal::Signal;
use posthaste_control::message::NodeNumber;
use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use serde_json::Value;

use super::fixture::{CHAIN, Fixture, NUMBERS, Settings};
use super::opened;
use super::visitors::Visitors;
use crate::clock::WrongClock;
use crate::support::{Pair, SOON, counter, until};

const HOUR_MS: i64 = 3_600_000;
const OFFSET: &str = "posthaste_controller_clock_offset_seconds";
/// The log message about a wrong clock.
const WRONG: &str = "the clock of this host is not the controller's";

/// Some nodes, or the controller, with clocks of their own.
fn settings(hops: Family, clocks: &[(NodeNumber, &WrongClock)]) -> Settings {
    let clocks = clocks
        .iter()
        .map(|(number, clock)| (*number, (*clock).clone()));
    Settings {
        clocks: clocks.collect(),
        ..Settings::of(hops)
    }
}

/// Waits until a node has measured its clock to be off by so much. The machine may be slow.
fn until_off(fixture: &Fixture, number: NodeNumber, ahead_ms: i64) {
    let wanted = ahead_ms as f64 / 1e3;
    let mut last = None;
    let reached = wait_until("an offset", SOON, || {
        last = fixture.metric(number, OFFSET);
        last.is_some_and(|offset| (offset - wanted).abs() < 5.0)
    });
    assert!(reached.is_ok(), "node {number}: {last:?}, not {wanted}");
}

/// No request and no probe was refused for the time it was made.
fn check_nothing_refused(fixture: &Fixture) {
    for number in NUMBERS {
        for name in [
            "posthaste_requests_denied_total{reason=\"clock\"}",
            "posthaste_requests_denied_total{reason=\"replay\"}",
            "posthaste_hops_refused_for_clock_total",
        ] {
            assert_eq!(
                fixture.metric(number, name),
                Some(0.0),
                "node {number} {name}"
            );
        }
    }
}

/// Waits until all whom a node measures have answered its probes.
fn until_probed(fixture: &Fixture, number: NodeNumber) {
    until("answers to probes", || {
        let links = fixture.node(number).admin_json("links").unwrap();
        let links = links["links"].as_array().unwrap();
        let is_fine = |link: &Value| link["state"] == "up" && link["answers"].as_u64() >= Some(3);
        links.len() == NUMBERS.len() - 1 && links.iter().all(is_fine)
    });
}

/// Waits until flows of one have used warm hops, and cold hops.
fn until_cold_and_warm(fixture: &Fixture) {
    until("cold and warm hops", || {
        Family::ALL
            .iter()
            .for_each(|family| assert_eq!(fixture.carry(*family), CHAIN));
        let count = |name| counter(fixture.node(1), name);
        count("hops_cold") > 0 && count("hops_warm") > 0
    });
}

fn lines(fixture: &Fixture, number: NodeNumber, words: &str) -> usize {
    let log = fixture.node(number).log();
    log.iter().filter(|line| line.contains(words)).count()
}

/// Of the first node in a chain and of one in its middle, ahead and behind.
// promise: S12
#[test]
fn wrong_clock_carries_flows() {
    for (hops, ahead_ms) in [(Family::V4, 90_000), (Family::V6, -HOUR_MS)] {
        for number in [1, 2] {
            let clock = WrongClock::new(ahead_ms);
            let fixture = Fixture::start(&settings(hops, &[(number, &clock)]));
            until_cold_and_warm(&fixture);
            check_nothing_refused(&fixture);
            until_off(&fixture, number, ahead_ms);
            until_off(&fixture, 3, 0);
            until("it logs the wrong clock", || {
                lines(&fixture, number, WRONG) == 1
            });
            assert_eq!(lines(&fixture, 3, WRONG), 0);
            let status = fixture.node(number).admin("status").unwrap();
            assert!(status.contains("the controller's: WRONG"), "{status}");
            let place = usize::try_from(number - 1).unwrap();
            until("the controller receives the offset", || {
                let nodes = fixture.testbed.document("/v1/nodes");
                let offset = &nodes["nodes"][place]["clock_offset_seconds"];
                let off = offset.as_f64().map(|offset| offset - ahead_ms as f64 / 1e3);
                off.is_some_and(|off| off.abs() < 5.0)
            });
            NUMBERS
                .iter()
                .for_each(|number| until_probed(&fixture, *number));
        }
    }
}

// promise: S13
#[test]
fn clock_set_while_running() {
    for hops in Family::ALL {
        let clocks = [1, 2].map(|number| (number, WrongClock::new(0)));
        let refs = clocks.each_ref().map(|(number, clock)| (*number, clock));
        let fixture = Fixture::start(&settings(hops, &refs));
        let mut open = opened(&fixture);
        let visitors = Visitors::come(&fixture.network);
        let right = "the clock of this host is the controller's again";
        for (ahead_ms, text, count) in [
            (HOUR_MS, WRONG, 1),
            (-24 * HOUR_MS, WRONG, 2),
            (0, right, 1),
        ] {
            for (number, clock) in &clocks {
                clock.set(ahead_ms);
                visitors.until_more(5);
                until_off(&fixture, *number, ahead_ms);
                until("it logs the wrong clock", || {
                    lines(&fixture, *number, text) == count
                });
            }
            open.iter_mut().for_each(Pair::check);
        }
        visitors.go();
        until_cold_and_warm(&fixture);
        open.iter_mut().for_each(Pair::check);
        check_nothing_refused(&fixture);
    }
}

// promise: S14
#[test]
fn clock_kept_for_restart() {
    let clock = WrongClock::new(-HOUR_MS);
    let mut fixture = Fixture::start(&settings(Family::V4, &[(1, &clock)]));
    until_off(&fixture, 1, -HOUR_MS);
    fixture.testbed.end(Signal::SIGKILL);
    fixture.stop_node(1);
    clock.set(2 * HOUR_MS);
    fixture.start_node(1);
    until_cold_and_warm(&fixture);
    check_nothing_refused(&fixture);
    until_off(&fixture, 1, 2 * HOUR_MS);
    assert_eq!(fixture.following(1)["connected"], false);
}

/// It is set back while it runs and while it does not, and on; nodes come again meanwhile.
// promise: S15
#[test]
fn controllers_clock_set() {
    let clock = WrongClock::new(HOUR_MS);
    let mut fixture = Fixture::start(&settings(Family::V6, &[(0, &clock)]));
    NUMBERS
        .iter()
        .for_each(|number| until_off(&fixture, *number, -HOUR_MS));
    clock.set(0);
    fixture.stop_node(2);
    fixture.start_node(2);
    fixture.until_carried(&CHAIN);
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    fixture.testbed.end(Signal::SIGTERM);
    clock.set(-24 * HOUR_MS);
    fixture.testbed.start();
    until("all are there again", || {
        NUMBERS
            .iter()
            .all(|number| fixture.following(*number)["connected"] == true)
    });
    visitors.until_more(20);
    fixture.until_carried(&CHAIN);
    clock.set(24 * HOUR_MS);
    visitors.until_more(20);
    NUMBERS
        .iter()
        .for_each(|number| until_off(&fixture, *number, -HOUR_MS));
    until_cold_and_warm(&fixture);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
    check_nothing_refused(&fixture);
    let page = fixture.testbed.query("GET /metrics", None, "").1;
    let name = "posthaste_controller_time_offset_seconds ";
    let offset = page.lines().find_map(|line| line.strip_prefix(name));
    let offset: f64 = offset.unwrap().parse().unwrap();
    assert!((offset - 23.0 * 3_600.0).abs() < 60.0, "{offset}");
}
