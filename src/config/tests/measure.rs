// SPDX-License-Identifier: Apache-2.0
//! How links are measured.

use super::super::Schedule;
use super::*;

const PEER: &str = "[[peer]]\nname = \"a\"\nid = 8\naddress = \"192.0.2.8:4480\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";
const NODE: &str = "version = 1\n[node]\nid = 7\n";

fn listeners(addresses: &[&str]) -> String {
    let sections = addresses
        .iter()
        .map(|address| format!("[[listener]]\naddress = \"{address}\"\n"));
    sections.collect()
}

#[test]
fn what_is_said_of_measuring_is_read() {
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
fn reflectors_are_beside_the_listeners_unless_said_otherwise() {
    let given = listeners(&["10.0.0.1:4480", "10.0.0.1:4481", "[fd00::1]:4480"]);
    let measure = parse(&format!("{NODE}{given}{PEER}")).unwrap().measure;
    let beside = ["10.0.0.1:862", "[fd00::1]:862"].map(|text| text.parse().unwrap());
    assert_eq!(measure.reflectors, beside);
    let usual = "192.0.2.8:862".parse().unwrap();
    assert_eq!(measure.reflectors_of_peers, [Some(usual)]);
    let none = format!("{NODE}[measure]\nreflector = []\n{given}{PEER}");
    assert_eq!(parse(&none).unwrap().measure.reflectors, []);
    let alone = parse(&format!("{NODE}{given}")).unwrap().measure;
    assert_eq!(
        (alone.reflectors, alone.reflectors_of_peers),
        (vec![], vec![])
    );
}

#[test]
fn a_short_interval_is_that_of_links_in_use_as_well() {
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
    let error = parse(&format!("{NODE}{PEER}reflector = \"0.0.0.0:862\"")).unwrap_err();
    let words = "peer \"a\": reflector = \"0.0.0.0:862\": expected an address and port";
    assert!(error.contains(words), "{error}");
}
