// SPDX-License-Identifier: Apache-2.0
//! The checks of what prevents interception: interfaces and their offloads, forwarding, source
//! validation, marks, firewalls, connection tracking.

use super::checks::{Check, KERNEL_TCX, fail, ok, or_ok, verdict, warn};
use super::host::{Host, Interface};
use super::{Level, Verdict};
use crate::host::{self, Framing};
use posthaste_config::Config;
use posthaste_relay::policy::{Action, DataPath};

/// The checks for a node that intercepts flows, in the order they are shown.
pub(super) const ALL: [Check; 10] = [
    ("interfaces", interfaces),
    ("forwarding", forwarding_v4),
    ("forwarding", forwarding_v6),
    ("reverse path", reverse_path),
    ("marks", marks),
    ("firewall", firewall),
    ("conntrack", conntrack),
    ("early demux", early_demux),
    ("offloads", offloads),
    ("packet path", packet_path),
];

/// The interfaces a node would intercept on.
pub(super) fn wanted<'a>(
    host: &'a Host,
    config: &'a Config,
) -> impl Iterator<Item = &'a Interface> {
    let fits = |interface: &&Interface| {
        config.transparent.wants(&interface.link.name) && !interface.link.is_port()
    };
    host.interfaces.iter().filter(fits)
}

/// What comes by a macvlan is answered by the interface below where that has the client's network, as with VRRP. The node
/// takes no flow whose answers leave by another interface.
fn macvlan(host: &Host, interface: &Interface) -> Option<Verdict> {
    let link = &interface.link;
    let below = link.macvlan_on.filter(|_| link.up)?;
    let below = host
        .interfaces
        .iter()
        .find(|other| other.link.index == below)?;
    let (name, below) = (&link.name, &below.link.name);
    let what = format!(
        "{name} is a macvlan on {below}: connections that come by {name} are forwarded if their answers leave by {below}"
    );
    warn(
        what,
        "keepalived without use_vmac, or the clients' routes by the macvlan",
    )
    .pop()
}

fn interfaces(host: &Host, config: &Config) -> Vec<Verdict> {
    let links: Vec<_> = host
        .interfaces
        .iter()
        .map(|interface| interface.link.clone())
        .collect();
    let gaps = host::gaps(&config.transparent, &links);
    let mut findings: Vec<Verdict> = gaps
        .into_iter()
        .map(|gap| {
            let level = if gap.is_fatal {
                Level::Fail
            } else {
                Level::Warn
            };
            verdict(level, gap.what, gap.fix)
        })
        .collect();
    // Of interfaces with names `gaps` reports these.
    let by_default = config.transparent.interfaces.is_empty();
    for interface in wanted(host, config).filter(|interface| by_default && interface.link.up) {
        if let Framing::Other(kind) = interface.link.framing {
            let what = format!(
                "{}: frames of ARPHRD type {kind} cannot be intercepted",
                interface.link.name
            );
            findings.extend(warn(
                what,
                "its flows are forwarded; name the others in transparent.interfaces",
            ));
        }
    }
    findings.extend(wanted(host, config).filter_map(|interface| macvlan(host, interface)));
    let usable: Vec<&str> = wanted(host, config)
        .filter(|interface| {
            interface.link.up && !matches!(interface.link.framing, Framing::Other(_))
        })
        .map(|interface| interface.link.name.as_str())
        .collect();
    if usable.is_empty() && findings.is_empty() {
        return warn(
            "no interface is up to intercept on",
            "a node attaches to interfaces when they come",
        );
    }
    or_ok(findings, &usable.join(", "))
}

