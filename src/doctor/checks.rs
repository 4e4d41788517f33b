// SPDX-License-Identifier: Apache-2.0
//! The checks: each looks at one thing and says how it is.

use caps::Capability;

use super::host::{Host, Interface};
use super::{Finding, Level, others};
use crate::config::Config;
use crate::host::Framing;
use crate::privileges;

/// A pure function of the snapshot and the configuration.
pub(super) type Check = fn(&Host, &Config) -> Vec<Finding>;

/// The checks for every node, in the order they are shown.
pub(super) const ALL: [Check; 13] = [
    kernel,
    bpf,
    capabilities,
    node,
    open_files,
    pipes,
    accept_queue,
    congestion,
    buffers,
    timestamps,
    cookies,
    time_wait,
    others::settings,
];

/// Those for one that intercepts flows.
pub(super) const INTERCEPTION: [Check; 9] = [
    interfaces,
    forwarding_v4,
    forwarding_v6,
    reverse_path,
    marks,
    firewall,
    conntrack,
    early_demux,
    offloads,
];

/// Oldest kernel a node works on, and the first with TCX links.
const KERNEL_MIN: (u32, u32) = (6, 1);
const KERNEL_TCX: (u32, u32) = (6, 6);
/// What autotuning should reach: 100 ms at 300 Mbit/s.
const BUFFER_BYTES: u64 = 4 << 20;
/// Sockets that may wait to be accepted, per listener.
const ACCEPT_QUEUE: u64 = 4096;
/// Relays below which the limit of open files is worth a word.
const RELAYS_FEW: u64 = 16_384;
/// Sockets in TIME_WAIT the kernel should be able to keep.
const TIME_WAIT_MIN: u64 = 16_384;

pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Vec<Finding> {
    vec![finding(check, Level::Ok, what, "")]
}

pub(super) fn warn(
    check: &'static str,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Vec<Finding> {
    vec![finding(check, Level::Warn, what, remedy)]
}

pub(super) fn fail(
    check: &'static str,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Vec<Finding> {
    vec![finding(check, Level::Fail, what, remedy)]
}

pub(super) fn finding(
    check: &'static str,
    level: Level,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        check,
        level,
        what: what.into(),
        remedy: remedy.into(),
    }
}

/// `findings`, or one that all is well when there is none.
pub(super) fn or_ok(findings: Vec<Finding>, check: &'static str, what: &str) -> Vec<Finding> {
    if findings.is_empty() {
        ok(check, what)
    } else {
        findings
    }
}

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

fn kernel(host: &Host, _: &Config) -> Vec<Finding> {
    let (major, minor) = host.kernel;
    if host.kernel < KERNEL_MIN {
        let what = format!("Linux {major}.{minor} is older than 6.1");
        return fail(
            "kernel",
            what,
            "install a kernel of 6.1 or newer; 6.6 or newer is better",
        );
    }
    if host.kernel < KERNEL_TCX {
        let what = format!(
            "Linux {major}.{minor}: no TCX links, a killed node leaves tc filters that pass everything"
        );
        return warn(
            "kernel",
            what,
            "posthaste teardown removes them; Linux 6.6 or newer has none",
        );
    }
    ok("kernel", format!("Linux {major}.{minor}"))
}

