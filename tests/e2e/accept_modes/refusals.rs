// SPDX-License-Identifier: Apache-2.0
//! What a client learns of a server that refuses, that cannot be reached, or that is silent.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};

use super::MS;
use crate::support::{
    PORT, Pair, accepting, add_address, counter, dial, dial_from, each_mode, errno,
    expect_accepted_and_reset, firewall, line, listen, network, start_relaying, talkative, until,
    until_counter, until_ended,
};

/// A client that gives up after a few seconds instead of minutes.
pub(crate) fn impatient(client: &Namespace) {
    client
        .sysctl("net.ipv4.tcp_syn_retries", "1")
        .expect("a namespace has its own patience");
}

/// The ways in which a firewall on the path can refuse, by family.
fn rejections(family: Family) -> Vec<String> {
    let (protocol, kinds): (_, &[&str]) = match family {
        Family::V4 => (
            "icmp",
            &[
                "net-unreachable",
                "host-unreachable",
                "prot-unreachable",
                "port-unreachable",
                "net-prohibited",
                "host-prohibited",
                "admin-prohibited",
            ],
        ),
        Family::V6 => (
            "icmpv6",
            &[
                "no-route",
                "admin-prohibited",
                "addr-unreachable",
                "port-unreachable",
                "policy-fail",
                "reject-route",
            ],
        ),
    };
    let mut list: Vec<_> = kinds
        .iter()
        .map(|kind| format!("{protocol} type {kind}"))
        .collect();
    list.push("tcp reset".to_owned());
    list
}

/// Destinations that cannot be reached, each with a name: by a closed port, by a firewall of the second
/// of two hosts on the way, and by a route of either.
pub(crate) fn unreachable_targets(
    network: &Network,
    hosts: &[Namespace],
    family: Family,
) -> Vec<(String, SocketAddr)> {
    let server = network.server_address(family);
    let mut targets = vec![("a closed port".to_owned(), SocketAddr::new(server, 2999))];
    let mut rules = String::new();
    for (port, kind) in (3000..).zip(rejections(family)) {
        rules += &format!("tcp dport {port} reject with {kind}\n");
        targets.push((kind, SocketAddr::new(server, port)));
    }
    firewall(&hosts[1], &format!("for_{family}"), &[("forward", &rules)]);
    // The server's own side of the address plan: 200.1 is refused on the first host, 200.2 behind it.
    for (third, host) in (1..).zip(hosts) {
        for (last, kind) in (1..).zip(["unreachable", "prohibit", "throw"]) {
            let (text, length) = match family {
                Family::V4 => (format!("10.200.{third}.{last}"), 32),
                Family::V6 => (format!("fd00:200::{third}:{last}"), 128),
            };
            host.ip(&format!("route add {kind} {text}/{length}"))
                .expect("a route can be added");
            let address = text.parse().expect("an address");
            let name = format!("route {kind} on node {third}");
            targets.push((name, SocketAddr::new(address, PORT)));
        }
    }
    let nowhere = if family == Family::V4 {
        "10.99.0.1"
    } else {
        "fd99::1"
    };
    let nowhere = SocketAddr::new(nowhere.parse().expect("an address"), PORT);
    targets.push(("no route on node 1".to_owned(), nowhere));
    targets
}

/// Plain cables, and links that take a moment. Over plain cables an ICMP error can be back before
/// `connect()` has let go of its socket; the kernel then ignores it, and accepts the next.
fn with_and_without_delay() -> [Network; 2] {
    let short = Link::delay(MS);
    [
        network([Link::Veth, Link::Veth, Link::Veth]),
        network([short.clone(), short, Link::Veth]),
    ]
}

/// An address of the client for each case: a router reports errors of its routes to one address
/// only once a second.
pub(crate) fn client_of(case: usize, to: SocketAddr) -> SocketAddr {
    let text = match to {
        SocketAddr::V4(_) => format!("10.100.0.{case}"),
        SocketAddr::V6(_) => format!("fd00:100::{case}"),
    };
    SocketAddr::new(text.parse().expect("an address"), 0)
}