/// What rules with `data_path = "auto"` or `"packet"` need of this host.
fn packet_path(host: &Host, config: &Config) -> Vec<Verdict> {
    let chained = crate::intercept::is_chained(config);
    let rules = config.policy.rules.iter();
    let paths = rules
        .filter(|rule| rule.action == Action::Relay)
        .map(|rule| rule.effective_data_path(chained));
    let [mut auto, mut packet] = [false; 2];
    for path in paths {
        auto |= path == DataPath::Auto;
        packet |= path == DataPath::Packet;
    }
    if !auto && !packet {
        return ok("no rule uses it");
    }
    // The check of the kernel reports an old one.
    if host.kernel < KERNEL_TCX {
        return ok("not on this kernel");
    }
    let Some(error) = &host.bpf_file_system_error else {
        let Some(trouble) = &host.packet_path_trouble else {
            return ok("its flows outlive a node");
        };
        let what = format!("the node that runs here has no packet path: {trouble}");
        return warn(what, "fix that, and restart the node");
    };
    let what = if auto {
        format!("data_path = \"auto\" means sockets: {error}")
    } else {
        format!("flows under data_path = \"packet\" break when the node ends: {error}")
    };
    warn(
        what,
        "mount -t bpf bpf /sys/fs/bpf, also at boot, and restart the node; or data_path = \"socket\"",
    )
}

fn forwarding_v4(host: &Host, config: &Config) -> Vec<Verdict> {
    if host.number("net/ipv4/ip_forward") != Some(1) {
        let what = "this host does not forward IPv4: there is nothing to relay";
        return fail(what, "sysctl -w net.ipv4.ip_forward=1");
    }
    // The setting counts for the packets that arrive at an interface.
    let idle = wanted(host, config).filter(|interface| interface.link.up && !interface.forwards_v4);
    let findings = idle.map(|interface| {
        let name = &interface.link.name;
        let what = format!("{name}: does not forward IPv4");
        verdict(
            Level::Warn,
            what,
            format!("sysctl -w net.ipv4.conf.{name}.forwarding=1"),
        )
    });
    or_ok(findings.collect(), "IPv4 is forwarded")
}

fn forwarding_v6(host: &Host, config: &Config) -> Vec<Verdict> {
    // Redirected packets are delivered by a route over lo.
    if host.setting("net/ipv6/conf/lo/disable_ipv6") != Some("0") {
        return warn(
            "IPv6 is off on lo: no IPv6 flow is relayed",
            "sysctl -w net.ipv6.conf.lo.disable_ipv6=0",
        );
    }
    let mut all = wanted(host, config)
        .map(|interface| interface.forwards_v6)
        .peekable();
    if all.peek().is_none() || all.any(|forwards| forwards) {
        return ok("IPv6 is forwarded");
    }
    let what = "this host does not forward IPv6: no IPv6 flow is relayed";
    warn(what, "sysctl -w net.ipv6.conf.all.forwarding=1")
}

/// Redirected packets are marked. With `src_valid_mark` the source of a packet is validated by the
/// rules for its mark, which lead to a local route: with a reverse path filter everything is
/// dropped, without one `accept_local` is needed.
fn reverse_path(host: &Host, config: &Config) -> Vec<Verdict> {
    let all = |key: &str| {
        host.number(&format!("net/ipv4/conf/all/{key}"))
            .unwrap_or(0)
    };
    let mut findings = Vec::new();
    for interface in wanted(host, config) {
        let name = &interface.link.name;
        if !(interface.src_valid_mark || all("src_valid_mark") != 0) {
            continue;
        }
        // Linux applies the greater of the two filters, and either of the two for the other
        // settings.
        let filter = u64::from(interface.rp_filter).max(all("rp_filter"));
        if filter != 0 {
            let what = format!(
                "{name}: src_valid_mark with rp_filter={filter} drops every redirected packet"
            );
            let fix = format!(
                "sysctl -w net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.{name}.src_valid_mark=0 (wg-quick sets it)"
            );
            findings.extend(fail(what, fix));
        } else if !(interface.accept_local || all("accept_local") != 0) {
            let what = format!(
                "{name}: src_valid_mark without accept_local drops every redirected packet"
            );
            findings.extend(fail(
                what,
                format!("sysctl -w net.ipv4.conf.{name}.accept_local=1"),
            ));
        }
    }
    or_ok(findings, "source validation lets redirected packets in")
}

