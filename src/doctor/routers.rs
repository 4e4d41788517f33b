// SPDX-License-Identifier: Apache-2.0
//! The checks of common router features and a node's behaviour with them: NAT, filters, limits,
//! multipath and policy routes, bridges, flowtables.
//!
//! A node observes before it relays, so most of them do no harm. A feature that makes the node only
//! forward gives a warning.

use super::Verdict;
use super::checks::{Check, ok, or_ok, verdict, warn};
use super::host::Host;
use crate::host::nftables::{BaseChain, Hook};
use posthaste_config::Config;

/// The checks of routers for a node that intercepts flows, in the order they are shown.
pub(super) const ALL: [Check; 8] = [
    ("NAT", nat),
    ("forward rules", forward_rules),
    ("own rules", own_rules),
    ("limits", limits),
    ("iptables", legacy_iptables),
    ("policy routing", policy_routing),
    ("bridges", bridges),
    ("flowtables", flowtables),
];

/// The names of the base chains of a kind.
fn names(host: &Host, is_wanted: impl Fn(&BaseChain) -> bool) -> String {
    let chains = host.firewall.chains.iter();
    let found = chains.filter(|chain| is_wanted(chain));
    let names: Vec<&str> = found.map(|chain| chain.name.as_str()).collect();
    names.join(", ")
}

fn nat(host: &Host, _: &Config) -> Vec<Verdict> {
    let of = |hook| names(host, |chain| chain.translates && chain.hook == hook);
    let (sources, destinations) = (of(Hook::Postrouting), of(Hook::Prerouting));
    let mut findings = Vec::new();
    if !sources.is_empty() {
        let what = format!(
            "sources are translated ({sources}): relays use the address that NAT gives their client"
        );
        findings.extend(ok(what));
    }
    if !destinations.is_empty() {
        let what = format!(
            "destinations are translated ({destinations}): connections with another destination are forwarded"
        );
        findings.extend(ok(what));
    }
    or_ok(findings, "no addresses are translated by nftables")
}

fn forward_rules(host: &Host, _: &Config) -> Vec<Verdict> {
    let drops = names(host, |chain| chain.hook == Hook::Forward && chain.drops);
    let what = match drops.as_str() {
        "" => "nftables forward what no rule forbids".into(),
        drops => {
            format!("{drops} drops what no rule accepts: what it does not let pass is not relayed")
        }
    };
    ok(what)
}

/// A relay's packets are this host's own: they pass its INPUT and OUTPUT rules.
fn own_rules(host: &Host, config: &Config) -> Vec<Verdict> {
    let ours = &config.transparent;
    let findings = host.firewall.chains.iter().filter_map(|chain| {
        let mark = match chain.hook {
            Hook::Input => ours.mark,
            Hook::Output => ours.socket_mark,
            _ => return None,
        };
        chain
            .drops_mark(mark)
            .then(|| in_the_way(host, chain, mark))
    });
    or_ok(
        findings.collect(),
        "nftables let relays' packets in and out",
    )
}

/// Reports a chain that drops packets of relays, which have this mark.
fn in_the_way(host: &Host, chain: &BaseChain, mark: u32) -> Verdict {
    let name = &chain.name;
    let what = if chain.hook == Hook::Input {
        "refuses what no rule accepts: connections of clients that may not connect to this host itself are forwarded \
         and not relayed"
    } else {
        "refuses what no rule accepts: connections with servers that this host itself may not connect to are \
         forwarded and not relayed"
    };
    // `insert` puts it before the rules that refuse. The & is escaped for the shell.
    let mut fix = format!("nft insert rule {name} meta mark \\& {mark:#x} == {mark:#x} accept");
    if !host.firewalls.is_empty() {
        let managers = host.firewalls.join(", ");
        fix += &format!(" # {managers}: in its configuration too, or a reload removes it");
    }
    verdict(super::Level::Warn, format!("{name} {what}"), fix)
}

