// SPDX-License-Identifier: Apache-2.0
//! What `posthaste doctor` reports about ordinary routers: nodes behave as reported, and its fixes
//! work.

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::observing::{connect, observing, observing_in_each_mode, redirect};
use crate::pitfalls::{complaints, doctor};
use crate::support::{
    MODES_BY_PORT, PORT, binary, ended, firewall, firewall_script, line, listen, until_ended,
};

/// The report of `doctor` about one check, a line for each finding.
fn words(answer: &Value, check: &str) -> String {
    let findings = answer["findings"].as_array().expect("a list of findings");
    let of_check = findings.iter().filter(|finding| finding["check"] == check);
    let what = |finding: &Value| finding["what"].as_str().expect("words").to_owned();
    of_check.map(|finding| what(finding) + "\n").collect()
}

/// The commands that `doctor` advises about rules for the host itself, in warnings.
fn commands(host: &Namespace) -> Vec<String> {
    let (_, answer) = doctor(host);
    let complaints = complaints(&answer, "own rules").into_iter();
    let command = |(found, words): (String, String)| {
        assert_eq!(found, "warn", "{words}");
        let from = words.find("nft insert").expect("a command");
        words[from..].to_owned()
    };
    complaints.map(command).collect()
}

/// Has a shell run what an operator would paste.
fn run(host: &Namespace, line: &str) {
    let mut shell = host.command("sh").expect("the namespace is open");
    let output = shell.args(["-c", line]).output().expect("there is a shell");
    assert!(output.status.success(), "{line}: {output:?}");
}

/// Makes four connections of each family to a port; the node has to relay this number of them completely.
fn connect_each(network: &Network, node: &Node, port: u16, relayed: u64) {
    let listener = listen(network.server(), port);
    let before = ended(node, "finished");
    for (family, so_far) in Family::ALL.into_iter().zip([relayed, 2 * relayed]) {
        for _ in 0..4 {
            connect(network, node, family, &listener);
        }
        until_ended(node, "finished", before + so_far);
        assert_eq!(ended(node, "finished"), before + so_far, "{family}");
    }
}

/// Runs the fixes for rules that drop packets to or from the host itself, and checks their number
/// and effect.
fn fixes_change_that_it_forwards(network: &Network, advised: usize) {
    let host = network.node(0);
    let forwards = observing(host, "early");
    connect_each(network, &forwards, PORT, 0);
    drop(forwards);
    let commands = commands(host);
    assert_eq!(commands.len(), advised, "{commands:?}");
    commands.iter().for_each(|command| run(host, command));
    let (content, answer) = doctor(host);
    assert!(content, "{answer:#}");
    assert_eq!(complaints(&answer, "own rules"), []);
    let node = observing_in_each_mode(host);
    for (_, port) in MODES_BY_PORT {
        connect_each(network, &node, port, 3);
    }
}

// promise: H8, X18
#[test]
fn fixes_for_drop_policies() {
    let network = line();
    let input = "policy drop;\nct state established,related accept\nip6 nexthdr icmpv6 accept";
    firewall(
        network.node(0),
        "guard",
        &[("input", input), ("output", input)],
    );
    fixes_change_that_it_forwards(&network, 2);
}

// promise: X18
#[test]
fn fixes_for_reject_rules() {
    let network = line();
    let rules =
        "meta l4proto { icmp, ipv6-icmp } accept\nct state established accept\ncounter reject";
    firewall(network.node(0), "guard", &[("input", rules)]);
    fixes_change_that_it_forwards(&network, 1);
}

/// As `iptables-nft` and its friends lay their tables out.
// promise: X18
#[test]
fn fixes_for_iptables() {
    let network = line();
    let of_family = |family: &str, icmp: &str| {
        format!(
            "table {family} filter {{
            chain own {{
            meta l4proto {icmp} accept
            ct state established accept
            }}
            chain INPUT {{ type filter hook input priority 0; policy drop
            jump own
            }}
            chain FORWARD {{ type filter hook forward priority 0; policy accept
            }}
            }}\n"
        )
    };
    let script = of_family("ip", "icmp") + &of_family("ip6", "ipv6-icmp");
    firewall_script(network.node(0), &script);
    fixes_change_that_it_forwards(&network, 2);
}

// promise: X10
#[test]
fn limiting_rules_stop_relays() {
    let network = line();
    let host = network.node(0);
    let limit = "tcp dport 7 ct state new limit rate over 1/hour drop";
    firewall(host, "guard", &[("forward", limit)]);
    let found = complaints(&doctor(host).1, "limits");
    let [(level, words)] = found.as_slice() else {
        panic!("one finding, not {found:?}")
    };
    assert_eq!(level, "warn");
    assert!(words.contains("(inet guard on_forward)"), "{words}");
    assert!(words.contains("observe = false"), "{words}");
    let node = observing(host, "early");
    let vouched = "[[rule]]\nname = \"vouched\"\nobserve = false\ndata_path = \"socket\"\n";
    connect_each(&network, &node, PORT, 0);
    drop(node);
    let node = Node::builder(host, binary()).config(vouched);
    let node = node.start().expect("the node becomes ready");
    connect_each(&network, &node, PORT, 4);
}

// promise: X18
#[test]
fn nat_and_filters_explained() {
    let network = line();
    let host = network.node(0);
    firewall_script(
        host,
        "table inet router {
        chain before { type nat hook prerouting priority -100
        tcp dport 8080 redirect to :80
        }
        chain through { type filter hook forward priority 0; policy drop
        ct state established,related accept
        tcp dport != 81 accept
        }
        chain after { type nat hook postrouting priority 100
        masquerade
        }
        }",
    );
    for rule in [
        "ip rule add from 192.0.2.0/24 table 102 priority 300",
        "ip -6 rule add from 2001:db8::/32 table 102 priority 301",
        "ip rule add iif lo table 102 priority 302",
        "ip rule add fwmark 0x2/0xff table 102 priority 303",
    ] {
        run(host, rule);
    }
    let (content, answer) = doctor(host);
    assert!(content, "{answer:#}");
    for (check, message) in [
        ("NAT", "sources are translated (inet router after)"),
        ("NAT", "destinations are translated (inet router before)"),
        ("forward rules", "inet router through drops"),
        (
            "policy routing",
            "(priority IPv4 300, IPv4 302, IPv4 303, IPv6 301)",
        ),
        ("own rules", "let relays' packets in and out"),
        ("limits", "no nftables rule limits"),
    ] {
        let words = words(&answer, check);
        assert!(words.contains(message), "{check}: {words}");
        assert_eq!(complaints(&answer, check), []);
    }
    let node = observing(host, "early");
    connect_each(&network, &node, PORT, 3);
    assert_eq!(redirect(&node, "learned"), 2);
}
