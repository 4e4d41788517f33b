// SPDX-License-Identifier: Apache-2.0
//! How links are measured.

use super::super::{Measure, Schedule};
use super::*;

/// The problems with measuring in a node with a number and `rest`.
fn measure_of(rest: &str) -> Measure {
    parse(&format!("version = 1\n{NODE}{rest}"))
        .unwrap()
        .measure
}

fn listeners(addresses: &[&str]) -> String {
    let sections = addresses
        .iter()
        .map(|address| format!("[[listener]]\naddress = \"{address}\"\n"));
    sections.collect()
}

#[test]
fn measure_keys() {
    let measure = parse(FULL).unwrap().measure;
    let addresses = ["192.0.2.7:862", "[2001:db8::7]:8620"];
    assert_eq!(
        measure.reflectors,
        addresses.map(|text| text.parse().unwrap())
    );
    assert_eq!(measure.open_to[0].to_string(), "203.0.113.0/24");
    let of_peers = [Some("192.0.2.8:8620".parse().unwrap()), None];
    assert_eq!(measure.reflectors_of_peers, of_peers);
    let schedule = Schedule {
        interval: Duration::from_secs(30),
        interval_in_use: Duration::from_millis(500),
        ports: 3,
    };
    assert_eq!(measure.schedule, schedule);
}

#[test]
fn default_reflectors() {
    let given = listeners(&["10.0.0.1:4480", "10.0.0.1:4481", "[fd00::1]:4480"]);
    let measure = measure_of(&format!("{given}{PEER}"));
    let beside = ["10.0.0.1:862", "[fd00::1]:862"].map(|text| text.parse().unwrap());
    assert_eq!(measure.reflectors, beside);
    let usual = "192.0.2.8:862".parse().unwrap();
    assert_eq!(measure.reflectors_of_peers, [Some(usual)]);
    let none = measure_of(&format!("[measure]\nreflector = []\n{given}{PEER}"));
    assert_eq!(none.reflectors, []);
    let alone = measure_of(&given);
    assert_eq!(
        (alone.reflectors, alone.reflectors_of_peers),
        (vec![], vec![])
    );
}

#[test]
fn short_interval_covers_use() {
    let measure = parse("version = 1\n[measure]\ninterval = \"200ms\"")
        .unwrap()
        .measure;
    assert_eq!(measure.schedule.interval_in_use, Duration::from_millis(200));
}

#[test]
fn mistakes_about_measuring_are_named() {
    for (body, words) in [
        ("interval = \"10ms\"", "from 100ms to 1h"),
        (
            "interval = \"2s\"\ninterval_in_use = \"3s\"",
            "measure.interval_in_use = \"3s\": expected a duration from 100ms to 2s",
        ),
        ("source_ports = 17", "from 1 to 16"),
        ("reflector = [\"rome\"]", "measure.reflector = \"rome\""),
        (
            "reflector = [\"10.0.0.1:862\", \"10.0.0.1:862\"]",
            "is named twice",
        ),
        ("open_to = [\"all\"]", "measure.open_to = \"all\""),
        ("opn_to = []", "did you mean \"open_to\"?"),
    ] {
        let error = error_of(&format!("[measure]\n{body}"));
        assert!(error.contains(words), "{words} is not in {error}");
    }
    let error = error_of(&format!("{NODE}{PEER}reflector = \"0.0.0.0:862\""));
    let words = "peer \"a\": reflector = \"0.0.0.0:862\": expected an address and port";
    assert!(error.contains(words), "{error}");
}
