// SPDX-License-Identifier: Apache-2.0
//! Which rule applies to a flow.

use std::cmp::Reverse;

use super::*;
use posthaste_testkit::{Rng, simulate};

fn prefix(text: &str) -> Prefix {
    let (ip, bits) = text.split_once('/').unwrap();
    Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap()
}

fn flow(client: &str, server: &str) -> Flow {
    Flow::new(client.parse().unwrap(), server.parse().unwrap())
}

fn flow_v4() -> Flow {
    flow("192.0.2.1:40000", "198.51.100.7:80")
}

fn flow_v6() -> Flow {
    flow("[2001:db8:1::1]:40000", "[2001:db8:2::7]:80")
}

fn matching(destinations: &[&str], sources: &[&str], ports: &[RangeInclusive<u16>]) -> Match {
    Match {
        destinations: destinations.iter().map(|text| prefix(text)).collect(),
        sources: sources.iter().map(|text| prefix(text)).collect(),
        ports: ports.to_vec(),
    }
}

fn policy(matches: &[Match]) -> Policy {
    let rule = |matches: &Match| Rule {
        name: String::new(),
        matches: matches.clone(),
        action: Action::Relay,
        accept: AcceptMode::EARLY,
        observe: false,
        source_address: SourceAddress::Client,
        data_path: DataPath::Socket,
        bypass: Bypass::Off,
        multipath: Multipath::Pass,
        upstream_multipath: false,
        proxy_protocol: false,
        downstream: SideOptions::default(),
        upstream: SideOptions::default(),
        timeouts: Timeouts::default(),
        transfer_bytes: None,
    };
    Policy {
        rules: matches.iter().map(rule).collect(),
        half_open: HalfOpenLimits::default(),
        strict_after_failure: Duration::ZERO,
        relays_max: 1,
        chains: Arc::default(),
        access: Access::default(),
    }
}

#[test]
fn prefix_round_trip() {
    for text in [
        "0.0.0.0/0",
        "198.51.100.0/24",
        "198.51.100.7/32",
        "::/0",
        "::/96",
        "2001:db8::/32",
        "2001:db8::1/128",
    ] {
        assert_eq!(prefix(text).to_string(), text);
    }
}

#[test]
fn invalid_prefixes_refused() {
    for (ip, bits) in [
        ("198.51.100.1", 24),
        ("198.51.100.0", 33),
        ("2001:db8::1", 64),
        ("2001:db8::", 129),
    ] {
        assert_eq!(Prefix::new(ip.parse().unwrap(), bits), None, "{ip}/{bits}");
    }
}

#[test]
fn prefix_bounds() {
    let prefix = prefix("198.51.100.0/24");
    let holds = |ip: &str| prefix.contains(flow("[::1]:1", &format!("{ip}:1")).addresses().1);
    assert!(holds("198.51.100.0") && holds("198.51.100.255"));
    assert!(!holds("198.51.99.255") && !holds("198.51.101.0"));
}

#[test]
fn families_never_mix() {
    // All but the first hold the v4-mapped addresses, as numbers.
    for v6 in ["2000::/3", "::/0", "::/80", "::fffe:0:0/95"] {
        for matches in [matching(&[v6], &[], &[]), matching(&[], &[v6], &[])] {
            assert_eq!(policy(&[matches]).classify(&flow_v4()), None, "{v6}");
        }
    }
    let v4 = "0.0.0.0/0";
    for matches in [matching(&[v4], &[], &[]), matching(&[], &[v4], &[])] {
        assert_eq!(policy(&[matches]).classify(&flow_v6()), None);
    }
}

#[test]
fn contradicting_families_never_match() {
    let policy = policy(&[
        matching(&["::/0"], &["0.0.0.0/0"], &[]),
        matching(&["0.0.0.0/0"], &["::/0"], &[]),
    ]);
    assert_eq!(policy.classify(&flow_v4()), None);
    assert_eq!(policy.classify(&flow_v6()), None);
}

#[test]
fn empty_list_matches_both() {
    let policy = policy(&[matching(&[], &[], &[])]);
    assert_eq!(policy.classify(&flow_v4()), Some(0));
    assert_eq!(policy.classify(&flow_v6()), Some(0));
}

#[test]
fn no_rule_no_match() {
    assert_eq!(policy(&[]).classify(&flow_v4()), None);
    let policy = policy(&[
        matching(&["203.0.113.0/24"], &[], &[]),
        matching(&[], &["203.0.113.0/24"], &[]),
        matching(&[], &[], &[81..=90, 8080..=8080]),
    ]);
    assert_eq!(policy.classify(&flow_v4()), None);
}

#[test]
fn longest_destination_wins() {
    let policy = policy(&[
        matching(&["198.51.100.0/24"], &["192.0.2.1/32"], &[80..=80]),
        matching(&["203.0.113.0/24", "198.51.100.0/25"], &[], &[]),
        matching(&["198.51.0.0/16"], &["192.0.2.1/32"], &[80..=80]),
    ]);
    assert_eq!(policy.classify(&flow_v4()), Some(1));
}