fn bpf(host: &Host, _: &Config) -> Vec<Finding> {
    if host.setting("kernel/unprivileged_bpf_disabled").is_none() {
        return fail(
            "bpf",
            "the kernel has no bpf() system call",
            "use a kernel with CONFIG_BPF_SYSCALL",
        );
    }
    match host.number("net/core/bpf_jit_enable") {
        Some(0) => warn(
            "bpf",
            "the BPF compiler is off: every packet costs more",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        _ => ok("bpf", "BPF programs are compiled"),
    }
}

fn capabilities(host: &Host, _: &Config) -> Vec<Finding> {
    let includes = host.has(Capability::CAP_SYS_ADMIN);
    let split_off = [Capability::CAP_BPF, Capability::CAP_PERFMON];
    let lacking = privileges::NODE.iter().filter(|(capability, _)| {
        !(host.has(*capability) || includes && split_off.contains(capability))
    });
    let findings = lacking.map(|(capability, why)| {
        let what = format!("this process lacks {capability}, needed {why}");
        finding(
            "capabilities",
            Level::Fail,
            what,
            "run as root, or as the systemd unit does",
        )
    });
    or_ok(
        findings.collect(),
        "capabilities",
        "this process may do what a node does",
    )
}

fn interfaces(host: &Host, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in &config.transparent.interfaces {
        if !host
            .interfaces
            .iter()
            .any(|interface| interface.link.name == *name)
        {
            let what = format!("there is no interface {name}, which transparent.interfaces names");
            findings.extend(fail("interfaces", what, "ip link shows those there are"));
        }
    }
    for interface in wanted(host, config).filter(|interface| interface.link.up) {
        if let Framing::Other(kind) = interface.link.framing {
            let what = format!(
                "{}: frames of ARPHRD type {kind} cannot be intercepted",
                interface.link.name
            );
            findings.extend(warn(
                "interfaces",
                what,
                "its flows are forwarded; name the others in transparent.interfaces",
            ));
        }
    }
    let usable: Vec<&str> = wanted(host, config)
        .filter(|interface| {
            interface.link.up && !matches!(interface.link.framing, Framing::Other(_))
        })
        .map(|interface| interface.link.name.as_str())
        .collect();
    if usable.is_empty() && findings.is_empty() {
        return warn(
            "interfaces",
            "no interface is up to intercept on",
            "a node attaches to interfaces when they come",
        );
    }
    or_ok(findings, "interfaces", &usable.join(", "))
}

fn forwarding_v4(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "forwarding";
    if host.number("net/ipv4/ip_forward") != Some(1) {
        let what = "this host does not forward IPv4: there is nothing to relay";
        return fail(check, what, "sysctl -w net.ipv4.ip_forward=1");
    }
    let idle = wanted(host, config).filter(|interface| interface.link.up && !interface.forwards_v4);
    let findings = idle.map(|interface| {
        let name = &interface.link.name;
        let what = format!("{name}: does not forward IPv4");
        finding(
            check,
            Level::Warn,
            what,
            format!("sysctl -w net.ipv4.conf.{name}.forwarding=1"),
        )
    });
    or_ok(findings.collect(), check, "IPv4 is forwarded")
}

fn forwarding_v6(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "forwarding";
    if host.setting("net/ipv6/conf/lo/disable_ipv6") != Some("0") {
        return warn(
            check,
            "IPv6 is off on lo: no IPv6 flow is relayed",
            "sysctl -w net.ipv6.conf.lo.disable_ipv6=0",
        );
    }
    let mut all = wanted(host, config)
        .map(|interface| interface.forwards_v6)
        .peekable();
    if all.peek().is_none() || all.any(|forwards| forwards) {
        return ok(check, "IPv6 is forwarded");
    }
    let what = "this host does not forward IPv6: no IPv6 flow is relayed";
    warn(check, what, "sysctl -w net.ipv6.conf.all.forwarding=1")
}

/// Redirected packets are marked. With `src_valid_mark` the source of a packet
/// is validated by the rules for its mark, which say "local": with a filter on
/// everything is dropped, without one it takes `accept_local`.
fn reverse_path(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "reverse path";
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
        let filter = u64::from(interface.rp_filter).max(all("rp_filter"));
        if filter != 0 {
            let what = format!(
                "{name}: src_valid_mark with rp_filter={filter} drops every redirected packet"
            );
            let remedy = format!(
                "sysctl -w net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.{name}.src_valid_mark=0 (wg-quick sets it)"
            );
            findings.extend(fail(check, what, remedy));
        } else if !(interface.accept_local || all("accept_local") != 0) {
            let what = format!(
                "{name}: src_valid_mark without accept_local drops every redirected packet"
            );
            findings.extend(fail(
                check,
                what,
                format!("sysctl -w net.ipv4.conf.{name}.accept_local=1"),
            ));
        }
    }
    or_ok(
        findings,
        check,
        "source validation lets redirected packets in",
    )
}

fn marks(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "marks";
    let ours = &config.transparent;
    let mut findings = Vec::new();
    for rule in host.rules.iter().filter(|rule| !rule.is_ours()) {
        let bits = rule.mask & (ours.mark | ours.socket_mark);
        if bits != 0 {
            let what = format!(
                "an {} rule of somebody else (priority {}) uses the fwmark bits {bits:#x}",
                rule.family.name(),
                rule.priority
            );
            findings.extend(warn(
                check,
                what,
                "choose other bits for transparent.mark and transparent.socket_mark",
            ));
        }
        if rule.table == ours.table {
            let what = format!(
                "a rule of somebody else (priority {}) uses table {}",
                rule.priority, ours.table
            );
            findings.extend(warn(check, what, "choose another transparent.table"));
        }
    }
    if host.table_taken {
        let what = format!("routing table {} has routes that are not ours", ours.table);
        findings.extend(fail(check, what, "choose another transparent.table"));
    }
    or_ok(
        findings,
        check,
        "the fwmark bits and the routing table are free",
    )
}

