// SPDX-License-Identifier: Apache-2.0
//! Which rule applies to a connection, what rules can set, and what a reload changes.

use std::net::{IpAddr, SocketAddr, TcpListener};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::capture::Capture;
use crate::support::{
    MODES_BY_PORT, PORT, Pair, add_address, counter, detail, dial, dial_from, expect_reset, line,
    listen, relay_of, start_relaying, target, until_counter, until_ended,
};

/// The rule that a connection came under; none when it is not relayed.
fn rule_of(node: &Node, pair: &Pair) -> Option<String> {
    let relay = relay_of(node, pair.client_address())?;
    Some(relay["rule"].as_str().expect("a name").to_owned())
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// From widest to narrowest, in an order that is neither.
const NESTED: &str = r#"
[[rule]]
name = "net-port"
destinations = ["10.200.0.0/16", "fd00:200::/32"]
ports = [81]
[[rule]]
name = "all"
[[rule]]
name = "host-source"
destinations = ["10.200.1.1", "fd00:200::1:1"]
sources = ["10.100.0.0/16", "fd00:100::/32"]
[[rule]]
name = "host"
destinations = ["10.200.1.1", "fd00:200::1:1"]
[[rule]]
name = "net"
destinations = ["10.200.0.0/16", "fd00:200::/32"]
[[rule]]
name = "host-ports"
destinations = ["10.200.1.1", "fd00:200::1:1"]
ports = ["80-89", 443]
[[rule]]
name = "host-port"
destinations = ["10.200.1.1", "fd00:200::1:1"]
ports = [82]
[[rule]]
name = "host-port-later"
destinations = ["10.200.1.1", "fd00:200::1:1"]
ports = [82]
[[rule]]
name = "source"
sources = ["10.100.0.1", "fd00:100::1"]
"#;

/// Client, server, port, and the rule that is meant for them. `c` is the client's own address, `s`
/// the server's; the rest is the end of an address in the prefixes behind them.
const EXPECTED: [(&str, &str, u16, &str); 12] = [
    ("c", "s", 80, "all"),
    ("c", "s", 82, "all"),
    ("1", "s", 80, "source"),
    ("2", "s", 81, "all"),
    ("c", "2", 80, "net"),
    ("1", "2", 80, "net"),
    ("c", "2", 81, "net-port"),
    ("c", "1", 80, "host-ports"),
    ("c", "1", 82, "host-port"),
    ("c", "1", 90, "host"),
    // The source goes before the ports.
    ("2", "1", 82, "host-source"),
    ("1", "1", 443, "host-source"),
];

/// The addresses that [`EXPECTED`] means.
fn ends(network: &Network, family: Family, client: &str, server: &str) -> (IpAddr, IpAddr) {
    let client = match (client, family) {
        ("c", _) => network.client_address(family),
        (end, Family::V4) => address(&format!("10.100.0.{end}")),
        (end, Family::V6) => address(&format!("fd00:100::{end}")),
    };
    let server = match (server, family) {
        ("s", _) => network.server_address(family),
        (end, Family::V4) => address(&format!("10.200.1.{end}")),
        (end, Family::V6) => address(&format!("fd00:200::1:{end}")),
    };
    (client, server)
}

// promise: R1
#[test]
fn narrowest_rule_wins() {
    let network = line();
    for family in Family::ALL {
        for end in ["1", "2"] {
            let (client, server) = ends(&network, family, end, end);
            add_address(network.client(), client);
            add_address(network.server(), server);
        }
    }
    let ports = [80, 81, 82, 90, 443];
    let listeners = ports.map(|port| (port, listen(network.server(), port)));
    let node = start_relaying(&network, NESTED);
    for family in Family::ALL {
        for (client, server, port, expected) in EXPECTED {
            let (from, to) = ends(&network, family, client, server);
            let (from, to) = (SocketAddr::new(from, 0), SocketAddr::new(to, port));
            let (_, listener) = listeners
                .iter()
                .find(|(bound, _)| *bound == port)
                .expect("a listener for each port");
            let pair = Pair::of(dial_from(network.client(), from, to), listener);
            let rule = rule_of(&node, &pair);
            assert_eq!(rule.as_deref(), Some(expected), "{from} {to}");
        }
    }
    until_counter(&node, "relays", 0);
    assert_eq!(counter(&node, "relays_opened"), 2 * EXPECTED.len() as u64);
}

// promise: R5
#[test]
fn one_of_thousand_rules() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let rule = |number: usize| {
        let (third, last) = (number / 250, 1 + number % 250);
        let destinations = format!("\"10.201.{third}.{last}\", \"fd00:200::{third:x}:{last:x}\"");
        format!("[[rule]]\nname = \"rule-{number}\"\ndestinations = [{destinations}]\n")
    };
    let rules: String = (0..1000).map(rule).collect();
    let node = start_relaying(&network, &rules);
    for (number, text) in [
        (0, "fd00:200::0:1"),
        (777, "fd00:200::3:1c"),
        (999, "fd00:200::3:fa"),
    ] {
        add_address(network.server(), address(text));
        let to = SocketAddr::new(address(text), PORT);
        let pair = Pair::of(dial(network.client(), to), &listener);
        let expected = format!("rule-{number}");
        assert_eq!(rule_of(&node, &pair), Some(expected));
    }
    for family in Family::ALL {
        let pair = Pair::open(&network, family, &listener);
        assert_eq!(rule_of(&node, &pair), None, "no rule is for it");
    }
}