#[test]
fn then_the_longest_source_wins() {
    let policy = policy(&[
        matching(&["198.51.100.0/24"], &["192.0.2.0/24"], &[80..=80]),
        matching(&["198.51.100.0/24"], &["192.0.0.0/16", "192.0.2.0/25"], &[]),
    ]);
    assert_eq!(policy.classify(&flow_v4()), Some(1));
}

#[test]
fn then_the_narrowest_ports_win() {
    let policy = policy(&[
        matching(&[], &[], &[]),
        matching(&[], &[], &[0..=u16::MAX]),
        matching(&[], &[], &[1..=1, 70..=90]),
        matching(&[], &[], &[0..=1000, 80..=81]),
    ]);
    assert_eq!(policy.classify(&flow_v4()), Some(3));
}

#[test]
fn then_the_order_decides() {
    let same = matching(&["198.51.100.0/24"], &[], &[80..=81]);
    let other = matching(&["198.51.100.0/24"], &[], &[79..=80]);
    let policy = policy(&[same.clone(), other, same]);
    assert_eq!(policy.classify(&flow_v4()), Some(0));
}

/// As the redirect program does it: every combination of the lists of a rule separately, without
/// combinations of differing families, most specific first.
fn by_combinations(matches: &[Match], flow: &Flow) -> Option<usize> {
    let (client, server) = flow.addresses();
    let mut found = Vec::new();
    for (index, one) in matches.iter().enumerate() {
        let ports = match one.ports.as_slice() {
            [] => vec![0..=u16::MAX],
            list => list.to_vec(),
        };
        let ports = ports
            .iter()
            .filter(|range| range.contains(&flow.server().port()));
        let widths: Vec<u16> = ports.map(|range| range.end() - range.start()).collect();
        for destination in bits_of_each(&one.destinations, server, flow) {
            for source in bits_of_each(&one.sources, client, flow) {
                for width in &widths {
                    found.push((Reverse(destination), Reverse(source), *width, index));
                }
            }
        }
    }
    found.into_iter().min().map(|(.., index)| index)
}

/// The lengths of the prefixes that hold `address` and are of its family.
fn bits_of_each(prefixes: &[Prefix], address: [u8; 16], flow: &Flow) -> Vec<u8> {
    if prefixes.is_empty() {
        return vec![0];
    }
    let same_family = |prefix: &&Prefix| prefix.to_string().contains('.') == flow.is_ipv4();
    let holding = |prefix: &&Prefix| prefix.contains(address);
    let prefixes = prefixes.iter().filter(same_family).filter(holding);
    prefixes.map(Prefix::mapped_bits).collect()
}

fn some_prefixes(rng: &mut Rng) -> Vec<Prefix> {
    let all = [
        "0.0.0.0/0",
        "198.51.0.0/16",
        "198.51.100.0/24",
        "192.0.2.0/24",
        "192.0.2.1/32",
        "::/0",
        "::/80",
        "2001:db8::/32",
        "2001:db8:1::/48",
    ];
    let count = rng.below(4);
    (0..count).map(|_| prefix(rng.pick(&all))).collect()
}

fn some_match(rng: &mut Rng) -> Match {
    let ranges = [80..=80, 70..=90, 443..=443, 0..=u16::MAX];
    let count = rng.below(3);
    Match {
        destinations: some_prefixes(rng),
        sources: some_prefixes(rng),
        ports: (0..count)
            .map(|_| ranges[rng.below(ranges.len())].clone())
            .collect(),
    }
}

// promise: R1
#[test]
fn policies_agree_with_combinations() {
    let mut matched = 0;
    simulate(3000, |mut rng| {
        let count = rng.below(6);
        let matches: Vec<Match> = (0..count).map(|_| some_match(&mut rng)).collect();
        for flow in [flow_v4(), flow_v6()] {
            let found = policy(&matches).classify(&flow);
            assert_eq!(found, by_combinations(&matches, &flow), "{matches:?}");
            matched += usize::from(found.is_some());
        }
    });
    assert!(matched > 1000, "{matched} flows matched");
}

/// RFC 5382 REQ-5: an established connection is not given up within 2 hours and 4 minutes.
// promise: I9
#[test]
fn default_timeouts_respect_nat() {
    let least = Duration::from_mins(124);
    let timeouts = Timeouts::default();
    for bound in [timeouts.idle, timeouts.client_fin, timeouts.server_fin] {
        assert!(bound >= least, "{bound:?}");
    }
    let side = SideOptions::default();
    let silent = side.keepalive_idle + side.keepalive_interval * side.keepalive_probes;
    assert!(silent >= least, "{silent:?}");
    assert_eq!(side.user_timeout, Duration::ZERO, "the kernel's limits");
}