/// Connects to all targets at once, and returns what came of each.
pub(crate) fn attempt_all(client: &Namespace, cases: &[(String, SocketAddr)]) -> Vec<Option<i32>> {
    thread::scope(|scope| {
        let attempt = |(case, (_, to)): (usize, &(String, SocketAddr))| {
            let to = *to;
            scope.spawn(move || errno(&dial_from(client, client_of(case, to), to)))
        };
        let attempts: Vec<_> = cases.iter().enumerate().map(attempt).collect();
        let finished = attempts.into_iter().map(thread::ScopedJoinHandle::join);
        finished.map(|errno| errno.expect("no panic")).collect()
    })
}

// promise: A4
#[test]
fn strict_refuses_like_network() {
    for network in with_and_without_delay() {
        talkative(network.nodes());
        let cases: Vec<_> = Family::ALL
            .into_iter()
            .flat_map(|family| unreachable_targets(&network, network.nodes(), family))
            .collect();
        for (case, (_, to)) in cases.iter().enumerate() {
            add_address(network.client(), client_of(case, *to).ip());
        }
        let direct = attempt_all(network.client(), &cases);
        let node = start_relaying(&network, &accepting("strict"));
        for _ in 0..2 {
            let relayed = attempt_all(network.client(), &cases);
            for (index, (name, to)) in cases.iter().enumerate() {
                assert!(direct[index].is_some(), "{name}: {to} can be reached");
                assert_eq!(relayed[index], direct[index], "{name}: {to}");
            }
        }
        until_counter(&node, "relays", 0);
        // All but those that the node's own routes refuse, which it only forwards.
        let strict = cases
            .iter()
            .filter(|(name, _)| !name.ends_with("on node 1"));
        assert_eq!(counter(&node, "strict"), 2 * strict.count() as u64);
        assert_eq!(counter(&node, "half_open"), 0);
    }
}

// promise: A4, D8
#[test]
fn strict_stays_silent() {
    let network = network(vec![Link::Veth; 3]);
    impatient(network.client());
    let silence = [("forward", "tcp dport 3000 drop")];
    firewall(network.node(1), "silence", &silence);
    for host in network.nodes() {
        host.ip("route add blackhole 10.200.0.0/24").unwrap();
        host.ip("route add blackhole fd00:200:1::/48").unwrap();
    }
    let targets = [
        "10.0.2.2:3000",
        "[fd00:0:0:2::2]:3000",
        "10.200.0.1:1",
        "[fd00:200:1::1]:1",
    ]
    .map(|text| text.parse::<SocketAddr>().expect("an address"));
    let config = "[defaults]\naccept = \"strict\"\n[defaults.timeouts]\nconnect = \"2s\"\n";
    let node = start_relaying(&network, config);
    thread::scope(|scope| {
        for to in targets {
            let client = network.client();
            scope.spawn(move || {
                assert_eq!(errno(&dial(client, to)), Some(libc::ETIMEDOUT), "{to}");
            });
        }
    });
    until_counter(&node, "relays", 0);
    // A client that still repeats its SYN after the node gave up starts a new flow.
    assert!(counter(&node, "connect_timeout") >= 2);
    assert_eq!(counter(&node, "half_open"), 0);
}

