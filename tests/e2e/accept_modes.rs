// SPDX-License-Identifier: Apache-2.0
//! When a client is answered, and what it learns of a server that does not answer.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::capture::Capture;
use crate::support::{
    MODES, PORT, Pair, accepting, add_address, counter, dial, dial_from, errno,
    expect_accepted_and_reset, firewall, firewall_text, kernel_counter, line, listen, network,
    remove_firewall, start, talkative, target, until, until_counter, until_ended,
};

const MS: Duration = Duration::from_millis(1);

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
/// `connect()` has let go of its socket; the kernel then ignores it, and heeds the next.
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

#[test]
fn strict_refuses_as_the_network_itself_would() {
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
        let node = start(&network, &accepting("strict"));
        for _ in 0..2 {
            let relayed = attempt_all(network.client(), &cases);
            for (index, (name, to)) in cases.iter().enumerate() {
                assert!(direct[index].is_some(), "{name}: {to} can be reached");
                assert_eq!(relayed[index], direct[index], "{name}: {to}");
            }
        }
        until_counter(&node, "relays", 0);
        // All but those that the node's own routes refuse, which it only forwards.
        let judged = cases
            .iter()
            .filter(|(name, _)| !name.ends_with("on node 1"));
        assert_eq!(counter(&node, "strict"), 2 * judged.count() as u64);
        assert_eq!(counter(&node, "half_open"), 0);
    }
}

#[test]
fn strict_is_as_silent_as_the_server() {
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
    let node = start(&network, config);
    thread::scope(|scope| {
        for to in targets {
            let client = network.client();
            scope.spawn(move || {
                assert_eq!(errno(&dial(client, to)), Some(libc::ETIMEDOUT), "{to}");
            });
        }
    });
    until_counter(&node, "relays", 0);
    // A client that still repeats its SYN after the node gave up begins anew.
    assert!(counter(&node, "connect_timeout") >= 2);
    assert_eq!(counter(&node, "half_open"), 0);
}

#[test]
fn strict_takes_the_whole_round_trip_and_early_only_the_first_part() {
    let network = network([Link::delay(20 * MS), Link::delay(30 * MS)]);
    let listener = listen(network.server(), PORT);
    let timed = |to| {
        let begin = Instant::now();
        let dialled = dial(network.client(), to);
        (errno(&dialled), begin.elapsed())
    };
    let round_trip = 100 * MS;
    let check_whole = |what: &str| {
        for family in Family::ALL {
            let open = target(&network, family, &listener);
            let closed = SocketAddr::new(open.ip(), 81);
            for (to, error) in [(open, None), (closed, Some(libc::ECONNREFUSED))] {
                let (got, took) = timed(to);
                assert_eq!(got, error, "{what} {to}");
                // The emulated links may be some microseconds early.
                assert!(took > round_trip - MS, "{what} {to}: {took:?}");
            }
        }
    };
    check_whole("direct");
    let node = start(&network, &accepting("strict"));
    check_whole("strict");
    assert_eq!(counter(&node, "strict"), 4);
    drop(node);
    for mode in ["early", "late"] {
        let _node = start(&network, &accepting(mode));
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            // A busy machine makes some attempts longer, none shorter.
            let attempts = (0..50).map(|_| timed(to).1);
            let shortest = attempts.inspect(|took| assert!(*took > 39 * MS, "{took:?}"));
            let soon = shortest.into_iter().find(|took| *took < 60 * MS);
            assert!(soon.is_some(), "{mode} {family}");
        }
    }
}

/// Keeps a host from receiving answers to its SYNs.
const NO_ANSWERS: &str = "tcp flags & (syn | ack) == syn | ack drop";

/// Connects while the client hears no answers; once the node has taken its SYN, `check` looks around.
/// Then the client hears again, and the connection works.
fn connect_half(network: &Network, family: Family, node: &Node, check: impl FnOnce()) {
    let listener = listen(network.server(), PORT);
    let to = target(network, family, &listener);
    let before = counter(node, "syns_redirected");
    firewall(network.client(), "deaf", &[("input", NO_ANSWERS)]);
    thread::scope(|scope| {
        let dialled = scope.spawn(|| dial(network.client(), to));
        until("flow of the node", || {
            counter(node, "syns_redirected") > before
        });
        check();
        remove_firewall(network.client(), "deaf");
        let dialled = dialled.join().expect("no panic");
        Pair::of(dialled, &listener).check();
    });
}

