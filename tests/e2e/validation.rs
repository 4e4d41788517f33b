// SPDX-License-Identifier: Apache-2.0
//! Clients that never be validated: what a flood of spoofed SYNs does to the server behind a
//! node, to the node's budgets, and to clients that mean it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use posthaste_lab::flood::counts::Counts;
use posthaste_lab::flood::{Flood, IpNet, Plan};
use posthaste_lab::link::Link;
use posthaste_lab::network::{CLIENT_SIDE, Family, Network};
use posthaste_lab::node::Node;

use crate::capture::Capture;
use crate::support::{
    PORT, Pair, accepting, add_address, counter, dial, dial_from, each_mode, ended, firewall, line,
    line_of_far_client, listen, network, relay_of, start_relaying, target, until, until_counter,
    until_ended,
};

/// Sends `count` spoofed SYNs, looking at the node all the while; the most half-open connections
/// that it had at once.
fn flood(network: &Network, node: &Node, family: Family, sources: IpNet, count: u32) -> u64 {
    let target = SocketAddr::new(network.server_address(family), PORT);
    flood_to(network, node, target, sources, count)
}

fn flood_to(network: &Network, node: &Node, target: SocketAddr, sources: IpNet, count: u32) -> u64 {
    let plan = Plan {
        sources,
        target,
        rate: 4 * count,
        duration: Duration::from_millis(250),
        seed: 7,
    };
    let start = || Flood::start(plan);
    let flood = network.client().run_in(start).expect("the flood starts");
    let mut most = 0;
    while flood.is_running() {
        most = most.max(counter(node, "half_open"));
    }
    assert_eq!(flood.finish().expect("all are sent"), u64::from(count));
    // All have been seen when another SYN, sent after them, has.
    let known = || ["syns", "half_open_full", "late"].map(|name| counter(node, name));
    let mut before = known();
    let quiet = || {
        std::thread::sleep(Duration::from_millis(20));
        let now = known();
        std::mem::replace(&mut before, now) == now
    };
    until("end of the flood at the node", quiet);
    most.max(counter(node, "half_open"))
}

/// The prefix that spoofed clients come from.
fn spoofed(family: Family) -> IpNet {
    let text = CLIENT_SIDE[usize::from(family == Family::V6)];
    text.parse().expect("a prefix")
}

fn server_counts(network: &Network, sources: IpNet) -> Counts {
    let look = || Counts::take(sources);
    let counts = network.server().run_in(look);
    counts.expect("the kernel shows its counters")
}

/// The server has seen no handshake of a spoofed client to its end, since there were these counts.
fn assert_unvalidated(network: &Network, sources: IpNet, before: Counts, what: &str) {
    let counts = server_counts(network, sources);
    assert_eq!(counts.completed, 0, "{what}: {counts:?}");
    let ended = |counts: Counts| (counts.passive_opens, counts.cookies_received);
    assert_eq!(ended(counts), ended(before), "{what}: {counts:?}");
}

/// How the node opened the connection of a pair.
fn mode_of(node: &Node, pair: &Pair) -> Option<String> {
    let relay = relay_of(node, pair.client_address())?;
    Some(relay["accept"].as_str().expect("a mode").to_owned())
}

/// Small budgets that are given back soon.
const SMALL: &str = "[half_open]\ntotal = 64\nreserve = 16\nexpiry = \"1s\"\n";

// promise: D1, D2
#[test]
fn spoofed_clients() {
    flood_all_modes("1");
}

// promise: D1
#[test]
fn spoofed_clients_cookie_server() {
    flood_all_modes("2");
}

fn flood_all_modes(cookies: &str) {
    let network = line();
    let server = network.server();
    server
        .sysctl("net.ipv4.tcp_syncookies", cookies)
        .expect("a namespace has its own cookies");
    let node = start_relaying(&network, &format!("{SMALL}{}", each_mode()));
    // The server receives the SYNs of the clients over the budget of strict mode: so that is the last.
    for (mode, port) in [("early", 1080), ("late", 3080), ("strict", 2080)] {
        for (family, port) in Family::ALL.into_iter().zip([port, port + 1]) {
            flooded_server_is_spared(&network, &node, (mode, port), family);
        }
    }
}

