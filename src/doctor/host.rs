// SPDX-License-Identifier: Apache-2.0
//! The input of the checks: a snapshot of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::libc::pid_t;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::Pid;

use super::listening::{self, Closed};
use super::offload;
use super::topology::{Cpus, Topology};
use super::tunnels;
use crate::client::status_of;
use crate::host::nftables::{self, Flowtable};
use crate::host::{self, Link, PATH_LIMITS, Rule, Setting};
use crate::reach::{Reached, reach};
use posthaste_bpf::{Congestion, find_bpf_file_system};
use posthaste_config::Config;

/// Settings to read, below `/proc/sys`.
const SETTINGS: [&str; 26] = [
    "fs/pipe-user-pages-soft",
    "kernel/unprivileged_bpf_disabled",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/core/bpf_jit_enable",
    "net/core/somaxconn",
    "net/ipv4/conf/all/accept_local",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/all/src_valid_mark",
    "net/ipv4/ip_forward",
    "net/ipv4/tcp_early_demux",
    "net/ipv4/tcp_fastopen",
    "net/ipv4/tcp_max_tw_buckets",
    "net/ipv4/tcp_mtu_probing",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_wmem",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/lo/disable_ipv6",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/ipv4/tcp_available_congestion_control",
    "net/mptcp/enabled",
    "net/mptcp/blackhole_timeout",
];

/// The properties of this host that the checks use.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    /// Major and minor version of the kernel.
    pub(super) kernel: (u32, u32),
    /// The capabilities of the process.
    pub(super) capabilities: BTreeSet<String>,
    /// Settings by [`Setting::path`]; those that do not exist are missing.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) interfaces: Vec<Interface>,
    /// Limit of open files of this process.
    pub(super) files_max: u64,
    /// Whether the node's pipes are not limited (CAP_SYS_RESOURCE).
    pub(super) pipes_unlimited: bool,
    /// Every routing rule.
    pub(super) rules: Vec<Rule>,
    /// Whether the node's routing table has routes of others.
    pub(super) table_taken: bool,
    /// Whether a node runs.
    pub(super) node: Presence,
    /// Addresses where it could not listen; not tried while a node runs.
    pub(super) closed: Vec<Closed>,
    /// Congestion control modules that could be loaded, besides the loaded ones.
    pub(super) congestion_modules: Vec<String>,
    /// Why the product's own congestion control cannot be registered.
    pub(super) own_congestion_error: Option<String>,
    /// Why there is no BPF file system for a node.
    pub(super) bpf_file_system_error: Option<String>,
    /// Why a running node does without the packet path.
    pub(super) packet_path_trouble: Option<String>,
    /// Firewall managers that are active: `firewalld`, `ufw`, `docker`.
    pub(super) firewalls: Vec<&'static str>,
    /// The nftables ruleset.
    pub(super) firewall: nftables::Rules,
    pub(super) flowtables: Vec<Flowtable>,
    /// Tables of legacy iptables, of both families.
    pub(super) legacy_tables: Vec<String>,
    /// CPUs, and on which of them packets arrive.
    pub(super) topology: Topology,
    /// Addresses from which connections of Multipath TCP open further paths, if the kernel reports them.
    pub(super) subflow_endpoints: Option<usize>,
    /// Peers with tunnels that did not answer over UDP.
    pub(super) silent_tunnels: Vec<SocketAddr>,
}

/// Whether a node listens at the admin socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Presence {
    #[default]
    None,
    /// By this process.
    Answers(pid_t),
    /// Unknown, with the reason.
    Unknown(String),
}

impl Presence {
    /// The process of a node that runs.
    fn process(&self) -> Option<pid_t> {
        match self {
            Self::Answers(pid) => Some(*pid),
            Self::None | Self::Unknown(_) => None,
        }
    }

    fn look(config: &Config) -> Self {
        match reach(&config.admin_socket) {
            Reached::Answered(stream) => {
                let peer = getsockopt(&stream, PeerCredentials);
                Self::Answers(peer.map_or(0, |peer| peer.pid()))
            }
            Reached::Nobody(_) => Self::None,
            Reached::Unknown(why) => Self::Unknown(why),
        }
    }
}

/// One interface and its settings.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) link: Link,
    pub(super) forwards_v4: bool,
    pub(super) forwards_v6: bool,
    pub(super) rp_filter: u32,
    pub(super) src_valid_mark: bool,
    pub(super) accept_local: bool,
    /// Generic and large receive offload; `None` when the driver does not report it.
    pub(super) gro: Option<bool>,
    pub(super) lro: Option<bool>,
}

/// The limit of open files of a running node, to which its unit has set it, or of one that this user would start. A
/// node raises its soft limit to the hard one.
fn files_max(node: &Presence) -> u64 {
    let own = || getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
    let limits = node
        .process()
        .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/limits")).ok());
    let limit = limits.as_deref().and_then(hard_limit_of_files);
    limit.unwrap_or_else(own)
}

/// The hard limit of open files in `/proc/PID/limits` (proc_pid_limits(5)).
fn hard_limit_of_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

