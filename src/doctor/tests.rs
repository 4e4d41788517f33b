// SPDX-License-Identifier: Apache-2.0
//! Each check against a sound host with one problem.

use std::sync::Arc;

use posthaste_relay::chain::Transport;
use posthaste_relay::policy::Rule as PolicyRule;

use super::host::{Interface, Presence, kernel};
use super::listening::Closed;
use super::*;
use crate::host::nftables::{BaseChain, Flowtable, Hook, MarkMatch};
use crate::host::{Family, Framing, Link, Rule};
use posthaste_config::invariants::HOST;

pub(super) fn interface(name: &str) -> Interface {
    Interface {
        link: Link {
            index: 2,
            name: name.into(),
            framing: Framing::Ethernet,
            up: true,
            port_of: None,
            master: None,
            vlan_on: None,
            macvlan_on: None,
            bridge: None,
            paced: false,
        },
        forwards_v4: true,
        forwards_v6: true,
        rp_filter: 2,
        src_valid_mark: false,
        accept_local: false,
        gro: Some(true),
        lro: Some(false),
    }
}

/// A host without problems.
fn sound() -> Host {
    let settings = [
        ("fs/pipe-user-pages-soft", "16384"),
        ("kernel/unprivileged_bpf_disabled", "2"),
        ("net/core/bpf_jit_enable", "1"),
        ("net/core/somaxconn", "4096"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/tcp_rmem", "4096 131072 33554432"),
        ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
        ("net/ipv4/tcp_syncookies", "1"),
        ("net/ipv4/tcp_timestamps", "1"),
        ("net/ipv4/tcp_max_tw_buckets", "65536"),
        ("net/ipv4/tcp_mtu_probing", "1"),
        ("net/ipv6/conf/lo/disable_ipv6", "0"),
        ("net/ipv4/tcp_available_congestion_control", "reno cubic"),
    ];
    let capabilities = [
        "CAP_NET_ADMIN",
        "CAP_NET_RAW",
        "CAP_NET_BIND_SERVICE",
        "CAP_SYS_ADMIN",
    ];
    Host {
        kernel: (6, 12),
        capabilities: capabilities.map(Into::into).into(),
        settings: settings
            .map(|(key, value)| (key.into(), value.into()))
            .into(),
        interfaces: vec![interface("c0"), interface("s0")],
        files_max: 1 << 20,
        pipes_unlimited: true,
        congestion_modules: vec!["bbr".into()],
        ..Host::default()
    }
}

fn rule(protocol: u8, mark: u32, table: u32) -> Rule {
    Rule {
        family: Family::V4,
        priority: 100,
        mark,
        mask: mark,
        table,
        protocol,
        by_source: false,
        by_interface: false,
        message: Vec::new(),
    }
}

/// A node that listens, with a peer.
const OTHERS: &str = "version = 1\n[node]\nid = 7\n[[listener]]\n[[peer]]\nname = \"a\"\nid = 8\naddress = \"192.0.2.8:4480\"\nkey_file = \"/etc/posthaste/rome.key\"\n";

/// The findings for a host on which a listening node with a peer is to run.
fn diagnose_others(problem: impl FnOnce(&mut Host, &mut Config)) -> Vec<(Level, String)> {
    diagnose(|host, config| {
        *config = Config::parse("node.toml".as_ref(), OTHERS, &HOST).unwrap();
        (config.node.relays_max, config.node.workers) = (1, 1);
        problem(host, config);
    })
}

// promise: H8
#[test]
fn recommendations_with_peers() {
    let well = |h: &mut Host| {
        for (key, value) in RECOMMENDATIONS {
            set(h, key, value);
        }
    };
    assert_eq!(diagnose_others(|h, _| well(h)), []);
    let cases: [Problem; 5] = [
        (
            |h, _| set(h, RECOMMENDATIONS[0].0, "1"),
            Level::Warn,
            "net.ipv4.tcp_slow_start_after_idle = 1: warm hops",
        ),
        (
            |h, _| set(h, RECOMMENDATIONS[1].0, "4096 131072 33554432"),
            Level::Warn,
            "less than 1 MiB",
        ),
        (
            |h, _| set(h, RECOMMENDATIONS[2].0, "1"),
            Level::Warn,
            "take no data in a SYN",
        ),
        (
            |h, _| drop(h.settings.remove(RECOMMENDATIONS[2].0)),
            Level::Warn,
            "net.ipv4.tcp_fastopen cannot be read",
        ),
        (
            |_, c| {
                Arc::make_mut(&mut c.policy.chains).peers[0]
                    .socket
                    .congestion = Some("dctcp".into())
            },
            Level::Fail,
            "peer \"a\" requires dctcp",
        ),
    ];
    for (problem, level, message) in cases {
        let found = diagnose_others(|h, c| {
            well(h);
            problem(h, c);
        });
        let [(found_level, what)] = found.as_slice() else {
            panic!("{message}: one finding, not {found:?}")
        };
        assert!(
            *found_level == level && what.contains(message),
            "{message}: {found:?}"
        );
    }
    // Only what the node benefits from.
    let found = diagnose_others(|h, c| {
        well(h);
        set(h, RECOMMENDATIONS[0].0, "1");
        set(h, RECOMMENDATIONS[2].0, "1");
        Arc::make_mut(&mut c.policy.chains).peers[0].pool.max = 0;
        c.explicit.clear();
    });
    assert_eq!(found, []);
}

/// The recommendations for such a node.
const RECOMMENDATIONS: [(&str, &str); 3] = [
    ("net/ipv4/tcp_slow_start_after_idle", "0"),
    ("net/ipv4/tcp_rmem", "4096 1048576 33554432"),
    ("net/ipv4/tcp_fastopen", "3"),
];

#[test]
fn no_interception_no_checks() {
    let found = diagnose(|h, c| {
        c.transparent.enabled = false;
        set(h, "net/ipv4/ip_forward", "0");
        set(h, "net/ipv4/tcp_mtu_probing", "0");
        h.interfaces[0].src_valid_mark = true;
        h.firewalls = vec!["ufw"];
        h.table_taken = true;
    });
    assert_eq!(found, []);
}

pub(super) fn config() -> Config {
    let capacity = posthaste_config::Capacity {
        key_file: |_| Err(std::io::ErrorKind::NotFound.into()),
        cpus: 1,
        files: 1 << 20,
        congestion: || vec!["bbr".into()],
        group: |_| None,
    };
    Config::parse("node.toml".as_ref(), "version = 1", &capacity).unwrap()
}

/// The findings for a host with this problem, without the OK ones.
fn diagnose(problem: impl FnOnce(&mut Host, &mut Config)) -> Vec<(Level, String)> {
    let (mut host, mut config) = (sound(), config());
    problem(&mut host, &mut config);
    let diagnosis = Diagnosis::of(&host, &config);
    let bad = diagnosis
        .findings
        .into_iter()
        .map(|finding| finding.verdict)
        .filter(|verdict| verdict.level != Level::Ok);
    bad.map(|verdict| {
        assert!(!verdict.fix.is_empty(), "{} has no fix", verdict.what);
        (verdict.level, verdict.what)
    })
    .collect()
}

// promise: H8
#[test]
fn silent_tunnels_with_peers() {
    let diagnose = |is_silent: bool, transport| {
        let found = diagnose_others(|host, config| {
            let peer = &mut Arc::make_mut(&mut config.policy.chains).peers[0];
            peer.transport = transport;
            host.silent_tunnels
                .extend(is_silent.then_some(peer.address));
        });
        let about = |(_, what): &(Level, String)| what.contains("over UDP at 192.0.2.8:4480");
        found.iter().filter(|found| about(found)).count()
    };
    assert_eq!(diagnose(true, Transport::Quic), 1);
    assert_eq!(diagnose(true, Transport::Auto), 1);
    assert_eq!(diagnose(false, Transport::Quic), 0);
    assert_eq!(diagnose(true, Transport::Tcp), 0);
}

// promise: H8
#[test]
fn sound_host_passes() {
    assert_eq!(diagnose(|_, _| ()), []);
    let diagnosis = Diagnosis::of(&sound(), &config());
    // One finding each, none about Multipath TCP and tunnels, which nothing uses; of the settings of
    // `setup --tune` only those for relays.
    let checks =
        checks::ALL.len() + interception::ALL.len() + routers::ALL.len() + cores::ALL.len();
    assert_eq!(diagnosis.findings.len(), checks - 1);
    assert!(diagnosis.text().ends_with("0 failed, 0 warnings\n"));
}

/// A change to a sound host, its severity, and a part of the finding.
type Problem = (fn(&mut Host, &mut Config), Level, &'static str);

fn closed(why: std::io::ErrorKind) -> Closed {
    Closed {
        key: "metrics.listen = \"127.0.0.1:9464\"".into(),
        port: 9464,
        why,
        words: String::new(),
    }
}

/// A chain that drops what no rule accepts.
fn chain(hook: Hook) -> BaseChain {
    BaseChain {
        name: format!("ip filter {hook:?}").to_lowercase(),
        hook,
        translates: false,
        drops: true,
        accepts: Vec::new(),
    }
}

fn flowtable(hardware: bool) -> Flowtable {
    Flowtable {
        name: "inet fast known".into(),
        hardware,
    }
}

/// The finding for a host with this change, whatever its severity.
fn finding_of(check: &str, change: impl FnOnce(&mut Host)) -> String {
    let (mut host, config) = (sound(), config());
    change(&mut host);
    let all = Diagnosis::of(&host, &config).findings.into_iter();
    let of_check = all.filter(|finding| finding.check == check);
    of_check
        .map(|finding| finding.verdict.what + "\n")
        .collect()
}

// promise: X18
#[test]
fn ordinary_routers_explained() {
    let nat = |hook| BaseChain {
        translates: true,
        drops: false,
        ..chain(hook)
    };
    let message = finding_of("NAT", |h| {
        h.firewall.chains = vec![nat(Hook::Prerouting), nat(Hook::Postrouting)];
    });
    assert!(
        message.contains("(ip filter postrouting): relays use the address that NAT gives"),
        "{message}"
    );
    assert!(
        message
            .contains("(ip filter prerouting): connections with another destination are forwarded"),
        "{message}"
    );
    let message = finding_of("forward rules", |h| {
        h.firewall.chains.push(chain(Hook::Forward))
    });
    assert!(message.contains("is not relayed"), "{message}");
    let message = finding_of("policy routing", |h| {
        h.rules.push(Rule {
            by_source: true,
            ..rule(0, 0, 102)
        });
        h.rules.push(Rule {
            priority: 90,
            by_interface: true,
            ..rule(0, 0, 102)
        });
        h.rules.push(Rule {
            priority: 80,
            ..rule(0, 0x2, 102)
        });
        h.rules.push(Rule {
            priority: 70,
            ..rule(0, 0, 254)
        });
    });
    assert!(
        message.contains("(priority IPv4 100, IPv4 90, IPv4 80)"),
        "{message}"
    );
    let message = finding_of("bridges", |h| {
        h.interfaces[0].link.port_of = Some("bridge".into());
        set(h, "net/bridge/bridge-nf-call-iptables", "1");
    });
    assert!(
        message.contains("(c0)") && message.contains("br_netfilter"),
        "{message}"
    );
    let message = finding_of("flowtables", |h| h.flowtables.push(flowtable(false)));
    assert!(message.contains("handshakes are observed"), "{message}");
}

fn set(host: &mut Host, key: &str, value: &str) {
    host.settings.insert(key.into(), value.into());
}

const PROBLEMS: [Problem; 45] = [
    (
        |h, _| h.firewall.chains.push(chain(Hook::Input)),
        Level::Warn,
        "ip filter input refuses what no rule accepts: connections of clients that may not connect to this host",
    ),
    (
        |h, _| h.firewall.chains.push(chain(Hook::Output)),
        Level::Warn,
        "ip filter output refuses what no rule accepts",
    ),
    (
        |h, _| h.firewall.limits.push("ip guard through".into()),
        Level::Warn,
        "(ip guard through) do not count relays",
    ),
    (
        |h, _| h.legacy_tables.push("iptables filter".into()),
        Level::Warn,
        "legacy iptables has tables here (iptables filter)",
    ),
    (
        |h, _| h.flowtables.push(flowtable(true)),
        Level::Warn,
        "network cards carry",
    ),
    (
        |h, _| set(h, "net/ipv4/tcp_mtu_probing", "0"),
        Level::Warn,
        "net.ipv4.tcp_mtu_probing = 0: relays hang",
    ),
    (
        |_, c| c.warnings.push("rule \"b\" can never apply".into()),
        Level::Warn,
        "rule \"b\" can never apply",
    ),
    (
        |h, _| h.node = Presence::Unknown("permission denied on /run/x".into()),
        Level::Warn,
        "cannot determine whether a node runs here: permission denied on /run/x",
    ),
    (
        |h, _| h.closed.push(closed(std::io::ErrorKind::AddrInUse)),
        Level::Fail,
        "another program listens there",
    ),
    (
        |h, _| h.closed.push(closed(std::io::ErrorKind::AddrNotAvailable)),
        Level::Fail,
        "no such address",
    ),
    (
        |_, c| c.transparent.interfaces = vec!["c0".into()],
        Level::Warn,
        "only c0 can be intercepted",
    ),
    (
        |h, _| h.kernel = (5, 15),
        Level::Fail,
        "Linux 5.15 is older",
    ),
    (|h, _| h.kernel = (6, 1), Level::Warn, "no TCX links"),
    (
        |h, _| h.bpf_file_system_error = Some("no BPF file system is mounted there".into()),
        Level::Warn,
        "data_path = \"auto\" means sockets: no BPF file system is mounted there",
    ),
    (
        |h, _| drop(h.settings.remove("kernel/unprivileged_bpf_disabled")),
        Level::Fail,
        "no bpf()",
    ),
    (
        |h, _| set(h, "net/core/bpf_jit_enable", "0"),
        Level::Warn,
        "compiler is off",
    ),
    (
        |h, _| h.capabilities.retain(|held| held != "CAP_NET_RAW"),
        Level::Fail,
        "lacks CAP_NET_RAW",
    ),
    (
        |h, _| h.capabilities.retain(|held| held != "CAP_NET_BIND_SERVICE"),
        Level::Warn,
        "ports below 1024",
    ),
    (
        |_, c| c.transparent.interfaces = ["c0", "s0", "x9"].map(Into::into).into(),
        Level::Fail,
        "no interface x9",
    ),
    (
        |h, _| h.interfaces[0].link.framing = Framing::Other(32),
        Level::Warn,
        "type 32",
    ),
    (
        |h, _| {
            h.interfaces[0].link.macvlan_on = Some(3);
            h.interfaces[1].link.index = 3;
        },
        Level::Warn,
        "c0 is a macvlan on s0",
    ),
    (
        |h, _| h.packet_path_trouble = Some("the pins are root's".into()),
        Level::Warn,
        "no packet path: the pins are root's",
    ),
    (
        |h, _| h.interfaces.clear(),
        Level::Warn,
        "no interface is up",
    ),
    (
        |h, _| set(h, "net/ipv4/ip_forward", "0"),
        Level::Fail,
        "does not forward IPv4",
    ),
    (
        |h, _| h.interfaces[1].forwards_v4 = false,
        Level::Warn,
        "s0: does not forward IPv4",
    ),
    (
        |h, _| h.interfaces.iter_mut().for_each(|i| i.forwards_v6 = false),
        Level::Warn,
        "does not forward IPv6",
    ),
    (
        |h, _| set(h, "net/ipv6/conf/lo/disable_ipv6", "1"),
        Level::Warn,
        "IPv6 is off",
    ),
    (
        |h, _| h.interfaces[0].src_valid_mark = true,
        Level::Fail,
        "c0: src_valid_mark with rp_filter=2",
    ),
    (
        |h, _| (h.interfaces[0].src_valid_mark, h.interfaces[0].rp_filter) = (true, 0),
        Level::Fail,
        "c0: src_valid_mark without accept_local",
    ),
    (
        |h, _| h.rules.push(rule(0, 0x1000_0000, 7)),
        Level::Warn,
        "fwmark bits 0x10000000",
    ),
    (
        |h, _| h.rules.push(rule(0, 0x1, 20117)),
        Level::Warn,
        "uses table 20117",
    ),
    (
        |h, _| h.table_taken = true,
        Level::Fail,
        "routes that are not ours",
    ),
    (
        |h, _| h.rules.push(rule(180, 0x1000_0000, 20117)),
        Level::Warn,
        "no node answers",
    ),
    (
        |h, c| {
            h.firewalls = vec!["ufw"];
            c.policy.rules[0].observe = false;
        },
        Level::Warn,
        "ufw is active",
    ),
    (
        |h, c| {
            set(h, "net/netfilter/nf_conntrack_count", "5");
            c.policy.rules[0].observe = false;
        },
        Level::Warn,
        "INVALID",
    ),
    (|h, _| h.files_max = 1024, Level::Warn, "about 512 relays"),
    (|h, _| h.pipes_unlimited = false, Level::Warn, "16384 pages"),
    (
        |h, _| set(h, "net/core/somaxconn", "128"),
        Level::Warn,
        "at most 128",
    ),
    (|h, _| h.congestion_modules.clear(), Level::Warn, "no BBR"),
    (
        |h, _| set(h, "net/ipv4/tcp_wmem", "4096 16384 65536"),
        Level::Warn,
        "tcp_wmem ends at 65536",
    ),
    (
        |h, _| set(h, "net/ipv4/tcp_timestamps", "0"),
        Level::Warn,
        "timestamps are off",
    ),
    (
        |h, _| set(h, "net/ipv4/tcp_syncookies", "0"),
        Level::Warn,
        "cookies are off",
    ),
    (
        |h, _| set(h, "net/ipv4/tcp_max_tw_buckets", "0"),
        Level::Warn,
        "only 0 sockets",
    ),
    (
        |h, _| h.interfaces[0].gro = Some(false),
        Level::Warn,
        "c0: generic receive offload is off",
    ),
    (
        |h, _| h.interfaces[1].lro = Some(true),
        Level::Warn,
        "s0: large receive offload is on",
    ),
];

// promise: H8
#[test]
fn each_problem_alone() {
    for (problem, level, message) in PROBLEMS {
        let found = diagnose(problem);
        let [(found_level, what)] = found.as_slice() else {
            panic!("{message}: one finding, not {found:?}")
        };
        assert!(
            *found_level == level && what.contains(message),
            "{message}: {found:?}"
        );
    }
}

#[test]
fn harmless_oddities_pass() {
    let cures: [fn(&mut Host, &mut Config); 9] = [
        |h, _| {
            h.firewalls = vec!["firewalld", "docker"];
            set(h, "net/netfilter/nf_conntrack_count", "5");
        },
        |h, _| {
            h.firewall.chains.push(chain(Hook::Input));
            h.firewall.chains[0].accepts.push(MarkMatch {
                mask: 0x1000_0000,
                value: 0x1000_0000,
                inverted: false,
            });
        },
        |h, _| h.firewall.chains.push(chain(Hook::Forward)),
        |h, _| h.flowtables.push(flowtable(false)),
        |h, _| {
            let c0 = &mut h.interfaces[0];
            (c0.src_valid_mark, c0.rp_filter, c0.accept_local) = (true, 0, true);
        },
        |h, c| {
            set(h, "net/netfilter/nf_conntrack_count", "5");
            set(h, "net/netfilter/nf_conntrack_tcp_be_liberal", "1");
            c.policy.rules[0].observe = false;
        },
        |h, _| {
            h.rules.push(rule(180, 0x1000_0000, 20117));
            h.node = Presence::Answers(1);
        },
        |h, c| {
            h.interfaces.push(interface("x0"));
            h.interfaces[2].src_valid_mark = true;
            c.transparent.interfaces = vec!["c0".into(), "s0".into()];
        },
        |h, _| {
            h.interfaces[0].link.port_of = Some("bridge".into());
            h.interfaces[0].forwards_v4 = false;
        },
    ];
    for cure in cures {
        assert_eq!(diagnose(cure), []);
    }
}

#[test]
fn impossible_rule_fails() {
    let found = diagnose(|_, c| {
        let rule: &mut PolicyRule = &mut c.policy.rules[0];
        rule.upstream.congestion = Some("dctcp".into());
    });
    assert!(found[0].1.contains("\"all\" requires dctcp"), "{found:?}");
}

// promise: H8
#[test]
fn further_paths_need_an_endpoint() {
    let found = |endpoints| {
        diagnose(|host, config| {
            set(host, "net/mptcp/enabled", "1");
            set(host, "mptcp/limits/subflows", "8");
            set(host, "mptcp/limits/add_addr_accepted", "8");
            host.subflow_endpoints = endpoints;
            config.policy.rules[0].upstream_multipath = true;
        })
    };
    let none = found(Some(0));
    assert!(none[0].1.contains("no endpoint"), "{none:?}");
    assert_eq!(none[0].0, Level::Warn);
    assert_eq!(found(Some(1)), []);
    assert_eq!(found(None), [], "unknown");
}

#[test]
fn releases_are_read() {
    assert_eq!(kernel("6.18.44-fc-v657\n"), (6, 18));
    assert_eq!(kernel("6.1-rc3"), (6, 1));
    assert_eq!(kernel(""), (0, 0));
}

#[test]
fn this_host_can_be_examined() {
    let host = Host::read(&config());
    assert!(host.kernel >= (6, 1) && host.files_max > 0);
    assert!(
        host.interfaces
            .iter()
            .any(|interface| interface.link.name == "lo")
    );
    assert!(!host.rules.is_empty() && host.setting("net/ipv4/ip_forward").is_some());
}