fn flooded_server_is_spared(
    network: &Network,
    node: &Node,
    (mode, port): (&str, u16),
    family: Family,
) {
    let what = format!("{mode} {family}");
    let listener = listen(network.server(), port);
    let (sources, to) = (spoofed(family), target(network, family, &listener));
    let before = server_counts(network, sources);
    let [opened, absent] = [counter(node, "relays_opened"), ended(node, "client_absent")];
    let most = flood_to(network, node, to, sources, 400);
    assert!(most <= 64, "{what}: {most} half open");
    assert_unvalidated(network, sources, before, &what);
    until_counter(node, "half_open", 0);
    assert_unvalidated(network, sources, before, &what);
    if mode != "strict" {
        until("end of all half-open connections", || {
            server_counts(network, sources).half_open == 0
        });
    }
    until_counter(node, "relays", 0);
    let opened = counter(node, "relays_opened") - opened;
    assert_eq!(ended(node, "client_absent") - absent, opened, "{what}");
    assert_eq!(opened > 0, mode != "late", "{what}");
    let mut pair = Pair::open(network, family, &listener);
    pair.check();
    assert_eq!(mode_of(node, &pair).as_deref(), Some(mode), "{what}");
    let passive_opens = server_counts(network, sources).passive_opens;
    assert_eq!(passive_opens, before.passive_opens + 1, "{what}");
    pair.close_client_first();
    until_counter(node, "relays", 0);
}

// promise: D1
#[test]
fn spoofed_clients_own_address() {
    let sources = ["10.0.1.1/32", "fd00:0:0:1::1/128"];
    let network = line();
    let listener = listen(network.server(), PORT);
    let config = format!("{SMALL}[defaults]\nsource_address = \"node\"\n");
    let node = start_relaying(&network, &config);
    for (family, own) in Family::ALL.into_iter().zip(sources) {
        let own: IpNet = own.parse().unwrap();
        let before = server_counts(&network, own);
        let most = flood(&network, &node, family, spoofed(family), 400);
        assert!((1..=64).contains(&most), "{family}: {most} half open");
        assert_unvalidated(&network, own, before, "own address");
        // The node refuses no client for want of room.
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        drop(pair);
        until_counter(&node, "half_open", 0);
        until("end of all half-open connections", || {
            server_counts(&network, own).half_open == 0
        });
        assert_eq!(ended(&node, "upstream_unreachable"), 0);
        let passive_opens = server_counts(&network, own).passive_opens;
        assert_eq!(passive_opens, before.passive_opens + 1);
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(mode_of(&node, &pair).as_deref(), Some("early"));
        drop(pair);
        until_counter(&node, "relays", 0);
    }
}

// promise: D3
#[test]
fn absent_client_reset_half_open() {
    let network = line();
    let _listener = listen(network.server(), PORT);
    let node = start_relaying(&network, SMALL);
    for (absent, family) in [20, 40].into_iter().zip(Family::ALL) {
        let capture = Capture::start(network.server());
        flood(&network, &node, family, spoofed(family), 20);
        until_ended(&node, "client_absent", absent);
        let segments = capture.segments();
        let resets = segments
            .iter()
            .filter(|segment| segment.is_reset() && spoofed(family).contains(&segment.from.ip()));
        assert_eq!(resets.count(), 20, "{family}");
        until("end of all half-open connections", || {
            server_counts(&network, spoofed(family)).half_open == 0
        });
    }
}

/// The most SYNs that a port of the server has seen from any one address and port of a prefix, and all.
fn requested(capture: &Capture, sources: IpNet, port: u16) -> (usize, usize) {
    let mut by_client = std::collections::HashMap::new();
    let syns = capture.syns_to(port).into_iter();
    for syn in syns.filter(|syn| sources.contains(&syn.from.ip())) {
        *by_client.entry(syn.from).or_insert(0_usize) += 1;
    }
    let most = by_client.values().copied().max();
    (most.unwrap_or(0), by_client.values().sum())
}