// promise: A6
#[test]
fn refused_early_becomes_strict() {
    let network = line();
    let node = start_relaying(&network, "[defaults]\nstrict_after_failure = \"1s\"\n");
    for family in Family::ALL {
        let to = SocketAddr::new(network.server_address(family), PORT);
        let (begin, early) = (Instant::now(), counter(&node, "early"));
        let attempt = || dial(network.client(), to);
        expect_accepted_and_reset(attempt());
        assert_eq!(counter(&node, "early"), early + 1);
        // A slow machine may be past the second already.
        let refused = attempt();
        if begin.elapsed() < Duration::from_secs(1) {
            assert_eq!(errno(&refused), Some(libc::ECONNREFUSED), "{family}");
            // Another port of the same host is not under suspicion.
            let other = dial(network.client(), SocketAddr::new(to.ip(), PORT + 1));
            expect_accepted_and_reset(other);
        }
        let mut last = refused;
        until("end of the suspicion", || {
            last = attempt();
            errno(&last) != Some(libc::ECONNREFUSED)
        });
        assert!(begin.elapsed() >= Duration::from_secs(1), "{family}");
        expect_accepted_and_reset(last);
    }
    until_counter(&node, "relays", 0);
    assert_eq!(counter(&node, "half_open"), 0);
}

/// Flows of a client that has shown to be near open late. A destination that fails them is suspected
/// all the same.
// promise: A6
#[test]
fn refused_near_becomes_strict() {
    let network = line();
    let node = start_relaying(&network, "[defaults]\nstrict_after_failure = \"1h\"\n");
    for family in Family::ALL {
        let listener = listen(network.server(), 81);
        let late = counter(&node, "late");
        // One in 64 stays early, to measure the client again, and a busy machine may delay one.
        until("flows that open late", || {
            Pair::open(&network, family, &listener).check();
            counter(&node, "late") >= late + 8
        });
        let to = SocketAddr::new(network.server_address(family), 82);
        expect_accepted_and_reset(dial(network.client(), to));
        let refused = errno(&dial(network.client(), to));
        assert_eq!(refused, Some(libc::ECONNREFUSED), "{family}");
    }
}

// promise: A6
#[test]
fn answering_destination_early_again() {
    let network = line();
    let node = start_relaying(&network, "[defaults]\nstrict_after_failure = \"1h\"\n");
    // A port for each, since a listener that was just closed may linger.
    for ((count, family), port) in (1..).zip(Family::ALL).zip([81, 82]) {
        let to = SocketAddr::new(network.server_address(family), port);
        expect_accepted_and_reset(dial(network.client(), to));
        let refused = errno(&dial(network.client(), to));
        assert_eq!(refused, Some(libc::ECONNREFUSED));
        let listener = listen(network.server(), port);
        Pair::open(&network, family, &listener).check();
        let strict = counter(&node, "strict");
        assert_eq!(
            (strict, counter(&node, "early")),
            (2 * count, 2 * count - 1)
        );
        Pair::open(&network, family, &listener).check();
        let strict = counter(&node, "strict");
        assert_eq!((strict, counter(&node, "early")), (2 * count, 2 * count));
    }
}

// promise: A2
#[test]
fn unreachable_early_and_late() {
    let short = Link::delay(MS);
    let network = network([short.clone(), short, Link::Veth]);
    talkative(network.nodes());
    let walls = "tcp dport { 1081, 3081 } reject with icmpx type admin-prohibited\n\
        tcp dport { 1082, 3082 } drop";
    firewall(network.node(1), "walls", &[("forward", walls)]);
    let outcomes = [
        "upstream_refused",
        "upstream_unreachable",
        "connect_timeout",
    ];
    let timeouts = "[defaults.timeouts]\nconnect = \"1s\"\n";
    let node = start_relaying(&network, &format!("{timeouts}{}", each_mode()));
    thread::scope(|scope| {
        for port in [1080..1083, 3080..3083].into_iter().flatten() {
            for family in Family::ALL {
                let to = SocketAddr::new(network.server_address(family), port);
                let client = network.client();
                scope.spawn(move || expect_accepted_and_reset(dial(client, to)));
            }
        }
    });
    for outcome in outcomes {
        until_ended(&node, outcome, 4);
    }
    assert_eq!(counter(&node, "relays_opened"), 12);
    assert_eq!(counter(&node, "early"), 6);
    assert_eq!(counter(&node, "late"), 6);
}