#[test]
fn early_asks_the_server_before_the_client_has_answered_and_no_further() {
    let network = line();
    let node = start(&network, "[half_open]\nexpiry = \"60s\"\n");
    for (count, family) in (1..).zip(Family::ALL) {
        let capture = Capture::start(network.server());
        let opened = || kernel_counter(network.server(), "Tcp", "PassiveOpens");
        let before = opened();
        connect_half(&network, family, &node, || {
            until("held answer", || counter(&node, "held") >= count);
            assert!(!capture.syns_to(PORT).is_empty(), "{family}: no SYN");
            assert_eq!(counter(&node, "half_open"), 1);
            assert_eq!(opened(), before, "{family}: a completed handshake");
        });
        assert_eq!(opened(), before + 1);
        assert_eq!(counter(&node, "early"), count);
        until_counter(&node, "half_open", 0);
    }
}

#[test]
fn late_asks_the_server_only_after_the_client_has_answered() {
    let network = line();
    let node = start(&network, &accepting("late"));
    for (count, family) in (1..).zip(Family::ALL) {
        let client = Capture::start(network.client());
        let server = Capture::start(network.server());
        connect_half(&network, family, &node, || {
            until("repeated SYN", || client.syns_to(PORT).len() >= 2);
            assert_eq!(server.syns_to(PORT), [], "{family}");
        });
        assert_eq!(counter(&node, "late"), count);
    }
}

#[test]
fn strict_answers_the_client_only_after_the_server_has_answered() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start(&network, &accepting("strict"));
    let silence = format!("tcp dport {PORT} drop");
    for (count, family) in (1..).zip(Family::ALL) {
        let to = target(&network, family, &listener);
        let (client, server) = (
            Capture::start(network.client()),
            Capture::start(network.server()),
        );
        firewall(network.server(), "silence", &[("input", &silence)]);
        thread::scope(|scope| {
            let dialled = scope.spawn(|| dial(network.client(), to));
            until("second SYN", || client.syns_to(PORT).len() >= 2);
            until("SYN at the server", || !server.syns_to(PORT).is_empty());
            let mut segments = client.segments().into_iter();
            let answered = segments.any(|segment| segment.from == to);
            assert!(!answered, "{family}: an answer before the server's");
            remove_firewall(network.server(), "silence");
            Pair::of(dialled.join().expect("no panic"), &listener).check();
        });
        assert_eq!(counter(&node, "strict"), count);
        assert_eq!(counter(&node, "relays_opened"), count);
    }
}