/// Whether the server answers, does not, or refuses.
// promise: D10
#[test]
fn absent_client_two_syns() {
    const COUNT: u32 = 60;
    let network = line();
    let server = network.server();
    let silent = [("input", "tcp dport { 1081, 2081 } drop")];
    firewall(server, "silent", &silent);
    let node = start_relaying(&network, &each_mode());
    for (port, answered) in [(1080, COUNT), (1081, 0), (2080, COUNT), (2081, 0)] {
        let _listener = listen(server, port);
        for family in Family::ALL {
            let what = format!("port {port} {family}");
            let to = SocketAddr::new(network.server_address(family), port);
            let capture = Capture::start(server);
            flood_to(&network, &node, to, spoofed(family), COUNT);
            until_counter(&node, "relays", 0);
            let (most, all) = requested(&capture, spoofed(family), port);
            println!("{what}: {all} SYNs for {COUNT}");
            assert!((1..=2).contains(&most), "{what}: {most}");
            let segments = capture.segments().into_iter();
            let resets = segments.filter(|segment| {
                segment.is_reset() && spoofed(family).contains(&segment.from.ip())
            });
            assert_eq!(resets.count(), answered as usize, "{what}: resets");
        }
    }
}

/// Ways so long that neither is done when the node lets go of the server.
// promise: D10
#[test]
fn distant_ends_are_served() {
    let far = || Link::delay(Duration::from_millis(1300));
    for links in [[far(), Link::Veth], [Link::Veth, far()]] {
        let network = network(links);
        let node = start_relaying(&network, &each_mode());
        for (opened, port) in [(1, 1080), (2, 2080)] {
            let listener = listen(network.server(), port);
            let mut pair = Pair::open(&network, Family::V4, &listener);
            pair.check();
            pair.close_client_first();
            until_counter(&node, "relays", 0);
            assert_eq!(counter(&node, "relays_opened"), opened, "port {port}");
        }
    }
}

/// An address of the client in a prefix of its own.
fn unauthorized(family: Family) -> SocketAddr {
    let text = if family == Family::V4 {
        "10.100.200.9"
    } else {
        "fd00:100:0:c8::9"
    };
    SocketAddr::new(text.parse().expect("an address"), 0)
}

/// Budgets that a flood fills for as long as a test lasts.
const LASTING: &str = "[half_open]\ntotal = 32\nreserve = 16\nexpiry = \"60s\"\n";

// promise: D4
#[test]
fn validated_clients_in_flood() {
    for family in Family::ALL {
        let network = line();
        let listener = listen(network.server(), PORT);
        add_address(network.client(), unauthorized(family).ip());
        let node = start_relaying(&network, LASTING);
        Pair::open(&network, family, &listener).close_client_first();
        flood(&network, &node, family, spoofed(family), 200);
        // What is kept for known clients is not an unauthorized sender's to use.
        assert_eq!(counter(&node, "half_open"), 16);
        let to = target(&network, family, &listener);
        for _ in 0..3 {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(mode_of(&node, &pair).as_deref(), Some("early"), "{family}");
            let refused = counter(&node, "half_open_full");
            let dialled = dial_from(network.client(), unauthorized(family), to);
            let mut other = Pair::of(dialled, &listener);
            other.check();
            // It has completed a handshake, and so is no unauthorized sender the next time.
            let expected = if refused == 184 { "late" } else { "early" };
            assert_eq!(
                mode_of(&node, &other).as_deref(),
                Some(expected),
                "{family}"
            );
        }
        assert_eq!(counter(&node, "half_open_full"), 184 + 1);
        assert_eq!(counter(&node, "half_open"), 16);
    }
}