/// Rules in FORWARD do not count relayed flows, so a node does not relay there.
fn limits(host: &Host, _: &Config) -> Vec<Verdict> {
    if host.firewall.limits.is_empty() {
        return ok("no nftables rule limits forwarded connections");
    }
    let what = format!(
        "rules that limit connections ({}) do not count relays: nothing is relayed that has to be observed",
        host.firewall.limits.join(", ")
    );
    let fix = "a rule with observe = false for destinations that may go past the limits";
    warn(what, fix)
}

fn legacy_iptables(host: &Host, _: &Config) -> Vec<Verdict> {
    if host.legacy_tables.is_empty() {
        return ok("legacy iptables has no tables here");
    }
    let what = format!(
        "legacy iptables has tables here ({}): the kernel does not report changes and limits of its rules; changes count after observe.ttl",
        host.legacy_tables.join(", ")
    );
    let fix = "write the rules by iptables-nft or nft, or choose a smaller observe.ttl";
    warn(what, fix)
}

fn policy_routing(host: &Host, config: &Config) -> Vec<Verdict> {
    let ours = |rule: &&crate::host::Rule| rule.is_ours() || rule.table == config.transparent.table;
    let rules = host.rules.iter().filter(|rule| !ours(rule));
    let mut choosing: Vec<String> = rules
        .filter(|rule| rule.by_source || rule.by_interface || rule.mask != 0)
        .map(|rule| format!("{} {}", rule.family.name(), rule.priority))
        .collect();
    // Several rules may have the same priority.
    choosing.dedup();
    let what = if choosing.is_empty() {
        "no rule routes by source, mark or interface; what is answered by another way is forwarded"
            .into()
    } else {
        format!(
            "rules route by source, mark or interface (priority {}): relays leave by the interface \
             that was observed, and what gets no answer so is forwarded",
            choosing.join(", ")
        )
    };
    ok(what)
}

fn bridges(host: &Host, config: &Config) -> Vec<Verdict> {
    let wanted = |name: &str| config.transparent.wants(name);
    let ports = host
        .interfaces
        .iter()
        .filter(|interface| interface.link.is_port() && wanted(&interface.link.name));
    let ports: Vec<&str> = ports
        .map(|interface| interface.link.name.as_str())
        .collect();
    let filtered = ["iptables", "ip6tables"]
        .iter()
        .any(|family| host.number(&format!("net/bridge/bridge-nf-call-{family}")) == Some(1));
    let what = match ports.as_slice() {
        [] => "no interface is the port of another".into(),
        ports => format!(
            "ports of bridges and bonds ({}): what is carried between them is left alone{}, what this host routes is relayed",
            ports.join(", "),
            if filtered {
                " and to the firewall (br_netfilter)"
            } else {
                ""
            }
        ),
    };
    ok(what)
}

/// On the device itself the tc programs get a packet before the flowtable does, and only
/// established connections that pass the forward chain enter one (`__netif_receive_skb_core`,
/// `nft_flow_offload_eval`). So handshakes are observed, and relays bypass it.
fn flowtables(host: &Host, _: &Config) -> Vec<Verdict> {
    let of = |hardware| {
        let all = host.flowtables.iter();
        let names = all.filter(|table| table.hardware == hardware);
        let names: Vec<&str> = names.map(|table| table.name.as_str()).collect();
        names.join(", ")
    };
    let mut findings = Vec::new();
    let (software, hardware) = (of(false), of(true));
    if !software.is_empty() {
        let what = format!(
            "{software} takes connections once they are established: handshakes are observed, relays do not use it"
        );
        findings.extend(ok(what));
    }
    if !hardware.is_empty() {
        let what = format!(
            "{hardware} has network cards carry connections: those that are relayed are carried by this host's CPUs"
        );
        let fix = "a larger observe.gain_min, or action = \"forward\" for what CPUs cannot carry";
        findings.extend(warn(what, fix));
    }
    or_ok(findings, "no connections are offloaded")
}