#[test]
fn early_resets_a_client_whose_server_refuses_and_is_strict_for_a_while() {
    let network = line();
    let node = start(&network, "[defaults]\nsuspect_for = \"1s\"\n");
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

#[test]
fn a_destination_that_answers_again_is_early_again() {
    let network = line();
    let node = start(&network, "[defaults]\nsuspect_for = \"1h\"\n");
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

#[test]
fn early_and_late_reset_a_client_whose_server_cannot_be_reached() {
    let short = Link::delay(MS);
    let network = network([short.clone(), short, Link::Veth]);
    talkative(network.nodes());
    let walls = "tcp dport 3000 reject with icmpx type admin-prohibited\ntcp dport 3001 drop";
    firewall(network.node(1), "walls", &[("forward", walls)]);
    let outcomes = [
        (2999, "upstream_refused"),
        (3000, "upstream_unreachable"),
        (3001, "connect_timeout"),
    ];
    for mode in ["early", "late"] {
        let config = format!("{}[defaults.timeouts]\nconnect = \"1s\"\n", accepting(mode));
        let node = start(&network, &config);
        thread::scope(|scope| {
            for (port, family) in outcomes
                .iter()
                .flat_map(|(port, _)| Family::ALL.map(|f| (*port, f)))
            {
                let to = SocketAddr::new(network.server_address(family), port);
                let client = network.client();
                scope.spawn(move || expect_accepted_and_reset(dial(client, to)));
            }
        });
        for (_, outcome) in outcomes {
            until_ended(&node, outcome, 2);
        }
        assert_eq!(counter(&node, "relays_opened"), 6);
        assert_eq!(counter(&node, mode), 6);
    }
}

/// Packets of a handshake that may be lost: where, on which hook, and which they are; `PORT`
/// stands for the server's port.
const LOSSES: [(&str, &str, &str); 4] = [
    (
        "server",
        "input",
        "tcp dport PORT tcp flags & (syn | ack) == syn",
    ),
    (
        "server",
        "output",
        "tcp sport PORT tcp flags & (syn | ack) == syn | ack",
    ),
    (
        "client",
        "input",
        "tcp sport PORT tcp flags & (syn | ack) == syn | ack",
    ),
    (
        "client",
        "output",
        "tcp dport PORT tcp flags & (syn | ack | psh) == ack",
    ),
];

/// One handshake that loses a packet.
struct Unlucky {
    port: u16,
    family: Family,
}

/// One for each mode, loss and family.
fn unlucky_handshakes() -> Vec<(Unlucky, usize)> {
    let mut all = Vec::new();
    for mode in 1..=3 {
        for loss in 0..LOSSES.len() {
            for family in Family::ALL {
                let last = if family == Family::V4 { 4 } else { 6 };
                let port = 1000 * mode + 10 * u16::try_from(loss).expect("a few") + last;
                all.push((Unlucky { port, family }, loss));
            }
        }
    }
    all
}

/// Firewall rules that drop one packet of each handshake that loses one there.
fn losses_at(handshakes: &[(Unlucky, usize)], host: &str, hook: &str) -> String {
    let mut rules = String::new();
    for (handshake, loss) in handshakes {
        let (lossy_host, lossy_hook, packets) = LOSSES[*loss];
        if (lossy_host, lossy_hook) == (host, hook) {
            let packets = packets.replace("PORT", &handshake.port.to_string());
            // Room for one packet of a handshake, not for two.
            rules += &format!("{packets} quota until 100 bytes counter drop\n");
        }
    }
    rules
}

#[test]
fn a_lost_packet_of_a_handshake_is_repeated() {
    let network = line();
    let handshakes = unlucky_handshakes();
    for (name, host) in [("client", network.client()), ("server", network.server())] {
        let rules = ["input", "output"].map(|hook| losses_at(&handshakes, name, hook));
        let [input, output] = &rules;
        firewall(host, "losses", &[("input", input), ("output", output)]);
    }
    let rule = |(mode, name): (usize, &str)| {
        let first = 1000 * (mode + 1);
        format!(
            "[[rule]]\nname = {name:?}\naccept = {name:?}\nports = [\"{first}-{}\"]\n",
            first + 999
        )
    };
    let rules: String = MODES.into_iter().enumerate().map(rule).collect();
    let node = start(&network, &format!("[half_open]\nexpiry = \"60s\"\n{rules}"));
    thread::scope(|scope| {
        for (handshake, _) in &handshakes {
            let network = &network;
            scope.spawn(move || {
                let listener = listen(network.server(), handshake.port);
                let mut pair = Pair::open(network, handshake.family, &listener);
                pair.check();
                pair.close_client_first();
            });
        }
    });
    let dropped = |host| {
        firewall_text(host, "losses")
            .matches("counter packets 1 ")
            .count()
    };
    let lost = dropped(network.client()) + dropped(network.server());
    assert_eq!(lost, handshakes.len(), "one packet of each was lost");
    until_ended(&node, "finished", handshakes.len() as u64);
    assert_eq!(counter(&node, "relays_opened"), handshakes.len() as u64);
    for mode in MODES {
        assert_eq!(counter(&node, mode), 8);
    }
    assert_eq!(counter(&node, "half_open"), 0);
}