fn marks(host: &Host, config: &Config) -> Vec<Verdict> {
    let ours = &config.transparent;
    let mut findings = Vec::new();
    for rule in host.rules.iter().filter(|rule| !rule.is_ours()) {
        let bits = rule.mask & (ours.mark | ours.socket_mark);
        // Its rule would route redirected packets, or those of relays, elsewhere.
        if bits != 0 {
            let what = format!(
                "an {} rule of another program (priority {}) uses the fwmark bits {bits:#x}",
                rule.family.name(),
                rule.priority
            );
            findings.extend(warn(
                what,
                "choose other bits for transparent.mark and transparent.socket_mark",
            ));
        }
        if rule.table == ours.table {
            let what = format!(
                "a rule of another program (priority {}) uses table {}",
                rule.priority, ours.table
            );
            findings.extend(warn(what, "choose another transparent.table"));
        }
    }
    if host.table_taken {
        let what = format!("routing table {} has routes that are not ours", ours.table);
        findings.extend(fail(what, "choose another transparent.table"));
    }
    or_ok(findings, "the fwmark bits and the routing table are free")
}

/// Whether some flows are relayed without observation: what blocks relays breaks them.
fn vouches(config: &Config) -> bool {
    config.policy.rules.iter().any(|rule| !rule.observe)
}

/// Redirected packets are delivered locally: they pass INPUT, not FORWARD.
fn firewall(host: &Host, config: &Config) -> Vec<Verdict> {
    if !vouches(config) {
        return ok("only what the firewall lets pass is relayed");
    }
    let mark = config.transparent.mark;
    let findings = host.firewalls.iter().map(|name| {
        let what = format!("{name} is active: flows of rules with observe = false pass its INPUT rules and not its FORWARD rules");
        let fix = format!("accept packets with mark {mark:#x}/{mark:#x} in its INPUT rules, or observe = true");
        verdict(Level::Warn, what, fix)
    });
    or_ok(
        findings.collect(),
        "no firewall manager found (firewalld, ufw, docker)",
    )
}

/// Unless one of them has another port, both connections of a relay have one 4-tuple with different
/// sequence numbers; conntrack marks their packets INVALID.
fn conntrack(host: &Host, config: &Config) -> Vec<Verdict> {
    let tracks = host
        .number("net/netfilter/nf_conntrack_count")
        // The module may be loaded without a rule that has connections tracked.
        .is_some_and(|count| count > 0);
    if !tracks {
        return ok("no connections are tracked");
    }
    if !vouches(config) {
        let what = "connections are tracked: relays use ports of their own to servers";
        return ok(what);
    }
    // Then only RST segments outside of the window are INVALID (nf_conntrack-sysctl).
    if host.number("net/netfilter/nf_conntrack_tcp_be_liberal") == Some(1) {
        return ok("connections are tracked, liberally");
    }
    let (mark, socket_mark) = (config.transparent.mark, config.transparent.socket_mark);
    let what = "connections are tracked: a rule that drops INVALID packets breaks relays of rules with observe = false";
    let fix = format!(
        "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or notrack the marks {mark:#x} (prerouting) and \
         {socket_mark:#x} (output)"
    );
    warn(what, fix)
}

/// Early demultiplexing makes leftover sockets swallow packets.
fn early_demux(host: &Host, _: &Config) -> Vec<Verdict> {
    let what = if host.number("net/ipv4/tcp_early_demux") == Some(0) {
        "early demultiplexing is off: leftover sockets are harmless, local delivery costs a little more"
    } else {
        "early demultiplexing is on: the node, its guard and teardown destroy leftover sockets"
    };
    ok(what)
}

fn offloads(host: &Host, config: &Config) -> Vec<Verdict> {
    let mut findings = Vec::new();
    for interface in wanted(host, config).filter(|interface| interface.link.up) {
        let name = &interface.link.name;
        if interface.gro == Some(false) {
            let what = format!(
                "{name}: generic receive offload is off: every segment costs as much as a large one"
            );
            findings.extend(warn(what, format!("ethtool -K {name} gro on")));
        }
        if interface.lro == Some(true) {
            let what = format!(
                "{name}: large receive offload is on, which spoils packets that are forwarded"
            );
            findings.extend(warn(what, format!("ethtool -K {name} lro off")));
        }
    }
    or_ok(findings, "receive offloads are as they should be")
}