/// Opens a connection and checks that the node only forwards its packets.
fn expect_forwarded(network: &Network, node: &Node, family: Family, listener: &TcpListener) {
    let opened = counter(node, "relays_opened");
    let capture = Capture::start(network.server());
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    assert_eq!(pair.client_address(), pair.seen_by_server());
    assert_eq!(rule_of(node, &pair), None);
    let segments = capture.segments().into_iter();
    let hops: Vec<_> = segments
        .filter(|segment| segment.from == pair.client_address())
        .map(|segment| segment.ttl)
        .collect();
    assert!(hops.len() >= 3, "{hops:?}");
    assert!(hops.iter().all(|ttl| *ttl == 63), "{family}: {hops:?}");
    pair.close_client_first();
    assert_eq!(counter(node, "relays_opened"), opened);
}

// promise: R3
#[test]
fn forward_action_untouched() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let other = listen(network.server(), 443);
    let rules = "[[rule]]\nname = \"web\"\nports = [80]\naction = \"forward\"\n\
        [[rule]]\nname = \"rest\"\n";
    let node = start_relaying(&network, rules);
    for family in Family::ALL {
        expect_forwarded(&network, &node, family, &listener);
        let pair = Pair::open(&network, family, &other);
        assert_eq!(rule_of(&node, &pair).as_deref(), Some("rest"));
    }
    assert_eq!(counter(&node, "syns_redirected"), 2);
}

// promise: R1, R3
#[test]
fn no_rule_forwards() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let families = ["0.0.0.0/0", "::/0"];
    for (family, prefix) in Family::ALL.into_iter().zip(families) {
        let rule = format!("[[rule]]\nname = \"one\"\ndestinations = [{prefix:?}]\n");
        let node = start_relaying(&network, &rule);
        for each in Family::ALL {
            if each == family {
                let pair = Pair::open(&network, each, &listener);
                assert_eq!(rule_of(&node, &pair).as_deref(), Some("one"));
            } else {
                expect_forwarded(&network, &node, each, &listener);
            }
        }
    }
}

// promise: R3
#[test]
fn reject_without_server() {
    let network = line();
    let _listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "[[rule]]\nname = \"no\"\naction = \"reject\"\n");
    let capture = Capture::start(network.server());
    for family in Family::ALL {
        let to = SocketAddr::new(network.server_address(family), PORT);
        for _ in 0..3 {
            let refused = dial(network.client(), to).expect_err("it is rejected");
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "{family}");
        }
    }
    until_counter(&node, "rejected", 6);
    assert_eq!(capture.syns_to(PORT), []);
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// The congestion controls of a connection: toward the client and toward the server.
fn congestion(node: &Node, pair: &Pair) -> [String; 2] {
    let detail = detail(node, pair);
    ["downstream", "upstream"].map(|side| {
        let name = &detail[side]["congestion"];
        name.as_str().expect("a name").to_owned()
    })
}

/// A rule in an accept mode for a port, with its own congestion controls.
fn congestion_rule(mode: &str, port: u16, [downstream, upstream]: [&str; 2]) -> String {
    format!(
        "[[rule]]\nname = \"port-{port}\"\nports = [{port}]\naccept = {mode:?}\n\
         [rule.downstream]\ncongestion = {downstream:?}\n\
         [rule.upstream]\ncongestion = {upstream:?}\n"
    )
}