fn node(host: &Host, config: &Config) -> Vec<Finding> {
    if host.node_runs {
        return ok(
            "node",
            format!(
                "a node runs here and answers at {}",
                config.admin_socket.display()
            ),
        );
    }
    if host.rules.iter().any(crate::host::Rule::is_ours) {
        let what =
            "our routing rule is there, but no node answers: one was killed, or setup was run";
        return warn(
            "node",
            what,
            "posthaste teardown, unless a node with another admin socket runs",
        );
    }
    ok("node", "no node runs, and none left anything behind")
}

/// Redirected packets are delivered locally: they pass INPUT, not FORWARD.
fn firewall(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "firewall";
    let mark = config.transparent.mark;
    let findings = host.firewalls.iter().map(|name| {
        let what = format!("{name} is active: relayed flows pass its INPUT rules and no longer its FORWARD rules");
        let remedy = format!("accept them there: nft insert rule inet filter input meta mark \\& {mark:#x} == {mark:#x} accept");
        finding(check, Level::Warn, what, remedy)
    });
    or_ok(
        findings.collect(),
        check,
        "no firewall manager found (firewalld, ufw, docker)",
    )
}

/// Both connections of a relay have one 4-tuple with different sequence
/// numbers; connection tracking calls their packets INVALID.
fn conntrack(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "conntrack";
    let tracks = host
        .number("net/netfilter/nf_conntrack_count")
        .is_some_and(|count| count > 0);
    if !tracks {
        return ok(check, "no connections are tracked");
    }
    if host.number("net/netfilter/nf_conntrack_tcp_be_liberal") == Some(1) {
        return ok(check, "connections are tracked, liberally");
    }
    let (mark, socket_mark) = (config.transparent.mark, config.transparent.socket_mark);
    let what = "connections are tracked: a rule that drops INVALID packets breaks relays";
    let remedy = format!(
        "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or notrack the marks {mark:#x} (prerouting) and \
         {socket_mark:#x} (output)"
    );
    warn(check, what, remedy)
}

fn open_files(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "open files";
    let room = host.files_max / 2;
    let wanted = u64::from(config.node.relays_max);
    let what = format!(
        "the limit of {} open files allows about {room} relays",
        host.files_max
    );
    if room < wanted.min(RELAYS_FEW) || room < RELAYS_FEW {
        return warn(
            check,
            what,
            "LimitNOFILE=1048576 in the systemd unit, or ulimit -n",
        );
    }
    ok(check, what)
}

/// Pipes are 1 MiB each; without CAP_SYS_RESOURCE a user's pipes share a limit.
fn pipes(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "pipes";
    let pages = host.number("fs/pipe-user-pages-soft").unwrap_or(0);
    if host.has(Capability::CAP_SYS_RESOURCE) || pages == 0 {
        return ok(check, "pipes may be as large as needed");
    }
    let what = format!(
        "without CAP_SYS_RESOURCE {pages} pages are shared by all pipes: bulk flows cost more CPU"
    );
    warn(
        check,
        what,
        "grant CAP_SYS_RESOURCE, or sysctl -w fs.pipe-user-pages-soft=0",
    )
}

fn accept_queue(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "accept queue";
    let length = host.number("net/core/somaxconn").unwrap_or(ACCEPT_QUEUE);
    if length < ACCEPT_QUEUE {
        let what = format!("at most {length} clients may wait to be accepted");
        return warn(
            check,
            what,
            format!("sysctl -w net.core.somaxconn={ACCEPT_QUEUE}"),
        );
    }
    ok(check, format!("{length} clients may wait to be accepted"))
}

fn congestion(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "congestion";
    let known = host
        .setting("net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    let known = |name: &str| {
        known.split_whitespace().any(|known| known == name)
            || host.congestion_modules.iter().any(|known| known == name)
    };
    let missing = asked_for(config).filter(|(_, name)| !known(name));
    let findings = missing.map(|(who, name)| {
        let what = format!("{who} asks for {name}, which this kernel lacks");
        let remedy = format!("modprobe tcp_{name}, or choose another");
        finding(check, Level::Fail, what, remedy)
    });
    let findings: Vec<Finding> = findings.collect();
    if findings.is_empty() && !known("bbr") {
        return warn(
            check,
            "no BBR: goodput suffers on paths with random loss",
            "use a kernel with CONFIG_TCP_CONG_BBR",
        );
    }
    or_ok(findings, check, "BBR is there")
}