impl Host {
    /// Reads the host and network namespace of this process. Values that cannot be read stay at
    /// their defaults.
    pub(super) fn read(config: &Config) -> Self {
        let node = Presence::look(config);
        let held = caps::read(None, CapSet::Effective).unwrap_or_default();
        let capability = |held: &Capability| held.to_string();
        let sysctls = SETTINGS.into_iter().map(Setting::Sysctl);
        let value = |setting: Setting<'_>| Some((setting.path(), setting.read().ok()?));
        // A running node has these addresses itself.
        let closed = match node {
            Presence::None => listening::look(config),
            _ => Vec::new(),
        };
        let status = node
            .process()
            .and_then(|_| status_of(&config.admin_socket).ok());
        let packet_path_trouble = status.and_then(|status| status.packet_path_trouble);
        Self {
            kernel: kernel(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()),
            capabilities: held.iter().map(capability).collect(),
            settings: sysctls.chain(PATH_LIMITS).filter_map(value).collect(),
            interfaces: host::links()
                .unwrap_or_default()
                .into_iter()
                .map(Interface::read)
                .collect(),
            files_max: files_max(&node),
            pipes_unlimited: caps::has_cap(
                node.process(),
                CapSet::Permitted,
                Capability::CAP_SYS_RESOURCE,
            )
            .unwrap_or(false),
            rules: host::rules().unwrap_or_default(),
            table_taken: host::table_in_use(config.transparent.table).unwrap_or_default(),
            node,
            closed,
            congestion_modules: (posthaste_config::Capacity::of_host().congestion)(),
            own_congestion_error: Congestion::register().err().map(|error| error.to_string()),
            packet_path_trouble,
            bpf_file_system_error: find_bpf_file_system().err().map(|error| error.to_string()),
            firewalls: firewalls(),
            firewall: nftables::rules().unwrap_or_default(),
            flowtables: nftables::flowtables().unwrap_or_default(),
            legacy_tables: legacy_tables(),
            topology: Topology::read(Path::new("/proc"), Path::new("/sys"), allowed()),
            subflow_endpoints: host::subflow_endpoints().ok().map(|all| all.len()),
            silent_tunnels: tunnels::look(config),
        }
    }

    /// A setting by its path below `/proc/sys`.
    pub(super) fn setting(&self, path: &str) -> Option<&str> {
        self.settings.get(path).map(String::as_str)
    }

    /// A setting that is a number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.setting(path)?.parse().ok()
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability.to_string())
    }
}

impl Interface {
    fn read(link: Link) -> Self {
        let of =
            |family: &str, key: &str| setting(&format!("net/{family}/conf/{}/{key}", link.name));
        let number = |key: &str| {
            of("ipv4", key)
                .and_then(|value| value.parse().ok())
                .unwrap_or(0_u32)
        };
        Self {
            forwards_v4: number("forwarding") != 0,
            forwards_v6: of("ipv6", "forwarding").is_some_and(|value| value != "0"),
            rp_filter: number("rp_filter"),
            src_valid_mark: number("src_valid_mark") != 0,
            accept_local: number("accept_local") != 0,
            gro: offload::gro(&link.name),
            lro: offload::lro(&link.name),
            link,
        }
    }
}

fn setting(path: &str) -> Option<String> {
    // Interface names may contain dots, so the path is never split at them.
    let value = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(value.trim().to_owned())
}

/// The CPUs that this process and its children may use.
fn allowed() -> Cpus {
    let mask = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let is_set = |cpu: &usize| mask.is_set(*cpu).unwrap_or(false);
    (0..CpuSet::count()).filter(is_set).collect()
}

/// `6.18.44-arch` is 6.18.
pub(super) fn kernel(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || parts.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

/// The legacy tables of this network namespace. Those of `iptables-nft` are nftables.
fn legacy_tables() -> Vec<String> {
    let read = |(command, file): (&str, &str)| {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let names = names.lines().map(|name| format!("{command} {name}"));
        names.collect::<Vec<_>>()
    };
    let families = [
        ("iptables", "ip_tables_names"),
        ("ip6tables", "ip6_tables_names"),
    ];
    families.into_iter().flat_map(read).collect()
}

fn firewalls() -> Vec<&'static str> {
    let ufw =
        fs::read_to_string("/etc/ufw/ufw.conf").is_ok_and(|conf| conf.contains("ENABLED=yes"));
    let signs = [
        ("firewalld", Path::new("/run/firewalld").exists()),
        ("ufw", ufw),
        (
            "docker",
            Path::new("/proc/sys/net/ipv4/conf/docker0").exists(),
        ),
    ];
    signs
        .into_iter()
        .filter(|(_, active)| *active)
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that the unit has started has the unit's limit, whatever that of the shell is in which doctor runs.
    #[test]
    fn limits_of_a_node_are_its_own() {
        let (_, own) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(files_max(&Presence::None), own);
        let this = i32::try_from(std::process::id()).unwrap();
        assert_eq!(files_max(&Presence::Answers(this)), own);
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             63418                63418                processes \n\
                      Max open files            1024                 1048576              files     \n";
        assert_eq!(hard_limit_of_files(limits), Some(1 << 20));
    }
}
