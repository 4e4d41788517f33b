// SPDX-License-Identifier: Apache-2.0
//! The checks for every node: each covers one subject and reports its state.

use caps::Capability;

use super::host::{Host, Presence};
use super::{Level, Verdict, listening, multipath, tunnels};
use posthaste_config::Config;
use posthaste_daemon::privileges;
use posthaste_relay::policy::OWN_CONGESTION;

/// The name of a check, and a pure function of the snapshot and the configuration.
pub(super) type Check = (&'static str, fn(&Host, &Config) -> Vec<Verdict>);

/// The checks for every node, in the order they are shown.
pub(super) const ALL: [Check; 16] = [
    ("configuration", configuration),
    ("kernel", kernel),
    ("bpf", bpf),
    ("capabilities", capabilities),
    ("node", node),
    ("listening", listening::listening),
    ("open files", open_files),
    ("pipes", pipes),
    ("accept queue", accept_queue),
    ("congestion", congestion),
    ("buffers", buffers),
    ("timestamps", timestamps),
    ("SYN cookies", cookies),
    ("TIME_WAIT", time_wait),
    ("multipath", multipath::multipath),
    ("tunnels", tunnels::tunnels),
];

/// Oldest supported kernel, and the first with TCX links.
const KERNEL_MIN: (u32, u32) = (6, 1);
pub(super) const KERNEL_TCX: (u32, u32) = (6, 6);
/// What autotuning should reach: 100 ms at 300 Mbit/s.
const BUFFER_BYTES: u64 = 4 << 20;
/// Length of the accept queue per listener.
const ACCEPT_QUEUE: u64 = 4096;
/// Fewer possible relays than this make the limit of open files worth a warning.
const RELAYS_FEW: u64 = 16_384;
/// Sockets in TIME_WAIT that the kernel should be able to keep.
const TIME_WAIT_MIN: u64 = 16_384;

pub(super) fn ok(what: impl Into<String>) -> Vec<Verdict> {
    vec![verdict(Level::Ok, what, "")]
}

pub(super) fn warn(what: impl Into<String>, fix: impl Into<String>) -> Vec<Verdict> {
    vec![verdict(Level::Warn, what, fix)]
}

pub(super) fn fail(what: impl Into<String>, fix: impl Into<String>) -> Vec<Verdict> {
    vec![verdict(Level::Fail, what, fix)]
}

pub(super) fn verdict(level: Level, what: impl Into<String>, fix: impl Into<String>) -> Verdict {
    Verdict {
        level,
        what: what.into(),
        fix: fix.into(),
    }
}

/// `findings`, or an OK if there are none.
pub(super) fn or_ok(findings: Vec<Verdict>, what: &str) -> Vec<Verdict> {
    if findings.is_empty() {
        ok(what)
    } else {
        findings
    }
}

fn kernel(host: &Host, _: &Config) -> Vec<Verdict> {
    let (major, minor) = host.kernel;
    if host.kernel < KERNEL_MIN {
        let what = format!("Linux {major}.{minor} is older than 6.1");
        return fail(
            what,
            "install a kernel of 6.1 or newer; 6.6 or newer is better",
        );
    }
    if host.kernel < KERNEL_TCX {
        let what = format!(
            "Linux {major}.{minor}: no TCX links, a killed node leaves tc filters that pass everything"
        );
        return warn(
            what,
            "posthaste teardown removes them; Linux 6.6 or newer has none",
        );
    }
    ok(format!("Linux {major}.{minor}"))
}

fn bpf(host: &Host, _: &Config) -> Vec<Verdict> {
    // Exists exactly where the kernel has CONFIG_BPF_SYSCALL.
    if host.setting("kernel/unprivileged_bpf_disabled").is_none() {
        return fail(
            "the kernel has no bpf() system call",
            "use a kernel with CONFIG_BPF_SYSCALL",
        );
    }
    match host.number("net/core/bpf_jit_enable") {
        Some(0) => warn(
            "the BPF compiler is off: every packet costs more",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        _ => ok("BPF programs are compiled"),
    }
}

fn capabilities(host: &Host, _: &Config) -> Vec<Verdict> {
    // CAP_BPF and CAP_PERFMON were split off from it in Linux 5.8, and it still includes them.
    let includes = host.has(Capability::CAP_SYS_ADMIN);
    let split_off = [Capability::CAP_BPF, Capability::CAP_PERFMON];
    let lacking = privileges::NODE.iter().filter(|(capability, _)| {
        !(host.has(*capability) || includes && split_off.contains(capability))
    });
    let findings = lacking.map(|(capability, why)| {
        let what = format!("this process lacks {capability}, needed {why}");
        verdict(
            Level::Fail,
            what,
            "run as root, or as the systemd unit does",
        )
    });
    // An upstream connection keeps the client's port, and bind(2) to a low one needs this.
    let ports = (!host.has(Capability::CAP_NET_BIND_SERVICE)).then(|| {
        verdict(
            Level::Warn,
            "without CAP_NET_BIND_SERVICE clients with ports below 1024 (NFS, rsh) are forwarded, not relayed",
            "grant CAP_NET_BIND_SERVICE, as the systemd unit does",
        )
    });
    or_ok(
        findings.chain(ports).collect(),
        "this process may do what a node does",
    )
}

/// The warnings of the `check` verb.
fn configuration(_: &Host, config: &Config) -> Vec<Verdict> {
    let warnings = config.warnings.iter();
    let findings = warnings.map(|warning| {
        let fix = "correct the configuration; posthaste check FILE shows what it means";
        verdict(Level::Warn, warning, fix)
    });
    or_ok(findings.collect(), "it is as it was probably meant")
}

fn node(host: &Host, config: &Config) -> Vec<Verdict> {
    let leftover = host.rules.iter().any(crate::host::Rule::is_ours);
    match &host.node {
        Presence::Answers(_) => {
            let socket = config.admin_socket.display();
            ok(format!("a node runs here and answers at {socket}"))
        }
        Presence::Unknown(why) => warn(
            format!("cannot determine whether a node runs here: {why}"),
            "run doctor as root, or as who may use the admin socket",
        ),
        Presence::None if leftover => warn(
            "our routing rule is there, but no node answers: one was killed, or setup was run",
            "posthaste teardown, unless a node with another admin socket runs",
        ),
        Presence::None => ok("no node runs, and none left anything behind"),
    }
}

fn open_files(host: &Host, _: &Config) -> Vec<Verdict> {
    // A relay has two sockets.
    let room = host.files_max / 2;
    let what = format!(
        "the limit of {} open files allows about {room} relays",
        host.files_max
    );
    if room < RELAYS_FEW {
        return warn(
            what,
            "LimitNOFILE=1048576 in the systemd unit, or ulimit -n",
        );
    }
    ok(what)
}

/// Pipes are 1 MiB each; without CAP_SYS_RESOURCE a user's pipes share a limit.
fn pipes(host: &Host, _: &Config) -> Vec<Verdict> {
    let pages = host.number("fs/pipe-user-pages-soft").unwrap_or(0);
    if host.pipes_unlimited || pages == 0 {
        return ok("pipes may be as large as needed");
    }
    let what = format!(
        "without CAP_SYS_RESOURCE {pages} pages are shared by all pipes: bulk flows cost more CPU"
    );
    warn(
        what,
        "grant CAP_SYS_RESOURCE, or sysctl -w fs.pipe-user-pages-soft=0",
    )
}

fn accept_queue(host: &Host, _: &Config) -> Vec<Verdict> {
    let length = host.number("net/core/somaxconn").unwrap_or(ACCEPT_QUEUE);
    // listen(2) caps its backlog at this setting without an error, and a full queue drops the
    // client's ACK.
    if length < ACCEPT_QUEUE {
        let what = format!("at most {length} clients may wait to be accepted");
        return warn(what, format!("sysctl -w net.core.somaxconn={ACCEPT_QUEUE}"));
    }
    ok(format!("{length} clients may wait to be accepted"))
}

fn congestion(host: &Host, config: &Config) -> Vec<Verdict> {
    let known = host
        .setting("net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    let known = |name: &str| {
        known.split_whitespace().any(|known| known == name)
            || host.congestion_modules.iter().any(|known| known == name)
            || name == OWN_CONGESTION
    };
    let missing = requested(config).filter(|(_, name)| !known(name));
    let findings = missing.map(|(who, name)| {
        let what = format!("{who} requires {name}, which this kernel lacks");
        let fix = format!("modprobe tcp_{name}, or choose another");
        verdict(Level::Fail, what, fix)
    });
    let mut findings: Vec<Verdict> = findings.collect();
    let wants_own = requested(config).any(|(_, name)| name == OWN_CONGESTION);
    if wants_own && let Some(reason) = &host.own_congestion_error {
        findings.extend(warn(
            format!("no congestion control \"posthaste\", hops use bbr: {reason}"),
            "use a kernel from 6.4 with CONFIG_DEBUG_INFO_BTF, and grant CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN",
        ));
    }
    // CUBIC, the default, takes random loss for congestion (RFC 9438).
    if findings.is_empty() && !known("bbr") {
        return warn(
            "no BBR: goodput suffers on paths with random loss",
            "use a kernel with CONFIG_TCP_CONG_BBR",
        );
    }
    or_ok(findings, "BBR is there")
}

/// The congestion controls in the configuration, and where they are set.
fn requested(config: &Config) -> impl Iterator<Item = (String, &str)> {
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

fn buffers(host: &Host, _: &Config) -> Vec<Verdict> {
    let mut findings = Vec::new();
    for key in ["tcp_rmem", "tcp_wmem"] {
        let setting = host.setting(&format!("net/ipv4/{key}")).unwrap_or_default();
        let most: u64 = setting
            .split_whitespace()
            // The third number bounds autotuning (tcp(7)).
            .nth(2)
            .and_then(|most| most.parse().ok())
            .unwrap_or(BUFFER_BYTES);
        if most < BUFFER_BYTES {
            let what =
                format!("net.ipv4.{key} ends at {most} bytes: long fast hops cannot be filled");
            findings.extend(warn(
                what,
                format!(
                    "sysctl -w net.ipv4.{key}=\"4096 131072 {}\"",
                    BUFFER_BYTES * 4
                ),
            ));
        }
    }
    or_ok(findings, "socket buffers may grow enough")
}

/// An upstream connection keeps the client's port; if that port was connected to the server a
/// moment ago, only timestamps allow reusing it.
fn timestamps(host: &Host, _: &Config) -> Vec<Verdict> {
    if host.number("net/ipv4/tcp_timestamps") == Some(0) {
        let what =
            "TCP timestamps are off: a client that reuses a port soon cannot keep it upstream";
        return warn(what, "sysctl -w net.ipv4.tcp_timestamps=1");
    }
    ok("TCP timestamps are on")
}

fn cookies(host: &Host, _: &Config) -> Vec<Verdict> {
    // With cookies a full SYN queue still admits clients; `check_cookie` finds their last ACK.
    if host.number("net/ipv4/tcp_syncookies") == Some(0) {
        let what = "SYN cookies are off: a flood of SYNs keeps clients out";
        return warn(what, "sysctl -w net.ipv4.tcp_syncookies=1");
    }
    ok("SYN cookies are on")
}

fn time_wait(host: &Host, _: &Config) -> Vec<Verdict> {
    let most = host
        .number("net/ipv4/tcp_max_tw_buckets")
        .unwrap_or(TIME_WAIT_MIN);
    // Beyond the limit the kernel closes such sockets at once (ip-sysctl).
    if most < TIME_WAIT_MIN {
        let what = format!(
            "only {most} sockets may be in TIME_WAIT: late segments of old connections may be taken for new"
        );
        return warn(what, "sysctl -w net.ipv4.tcp_max_tw_buckets=262144");
    }
    ok(format!("{most} sockets may be in TIME_WAIT"))
}