/// The congestion controls that the configuration names, and where.
fn asked_for(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let rules = config.policy.rules.iter().flat_map(|rule| {
        let sides = [&rule.downstream, &rule.upstream];
        let names = sides
            .into_iter()
            .filter_map(|side| side.congestion.as_deref());
        names.map(|name| (format!("rule \"{}\"", rule.name), name))
    });
    let peers = config.policy.chains.peers.iter().filter_map(|peer| {
        let name = peer.socket.congestion.as_deref()?;
        Some((format!("peer \"{}\"", peer.name), name))
    });
    rules.chain(peers)
}

fn buffers(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "buffers";
    let mut findings = Vec::new();
    for key in ["tcp_rmem", "tcp_wmem"] {
        let setting = host.setting(&format!("net/ipv4/{key}")).unwrap_or_default();
        let most: u64 = setting
            .split_whitespace()
            .nth(2)
            .and_then(|most| most.parse().ok())
            .unwrap_or(BUFFER_BYTES);
        if most < BUFFER_BYTES {
            let what =
                format!("net.ipv4.{key} ends at {most} bytes: long fast hops cannot be filled");
            findings.extend(warn(
                check,
                what,
                format!(
                    "sysctl -w net.ipv4.{key}=\"4096 131072 {}\"",
                    BUFFER_BYTES * 4
                ),
            ));
        }
    }
    or_ok(findings, check, "socket buffers may grow enough")
}

/// An upstream connection keeps the client's port; when that port met the
/// server a moment ago, only timestamps let it connect again.
fn timestamps(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "timestamps";
    if host.number("net/ipv4/tcp_timestamps") == Some(0) {
        let what =
            "TCP timestamps are off: a client that reuses a port soon cannot keep it upstream";
        return warn(check, what, "sysctl -w net.ipv4.tcp_timestamps=1");
    }
    ok(check, "TCP timestamps are on")
}

fn cookies(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "SYN cookies";
    if host.number("net/ipv4/tcp_syncookies") == Some(0) {
        let what = "SYN cookies are off: a flood of SYNs keeps clients out";
        return warn(check, what, "sysctl -w net.ipv4.tcp_syncookies=1");
    }
    ok(check, "SYN cookies are on")
}

fn time_wait(host: &Host, _: &Config) -> Vec<Finding> {
    let check = "TIME_WAIT";
    let most = host
        .number("net/ipv4/tcp_max_tw_buckets")
        .unwrap_or(TIME_WAIT_MIN);
    if most < TIME_WAIT_MIN {
        let what = format!(
            "only {most} sockets may be in TIME_WAIT: late segments of old connections may be taken for new"
        );
        return warn(check, what, "sysctl -w net.ipv4.tcp_max_tw_buckets=262144");
    }
    ok(check, format!("{most} sockets may be in TIME_WAIT"))
}

/// Early demultiplexing is what makes leftover sockets swallow packets.
fn early_demux(host: &Host, _: &Config) -> Vec<Finding> {
    let what = if host.number("net/ipv4/tcp_early_demux") == Some(0) {
        "early demultiplexing is off: leftover sockets are harmless, local delivery costs a little more"
    } else {
        "early demultiplexing is on: the guard process and teardown destroy leftover sockets"
    };
    ok("early demux", what)
}

fn offloads(host: &Host, config: &Config) -> Vec<Finding> {
    let check = "offloads";
    let mut findings = Vec::new();
    for interface in wanted(host, config).filter(|interface| interface.link.up) {
        let name = &interface.link.name;
        if interface.gro == Some(false) {
            let what = format!(
                "{name}: generic receive offload is off: every segment costs as much as a large one"
            );
            findings.extend(warn(check, what, format!("ethtool -K {name} gro on")));
        }
        if interface.lro == Some(true) {
            let what = format!(
                "{name}: large receive offload is on, which spoils packets that are forwarded"
            );
            findings.extend(warn(check, what, format!("ethtool -K {name} lro off")));
        }
    }
    or_ok(findings, check, "receive offloads are as they should be")
}