// promise: R4
#[test]
fn congestion_control_per_side() {
    let network = line();
    let sides = [
        ["cubic", "bbr"],
        ["bbr", "cubic"],
        ["cubic", "cubic"],
        ["bbr", "bbr"],
    ];
    let each = MODES_BY_PORT.into_iter().flat_map(|(mode, first)| {
        let ports = (first..).zip(sides);
        ports.map(move |(port, sides)| (mode, port, sides))
    });
    let rules = each
        .clone()
        .map(|(mode, port, sides)| congestion_rule(mode, port, sides));
    let node = start_relaying(&network, &rules.collect::<String>());
    for (mode, port, expected) in each {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(congestion(&node, &pair), expected, "{mode} {family}");
            pair.close_client_first();
        }
    }
}

// promise: R4
#[test]
fn initial_window_per_side() {
    let network = line();
    let rules = "[[rule]]\nname = \"wide\"\nports = [80]\n\
        [rule.downstream]\ninitial_window = 40\n[rule.upstream]\ninitial_window = 30\n\
        [[rule]]\nname = \"rest\"\n";
    let node = start_relaying(&network, rules);
    for (port, expected) in [(80, [40, 30]), (81, [10, 10])] {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let pair = Pair::open(&network, family, &listener);
            assert_eq!(windows(&node, &pair), expected, "{family} {port}");
        }
    }
}

/// What each side of a relay may send at once, in segments.
fn windows(node: &Node, pair: &Pair) -> [u64; 2] {
    let detail = detail(node, pair);
    let window = |side| detail[side]["cwnd_segments"].as_u64().expect("a number");
    ["downstream", "upstream"].map(window)
}

/// The network namespaces are two, the cgroup of both nodes is that of the tests.
// promise: R4
#[test]
fn foreign_windows_unchanged() {
    let (wide, plain) = (line(), line());
    let sides = "[rule.downstream]\ninitial_window = 40\n[rule.upstream]\ninitial_window = 30\n";
    let _wide = start_relaying(&wide, &format!("[[rule]]\nname = \"wide\"\n{sides}"));
    let node = start_relaying(&plain, "");
    let listener = listen(plain.server(), PORT);
    for family in Family::ALL {
        let pair = Pair::open(&plain, family, &listener);
        assert_eq!(windows(&node, &pair), [10, 10], "{family}");
    }
}

// promise: R4
#[test]
fn timeouts_and_source_per_rule() {
    let network = line();
    let quiet = listen(network.server(), 81);
    let other = listen(network.server(), 82);
    let rules = "[[rule]]\nname = \"quiet\"\nports = [81]\n[rule.timeouts]\nidle = \"100ms\"\n\
        [[rule]]\nname = \"other\"\nports = [82]\nsource_address = \"node\"\n";
    let node = start_relaying(&network, rules);
    for (count, family) in (1..).zip(Family::ALL) {
        let mut kept = Pair::open(&network, family, &other);
        let mut ended = Pair::open(&network, family, &quiet);
        assert_ne!(kept.seen_by_server().ip(), network.client_address(family));
        assert_eq!(ended.seen_by_server(), ended.client_address());
        until_ended(&node, "idle_timeout", count);
        expect_reset(&mut ended.client);
        expect_reset(&mut ended.server);
        kept.check();
    }
}

// promise: F7
#[test]
fn reload_changes_new_connections() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let rule = |name: &str, words: &str| {
        let sides = "[rule.downstream]\ncongestion = \"cubic\"\n";
        format!("[[rule]]\nname = {name:?}\n{words}\n{sides}")
    };
    let node = start_relaying(&network, &rule("first", "accept = \"early\""));
    let mut open = Vec::new();
    for (name, mode) in [("first", "early"), ("second", "strict"), ("third", "late")] {
        let words = format!("accept = {mode:?}");
        node.write_config(&rule(name, &words)).unwrap();
        node.admin("reload").expect("it is right");
        for family in Family::ALL {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            open.push((pair, name, mode));
        }
        for (pair, name, mode) in &mut open {
            pair.check();
            let relay = relay_of(&node, pair.client_address()).expect("it is relayed");
            assert_eq!(
                (&relay["rule"], &relay["accept"]),
                (&(*name).into(), &(*mode).into())
            );
            assert_eq!(congestion(&node, pair)[0], "cubic");
        }
    }
    node.write_config(&rule("fourth", "action = \"forward\""))
        .unwrap();
    node.admin("reload").expect("it is right");
    for family in Family::ALL {
        expect_forwarded(&network, &node, family, &listener);
    }
    node.write_config(&rule("fifth", "action = \"reject\""))
        .unwrap();
    node.admin("reload").expect("it is right");
    for family in Family::ALL {
        let refused = dial(network.client(), target(&network, family, &listener));
        assert!(refused.is_err(), "{family}");
    }
    for (mut pair, ..) in open {
        pair.check();
        pair.close_server_first();
    }
    until_ended(&node, "finished", 6);
}