// promise: D4
#[test]
fn strict_over_budget_forwarded() {
    for family in Family::ALL {
        let network = line();
        let listener = listen(network.server(), PORT);
        let node = start_relaying(&network, &format!("{LASTING}{}", accepting("strict")));
        flood(&network, &node, family, spoofed(family), 200);
        let before = counter(&node, "relays_opened");
        let capture = Capture::start(network.server());
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(mode_of(&node, &pair), None, "{family}");
        let syns = capture.syns_to(PORT).into_iter();
        let own: Vec<_> = syns
            .filter(|syn| syn.from == pair.client_address())
            .collect();
        assert!(
            own.iter().all(|syn| syn.ttl == 63),
            "{family}: forwarded once, {own:?}"
        );
        assert_eq!(counter(&node, "relays_opened"), before);
        // So is its repetition, and what the server refuses.
        let closed = SocketAddr::new(network.server_address(family), PORT + 1);
        let refused = dial(network.client(), closed).expect_err("no socket listens");
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
    }
}

// promise: D2
#[test]
fn prefix_budget() {
    let prefixes = ["10.100.7.0/24", "fd00:100:0:7::/64"];
    let neighbours: [IpAddr; 2] =
        ["10.100.7.77", "fd00:100:0:7::77"].map(|text| text.parse().expect("an address"));
    for ((family, sources), neighbour) in Family::ALL.into_iter().zip(prefixes).zip(neighbours) {
        let network = line();
        let listener = listen(network.server(), PORT);
        add_address(network.client(), neighbour);
        let config = "[node]\nworkers = 1\n[half_open]\nper_prefix = 4\nexpiry = \"60s\"\n";
        let node = start_relaying(&network, config);
        let most = flood(&network, &node, family, sources.parse().unwrap(), 100);
        assert_eq!((most, counter(&node, "half_open")), (4, 4), "{family}");
        assert_eq!(counter(&node, "over_budget"), 96, "{family}");
        let to = target(&network, family, &listener);
        let from = SocketAddr::new(neighbour, 0);
        let mut pair = Pair::of(dial_from(network.client(), from, to), &listener);
        pair.check();
        assert_eq!(mode_of(&node, &pair).as_deref(), Some("late"), "{family}");
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(mode_of(&node, &pair).as_deref(), Some("early"), "{family}");
    }
}

/// With the node's own address a connection takes a second place in the budget.
// promise: D2
#[test]
fn fractional_budget() {
    let network = line();
    let budget = "[half_open]\ntotal = 1\nreserve = 0\n[defaults]\nsource_address = \"node\"\n";
    let node = start_relaying(&network, &format!("{budget}{}", each_mode()));
    for (mode, port) in [("early", 1080), ("strict", 2080)] {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            for _ in 0..5 {
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                pair.close_client_first();
            }
        }
        until_counter(&node, "relays", 0);
        assert_eq!(counter(&node, "half_open"), 0);
        assert_eq!(counter(&node, "failed_destinations"), 0, "{mode}");
    }
}

/// However an opening ends, it gives its part of the budget back.
// promise: D2
#[test]
fn budgets_are_returned() {
    let network = line_of_far_client();
    let budget = "[half_open]\ntotal = 2\nreserve = 0\n[defaults]\nstrict_after_failure = \"0s\"\n";
    let node = start_relaying(&network, &format!("{budget}{}", each_mode()));
    for (mode, port) in [("early", 1080), ("strict", 2080)] {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let closed = SocketAddr::new(network.server_address(family), port + 1);
            for _ in 0..10 {
                let refused = dial(network.client(), closed);
                let refused =
                    refused.and_then(|mut stream| std::io::Read::read(&mut stream, &mut [0]));
                assert!(refused.is_err(), "{mode} {family}: no socket listens");
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                assert_eq!(mode_of(&node, &pair).as_deref(), Some(mode), "{family}");
                drop(pair);
            }
        }
        until_counter(&node, "relays", 0);
        assert_eq!(counter(&node, mode), 40);
        for name in [
            "half_open_full",
            "over_budget",
            "syns_forwarded",
            "half_open",
        ] {
            assert_eq!(counter(&node, name), 0, "{mode}: {name}");
        }
        assert_eq!(ended(&node, "internal"), 0, "{mode}");
    }
}
